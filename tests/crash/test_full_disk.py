"""A disk that is full or read-only: no half commit, a plain word, and on it goes afterwards."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import commands
from commands import COMMAND, QUICK_JAVA, commits, started

pytestmark = [pytest.mark.integration, pytest.mark.slow]

CONFIG = """
name: p
maintenance: false
catalog: {{type: local, warehouse: {warehouse}}}
state_location: {state}
source: {{type: files, path: ./in, pattern: '*.jsonl', max_records_per_commit: 20000}}
commit_interval: 1s
tables:
  - {{name: shop.events}}
spark: {{spark.driver.extraJavaOptions: "{java}"}}
"""
SIZE = 24 << 20
READ = """
import icestream, json
rows = icestream.table("icestream.yml", "shop.events").scan().to_arrow()
print(json.dumps(rows["id"].to_pylist()))
"""


@dataclass
class SmallDisk:
    """A file system in memory at `folder/small`, seen by processes that are started inside."""

    folder: Path
    inside: list[str]  # before a command
    seen_from_here: Path

    def configure(self, warehouse: str = "./warehouse", state: str = "./.icestream") -> None:
        text = CONFIG.format(warehouse=warehouse, state=state, java=QUICK_JAVA)
        (self.folder / "icestream.yml").write_text(text)

    def fill(self, leave: int) -> None:
        """Leave so many bytes free; a run that writes meanwhile may take the last of the room."""
        facts = os.statvfs(self.seen_from_here)
        ballast = self.seen_from_here / "ballast"
        with ballast.open("wb", buffering=0) as out, suppress(OSError):
            out.write(bytes(facts.f_bavail * facts.f_bsize - leave))

    def free(self) -> None:
        (self.seen_from_here / "ballast").unlink()

    def lock(self, folder: str) -> None:
        """Make a folder read-only, though the disk has files that are open for writing."""
        self._mount("--bind", folder, folder)
        self._mount("-o", "remount,bind,ro", folder)

    def unlock(self, folder: str) -> None:
        subprocess.run([*self.inside, "umount", folder], check=True)

    def lock_all(self) -> None:
        self._mount("-o", "remount,ro", "small")

    def _mount(self, *arguments: str) -> None:
        subprocess.run([*self.inside, "mount", *arguments], check=True)

    def ids(self) -> Counter[int]:
        read = subprocess.run([*self.inside, sys.executable, "-c", READ], stdout=-1, check=True)
        return Counter(json.loads(read.stdout))


@pytest.fixture
def disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallDisk]:
    """Needs no root, but a kernel that lets users have mounts of their own."""
    (folder / "small").mkdir()
    script = 'mount -t tmpfs -o size="$1" tmpfs "$0/small" && echo mounted && exec cat'
    with subprocess.Popen(
        ["unshare", "-Urm", "sh", "-c", script, str(folder), str(SIZE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout
        if holder.stdout.readline() != "mounted\n":
            pytest.skip("no file system of our own can be mounted here")
        enter = ["nsenter", "-t", str(holder.pid), "-U", "-m", "--preserve-credentials"]
        inside = [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(folder)]
        monkeypatch.setattr(commands, "COMMAND", [*inside, *COMMAND])
        yield SmallDisk(folder, inside, Path(f"/proc/{holder.pid}/root{folder}/small"))


def put(folder: Path, name: str, start: int, stop: int) -> None:
    """Records that cannot be packed much."""
    noise = random.Random(start)
    lines = [f'{{"id": {n}, "text": "{noise.randbytes(100).hex()}"}}\n' for n in range(start, stop)]
    (folder / "in" / name).write_text("".join(lines))


def until(process: subprocess.Popen, *kinds: str) -> dict:
    """Read the log up to an event of one of these kinds."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("{") and (event := json.loads(line))["event"] in kinds:
            return event
    raise AssertionError("".join(lines))


def test_a_warehouse_that_is_full_for_a_while(disk):
    disk.configure(warehouse="./small/warehouse")
    disk.fill(leave=1 << 20)
    put(disk.folder, "a.jsonl", 0, 40_000)
    with started(disk.folder, "run", "--once") as process:
        told = until(process, "run_restarting")
        assert "No space left on device" in told["error"]
        assert not list(disk.seen_from_here.rglob("*.parquet"))
        disk.free()
        _, log = process.communicate(timeout=240)
    assert process.returncode == 0, log
    assert disk.ids() == Counter(range(40_000))


def test_a_warehouse_that_is_read_only_for_a_while(disk):
    disk.configure(warehouse="./small/warehouse")
    data = "small/warehouse/shop/events/data"
    put(disk.folder, "a.jsonl", 0, 1000)
    with started(disk.folder, "run") as process:
        commits(process, 1)
        disk.lock(data)
        put(disk.folder, "b.jsonl", 1000, 2000)
        told = until(process, "run_restarting")
        assert "Read-only file system" in told["error"]
        disk.unlock(data)
        commits(process, 1)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=240)
    assert process.returncode == 0, log
    assert disk.ids() == Counter(range(2000))


def test_a_warehouse_that_is_read_only_at_the_start_is_named(disk):
    disk.configure(warehouse="./small/warehouse")
    disk.lock_all()
    with started(disk.folder, "run", "--once") as process:
        _, log = process.communicate(timeout=240)
    assert process.returncode == 1, log
    assert "warehouse folder" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("read_only", [False, True])
def test_a_state_folder_that_takes_nothing_at_the_start_is_named(disk, read_only):
    disk.configure(state="./small/state")
    put(disk.folder, "a.jsonl", 0, 1000)
    (disk.seen_from_here / "state").mkdir()
    if read_only:
        disk.lock("small/state")
    else:
        disk.fill(leave=0)
    with started(disk.folder, "run", "--once") as process:
        _, log = process.communicate(timeout=240)
    assert process.returncode == (1 if read_only else 75), log
    assert "small/state" in log
    assert "Traceback" not in log


def test_a_state_folder_that_is_full_for_a_while(disk):
    disk.configure(state="./small/state")
    put(disk.folder, "a.jsonl", 0, 1000)
    with started(disk.folder, "run") as process:
        commits(process, 1)
        disk.fill(leave=0)
        put(disk.folder, "b.jsonl", 1000, 41_000)
        left, told = 40_000, until(process, "table_committed", "run_restarting")
        while told["event"] == "table_committed":  # of what was written until the disk was full
            left -= told["landed"]
            told = until(process, "table_committed", "run_restarting")
        assert "No space left on device" in told["error"]
        disk.free()
        while left > 0:
            left -= commits(process, 1)[0]["landed"]
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=240)
    assert process.returncode == 0, log
    assert disk.ids() == Counter(range(41_000))
