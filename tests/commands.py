"""The command as users run it: a process of its own, to be watched, signalled and killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

import icestream
from icestream.failpoints import VARIABLE

COMMAND = [sys.executable, "-m", "icestream.cli.main"]
# Tests start many JVMs and keep none for long: the quick compiler and the simple collector win, and
# classes are not verified again each time.
QUICK_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
CONFIG = f"""
name: p
maintenance: false
source: {{type: files, path: ./in, pattern: '*.jsonl', max_records_per_commit: 20000}}
commit_interval: 1s
tables:
  - {{name: shop.events}}
spark: {{spark.driver.extraJavaOptions: "{QUICK_JAVA}"}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A pipeline file and its incoming folder."""
    (tmp_path / "in").mkdir()
    (tmp_path / "icestream.yml").write_text(CONFIG)
    return tmp_path


def fill(folder: Path, name: str, rows: int, bad_every: int = 0, first: int = 0) -> None:
    """A file of records with ids from `first` on; some of them are not whole."""
    text = "x" * 180
    lines = [
        f'{{"id": {n}, "text": "{text}"' + ("" if bad_every and n % bad_every == 0 else "}")
        for n in range(first, first + rows)
    ]
    (folder / "in" / name).write_text("\n".join(lines) + "\n")


@contextmanager
def started(folder: Path, *arguments: str, failpoints: str = "") -> Iterator[subprocess.Popen]:
    """The command, until the end of the block."""
    with subprocess.Popen(
        [*COMMAND, "--log-format", "json", *arguments],
        cwd=folder,
        env={**os.environ, VARIABLE: failpoints},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def commits(process: subprocess.Popen, wanted: int) -> list[dict]:
    """Read the log until so many commits went by."""
    seen = []
    for line in process.stderr:
        if line.startswith("{") and (event := json.loads(line))["event"] == "table_committed":
            seen.append(event)
            if len(seen) == wanted:
                return seen
    raise AssertionError(f"the run ended after {len(seen)} commits: {process.wait()}")


def rows(folder: Path, name: str = "shop.events") -> pa.Table:
    """Read by PyIceberg."""
    return icestream.table(folder / "icestream.yml", name).scan().to_arrow()


def kill_9(process: subprocess.Popen) -> None:
    """Kill the driver alone; its JVM must notice and end, and writes its last files till then."""
    children = children_of(process.pid)
    assert children
    os.kill(process.pid, signal.SIGKILL)
    wait_for_end(children)


def wait_for_end(children: list[int]) -> None:
    """Until none of these processes is left."""
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "the JVM outlived its driver"
        time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """The processes that it started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found
