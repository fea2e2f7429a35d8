"""The command as users run it: a process of its own, signals, kills, exit codes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import icestream

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COMMAND = [sys.executable, "-m", "icestream.cli.main"]
CONFIG = """
name: p
maintenance: false
source: {type: files, path: ./in, pattern: '*.jsonl', max_records_per_commit: 20000}
commit_interval: 1s
tables:
  - {name: shop.events}
spark: {spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "icestream.yml").write_text(CONFIG)
    return tmp_path


def fill(folder: Path, name: str, rows: int, bad_every: int = 0) -> None:
    text = "x" * 180
    lines = [
        f'{{"id": {n}, "text": "{text}"' + ("" if bad_every and n % bad_every == 0 else "}")
        for n in range(rows)
    ]
    (folder / "in" / name).write_text("\n".join(lines) + "\n")


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen]:
    with subprocess.Popen(
        [*COMMAND, "--log-format", "json", *arguments],
        cwd=folder,
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


def rows(folder: Path, name: str = "shop.events"):
    return icestream.table(folder / "icestream.yml", name).scan().to_arrow()


def test_kill_9_and_a_lost_state_folder_change_nothing(folder):
    fill(folder, "a.jsonl", 100_000, bad_every=1000)
    with started(folder, "run", "--once") as first:
        commits(first, 2)
        kill_9(first)
    taken = rows(folder).num_rows
    assert 0 < taken < 99_900
    shutil.rmtree(folder / ".icestream")
    with started(folder, "run", "--once") as again:
        _, log = again.communicate(timeout=240)
    assert again.returncode == 0, log
    found = rows(folder)
    assert found.num_rows == 99_900
    places = zip(
        found.column("_src_topic").to_pylist(), found.column("_src_offset").to_pylist(), strict=True
    )
    assert max(Counter(places).values()) == 1
    assert set(found.column("id").to_pylist()) == {n for n in range(100_000) if n % 1000}
    aside = rows(folder, "shop.events__quarantine")
    assert aside.num_rows == len(set(aside.column("offset").to_pylist())) == 100


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_at_a_commit_with_exit_0(folder, kind):
    fill(folder, "a.jsonl", 50_000)
    with started(folder, "run") as process:
        commits(process, 1)
        process.send_signal(kind)
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    assert '"run_stopped"' in log
    assert rows(folder).num_rows in (20_000, 40_000, 50_000)
    # Nothing of the run is left in the state folder but logs and history.
    assert not list((folder / ".icestream" / "p" / "runs").iterdir())


def test_the_jvm_ends_with_its_driver(folder):
    fill(folder, "a.jsonl", 10)
    with started(folder, "run") as process:
        commits(process, 1)
        kill_9(process)


def kill_9(process: subprocess.Popen) -> None:
    """Kill the driver alone; its JVM must notice and end, and writes its last files till then."""
    children = _children(process.pid)
    assert children
    os.kill(process.pid, signal.SIGKILL)
    wait_for_end(children)


def wait_for_end(children: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "the JVM outlived its driver"
        time.sleep(0.1)


def _children(pid: int) -> list[int]:
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


def test_the_demo_ends_by_itself_and_its_query_works_as_printed(tmp_path):
    ran = subprocess.run(
        [*COMMAND, "demo", "--seconds", "10"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    assert "records in = " in ran.stdout
    [query] = [line.strip() for line in ran.stdout.splitlines() if " -c " in line]
    shown = subprocess.run(["sh", "-c", query], cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "user_id" in shown.stdout
    assert len(shown.stdout.splitlines()) == 6
    status = subprocess.run(
        [*COMMAND, "status", "--json", "icestream-demo/icestream.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert status.returncode == 0, status.stderr
    tables = {each["table"]: each for each in json.loads(status.stdout)["tables"]}
    assert tables["shop.page_events"]["rows"] > 0
    assert tables["shop.page_events"]["quarantined"] > 0


def test_the_demo_with_kafka_holds_what_kafka_acknowledged(tmp_path):
    ran = subprocess.run(
        [*COMMAND, "demo", "--kafka", "--seconds", "15"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    [arrived] = re.findall(r"([\d,]+) records in = ", ran.stdout)
    [due] = re.findall(r"acknowledged by Kafka = ([\d,]+) up to ", ran.stdout)
    assert arrived == due != "0"
    assert "rdkafka" not in ran.stderr
    topics = set(rows(tmp_path / "icestream-demo", "shop.page_events")["_src_topic"].to_pylist())
    assert topics == {"page_events"}


def test_ctrl_c_ends_the_demo_with_kafka_and_all_that_it_started(tmp_path):
    with started(tmp_path, "demo", "--kafka", "--seconds", "600") as process:
        commits(process, 1)
        children = _children(process.pid)
        assert len(children) > 2, "the broker, its watchdog and Spark"
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    wait_for_end(children)
