"""Print what a look at the health of a large table costs: cold, warm, and after one more commit.

Manifests as PyIceberg writes them, a block for each entry, and repacked with many
entries in a block, as Java's writer makes them. Entries are read by PyIceberg, too, for comparison.
"""

import os
import shutil
import struct
import tempfile
import time
import zlib
from pathlib import Path

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import META_SCHEMA, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, clear_manifest_cache
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, TimestamptzType

from icestream.config.options.maintenance import MaintenanceOptions
from icestream.maintain.health import HealthReader
from icestream.maintain.policy import due_actions

FILES = int(os.environ.get("ICESTREAM_BENCH_FILES", "100000"))
MANIFESTS = 100
COLUMNS = 12
SCHEMA = Schema(
    NestedField(1, "ts", TimestamptzType()),
    *(NestedField(number, f"c{number}", LongType()) for number in range(2, COLUMNS + 1)),
)
SPEC = PartitionSpec(PartitionField(1, 1000, DayTransform(), "ts_day"))


class Clock:
    """CPU and wall time of a block."""

    def __enter__(self):
        self.cpu, self.wall = -time.process_time(), -time.perf_counter()
        return self

    def __exit__(self, *_):
        self.cpu += time.process_time()
        self.wall += time.perf_counter()


def line(what, clock, note=""):
    print(f"{what:52} {clock.cpu:8.3f} CPU-s {clock.wall:8.3f} s  {note}", flush=True)


def data_file(table, number):
    ids = range(1, COLUMNS + 1)
    bound = struct.pack("<q", number)
    name = f"shop-7-{number // 1000:08x}-1111-2222-3333-444455556666-{number:05d}.parquet"
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/ts_day=2026-11-14/{name}",
        file_format=FileFormat.PARQUET,
        partition=Record(20_000 + number % 30),
        record_count=1000 + number % 7,
        file_size_in_bytes=100_000 + number,
        column_sizes=dict.fromkeys(ids, 1000 + number % 500),
        value_counts=dict.fromkeys(ids, 1000 + number % 7),
        null_value_counts=dict.fromkeys(ids, 0),
        nan_value_counts={},
        lower_bounds=dict.fromkeys(ids, bound),
        upper_bounds=dict.fromkeys(ids, bound),
        split_offsets=[4],
        sort_order_id=0,
    )
    file.spec_id = 0
    return file


def commit(table, numbers):
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        for number in numbers:
            append.append_data_file(data_file(table, number))


def as_java_writes(path):
    """All entries of a manifest in one block: longer blocks, fewer calls."""
    whole = path.read_bytes()
    decoder = new_decoder(whole)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    begin, count, entries = decoder.tell(), 0, []
    while decoder.tell() < len(whole):
        count += decoder.read_int()
        entries.append(header.compression_codec().decompress(decoder.read_bytes()))
        decoder.read(16)
    with path.open("wb") as file:
        file.write(whole[:begin])
        encoder = BinaryEncoder(file)
        encoder.write_int(count)
        encoder.write_bytes(zlib.compress(b"".join(entries))[2:-4])
        file.write(header.sync)


def looks(table, what):
    health = HealthReader(MaintenanceOptions())
    clear_manifest_cache()
    with Clock() as clock:
        found = health.read("bench.files", table)
    assert found.data_files == FILES
    line(f"{what}: first look", clock, f"{found.manifests} manifests")
    with Clock() as clock:
        health.read("bench.files", table)
    line(f"{what}: again", clock)
    with Clock() as clock:
        actions = due_actions([found], MaintenanceOptions(), [], found.at)
    line(f"{what}: policy", clock, "; ".join(action.reason for action in actions))
    return health


def main():
    folder = Path(tempfile.mkdtemp(prefix="health-"))
    catalog = SqlCatalog("lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
    try:
        catalog.create_namespace("bench")
        table = catalog.create_table("bench.files", SCHEMA, partition_spec=SPEC)
        each = FILES // MANIFESTS
        with Clock() as clock:
            for number in range(MANIFESTS):
                commit(table, range(number * each, (number + 1) * each))
        line(f"make a table of {FILES:,} files", clock)
        manifests = table.current_snapshot().manifests(table.io)
        with Clock() as clock:
            for manifest in manifests:
                manifest.fetch_manifest_entry(table.io)
        line("entries by PyIceberg, a block each", clock)
        looks(table, "a block each")
        for manifest in manifests:
            as_java_writes(Path(manifest.manifest_path.removeprefix("file://")))
        with Clock() as clock:
            for manifest in manifests:
                manifest.fetch_manifest_entry(table.io)
        line("entries by PyIceberg, long blocks", clock)
        health = looks(table, "long blocks")
        commit(table, range(FILES, FILES + 10))
        with Clock() as clock:
            health.read("bench.files", table)
        line("after one more commit", clock)
    finally:
        catalog.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
