"""A Python worker is killed in the middle of a task while driver and JVM live on (fault A)."""

import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import icestream
from commands import QUICK_JAVA, children_of, fill, rows, started

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RECORDS = 60_000
# Small row groups and files: a task that dies leaves finished files and a torn one behind.
CONFIG = """
name: p
maintenance: false
source: {{type: files, path: ./in, pattern: '*.jsonl'}}
commit_interval: once
tables:
  - name: shop.events
    properties:
      write.parquet.row-group-size-bytes: "1048576"
      write.target-file-size-bytes: "1048576"
spark:
  spark.master: {master}
  spark.driver.extraJavaOptions: "{java}"
"""


@pytest.mark.parametrize(
    "master, restarts",
    [("'local[2,3]'", 0), pytest.param("local[2]", 1, marks=pytest.mark.long)],
)
def test_a_killed_worker_costs_a_try_and_no_row(folder, master, restarts):
    (folder / "icestream.yml").write_text(CONFIG.format(master=master, java=QUICK_JAVA))
    fill(folder, "a.jsonl", RECORDS)
    with started(folder, "run", "--once", failpoints="mid-write:stop:1:1") as process:
        log: list[str] = []
        reading = threading.Thread(target=lambda: log.extend(process.stderr))
        reading.start()
        stopped = stopped_workers(process)
        os.kill(next(stopped), signal.SIGKILL)
        for worker in stopped:  # each process stops once, also those that take its place
            with suppress(ProcessLookupError):  # it was the one that we killed
                os.kill(worker, signal.SIGCONT)
        reading.join(240)
    assert process.returncode == 0, "".join(log)
    events = [json.loads(line) for line in log if line.startswith("{")]
    assert [each["event"] for each in events].count("run_restarting") == restarts
    assert Counter(rows(folder).column("id").to_pylist()) == Counter(range(RECORDS))
    table = icestream.table(folder / "icestream.yml", "shop.events")
    named = {task.file.file_path.removeprefix("file:") for task in table.scan().plan_files()}
    there = {str(path) for path in folder.rglob("events/data/**/*.parquet")}
    assert named < there  # the dead attempt's are there, and belong to no snapshot


def stopped_workers(process: subprocess.Popen) -> Iterator[int]:
    """Processes below the command that stand still, until it ends."""
    deadline = time.monotonic() + 240
    while process.poll() is None:
        assert time.monotonic() < deadline, "nobody stops, and nothing ends"
        yield from (each for each in below(process.pid) if state(each) == "T")
        time.sleep(0.02)


def below(pid: int) -> Iterator[int]:
    for child in children_of(pid):
        yield child
        yield from below(child)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
