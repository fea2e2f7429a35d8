"""Whatever dies or stands still, each record is in the table once (faults A and E)."""

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from commands import children_of, commits, fill, rows, started

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RECORDS = 60_000


def each_once(folder: Path, records: int = RECORDS) -> bool:
    found = Counter(rows(folder).column("id").to_pylist())
    return found == Counter(range(records))


def finish(folder: Path) -> None:
    """Run over what is left, undisturbed."""
    with started(folder, "run", "--once") as last:
        _, log = last.communicate(timeout=240)
    assert last.returncode == 0, log


@pytest.mark.parametrize(
    "arguments, committed",
    [
        pytest.param(["run", "--once"], 1, id="with batches to come"),
        pytest.param(["run"], 3, id="with nothing new"),  # no batch fails, so somebody must look
    ],
)
def test_a_dead_jvm_ends_the_run_with_75(folder, arguments, committed):
    fill(folder, "a.jsonl", RECORDS)
    with started(folder, *arguments) as process:
        commits(process, committed)
        [jvm] = [each for each in children_of(process.pid) if name_of(each) == "java"]
        os.kill(jvm, signal.SIGKILL)
        _, log = process.communicate(timeout=120)
    assert process.returncode == 75, log
    assert "Spark's Java process ended" in log
    finish(folder)
    assert each_once(folder)


def test_a_state_folder_that_is_deleted_under_a_run_is_named(folder):
    fill(folder, "a.jsonl", RECORDS)
    with started(folder, "run") as process:
        commits(process, 3)
        (folder / ".icestream").rename(folder / "deleted")  # at once: a run may be writing there
        shutil.rmtree(folder / "deleted")
        fill(folder, "b.jsonl", RECORDS, first=RECORDS)
        _, log = process.communicate(timeout=120)
    assert process.returncode == 75, log
    assert "the folder of Spark's files was deleted while it ran" in log
    finish(folder)
    assert each_once(folder, 2 * RECORDS)


@pytest.mark.parametrize(
    "place",
    [
        "marker-checked",
        pytest.param("claimed", marks=pytest.mark.long),
        pytest.param("batch-begins", marks=pytest.mark.long),
    ],
)
def test_a_zombie_is_fenced(folder, place):
    """Also where its batch fails for another reason first: a restart is no new claim."""
    fill(folder, "a.jsonl", 30_000)
    with started(folder, "run", failpoints=f"{place}:stop:1:1") as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WSTOPPED)
        finish(folder)
        assert each_once(folder, 30_000)
        fill(folder, "b.jsonl", 30_000, first=30_000)
        zombie.send_signal(signal.SIGCONT)
        _, log = zombie.communicate(timeout=120)
    assert zombie.returncode == 3, log
    finish(folder)
    assert each_once(folder)


def test_of_two_that_start_together_one_goes_on(folder):
    fill(folder, "a.jsonl", 300_000)
    with started(folder, "run", "--once") as first, started(folder, "run", "--once") as second:
        logs = [each.communicate(timeout=280)[1] for each in (first, second)]
    assert {first.returncode, second.returncode} == {0, 3}, logs
    assert each_once(folder, 300_000)


def test_a_zombie_leaves_the_scratch_of_its_successor_alone(folder):
    fill(folder, "a.jsonl", 30_000)
    with started(folder, "run", "--once", failpoints="claimed:stop:1:1") as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WSTOPPED)
        with started(folder, "run", "--once", failpoints="batch-begins:stop:1:1") as successor:
            os.waitid(os.P_PID, successor.pid, os.WSTOPPED)
            zombie.send_signal(signal.SIGCONT)
            _, log = zombie.communicate(timeout=120)
            assert zombie.returncode == 3, log
            successor.send_signal(signal.SIGCONT)
            _, log = successor.communicate(timeout=120)
    assert successor.returncode == 0, log
    assert "run_restarting" not in log
    assert each_once(folder, 30_000)


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
