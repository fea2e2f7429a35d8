"""The index goes along with a rewrite of data files: nothing is read, nothing is shadowed."""

import numpy as np
import pyarrow as pa
import pytest

from icestream.errors import IndexDamaged
from icestream.index.entries import concat_entries, row_entries, tombstone_entries
from icestream.index.key_index import create_index
from icestream.index.keys import bucket_of, key_hashes
from icestream.index.rewrite_update import (
    IndexStaging,
    RewriteIndexUpdate,
    drop_rows,
    remove_runs,
    stage_runs,
)

BUCKETS = 4


def hashed(*keys):
    return key_hashes([pa.array(keys, pa.int64())])


def sequences(*numbers):
    return pa.array([number.to_bytes(8) for number in numbers], pa.binary())


class Table:
    """A store, and what is known of its rows: key → file and position."""

    def __init__(self, folder):
        self.store = create_index(folder, "uuid", {"id": 1}, BUCKETS)
        self.store.publish_state({}, {}, [], 1, 1, None)
        self.shelf = IndexStaging(str(folder), "uuid", BUCKETS, (1,))
        self.snapshot = 1

    def commit(self, entries, paths):
        """As a batch does."""
        self.snapshot += 1
        commit_id, names = f"c{self.snapshot}", []
        places = bucket_of(entries.hash_hi.reshape(-1, 1), BUCKETS)
        for bucket in np.unique(places).tolist():
            some = entries.take(np.flatnonzero(places == bucket))
            names.append(self.store.reader.stage(bucket, commit_id, some, paths))
        self.store.prepare(commit_id, names)
        self.store.confirm(commit_id, self.snapshot, self.snapshot)

    def upsert(self, path, *keys):
        found = row_entries(
            hashed(*keys), 0, np.arange(len(keys)), sequences(*[self.snapshot] * len(keys))
        )
        self.commit(found, [path])

    def delete(self, *keys):
        self.commit(
            tombstone_entries(hashed(*keys), sequences(*[self.snapshot] * len(keys)), 0), []
        )

    def move(self, runs, removed, added):
        self.snapshot += 1
        move = RewriteIndexUpdate("r", "origin", tuple(runs), tuple(removed), tuple(added))
        self.store.apply_rewrite(move, self.snapshot, self.snapshot)

    def where(self, *keys):
        found = {}
        for key in keys:
            (bucket,) = bucket_of(hashed(key), BUCKETS).tolist()
            told = self.store.reader.lookup(bucket, hashed(key))
            if told.hit[0]:
                path = self.store.reader.path(int(told.file[0]))
                found[key] = (path, int(told.position[0]))
            elif told.tombstone[0]:
                found[key] = "deleted"
        return found


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path / "i")


def staged(table, keys, paths, each):
    """Entries of rows that were written anew, `each` to a file."""
    at = np.arange(len(keys))
    told = row_entries(hashed(*keys), at // each, at % each, sequences(*[1] * len(keys)))
    return stage_runs(table.shelf, "origin", told, paths)


def test_rows_are_found_in_the_new_files(table):
    table.upsert("a", 1, 2, 3)
    table.upsert("b", 4, 5)
    table.upsert("c", 6)
    runs = staged(table, [1, 2, 3, 4, 5], ["x", "y"], 3)
    assert table.where(1, 4, 6) == {1: ("a", 0), 4: ("b", 0), 6: ("c", 0)}
    table.move(runs, ["a", "b"], ["x", "y"])
    expected = {1: ("x", 0), 2: ("x", 1), 3: ("x", 2), 4: ("y", 0), 5: ("y", 1), 6: ("c", 0)}
    assert table.where(*range(9)) == expected
    assert sorted(table.store.files.by_path) == ["c", "x", "y"]
    assert table.store.manifest.snapshot_id == table.snapshot
    table.upsert("d", 2)
    table.store.merge()
    assert table.where(*range(9)) == {**expected, 2: ("d", 0)}


def test_what_changed_meanwhile_stays_changed(table):
    table.upsert("a", 1, 2, 3, 4)
    runs = staged(table, [1, 2, 3, 4], ["x"], 4)
    table.upsert("b", 2)
    table.delete(3)
    table.store.merge()
    left = drop_rows(table.shelf, runs, {"x": 4}, {"x": np.array([1, 2])})
    table.move(left, ["a"], ["x"])
    assert table.where(1, 2, 3, 4) == {1: ("x", 0), 2: ("b", 0), 3: "deleted", 4: ("x", 3)}
    remove_runs(table.shelf, sorted(set(runs) - set(left)))
    assert table.where(1, 2, 3, 4) == {1: ("x", 0), 2: ("b", 0), 3: "deleted", 4: ("x", 3)}


def test_nothing_is_written_where_nothing_died(table):
    table.upsert("a", *range(20))
    runs = staged(table, list(range(20)), ["x", "y"], 10)
    assert drop_rows(table.shelf, runs, {"x": 10, "y": 10}, {}) == runs
    (bucket,) = bucket_of(hashed(7), BUCKETS).tolist()
    left = drop_rows(table.shelf, runs, {"x": 10, "y": 10}, {"x": np.array([7])})
    assert [a == b for a, b in zip(runs, left, strict=True)].count(False) == 1
    assert left[bucket] != runs[bucket]
    every = {"x": np.arange(10), "y": np.arange(10)}
    assert drop_rows(table.shelf, left, {"x": 10, "y": 10}, every) == []


def test_all_rows_died(table):
    table.upsert("a", 1)
    table.delete(1)
    table.move([], ["a"], ["x"])  # with deletes for each of its rows
    assert table.where(1) == {1: "deleted"}
    assert list(table.store.files.by_path) == ["x"]


def test_a_key_that_is_there_twice_is_where_it_was_written_last(table):
    told = concat_entries(
        [row_entries(hashed(1, 2), 0, np.arange(2)), row_entries(hashed(1), 0, np.array([2]))]
    )
    table.move(stage_runs(table.shelf, "origin", told, ["x"]), [], ["x"])
    assert table.where(1, 2) == {1: ("x", 2), 2: ("x", 1)}


def test_what_does_not_fit_is_not_believed(table):
    table.upsert("a", 1)
    runs = staged(table, [1], ["x"], 1)
    with pytest.raises(IndexDamaged, match="does not know b"):
        table.move(runs, ["a", "b"], ["x"])
    remove_runs(table.shelf, runs)
    with pytest.raises(IndexDamaged):
        table.move(runs, ["a"], ["x"])
    assert table.where(1) == {1: ("a", 0)}
