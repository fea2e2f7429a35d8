"""Folding against a plain model: one key after the other, one change after the other."""

import json
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.batch.shuffle import pack, unpack
from icestream.formats import DELETE, IGNORE, TRUNCATE, UPSERT, RowChanges
from icestream.index.bucket import LookupResult
from icestream.index.sequences import SourceSequences
from icestream.upsert.changes import ChangeBatch, change_batch
from icestream.upsert.fold import apply_truncates, fold, sorted_by_key

ROW = pa.schema(
    [("id", pa.int64()), ("a", pa.string()), ("b", pa.string()), ("_src_sequence", pa.binary())]
)


@dataclass(frozen=True)
class Event:
    key: int
    op: int = UPSERT
    at: int | None = 0
    a: str | None = "a"
    b: str | None = "b"
    lacks: frozenset[str] = frozenset()
    old: int | None = None


def sequence(at):
    return None if at is None else at.to_bytes(8, "big")


def changes(events, first_offset=0):
    rows = pa.RecordBatch.from_pylist(
        [{"id": e.key, "a": e.a, "b": e.b, "_src_sequence": sequence(e.at)} for e in events], ROW
    )
    count = len(events)
    records = pa.RecordBatch.from_pydict(
        {
            "topic": ["t"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(first_offset, first_offset + count), pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "key": [b"k"] * count,
            "value": [b"v"] * count,
        }
    )
    missing = {name: pa.array([name in e.lacks for e in events]) for name in ("a", "b")}
    old = pa.RecordBatch.from_pydict({"id": pa.array([e.old for e in events], pa.int64())})
    op = pa.array([e.op for e in events], pa.int8())
    return change_batch(records, rows, RowChanges(op, rows.column(3), missing, old), ["id"])


def nothing(hashes):
    return table({}, {})(hashes)


def table(rows, deleted):
    """A lookup in a table that has these keys with these sequences."""
    where = {}
    for held, tomb in ((rows, False), (deleted, True)):
        for n, (key, at) in enumerate(held.items()):
            one = changes([Event(key)]).hashes[0]
            where[tuple(one.tolist())] = (tomb, n, at)

    def look_up(hashes):
        found = [where.get(tuple(each)) for each in hashes.tolist()]
        return LookupResult(
            np.array([f is not None and not f[0] for f in found], dtype=bool),
            np.array([f is not None and f[0] for f in found], dtype=bool),
            np.zeros(len(found), dtype=np.uint32),
            np.array([f[1] if f else 0 for f in found], dtype=np.uint32),
            SourceSequences.of(
                pa.array([sequence(f[2]) if f else None for f in found], pa.binary()), len(found)
            ),
        )

    return look_up


def folded(events, look_up=nothing):
    return fold(sorted_by_key(changes(events)), look_up, None)


def rows_of(result):
    kept = np.flatnonzero(result.upserts)
    return {row["id"]: (row["a"], row["b"]) for row in result.last.rows.take(kept).to_pylist()}


def test_the_last_change_of_a_key_counts_in_the_order_of_the_log():
    result = folded([Event(1, at=5, a="new"), Event(1, at=3, a="old"), Event(2, at=1)])
    assert rows_of(result) == {1: ("new", "b"), 2: ("a", "b")}


def test_at_one_place_in_the_log_the_later_offset_counts():
    assert rows_of(folded([Event(1, a="first"), Event(1, a="second")])) == {1: ("second", "b")}
    both = folded([Event(1, DELETE), Event(1, a="again")])
    assert rows_of(both) == {1: ("again", "b")}
    gone = folded([Event(1), Event(1, DELETE)])
    assert rows_of(gone) == {}
    assert gone.deleted.tolist() == [True]


def test_a_column_that_is_not_carried_comes_from_the_change_before():
    events = [Event(1, at=1, b="X"), Event(1, at=2, a="y", b=None, lacks=frozenset("b"))]
    assert rows_of(folded(events)) == {1: ("y", "X")}


def test_or_from_the_row_in_the_table():
    one = [Event(1, at=2, a="y", b=None, lacks=frozenset("b"))]
    result = folded(one, table({1: 1}, {}))
    [lack] = result.missing
    assert (lack.column, lack.rows.tolist()) == ("b", [0])
    assert not result.incomplete.any()
    assert folded(one).incomplete.tolist() == [True], "there is no row"
    assert folded(one, table({}, {1: 1})).incomplete.tolist() == [True], "it was deleted"


def test_a_delete_counts_though_a_change_after_it_comes_to_nothing():
    late = Event(1, at=3, b=None, lacks=frozenset("b"))
    result = folded([Event(1, DELETE, at=2), late], table({1: 1}, {}))
    assert result.incomplete.tolist() == [True], "its record is bad"
    assert result.old_row_deleted.tolist() == result.deleted.tolist() == [True]
    assert result.deletes.to_pylist() == [sequence(2)]
    assert folded([late], table({}, {1: 1})).deleted.tolist() == [False]


def test_what_is_strictly_older_than_the_table_loses():
    look_up = table({1: 5}, {2: 5})
    result = folded([Event(1, at=4), Event(2, at=4), Event(3, at=4)], look_up)
    assert rows_of(result) == {3: ("a", "b")}
    assert not result.old_row_deleted.any()
    assert set(rows_of(folded([Event(1, at=5), Event(2, at=5)], look_up))) == {1, 2}


def test_an_older_change_of_the_batch_fills_nothing_that_the_table_knows_better():
    events = [Event(1, at=4, b="stale"), Event(1, at=6, b=None, lacks=frozenset("b"))]
    result = folded(events, table({1: 5}, {}))
    assert [lack.column for lack in result.missing] == ["b"]


def test_a_truncate_takes_what_was_before_it():
    events = [Event(1, at=1), Event(0, TRUNCATE, at=3), Event(2, at=4), Event(3, at=2)]
    left, place = apply_truncates(changes(events))
    assert place.to_pylist() == [sequence(3)]
    assert left.rows.column("id").to_pylist() == [2]
    assert apply_truncates(changes([Event(1)]))[1] is None


def test_changes_travel_and_are_split_by_key():
    events = [Event(n, lacks=frozenset("b") if n % 3 else frozenset()) for n in range(50)]
    events.append(Event(50, IGNORE, old=7))
    whole = changes(events)
    parts = dict(whole.by_group(buckets=16, groups=4))
    assert set(parts) <= set(range(4))
    back = ChangeBatch.of([unpack(pack(part.batch())) for part in parts.values()])
    assert sorted(back.rows.column("id").to_pylist()) == list(range(51))
    assert back.missing.drop_null().unique().to_pylist() == [json.dumps(["b"])]
    assert back.record.null_count == back.missing.null_count
    assert back.old_hi.drop_null().to_pylist() == [int(whole.hashes[7, 0])]


EVENTS = st.lists(
    st.builds(
        Event,
        key=st.integers(0, 3),
        op=st.sampled_from([UPSERT, UPSERT, UPSERT, DELETE, IGNORE]),
        at=st.integers(0, 6),
        a=st.sampled_from(["p", "q", "r"]),
        b=st.sampled_from(["s", "t", None]),
        lacks=st.sampled_from([frozenset(), frozenset(), frozenset("a"), frozenset("ab")]),
    ),
    min_size=1,
    max_size=12,
)
HELD = st.dictionaries(st.integers(0, 3), st.integers(0, 6), max_size=3)


@pytest.mark.slow
@given(EVENTS, HELD, HELD)
def test_it_is_what_one_change_after_the_other_would_do(events, held, deleted):
    deleted = {key: at for key, at in deleted.items() if key not in held}
    result = folded(events, table(held, deleted))
    rows, gone, orphans = model(events, held, deleted)
    lacking = {
        (int(result.last.rows.column("id")[at].as_py()), lack.column)
        for lack in result.missing
        for at in lack.rows.tolist()
    }
    seen = {
        key: tuple(
            "?" if (key, name) in lacking else value for name, value in zip("ab", row, strict=True)
        )
        for key, row in rows_of(result).items()
    }
    ids = np.array(result.last.rows.column("id").to_pylist(), dtype=int)
    assert seen == rows
    assert set(ids[result.deleted].tolist()) == gone
    assert set(ids[result.incomplete].tolist()) == orphans


def model(events, held, deleted):
    rows, gone, orphans = {}, set(), set()
    for key in {event.key for event in events}:
        floor = held.get(key, deleted.get(key, -1))
        mine = [
            (e.at, n, e)
            for n, e in enumerate(events)
            if e.key == key and e.op != IGNORE and e.at >= floor
        ]
        state = {"a": "?", "b": "?"} if key in held else None
        deletes = False
        for _, _, event in sorted(mine, key=lambda each: each[:2]):
            if event.op == DELETE:
                state, deletes = "deleted", True
                continue
            known = state if isinstance(state, dict) else {}
            state = {
                name: known.get(name, "orphan") if name in event.lacks else getattr(event, name)
                for name in "ab"
            }
        if not mine:
            continue
        if state == "deleted":
            gone.add(key)
        elif "orphan" in state.values():
            orphans.add(key)
            if deletes:
                gone.add(key)
        else:
            rows[key] = (state["a"], state["b"])
    return rows, gone, orphans
