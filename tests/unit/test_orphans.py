"""Orphans: what may be removed, by names and by the table as it was before it was listed."""

from datetime import timedelta

import pytest

from icestream.maintain.orphans import OrphanFile, removable
from icestream.tables.commits import summary
from icestream.tables.marker import Marker, property_name
from icestream.tables.metadata import Metadata

C = {name: name * 32 for name in "abcdef"}  # commit ids
PLACE = "/lake/shop/events"
DAY = 86400.0


def document(generation=3, commits="ab", pipeline="p"):
    """A table with these commits, the last one in its marker."""
    marker = Marker(pipeline, generation, "run", C[commits[-1]], None, 2, "uuid", 2)
    snapshots = [
        {
            "snapshot-id": number,
            "parent-snapshot-id": number - 1 if number > 1 else None,
            "summary": summary(
                Marker(pipeline, generation, "run", C[each], None, number, "uuid", number), {}, 0
            ),
        }
        for number, each in enumerate(commits, start=1)
    ]
    return {
        "table-uuid": "uuid",
        "current-schema-id": 0,
        "location": PLACE,
        "properties": {property_name(pipeline): marker.to_json()},
        "snapshots": snapshots,
        "current-snapshot-id": len(snapshots),
    }


def goes(name, age=0.0, older_than=0.0, table=None):
    path = f"file:{PLACE}/{name}"
    found = removable(
        [OrphanFile(path, age)], Metadata(table or document()), timedelta(seconds=older_than)
    )
    return bool(found)


@pytest.mark.parametrize(
    "name, gone",
    [
        # Staged by the run that owns the table: perhaps on its way, for as long as it likes.
        (f"data/p-00003-{C['c']}-x-00000.parquet", False),
        (f"data/day=2026-01-01/p-00003-{C['c']}-x-00000.parquet", False),
        # An attempt that its commit did not take.
        (f"data/p-00003-{C['a']}-x-00000.parquet", True),
        (f"data/p-00003-{C['b']}-x-00000.parquet", True),
        # By a run before: it is fenced, nothing of it lands any more.
        (f"data/p-00002-{C['c']}-x-00000.parquet", True),
        # By a run that claims the table next.
        (f"data/p-00004-{C['c']}-x-00000.parquet", False),
        # Deletes of a name without a generation.
        (f"data/p-{C['c']}-x-00000-deletes.parquet", False),
        (f"data/p-{C['a']}-x-00000-deletes.parquet", True),
        # Of a pipeline that the table does not know.
        (f"data/other-00001-{C['c']}-x-00000.parquet", False),
        # Not Iceberg's folders.
        (f"_icestream/p-00002-{C['c']}-x-00000.parquet", False),
        (f"data/_temporary/p-00002-{C['c']}-x.parquet", False),
        (f"data/_day=1/p-00002-{C['c']}-x-00000.parquet", True),  # a partition column
    ],
)
@pytest.mark.parametrize("age", [0.0, 1000 * DAY])
def test_our_names_decide_whatever_the_age(name, gone, age):
    assert goes(name, age) == gone


def test_age_is_needed_besides():
    name = f"data/p-00002-{C['c']}-x-00000.parquet"
    assert not goes(name, age=DAY, older_than=3 * DAY)
    assert goes(name, age=4 * DAY, older_than=3 * DAY)


@pytest.mark.parametrize(
    "name",
    [
        "data/00000-1-5d565191-c231-489c-928e-e13a2f077f20-00001.parquet",
        "metadata/b5ce6649-8aba-473a-bb15-97f0daa27f48-m5.avro",
        "metadata/00019-16f187f4-0a51-4425-8b38-2068bd31ae70.metadata.json",
        f"data/icestream-rewrite-{C['a']}-00000.parquet",
    ],
)
def test_names_that_say_nothing_are_kept_for_a_day_at_least(name):
    assert not goes(name, age=0.9 * DAY)
    assert goes(name, age=1.1 * DAY)
    assert not goes(name, age=1.1 * DAY, older_than=3 * DAY)


def test_pipelines_with_dashes_and_digits():
    table = document(pipeline="a-00001")
    assert goes(f"data/a-00001-00002-{C['c']}-x.parquet", table=table)
    assert not goes(f"data/a-00001-00003-{C['c']}-x.parquet", table=table)
    assert not goes(f"data/a-00001-{C['c']}-x-deletes.parquet", table=table)


def test_a_commit_that_is_no_longer_in_the_snapshots_is_in_doubt():
    table = document(commits="ab")
    table["snapshots"] = table["snapshots"][1:]
    assert not goes(f"data/p-00003-{C['a']}-x-00000.parquet", table=table)
    assert goes(f"data/p-00003-{C['b']}-x-00000.parquet", table=table)
