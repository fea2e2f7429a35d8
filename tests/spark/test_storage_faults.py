"""Staged files that vanish, clocks that jump: the rows are right, or the run says why not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from icestream.batch import spark_job
from icestream.errors import GaveUp
from icestream.events import CommitRetried, RunRestarting, TableCommitted
from icestream.run import restart_policy

pytestmark = pytest.mark.spark

CONFIG = """
    name: p
    source: {type: files, path: ./in, max_records_per_commit: 10}
    tables:
      - {name: db.events, columns: {id: bigint}}
"""
AN_HOUR = 3_600_000  # ms


@pytest.fixture
def events(lake, monkeypatch):
    monkeypatch.setattr(restart_policy, "_FIRST_WAIT", 0.01)
    lake.configure(CONFIG)
    return lake


def put(lake, name, start, stop, bad=0):
    """Records with these ids, and bad ones among them."""
    lines = [{"id": n} for n in range(start, stop)]
    lake.put(name, *lines, *(f"{{bad {n}" for n in range(bad)))


# ── a staged file vanishes ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("table", ["events", "events__quarantine"])
@pytest.mark.parametrize(
    "harm", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])]
)
def test_what_vanishes_before_its_commit_is_staged_again(
    events, monkeypatch, table: str, harm: Callable[[Path], object]
):
    put(events, "a.jsonl", 0, 9, bad=1)
    events.run()
    put(events, "b.jsonl", 9, 18, bad=1)
    folder = events.folder / "warehouse" / "db" / table / "data"
    before, harmed = set(folder.rglob("*.parquet")), []

    def strike(point: str) -> None:
        new = set(folder.rglob("*.parquet")) - before
        if point == "files-staged" and new and not harmed:
            harmed.extend(new)
            harm(harmed[0])

    monkeypatch.setattr(spark_job, "failpoint", strike)
    seen = events.run()
    assert harmed
    [told] = [each for each in seen if isinstance(each, CommitRetried)]
    assert (told.table, told.outcome) == ("db.events", "restage")
    assert str(harmed[0]) in str(told.reason)
    assert not [each for each in seen if isinstance(each, RunRestarting)]
    assert events.values("db.events", "id") == sorted(((n,) for n in range(18)), key=repr)
    assert events.rows("db.events__quarantine").num_rows == 2
    named = {task.file.file_path for task in events.table(f"db.{table}").scan().plan_files()}
    assert str(harmed[0]) not in named


# ── the clock jumps ─────────────────────────────────────────────────────────────────────────────


def shift(lake, milliseconds: int) -> None:
    """Make the table's history so much younger: as if the clock had jumped back since."""
    file = Path(lake.table("db.events").metadata_location.removeprefix("file:"))
    document = json.loads(file.read_text())
    document["last-updated-ms"] += milliseconds
    for log in ("snapshots", "snapshot-log", "metadata-log"):
        for entry in document[log]:
            entry["timestamp-ms"] += milliseconds
    file.write_text(json.dumps(document))


def test_a_clock_that_jumps_ahead_is_like_a_pause(events):
    put(events, "a.jsonl", 0, 10)
    events.run()
    shift(events, -AN_HOUR)
    put(events, "b.jsonl", 10, 20)
    events.run()
    assert events.values("db.events", "id") == sorted(((n,) for n in range(20)), key=repr)


def test_a_clock_that_jumps_back_is_waited_for(events):
    put(events, "a.jsonl", 0, 10)
    events.run()
    shift(events, AN_HOUR)
    put(events, "b.jsonl", 10, 20)
    with pytest.raises(GaveUp, match=r"3,\d\d\d s ahead of this machine's clock") as told:
        events.run()
    assert "set the clock right" in str(told.value.hint)
    assert events.rows("db.events").num_rows == 10
    shift(events, -AN_HOUR)
    events.run()
    assert events.values("db.events", "id") == sorted(((n,) for n in range(20)), key=repr)


def test_a_clock_that_jumps_back_while_it_runs(events):
    put(events, "a.jsonl", 0, 20)
    back: list[int] = []

    def listen(event: object) -> None:
        if isinstance(event, TableCommitted) and not back:
            back.append(AN_HOUR)
            shift(events, AN_HOUR)
        elif isinstance(event, RunRestarting) and len(back) == 1:
            assert "ahead of this machine's clock" in event.error
            back.append(-AN_HOUR)
            shift(events, -AN_HOUR)

    events.run(listen)
    assert back == [AN_HOUR, -AN_HOUR]
    assert events.values("db.events", "id") == sorted(((n,) for n in range(20)), key=repr)
