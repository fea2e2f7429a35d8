"""Health of real tables, made by PyIceberg in a SQLite catalog, against PyIceberg's own reading."""

import struct
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from healths import maintenance
from icestream.maintain import contents
from icestream.maintain.health import HealthReader
from icestream.tables import manifests, position_deletes

SCHEMA = Schema(
    NestedField(1, "ts", TimestamptzType()),
    NestedField(2, "region", StringType()),
    NestedField(3, "id", LongType()),
)
SPEC = PartitionSpec(
    PartitionField(1, 1000, DayTransform(), "ts_day"),
    PartitionField(2, 1001, IdentityTransform(), "region"),
)
PATH_ID = 2147483546


@pytest.fixture
def table(catalog):
    return catalog.create_table("n.t", SCHEMA, partition_spec=SPEC)


def data_file(path, size=1000, records=10, place=(20000, "eu"), **facts):
    some = {number: struct.pack("<q", number) for number in (1, 2, 3)}
    known = {
        "content": DataFileContent.DATA,
        "file_path": path,
        "file_format": FileFormat.PARQUET,
        "partition": Record(*place),
        "record_count": records,
        "file_size_in_bytes": size,
        "column_sizes": {1: 10, 2: 20, 3: 30},
        "value_counts": {1: records, 2: records, 3: records},
        "null_value_counts": {1: 0, 2: 0, 3: 0},
        "nan_value_counts": {},
        "lower_bounds": some,
        "upper_bounds": some,
        "split_offsets": [4],
        "sort_order_id": 0,
    }
    made = DataFile.from_args(**{**known, **facts})
    made.spec_id = 0
    return made


def delete_file(path, records, first, last=None, **facts):
    """PyIceberg has no manifests for them: entries say what they are, as everywhere."""
    bounds = {"lower_bounds": {PATH_ID: first.encode()}}
    bounds |= {"upper_bounds": {PATH_ID: (last or first).encode()}}
    content = DataFileContent.POSITION_DELETES
    return data_file(path, 100, records, content=content, **bounds, **facts)


def add(table, *files, summary=None):
    with (
        table.transaction() as transaction,
        transaction.update_snapshot(summary or {}).fast_append() as append,
    ):
        for each in files:
            append.append_data_file(each)


def look(table, now=None, **options):
    return HealthReader(maintenance(**options)).read("n.t", table, now)


def test_an_empty_table(table):
    found = look(table)
    assert (found.data_files, found.snapshots, found.manifests, found.compaction_lag) == (0,) * 4
    assert (found.average_bytes, found.deleted_share, found.began) == (0, 0.0, None)
    assert not found.mirror
    assert found.metadata_bytes == len(table.io.new_input(table.metadata_location))


def test_files_sizes_and_partitions(table):
    add(table, *(data_file(f"a{at}", size=1000 + at) for at in range(20)))
    add(table, data_file("b", size=300 << 20, records=7, place=(20001, None)))
    found = look(table)
    assert (found.data_files, found.records, found.small_files) == (21, 207, 20)
    assert found.bytes == sum(1000 + at for at in range(20)) + (300 << 20)
    assert found.average_bytes == found.bytes // 21
    assert (found.partitions, found.most_files) == (2, 20)
    assert found.fullest == "ts_day=2024-10-04/region=eu"
    assert {each.name for each in found.contents.partitions} == {
        "ts_day=2024-10-04/region=eu",
        "ts_day=2024-10-05/region=null",
    }
    assert (found.compaction_lag, found.compaction_bytes) == (20, found.bytes - (300 << 20))
    assert (found.snapshots, found.manifests, found.delete_manifests) == (2, 2, 0)
    listed = table.current_snapshot().manifests(table.io)
    assert found.manifest_bytes == sum(each.manifest_length for each in listed)


def test_entries_are_what_pyiceberg_reads(table):
    """Also those that a later commit removed, and values of each kind in a partition."""
    add(table, *(data_file(f"a{at}", place=(20000 + at % 3, f"r{at % 2}")) for at in range(9)))
    with table.update_schema() as update:
        update.add_column("extra", LongType())
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(8), "id_bucket")
    rows = pa.table(
        {"ts": pa.array([0], pa.timestamp("us", "UTC")), "region": ["x"], "id": [5], "extra": [1]}
    )
    table.append(rows)
    table.append(rows)
    table.delete(EqualTo("region", "x"))
    table.append(rows)
    found = look(table)
    live = [
        (entry.data_file, entry.snapshot_id)
        for manifest in table.current_snapshot().manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    ]
    data = found.contents.data
    assert data.paths.to_pylist() == [file.file_path for file, _ in live]
    assert data.bytes.tolist() == [file.file_size_in_bytes for file, _ in live]
    assert data.records.tolist() == [file.record_count for file, _ in live]
    places = [found.contents.partitions[at] for at in data.partition_numbers]
    assert [each.values for each in places] == [tuple(file.partition._data) for file, _ in live]
    times = {each.snapshot_id: each.timestamp_ms / 1000 for each in table.metadata.snapshots}
    assert data.added_at.tolist() == [times[snapshot] for _, snapshot in live]
    assert len(live) == 10
    assert places[0].spec_id != places[-1].spec_id
    assert "ts_day=1970-01-01/region=x/id_bucket=" in places[0].name


def test_a_manifest_is_read_once(table, monkeypatch):
    read = []
    honest = manifests._bytes
    monkeypatch.setattr(manifests, "_bytes", lambda io, path: read.append(path) or honest(io, path))
    health = HealthReader(maintenance())
    for at in range(5):
        add(table, data_file(f"a{at}"))
        assert health.read("n.t", table).data_files == at + 1
    assert health.read("n.t", table).data_files == 5
    assert len(read) == len(set(read)) == 5


def test_deleted_rows_of_files_that_metadata_names(table):
    add(table, data_file("a", records=100), data_file("b", records=10), data_file("c", records=50))
    add(table, delete_file("d1", 30, "a"), delete_file("d2", 10, "a"), delete_file("d3", 9, "b"))
    add(table, delete_file("d4", 5, "gone"))
    found = look(table)
    assert found.contents.data.paths.to_pylist() == ["a", "b", "c"]
    assert found.contents.data.deleted.tolist() == [40, 9, 0]
    assert found.contents.data.delete_files.tolist() == [2, 1, 0]
    assert (found.data_files, found.delete_files, found.deleted_rows) == (3, 4, 49)
    assert found.worst_deleted == 0.9
    assert found.deleted_share == pytest.approx(49 / 160)
    assert found.compaction_lag == 2  # a and b, though they are few


def test_deleted_rows_of_several_files_are_read_once(table, tmp_path, monkeypatch):
    add(table, data_file("a", records=100), data_file("b", records=10))
    path = str(tmp_path / "d.parquet")
    named = ["a"] * 7 + ["b"] * 2 + ["gone"]
    pq.write_table(pa.table({"file_path": named, "pos": list(range(10))}), path)
    add(table, delete_file(path, 10, "a", "gone"))
    read = []
    honest = position_deletes.count_positions
    monkeypatch.setattr(
        contents, "count_positions", lambda io, path: read.append(path) or honest(io, path)
    )
    health = HealthReader(maintenance())
    for _ in range(2):
        found = health.read("n.t", table)
        assert found.contents.data.deleted.tolist() == [7, 2]
        assert found.contents.data.delete_files.tolist() == [1, 1]
    assert read == [path]


@pytest.mark.parametrize("most", [0, 256])
def test_delete_files_that_are_not_read_are_guessed(table, monkeypatch, most):
    """Too many at a time, or not there."""
    monkeypatch.setattr(contents, "READ_AT_MOST", most)
    add(table, data_file("a", records=90), data_file("b", records=10))
    add(table, data_file("c", records=50, place=(1, "us")))
    add(table, delete_file("not there", 20, "a", "b"))
    assert look(table).contents.data.deleted.tolist() == [0, 18, 2]


def test_equality_deletes_are_counted_apart(table):
    add(table, data_file("a"), data_file("e", content=DataFileContent.EQUALITY_DELETES))
    found = look(table)
    assert (found.data_files, found.delete_files, found.equality_delete_files) == (1, 0, 1)


def test_history_and_ages(table):
    for at in range(6):
        add(table, data_file(f"a{at}"))
    now = time.time()
    table.manage_snapshots().create_tag(table.metadata.snapshots[0].snapshot_id, "kept").commit()
    found = look(table, now)
    times = [each.timestamp_ms / 1000 for each in table.metadata.snapshots]
    assert found.snapshot_times == tuple(times[1:-1])  # a tag has the first, main the last
    assert found.oldest_snapshot == times[0]
    assert found.began == pytest.approx(times[0], abs=0.001)
    assert found.commits_per_hour == 360  # six in the last minute
    later = look(table, now + 3600)
    assert later.commits_per_hour == 0


def test_when_a_table_with_expired_snapshots_began(table):
    """Ten commits a day; the first seven are expired."""
    for at in range(10):
        add(table, data_file(f"a{at}"))
    day = 86_400_000
    kept = [
        each.model_copy(update={"timestamp_ms": at * day})
        for at, each in enumerate(table.metadata.snapshots)
    ]
    table.metadata = table.metadata.model_copy(update={"snapshots": kept[7:]})
    found = look(table, 10 * 86400.0)
    assert found.began == 0
    assert found.oldest_snapshot == 7 * 86400.0
    # Files of forgotten snapshots came before the oldest that is known.
    assert sorted(found.contents.data.added_at) == [7 * 86400.0] * 8 + [8 * 86400.0, 9 * 86400.0]
    assert found.contents.data.only_rewritten.sum() == 7


def test_orphans_are_guessed_from_starts(table):
    def commit(generation, *files):
        told = {"icestream.pipeline": "p", "icestream.generation": str(generation)}
        add(table, *files, summary=told)

    commit(1, data_file("a"), data_file("b"))
    commit(1, data_file("c"), data_file("d"))
    assert look(table).orphan_files == 0
    commit(2)  # a claim
    commit(3)
    assert look(table).orphan_files == 4  # two starts, two files a commit


def test_options_and_properties_say_what_is_small(table):
    add(table, *(data_file(f"a{at}", size=60) for at in range(4)))
    assert look(table).small_files == 4
    assert look(table, rewrite_data_files={"target-file-size-bytes": "80"}).small_files == 0
    with table.transaction() as change:
        change.set_properties({"write.target-file-size-bytes": "84", "icestream.keys": '["id"]'})
    found = look(table)
    assert (found.small_files, found.mirror) == (4, True)
    assert found.rules.group_records == 2_000_000


def test_facts_are_for_machines(table):
    add(table, data_file("a"))
    told = look(table).facts()
    assert "contents" not in told
    assert {"data_files", "average_bytes", "deleted_share", "compaction_lag"} <= told.keys()
    assert all(isinstance(each, str | int | float | None) for each in told.values())


def test_a_damaged_manifest_is_told(table, tmp_path):
    add(table, data_file("a"))
    (manifest,) = table.current_snapshot().manifests(table.io)
    path = Path(manifest.manifest_path.removeprefix("file://"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ValueError, match="damaged"):
        look(table)
