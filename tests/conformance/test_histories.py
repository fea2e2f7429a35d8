"""Random histories of changes against a dict: whatever the cuts, restarts and compactions."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conformance.stand import Stand
from icestream.catalogs import catalog_for
from icestream.records import RECORDS
from icestream.verify import verify

pytestmark = pytest.mark.spark

REGIONS = ("north", "south", None)
CHANGE = st.fixed_dictionaries(
    {
        "id": st.integers(0, 9),
        "region": st.sampled_from(REGIONS),
        "value": st.integers(-5, 5) | st.none(),
        "op": st.sampled_from(["I", "U", "U", "U", "D"]),
        "at": st.integers(0, 30),
    }
)
BETWEEN = st.sampled_from(["", "", "", "restart", "lose index", "compact", "stranger"])
BATCH = st.lists(CHANGE, min_size=1, max_size=12)
HISTORY = st.lists(st.tuples(BATCH, BETWEEN), min_size=2, max_size=6)


def changed(key: int, op: str, value: int, at: int) -> dict[str, Any]:
    return {"id": key, "region": REGIONS[key % 3], "value": value, "op": op, "at": at}


# Each of what may come between two batches, and keys that are old, new, deleted or late after it.
EVERYTHING = [
    ([changed(key, "I", key % 3, 1) for key in range(6)], "restart"),
    ([changed(0, "U", 5, 2), changed(1, "D", 0, 3), changed(6, "I", 1, 2)], "compact"),
    ([changed(1, "U", 4, 2), changed(2, "U", 3, 4), changed(0, "U", 1, 5)], "lose index"),
    ([changed(1, "I", 2, 6), changed(3, "D", 0, 7), changed(7, "I", 1, 6)], "stranger"),
    ([changed(6, "U", 2, 3), changed(3, "U", 2, 6), changed(5, "U", 0, 8)], ""),
]


def apply(rows: dict[int, Any], seen: dict[int, int], changes: list[dict[str, Any]]) -> None:
    """The model: a change that is older than what was seen of its key is nothing."""
    for change in sorted(changes, key=lambda each: each["at"]):
        key = change["id"]
        if change["at"] < seen.get(key, -1):
            continue
        seen[key] = change["at"]
        if change["op"] == "D":
            rows.pop(key, None)
        else:
            rows[key] = (change["region"], change["value"])


def batch(changes: list[dict[str, Any]], first: int) -> pa.RecordBatch:
    rows = [
        {
            "topic": "t",
            "partition": 0,
            "offset": first + number,
            "timestamp": 0,
            "key": None,
            "value": json.dumps(change).encode(),
        }
        for number, change in enumerate(changes)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORDS)


def stand(spark: Any, folder: Path, **rule: Any) -> Stand:
    columns = {"id": "bigint", "region": "string", "value": "bigint", "op": "string", "at": "int"}
    table = {
        "name": "db.t",
        "mode": "upsert",
        "keys": ["id"],
        "sequence_by": ["at"],
        "apply_as_deletes": "op = 'D'",
        "columns": columns,
        **rule,
    }
    return Stand(spark, folder, ["t"], {"tables": [table]})


def found(one: Stand) -> dict[int, Any]:
    scan = catalog_for(one.config.catalog).open().load_table("db.t").scan()
    rows = scan.to_arrow().to_pylist()
    by_key = {row["id"]: (row["region"], row["value"]) for row in rows}
    assert len(by_key) == len(rows), "one row for each key"
    return by_key


@pytest.mark.parametrize(
    "layout", [{}, {"partition_by": ["region"]}, {"sort_by": ["value"]}], ids=str
)
@settings(
    max_examples=settings.default.max_examples // 33,  # and the one below
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(history=EVERYTHING)
@given(history=HISTORY)
def test_a_mirror_is_what_one_change_after_the_other_makes(spark, layout, history):
    folder = Path(tempfile.mkdtemp())
    rows: dict[int, Any] = {}
    seen: dict[int, int] = {}
    offset = 0
    try:
        one = stand(spark, folder, **layout)
        for changes, then in history:
            one.take(batch(changes, offset))
            offset += len(changes)
            apply(rows, seen, changes)
            if then == "restart":
                one.start()
            elif then == "lose index":
                shutil.rmtree(folder / "state")
                one.start()
            elif then == "compact":
                one.compact("db.t")
            elif then == "stranger":
                one.sql("DELETE FROM stand.db.t WHERE value = 1")
                for key in [key for key, row in rows.items() if row[1] == 1]:
                    del rows[key], seen[key]  # nobody tells us when that was
        assert found(one) == rows
        counted = one.sql("SELECT count(*), count(DISTINCT id) FROM stand.db.t")
        assert [tuple(row) for row in counted] == [(len(rows), len(rows))]
        assert verify(one.config, all_snapshots=True).violations == ()
    finally:
        shutil.rmtree(folder)


def test_a_batch_leaves_nothing_open(spark, tmp_path):
    """A stream makes one batch after the other for months; Java's connections end at 1,024."""
    one = stand(spark, tmp_path)

    def after(first: int, batches: int) -> int:
        for at in range(first, first + batches):
            row = {"id": at, "region": "north", "value": at, "op": "I", "at": at}
            one.take(batch([row], at))
        return len(list(Path("/proc/self/fd").iterdir()))

    before = after(0, 4)
    assert after(4, 10) - before < 5


def test_a_row_that_moves_to_another_partition_leaves_no_copy(spark, tmp_path):
    one = stand(spark, tmp_path, partition_by=["region"])
    first = [{"id": n, "region": "north", "value": n, "op": "I", "at": 1} for n in range(6)]
    one.take(batch(first, 0))
    moved = [{"id": n, "region": "south", "value": -n, "op": "U", "at": 2} for n in range(3)]
    one.take(batch(moved, 6))
    assert found(one) == {
        **{n: ("south", -n) for n in range(3)},
        **{n: ("north", n) for n in range(3, 6)},
    }


def test_soft_deletes_keep_the_row(spark, tmp_path):
    one = stand(spark, tmp_path, deletes="soft")
    one.take(batch([{"id": 1, "region": "north", "value": 5, "op": "I", "at": 1}], 0))
    gone = {"id": 1, "region": None, "value": None, "op": "D", "at": 2}
    unknown = {**gone, "id": 2}
    one.take(batch([gone, unknown], 1))
    scan = catalog_for(one.config.catalog).open().load_table("db.t").scan()
    kept = scan.to_arrow().select(["id", "region", "value", "_is_deleted"]).to_pylist()
    assert kept == [{"id": 1, "region": "north", "value": 5, "_is_deleted": True}]
    one.take(batch([{"id": 1, "region": "south", "value": 6, "op": "I", "at": 3}], 3))
    scan = catalog_for(one.config.catalog).open().load_table("db.t").scan()
    [again] = scan.to_arrow().select(["region", "_is_deleted"]).to_pylist()
    assert again == {"region": "south", "_is_deleted": False}


def test_a_record_without_its_key_is_set_aside(spark, tmp_path):
    one = stand(spark, tmp_path)
    good = {"id": 1, "region": "north", "value": 5, "op": "I", "at": 1}
    one.take(batch([good, {**good, "id": None}], 0))
    assert set(found(one)) == {1}
    aside = catalog_for(one.config.catalog).open().load_table("db.t__quarantine").scan()
    [row] = aside.to_arrow().to_pylist()
    assert (row["offset"], row["error"]) == (1, "key column `id` is null")
