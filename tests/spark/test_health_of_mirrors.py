"""Deleted rows of a real mirror as its health counts them, against what readers find."""

import json
import random
from collections import Counter

import duckdb
import pyarrow as pa
import pytest

from conformance.stand import Stand
from icestream.catalogs import catalog_for
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.maintain.health import HealthReader
from icestream.records import RECORDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TABLE = "shop.orders"
RULE = {
    "name": TABLE,
    "mode": "upsert",
    "keys": ["id"],
    "sequence_by": ["at"],
    "apply_as_deletes": "op = 'D'",
    "columns": {"id": "bigint", "region": "string", "op": "string", "at": "bigint"},
    "partition_by": ["region"],
}
BATCHES, CHANGES, IDS = 6, 300, 400


def changes(numbers: range, chance: random.Random) -> pa.RecordBatch:
    """Any order may change, move to another region, or go; one change in five is a delete."""
    rows = [
        {
            "id": chance.randrange(IDS),
            "region": chance.choice(["north", "south", "west"]),
            "op": chance.choice("UUUUD"),
            "at": number,
        }
        for number in numbers
    ]
    facts = [
        {"topic": "t", "partition": 0, "offset": row["at"], "value": json.dumps(row).encode()}
        for row in rows
    ]
    return pa.RecordBatch.from_pylist(facts, schema=RECORDS)


def test_deleted_rows_are_those_that_readers_leave_out(spark, tmp_path):
    stand = Stand(spark, tmp_path, ["t"], {"tables": [RULE]})
    chance = random.Random(7)
    for low in range(0, BATCHES * CHANGES, CHANGES):
        stand.take(changes(range(low, low + CHANGES), chance))
    catalog = catalog_for(stand.config.catalog).open()
    table = catalog.load_table(TABLE)
    found = HealthReader(MaintenanceOptions()).read(TABLE, table)
    tasks = list(table.scan().plan_files())
    written = {task.file.file_path: task.file.record_count for task in tasks}
    dead = deleted(tasks)
    # Many, of several files and partitions, or the test says nothing.
    assert found.deleted_rows > 300
    assert len(dead) > 5
    assert found.partitions > 1
    assert found.delete_files == len({each.file_path for t in tasks for each in t.delete_files})
    by_file = zip(found.contents.data.paths.to_pylist(), found.contents.data.deleted, strict=True)
    assert {path: int(count) for path, count in by_file} == {path: dead[path] for path in written}
    assert found.records == sum(written.values())
    assert found.deleted_rows == found.records - table.scan().to_arrow().num_rows
    [(live,)] = stand.sql(f"SELECT count(*) FROM stand.{TABLE}")
    assert found.deleted_rows == found.records - live
    assert found.worst_deleted == max(dead[path] / written[path] for path in written)
    catalog.close()


def deleted(tasks) -> Counter:
    """Positions that die in each data file, once each, as DuckDB reads them in the delete files."""
    paths = {each.file_path for task in tasks for each in task.delete_files}
    query = "SELECT file_path, count(DISTINCT pos) FROM read_parquet(?) GROUP BY 1"
    with duckdb.connect() as connection:
        local = [path.removeprefix("file:") for path in sorted(paths)]
        return Counter(dict(connection.execute(query, [local]).fetchall()))
