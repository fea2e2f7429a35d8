"""Building and following the index of real tables, made by PyIceberg in a SQLite catalog."""

import datetime as dt
import decimal
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFileContent
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

from icestream.errors import SchemaRefused, TableRefused
from icestream.index import live_rows, spill
from icestream.index.build import build
from icestream.index.entries import concat_entries, row_entries
from icestream.index.follow import CatchUpResult, follow, open_or_build
from icestream.index.key_index import IndexUnusable
from icestream.index.keys import bucket_of, key_hashes
from icestream.index.tombstones import read_tombstones, tidy_tombstones, write_tombstones
from icestream.tables import live_files

pytestmark = pytest.mark.slow

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "name", StringType(), required=False),
    NestedField(3, "_src_sequence", BinaryType(), required=False),
)
SECOND = 1_000_000
NOW = 1_700_000_000
BUCKETS = 4


@pytest.fixture
def table(catalog):
    return catalog.create_table("n.t", SCHEMA, properties={"format-version": "2"})


def data(*ids, name="x"):
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([name] * len(ids)),
        pa.array([None if at is None else abs(at).to_bytes(8, "big") for at in ids], pa.binary()),
    ]
    return pa.table(columns, names=["id", "name", "_src_sequence"])


def truth(table):
    """key → (path, position) of every live row, by PyIceberg's own reading of files and deletes."""
    found = {}
    for task in table.scan().plan_files():
        assert not task.delete_files
        ids = pq.read_table(local(task.file.file_path)).column("id").to_pylist()
        found |= {key: (task.file.file_path, at) for at, key in enumerate(ids)}
    return found


def local(path):
    return Path(path.removeprefix("file://"))


def answers(store, ids, kind=None):
    columns = [pa.array(ids, kind or pa.int64())]
    return asked(store, ids, key_hashes(columns))


def asked(store, names, hashes):
    places, found = bucket_of(hashes, store.manifest.buckets), {}
    for bucket in range(store.manifest.buckets):
        mine = np.flatnonzero(places == bucket)
        result = store.reader.lookup(bucket, hashes[mine])
        for at, which in enumerate(mine):
            if result.hit[at]:
                path = store.reader.path(int(result.file[at]))
                found[names[which]] = (path, int(result.position[at]))
            elif result.tombstone[at]:
                found[names[which]] = "deleted"
    return found


def caught(table, folder, **options):
    options = {"buckets": BUCKETS, "clock": lambda: NOW} | options
    return open_or_build(table, folder, ["id"], **options)


# ── building ────────────────────────────────────────────────────────────────────────────────────


def test_all_rows_are_known(table, tmp_path):
    table.append(data(*range(100)))
    table.append(data(*range(100, 250)))
    store, built = build(table, tmp_path / "i", ["id"], buckets=BUCKETS)
    assert (built.files, built.rows, built.duplicates, built.tombstones) == (2, 250, 0, 0)
    assert answers(store, range(-5, 260)) == truth(table)
    assert store.manifest.snapshot_id == table.current_snapshot().snapshot_id
    assert store.manifest.sequence_number == 2
    again, told = caught(table, tmp_path / "i")
    assert str(told) == "nothing to follow"
    assert answers(again, range(250)) == truth(table)


def test_sequences_come_along(table, tmp_path):
    table.append(data(5, 300, 7))
    store, _ = build(table, tmp_path / "i", ["id"], buckets=1)
    found = store.reader.lookup(0, key_hashes([pa.array([300, 5])]))
    assert found.sequences.hi.tolist() == [300, 5]
    assert found.sequences.size.tolist() == [8, 8]


def test_memory_stays_bounded_by_spilling(table, tmp_path, monkeypatch):
    table.append(data(*range(1000)))
    table.append(data(*range(1000, 1500)))
    monkeypatch.setattr(spill.EntrySpill.__init__, "__defaults__", (64,))
    monkeypatch.setattr(live_rows, "_BATCH", 50)
    store, built = build(table, tmp_path / "i", ["id"], buckets=BUCKETS)
    assert answers(store, range(1500)) == truth(table)
    assert built.duplicates == 0
    assert [len(runs) for runs in store.manifest.runs] == [1] * BUCKETS
    assert len(list((tmp_path / "i").glob("runs/*/*"))) == BUCKETS


def test_duplicates_are_counted_and_the_last_is_known(table, tmp_path, monkeypatch):
    table.append(data(1, 2, 3))
    table.append(data(9, 2, 2))
    store, built = build(table, tmp_path / "i", ["id"], buckets=BUCKETS)
    assert (built.rows, built.duplicates) == (6, 2)
    last = [task.file.file_path for task in table.scan().plan_files()]
    path, position = answers(store, [2])[2]
    assert path in last
    assert position == 2
    monkeypatch.setattr(spill.EntrySpill.__init__, "__defaults__", (1,))
    again, built = build(table, tmp_path / "i", ["id"], buckets=BUCKETS)
    assert (built.rows, built.duplicates) == (6, 2)
    assert answers(again, [2]) == {2: (path, 2)}


def test_an_empty_table(table, tmp_path):
    store, built = build(table, tmp_path / "i", ["id"], buckets=BUCKETS)
    assert (built.files, built.rows, store.manifest.snapshot_id) == (0, 0, None)
    store, told = caught(table, tmp_path / "i")
    assert str(told) == "nothing to follow"
    table.append(data(1, 2))
    store, told = caught(table, tmp_path / "i")
    assert (told.rebuilt, told.new, told.rows) == (None, 1, 2)
    assert answers(store, range(4)) == truth(table)


def test_several_key_columns_and_widened_types(catalog, tmp_path):
    table = catalog.create_table(
        "n.w",
        Schema(
            NestedField(1, "a", IntegerType(), required=False),
            NestedField(2, "d", DecimalType(9, 2), required=False),
            NestedField(3, "day", DateType(), required=False),
            NestedField(4, "later", StringType(), required=False),
        ),
    )

    def put(number, a, d):
        table.append(
            pa.table(
                {
                    "a": pa.array([number], a),
                    "d": pa.array([decimal.Decimal("1.50")], pa.decimal128(d, 2)),
                    "day": pa.array([dt.date(2024, 1, 1)]),
                    "later": pa.array(["x"]),
                }
            )
        )

    put(1, pa.int32(), 9)
    with table.update_schema() as update:
        update.update_column("a", field_type=LongType())
        update.update_column("d", field_type=DecimalType(18, 2))
        update.rename_column("a", "key")
    with table.update_schema() as update:
        update.add_column("a", StringType())  # the old name, another column
    table.append(
        pa.table(
            {
                "key": pa.array([2], pa.int64()),
                "d": pa.array([decimal.Decimal("1.50")], pa.decimal128(18, 2)),
                "day": pa.array([dt.date(2024, 1, 1)]),
                "later": pa.array(["x"]),
                "a": pa.array(["y"]),
            }
        )
    )
    store, built = build(table, tmp_path / "i", ["key", "d", "day"], buckets=BUCKETS)
    hashes = key_hashes(
        [
            pa.array([1, 2, 3], pa.int64()),
            pa.array([decimal.Decimal("1.5")] * 3, pa.decimal128(38, 1)),
            pa.array([dt.date(2024, 1, 1)] * 3),
        ]
    )
    assert set(asked(store, [1, 2, 3], hashes)) == {1, 2}
    assert built.duplicates == 0
    # A key column that old files do not have is null there.
    store, _ = build(table, tmp_path / "j", ["key", "a"], buckets=BUCKETS)
    hashes = key_hashes([pa.array([1, 2]), pa.array([None, "y"])])
    assert set(asked(store, [1, 2], hashes)) == {1, 2}


def test_a_file_without_field_ids_is_read_by_name(table, tmp_path):
    path = tmp_path / "foreign.parquet"
    pq.write_table(data(1, 2, 3), path)
    table.add_files([f"file://{path}"])
    store, _ = build(table, tmp_path / "i", ["id"], buckets=BUCKETS)
    assert answers(store, [1, 2, 3]) == {n + 1: (f"file://{path}", n) for n in range(3)}


def test_a_key_that_is_no_column(table, tmp_path):
    with pytest.raises(SchemaRefused, match="no key column `nope`"):
        build(table, tmp_path / "i", ["id", "nope"])


def test_equality_deletes_are_refused(table, tmp_path, monkeypatch):
    """PyIceberg writes none: the entry is made to say so."""
    table.append(data(1))
    entry = table.current_snapshot().manifests(table.io)[0].fetch_manifest_entry(table.io)[0]
    entry.data_file._data[0] = DataFileContent.EQUALITY_DELETES
    assert entry.data_file.content == DataFileContent.EQUALITY_DELETES

    class Manifest:
        manifest_path = "m.avro"

        def fetch_manifest_entry(self, io):
            return [entry]

    with pytest.raises(TableRefused, match="equality deletes"):
        live_files.read_manifests(table.io, [Manifest()])


# ── tombstones ──────────────────────────────────────────────────────────────────────────────────


def bury(table, *ids, when=NOW, commit="c1", sequence=b"\x01", until=None):
    return write_tombstones(
        table.location(),
        commit,
        key_hashes([pa.array(ids)]),
        pa.array([sequence] * len(ids)),
        when * SECOND,
        until,
    )


def test_tombstones_come_back(table, tmp_path):
    table.append(data(1, 2))
    assert bury(table) is None
    bury(table, 2, 3, when=NOW - 10)
    bury(table, 4, when=NOW - 8 * 86_400)
    store, built = build(table, tmp_path / "i", ["id"], buckets=BUCKETS, clock=lambda: NOW)
    found = answers(store, range(6))
    assert found == {**truth(table), 3: "deleted"}  # the row of 2 beats its tombstone
    assert built.tombstones == 1
    hashes = key_hashes([pa.array([3])])
    seen = store.reader.lookup(int(bucket_of(hashes, BUCKETS)[0]), hashes)
    assert seen.sequences.hi.tolist() == [1 << 56]


def test_the_later_tombstone_of_a_key_counts(table, tmp_path):
    bury(table, 3, when=NOW - 5, sequence=b"\x09", commit="z")
    bury(table, 3, when=NOW - 9, sequence=b"\x02", commit="a")
    store, _ = build(table, tmp_path / "i", ["id"], buckets=1, clock=lambda: NOW)
    assert store.reader.lookup(0, key_hashes([pa.array([3])])).sequences.hi.tolist() == [9 << 56]


def test_deletes_that_are_yet_to_come_are_none(table, tmp_path):
    """A batch was staged and never committed; the one after it may well end earlier."""
    table.append(data(1))
    bury(table, 2, commit="committed", until={"t": {0: 10, 1: 5}})
    bury(table, 3, commit="died", until={"t": {0: 20, 1: 5}})
    bury(table, 4, commit="died early", until={"t": {0: 9}, "u": {0: 1}})
    bury(table, 5, commit="of old")

    def built(folder, reached):
        store, _ = build(
            table, tmp_path / folder, ["id"], buckets=1, clock=lambda: NOW, reached=reached
        )
        return {key for key, found in answers(store, range(9)).items() if found == "deleted"}

    assert built("a", {"t": {0: 10, 1: 5}}) == {2, 5}
    assert built("b", {"t": {0: 19, 1: 5}, "u": {0: 1}}) == {2, 4, 5}
    assert built("c", {"t": {0: 20, 1: 5}, "u": {0: 1}}) == {2, 3, 4, 5}
    assert built("d", {}) == {5}
    for number in range(300):  # packed, they still know
        bury(table, 100 + number, when=NOW - 9, commit=f"c{number}", until={"t": {0: number}})
    assert tidy_tombstones(table.location(), NOW * SECOND) == 304
    assert built("e", {"t": {0: 10, 1: 5}}) == {2, 5}
    kept = concat_entries(
        list(read_tombstones(table.location(), NOW * SECOND, None, {"t": {0: 10, 1: 5}}))
    )
    assert len(kept) == 2 + 11


def test_an_index_that_follows_over_expired_snapshots_takes_no_deletes_to_come(table, tmp_path):
    table.append(data(1))
    caught(table, tmp_path / "i")
    at = table.current_snapshot().snapshot_id
    table.append(data(2))
    between = table.current_snapshot().snapshot_id
    table.append(data(3))
    expire(table, at, between)
    bury(table, 7, commit="committed", until={"t": {0: 10}})
    bury(table, 8, commit="died", until={"t": {0: 20}})
    store, told = caught(table, tmp_path / "i", reached={"t": {0: 10}})
    assert (told.rebuilt, told.new, told.tombstones) == (None, 2, 1)
    assert answers(store, range(10)) == {**truth(table), 7: "deleted"}


def test_tombstones_by_commit_tidied_and_packed(table):
    location = table.location()
    bury(table, 1, when=NOW - 8 * 86_400, commit="old")
    for number in range(300):
        bury(table, number, number + 1000, when=NOW - number, commit=f"c-{number}")

    def ids(**options):
        parts = list(read_tombstones(location, NOW * SECOND, **options))
        every = concat_entries(parts)
        return sorted(zip(every.hash_hi.tolist(), every.position.tolist(), strict=True))

    before = ids()
    assert len(before) == 600
    assert len(ids(commits={"c-7"})) == 2
    assert tidy_tombstones(location, NOW * SECOND) == 301
    assert ids() == before
    assert len(ids(commits={"c-7"})) == 2
    assert ids(commits={"nobody"}) == []
    assert tidy_tombstones(location, NOW * SECOND) == 0
    assert tidy_tombstones(location, (NOW + 8 * 86_400) * SECOND) == 1
    assert ids() == []


# ── following ───────────────────────────────────────────────────────────────────────────────────


def test_foreign_appends_are_followed(table, tmp_path):
    table.append(data(*range(50)))
    caught(table, tmp_path / "i")
    table.append(data(*range(50, 60)))
    table.append(data(*range(60, 65)))
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(new=2, rows=15)
    assert str(told) == "followed 2 new, 0 changed and 0 removed files, 15 rows"
    assert answers(store, range(70)) == truth(table)
    assert store.manifest.sequence_number == 3


def test_a_foreign_append_of_a_key_that_is_there_is_told(table, tmp_path, monkeypatch):
    table.append(data(*range(50)))
    caught(table, tmp_path / "i")
    table.append(data(3, 4, 99, 99))
    _, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(new=1, rows=4, duplicates=3)
    assert "4 rows, 3 of them with a key that is there twice" in str(told)
    monkeypatch.setattr(spill.EntrySpill.__init__, "__defaults__", (1,))
    table.append(data(3, 200))
    table.append(data(201, 200))
    _, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(new=2, rows=4, duplicates=2)


def test_foreign_overwrites_and_deletes_are_followed(table, tmp_path):
    table.append(data(*range(50)))
    table.append(data(*range(50, 60)))
    caught(table, tmp_path / "i")
    table.delete(EqualTo("id", 7))  # copy on write: one file is replaced
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(gone=1, new=1, rows=49)
    assert answers(store, range(70)) == truth(table)
    table.overwrite(data(3, 4))
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(gone=2, new=1, rows=2)
    assert answers(store, range(70)) == truth(table)
    assert len(store.files.numbers) == 1


def expire(table, *ids):
    """As Iceberg's Java does it: a snapshot whose parent is gone still names it."""
    path = local(table.metadata_location)
    document = json.loads(path.read_text())
    for part in ("snapshots", "snapshot-log"):
        document[part] = [each for each in document[part] if each["snapshot-id"] not in ids]
    path.write_text(json.dumps(document))
    table.refresh()
    assert all(table.metadata.snapshot_by_id(each) is None for each in ids)


def test_an_expired_snapshot_is_no_reason_to_rebuild(table, tmp_path):
    for start in (0, 10, 20):
        table.append(data(*range(start, start + 10)))
    caught(table, tmp_path / "i")
    at = table.current_snapshot().snapshot_id
    table.delete(EqualTo("id", 7))
    table.append(data(90, 91))
    expire(table, at)
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(gone=1, new=2, rows=11)
    assert answers(store, range(100)) == truth(table)

    at = table.current_snapshot().snapshot_id
    table.append(data(92))
    between = table.current_snapshot().snapshot_id
    table.append(data(93))
    expire(table, at, between)
    bury(table, 95, commit="ours")
    store, told = caught(table, tmp_path / "i")
    assert (told.rebuilt, told.new, told.rows, told.tombstones) == (None, 2, 2, 1)
    assert answers(store, range(100)) == {**truth(table), 95: "deleted"}


def test_an_expiry_that_forgets_parents_is_not_told_from_a_replaced_table(table, tmp_path):
    table.append(data(1))
    caught(table, tmp_path / "i")
    at = table.current_snapshot().snapshot_id
    table.append(data(2))
    table.maintenance.expire_snapshots().by_id(at).commit()
    assert table.current_snapshot().parent_snapshot_id is None
    store, told = caught(table, tmp_path / "i")
    assert "history was replaced" in told.rebuilt
    assert answers(store, range(5)) == truth(table)


def test_a_table_that_was_moved_back_is_rebuilt(table, tmp_path):
    table.append(data(1))
    first = table.current_snapshot().snapshot_id
    table.append(data(2))
    caught(table, tmp_path / "i")
    table.manage_snapshots().set_current_snapshot(first).commit()
    store, told = caught(table, tmp_path / "i")
    assert "moved back" in told.rebuilt
    assert answers(store, range(5)) == truth(table)
    table.append(data(3))
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(new=1, rows=1)
    assert answers(store, range(5)) == truth(table)


def test_what_does_not_fit_is_rebuilt(table, catalog, tmp_path):
    table.append(data(1, 2))
    _, told = caught(table, tmp_path / "i")
    assert told.rebuilt == "there is none yet"
    assert str(told) == "rebuilt because there is none yet: 1 files, 2 rows"
    _, told = caught(table, tmp_path / "i", buckets=8)
    assert told.rebuilt == "it has 4 buckets, not 8"
    store, told = open_or_build(table, tmp_path / "i", ["name", "id"], buckets=8)
    assert "key columns" in told.rebuilt
    assert list(store.manifest.keys.items()) == [("name", 2), ("id", 1)]
    catalog.drop_table("n.t")
    again = catalog.create_table("n.t", SCHEMA)
    _, told = open_or_build(again, tmp_path / "i", ["name", "id"], buckets=8)
    assert "another table" in told.rebuilt


def ours(table, store, commit_id, ids, deletes=(), summary=None):
    """A commit of ours, as far as the table is concerned: new rows, tombstones, staged runs."""
    hashes = key_hashes([pa.array(ids)])
    properties = {"icestream.commit-id": commit_id}
    known = {task.file.file_path for task in table.scan().plan_files()}
    if deletes:
        bury(table, *deletes, commit=commit_id)
    reader = store.reader
    table.append(data(*ids), snapshot_properties=properties)
    (path,) = {task.file.file_path for task in table.scan().plan_files()} - known
    places = bucket_of(hashes, BUCKETS)
    names = [
        reader.stage(
            int(bucket),
            commit_id,
            row_entries(hashes[places == bucket], 0, np.flatnonzero(places == bucket)),
            [path],
        )
        for bucket in np.unique(places)
    ]
    store.prepare(commit_id, names)


def test_our_commit_that_landed_before_we_died_is_confirmed(table, tmp_path):
    table.append(data(1, 2))
    store, _ = caught(table, tmp_path / "i")
    ours(table, store, "c1", [3, 4, 5])
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(confirmed="c1")
    assert str(told) == "confirmed commit c1"
    assert answers(store, range(9)) == truth(table)
    ours(table, store, "c2", [6])
    table.append(data(7))
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(confirmed="c2", new=1, rows=1)
    assert answers(store, range(9)) == truth(table)
    assert store.manifest.commit_id == "c2"


def test_our_commit_is_followed_if_its_runs_are_gone(table, tmp_path):
    table.append(data(1, 2))
    store, _ = caught(table, tmp_path / "i")
    bury(table, 9, commit="never")
    ours(table, store, "c1", [3, 4, 5], deletes=[8, 3])
    for name in store.pending().runs:
        (tmp_path / "i" / name).unlink()
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(new=1, rows=3, tombstones=1)
    assert answers(store, range(10)) == {**truth(table), 8: "deleted"}


def test_our_commit_that_did_not_land_is_forgotten(table, tmp_path):
    table.append(data(1, 2))
    store, _ = caught(table, tmp_path / "i")
    hashes = key_hashes([pa.array([3])])
    bucket = int(bucket_of(hashes, BUCKETS)[0])
    name = store.reader.stage(
        bucket, "c1", row_entries(hashes, 0, np.arange(1)), ["file://nowhere"]
    )
    store.prepare("c1", [name])
    store, told = caught(table, tmp_path / "i")
    assert str(told) == "nothing to follow"
    assert store.pending() is None
    assert not (tmp_path / "i" / name).exists()
    assert answers(store, range(9)) == truth(table)


def test_damage_met_on_the_way_is_a_reason(table, tmp_path):
    table.append(data(1, 2))
    store, _ = build(table, tmp_path / "i", ["id"], buckets=1)
    bury(table, 5, commit="c1")
    table.append(data(3), snapshot_properties={"icestream.commit-id": "c1"})
    (tmp_path / "i" / store.manifest.runs[0][0].name).unlink()
    told = follow(store, table, clock=lambda: NOW)
    assert isinstance(told, IndexUnusable)
    store, told = caught(table, tmp_path / "i")
    assert "damaged" in told.rebuilt
    assert answers(store, range(9)) == {**truth(table), 5: "deleted"}


def test_any_snapshot_can_be_asked_for(table, tmp_path):
    table.append(data(1))
    first = table.current_snapshot()
    table.append(data(2))
    store, _ = caught(table, tmp_path / "i", snapshot=first)
    assert set(answers(store, range(4))) == {1}
    store, told = caught(table, tmp_path / "i")
    assert told == CatchUpResult(new=1, rows=1)
    assert set(answers(store, range(4))) == {1, 2}
