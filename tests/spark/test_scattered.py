"""Timestamps all over the calendar stop a pipeline instead of making thousands of files."""

from datetime import UTC, datetime, timedelta

import pytest

from icestream.errors import TooManyPartitions
from icestream.events import RunRestarting, TableCommitted

pytestmark = pytest.mark.spark

DAYS = 5_000
CONFIG = """
    name: p
    source: {type: files, path: ./in%s}
    tables:
      - {name: db.calm, match: 'calm.*'}
      - {name: db.events, columns: {at: timestamp}, partition_by: [days(at)]}
"""
BEGIN = datetime(1990, 1, 1, tzinfo=UTC)
MOMENTS = [BEGIN + timedelta(days=n * 7919 % DAYS) for n in range(DAYS)]


@pytest.fixture
def scattered(lake):
    lake.configure(CONFIG % "")
    lake.put("calm.jsonl", *({"id": n} for n in range(100)))
    lake.put("events.jsonl", *({"id": n, "at": at.isoformat()} for n, at in enumerate(MOMENTS)))
    return lake


def test_nothing_is_written_and_a_corrected_file_lands_all(scattered):
    with pytest.raises(TooManyPartitions) as told:
        scattered.run()
    assert "table `db.events`" in told.value.what
    assert "1,000" in told.value.what
    assert "at_day=19" in str(told.value.where)
    assert "topic events.jsonl, partition 0, offset " in str(told.value.where)
    assert not [event for event in scattered.events if isinstance(event, RunRestarting)]
    table = scattered.table("db.events")
    assert table.scan().to_arrow().num_rows == 0
    assert not list((scattered.folder / "warehouse").rglob("events/data/**/*.parquet"))
    marker = scattered.marker("db.events")
    assert marker["counts"]["landed"] == 0
    assert all(at == 0 for stream in marker["positions"].values() for at in stream.values())

    scattered.configure(CONFIG % ", max_records_per_commit: 900")
    scattered.run()
    commits = [e for e in scattered.events if isinstance(e, TableCommitted)]
    assert len([each for each in commits if each.table == "db.events"]) > 1
    assert sorted(scattered.rows("db.calm").column("id").to_pylist()) == list(range(100))
    landed = scattered.rows("db.events").select(["id", "at"])
    assert dict(zip(*landed.to_pydict().values(), strict=True)) == dict(enumerate(MOMENTS))
    assert landed.num_rows == DAYS
