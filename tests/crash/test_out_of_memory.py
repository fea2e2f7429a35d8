"""A JVM without heap ends at once, and what is told of it names the setting (fault A)."""

import subprocess
import sys

import pytest

from commands import QUICK_JAVA

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CONFIG = f"""
name: p
source: {{type: generator}}
tables:
  - {{name: shop.events}}
spark:
  spark.driver.memory: 600m
  spark.driver.extraJavaOptions: "{QUICK_JAVA}"
"""
PROGRAM = """
import sys
from pathlib import Path

from icestream.config.load import load
from icestream.run.failures import unknown_failure
from icestream.spark import session

config = load(Path("icestream.yml")).pipeline
spark = session.start("p", Path(config.state_location), config.spark)
gateway = spark.sparkContext._gateway
try:
    gateway.new_array(gateway.jvm.long, 1 << 27)  # a gigabyte
except Exception as failure:
    told = unknown_failure(config, failure)
    print(type(told).__name__, told, told.where, sep="\\n")
    sys.exit(told.exit_code)
"""


def test_a_jvm_without_heap_is_told_as_such(tmp_path):
    (tmp_path / "icestream.yml").write_text(CONFIG)
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 75, done
    kind, told, log = done.stdout.splitlines()
    assert kind == "SparkEnded"
    assert told.endswith("out of memory (Java heap space), with `spark.driver.memory` at 600m")
    assert (tmp_path / log).exists()
