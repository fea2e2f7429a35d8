"""What is right of a session before anybody streams on it."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from pathlib import Path
from icestream.spark import session

class Task:
    def call(self):
        return "called"

    class Java:
        implements = ["java.util.concurrent.Callable"]

spark = session.start("p", Path(sys.argv[1]), {"spark.master": "local[1]"})
ours = spark.sparkContext._gateway._gateway_client.gateway_property.pool
before = len(ours)
task = spark._jvm.java.util.concurrent.FutureTask(Task())
task.run()
print(task.get(), len(ours) - before)
del task
until = time.monotonic() + 60
while len(ours) > before and time.monotonic() < until:
    spark._jvm.System.gc()
    time.sleep(0.05)
print(len(ours) - before)
spark.stop()
"""


@pytest.mark.spark
def test_what_java_no_longer_holds_is_let_go_here(tmp_path: Path) -> None:
    """Else Java would send its secret to whoever listens at py4j's usual port, for each commit."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=280
    )
    assert done.stdout.splitlines() == ["called 1", "0"], done.stderr
