"""Rows that are scattered over too many partitions are refused before each has made a file."""

import json
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from icestream.batch.commit_batch import check_report
from icestream.batch.report import RecordStats, StagedChanges, TaskReport
from icestream.batch.table_batch import TableBatch
from icestream.errors import TooManyPartitions
from icestream.run.restart_policy import is_retryable
from icestream.tables.marker import Counts
from icestream.tables.metadata import Metadata
from icestream.write.partition import (
    MOST_PARTITIONS,
    PartitionLimitExceeded,
    most_partitions,
    partitions_refusal,
)
from icestream.write.stage import StagedFile, Stager, StageTarget

PROPERTY = "icestream.max-partitions-per-commit"
FIELDS = {"id": "long", "at": "timestamptz", "word": "string", "_src_offset": "long"}


def target(place, *transforms, **properties):
    """A table whose `at`, or the column before the colon, is partitioned so."""
    named = [text.partition(":")[::2] if ":" in text else ("at", text) for text in transforms]
    numbers = {name: number for number, name in enumerate(FIELDS, 1)}
    schema = {
        "type": "struct",
        "schema-id": 0,
        "fields": [
            {"id": numbers[name], "name": name, "required": False, "type": kind}
            for name, kind in FIELDS.items()
        ],
    }
    spec = [
        {
            "source-id": numbers[column],
            "field-id": 1000 + number,
            "name": f"{column}_{transform.partition('[')[0]}",
            "transform": transform,
        }
        for number, (column, transform) in enumerate(named)
    ]
    return StageTarget(
        schema_json=json.dumps(schema),
        spec_json=json.dumps({"spec-id": 0, "fields": spec}),
        sort_order_json=json.dumps({"order-id": 0, "fields": []}),
        data_location=str(place),
        file_prefix="p-00001-c",
        properties=properties,
    )


def rows(numbers, step=86_400_000_000):
    """A row for each number, so many µs apart; its offset is ten times the number."""
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(numbers, pa.int64()),
            "at": pa.array([n * step for n in numbers], pa.timestamp("us", "UTC")),
            "word": pa.array([f"w{n:06d}" for n in numbers], pa.large_string()),
            "_src_offset": pa.array([n * 10 for n in numbers], pa.int64()),
        }
    )


def staged(target, *batches, memory=128 << 20):
    stager = Stager(target, "attempt", memory)
    try:
        for batch in batches:
            stager.write(batch)
        return stager.finish()
    finally:
        stager.abort()


def test_the_bound_itself_is_fine_and_one_more_is_not(tmp_path):
    fine = staged(target(tmp_path / "fine", "day"), rows(range(MOST_PARTITIONS)))
    assert sum(file.records for file in fine) == MOST_PARTITIONS
    with pytest.raises(PartitionLimitExceeded) as told:
        staged(target(tmp_path / "over", "day"), rows(range(MOST_PARTITIONS + 1)))
    assert (told.value.count, told.value.most) == (MOST_PARTITIONS + 1, MOST_PARTITIONS)
    assert not (tmp_path / "over").exists()


def test_the_outermost_values_are_named_with_their_records(tmp_path):
    days = [n * 7 % 2003 for n in range(2003)]
    with pytest.raises(PartitionLimitExceeded) as told:
        staged(target(tmp_path, "day", "word:truncate[1]"), rows(days))
    assert told.value.where == (
        "from at_day=1970-01-01 (offset 0) to at_day=1975-06-26 (offset 20020)"
    )


def test_nulls_are_a_partition_but_no_example(tmp_path):
    batch = rows(range(1500))
    column = pa.array([None, *batch.column("at").to_pylist()[1:]], batch.column("at").type)
    with pytest.raises(
        PartitionLimitExceeded, match=r"from at_day=1970-01-02 .* to at_day=1974-02-08 "
    ):
        staged(target(tmp_path, "day"), batch.set_column(1, "at", column))


@pytest.mark.parametrize(
    "transform, first",
    [("word:identity", "word_identity=w000000"), ("id:identity", "id_identity=0")],
)
def test_partitions_of_other_kinds(tmp_path, transform, first):
    with pytest.raises(PartitionLimitExceeded, match=f"from {first} "):
        staged(target(tmp_path, transform), rows(range(1001)))


def test_runs_that_were_put_aside_count_together(tmp_path):
    batches = [rows(range(n, n + 300)) for n in range(0, 1200, 300)]
    with pytest.raises(PartitionLimitExceeded) as told:
        staged(target(tmp_path / "data", "day"), *batches, memory=10_000)
    assert told.value.count == 1200
    assert not (tmp_path / "data").exists()


def test_many_rows_of_few_days_are_none_of_its_business(tmp_path):
    files = staged(target(tmp_path, "day"), rows(range(50_000), step=10_000_000))
    assert sum(file.records for file in files) == 50_000
    assert len(files) == 6


def test_the_property_moves_the_bound(tmp_path):
    assert most_partitions({}) == 1000
    wide = target(tmp_path / "wide", "day", **{PROPERTY: "1500"})
    assert len(staged(wide, rows(range(1500)))) == 1500
    with pytest.raises(PartitionLimitExceeded):
        staged(target(tmp_path / "narrow", "day", **{PROPERTY: "10"}), rows(range(11)))


# ── the batch as a whole ────────────────────────────────────────────────────────────────────────


def checked(folder, files):
    """What is said to a batch with these files before its commit."""
    state = SimpleNamespace(metadata=Metadata({"properties": {PROPERTY: "3"}}))
    batch = TableBatch(SimpleNamespace(name="db.t"), None, state, None, None, "c", {})
    staged = StagedChanges(files=tuple(files))
    check_report(batch, TaskReport(Counts(len(files)), RecordStats(len(files)), staged))


def files(folder, *days):
    """A staged file in the folder of each day."""
    made = []
    for number, day in enumerate(days):
        path = folder / f"at_day={day}" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        made.append(StagedFile(str(path), 1, 1, "{}"))
    return made


def test_several_tasks_may_be_over_it_together(tmp_path):
    few = files(tmp_path, "a", "b", "c", "a", "b", "c")
    checked(tmp_path, few)
    assert all(Path(file.path).exists() for file in few)
    with pytest.raises(TooManyPartitions) as told:
        checked(tmp_path, [*few, *files(tmp_path, "d")])
    assert told.value.where == f"from {tmp_path}/at_day=a to {tmp_path}/at_day=d"
    assert not list(tmp_path.rglob("*.parquet"))


def test_the_error_is_final_and_says_what_to_do():
    made = partitions_refusal("db.t", 5000, 1000, "from a to b")
    assert isinstance(made, TooManyPartitions)
    assert made.exit_code == 1
    assert not is_retryable(made)
    assert "table `db.t`: a batch has rows for 5,000 partitions" in made.what
    for name in ("partition_by", "max_records_per_commit", PROPERTY):
        assert f"`{name}`" in made.hint
