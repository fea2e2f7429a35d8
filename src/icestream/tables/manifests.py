"""Manifests in columns: the few facts that health needs, several times faster than whole entries.

A manifest never changes, so each is read once and kept while the snapshot that is looked at has it.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile
from pyiceberg.types import BinaryType, IcebergType, IntegerType, LongType, MapType, StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2  # `content` of a file

_PATH_ID = 2147483546  # `file_path` of a position delete, reserved by the specification
_FILE, _PARTITION = 2, 102  # the structs of an entry, by field id
_LOWER, _UPPER = 125, 128
_AT_ONCE = 4
# What is kept of an entry, by field id, and where in its row.
_STATUS, _SNAPSHOT, _CONTENT, _PATH, _PLACE, _RECORDS, _BYTES, _ABOUT, _FROM, _TO = range(10)
_SLOTS = {
    0: _STATUS, 1: _SNAPSHOT, 134: _CONTENT, 100: _PATH, _PARTITION: _PLACE, 103: _RECORDS,
    104: _BYTES, 143: _ABOUT, _LOWER: _FROM, _UPPER: _TO,
}  # fmt: skip

Numbers = NDArray[np.int64]
Step = Callable[[BinaryDecoder], Any]


@dataclass(frozen=True)
class ManifestColumns:
    """The live files of one manifest."""

    spec_id: int
    paths: pa.StringArray
    referenced_data_file: (
        pa.StringArray
    )  # of a delete file: the one data file that it is for, if it is for one
    content: Numbers
    bytes: Numbers
    records: Numbers
    snapshots: Numbers  # that added the files
    partition_numbers: Numbers  # numbers in `partitions`
    partitions: tuple[tuple[Any, ...], ...]  # values, as Iceberg stores them


class ManifestReader:
    """Reads manifests, each once."""

    def __init__(self) -> None:
        self._known: dict[str, ManifestColumns] = {}

    def read(self, io: FileIO, manifests: Iterable[ManifestFile]) -> list[ManifestColumns]:
        """The entries of these manifests, in order; all others are forgotten."""
        listed = list(manifests)
        fresh = [each for each in listed if each.manifest_path not in self._known]
        read = {each.manifest_path: _decoded(whole, each) for each, whole in _ahead(io, fresh)}
        known = self._known | read
        self._known = {each.manifest_path: known[each.manifest_path] for each in listed}
        return list(self._known.values())


def _ahead(io: FileIO, manifests: Sequence[ManifestFile]) -> Iterator[tuple[ManifestFile, bytes]]:
    """Fetch a few at a time, for object stores answer slowly; decoding is left to one thread."""
    waiting: deque[tuple[ManifestFile, Future[bytes]]] = deque()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for each in manifests:
            waiting.append((each, pool.submit(_bytes, io, each.manifest_path)))
            if len(waiting) > _AT_ONCE:
                manifest, whole = waiting.popleft()
                yield manifest, whole.result()
        for manifest, whole in waiting:
            yield manifest, whole.result()


def _bytes(io: FileIO, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return stream.read()


def _decoded(whole: bytes, manifest: ManifestFile) -> ManifestColumns:
    """The live files of a manifest, as columns."""
    decoder = new_decoder(whole)
    header = cast(AvroFileHeader, construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder))
    codec, steps = header.compression_codec(), _steps(header.meta["avro.schema"])
    rows: list[tuple[Any, ...]] = []
    while decoder.tell() < len(whole):
        count, block = decoder.read_int(), decoder.read_bytes()
        _take(new_decoder(codec.decompress(block) if codec else block), count, steps, rows)
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError(f"{manifest.manifest_path} is damaged: a block does not end")
    return _columns(rows, manifest)


def _take(
    decoder: BinaryDecoder, count: int, steps: list[tuple[int, Step]], rows: list[tuple[Any, ...]]
) -> None:
    row: list[Any] = [None] * len(_SLOTS)
    row[_CONTENT] = DATA  # version 1 does not say it
    for _ in range(count):
        for slot, step in steps:
            if slot < 0:
                step(decoder)
            else:
                row[slot] = step(decoder)
        if row[_STATUS] != ManifestEntryStatus.DELETED:
            rows.append(tuple(row))


def _columns(rows: list[tuple[Any, ...]], manifest: ManifestFile) -> ManifestColumns:
    columns: list[Any] = list(zip(*rows, strict=True)) or [()] * len(_SLOTS)
    seen: dict[tuple[Any, ...], int] = {}
    places = [seen.setdefault(place, len(seen)) for place in columns[_PLACE]]
    inherited = manifest.added_snapshot_id or -1
    added = [inherited if each is None else each for each in columns[_SNAPSHOT]]
    about = [
        _about(*told) if content == POSITION_DELETES else None
        for content, *told in zip(
            *(columns[slot] for slot in (_CONTENT, _ABOUT, _FROM, _TO)), strict=True
        )
    ]
    return ManifestColumns(
        spec_id=manifest.partition_spec_id,
        paths=pa.array(columns[_PATH], pa.string()),
        referenced_data_file=pa.array(about, pa.string()),
        content=_numbers(columns[_CONTENT]),
        bytes=_numbers(columns[_BYTES]),
        records=_numbers(columns[_RECORDS]),
        snapshots=_numbers(added),
        partition_numbers=_numbers(places),
        partitions=tuple(seen),
    )


def _numbers(values: Iterable[int]) -> Numbers:
    return np.array(values, dtype=np.int64)


def _about(said: str | None, lower: bytes | None, upper: bytes | None) -> str | None:
    """The data file that a delete file is for: named, or the only path within its bounds."""
    if said is None and lower is not None and lower == upper:
        return lower.decode()
    return said


@lru_cache(64)
def _steps(avro_schema: str) -> list[tuple[int, Step]]:
    """How to read an entry that was written with this schema: a list of slots and readers."""
    schema = AvroSchemaConversion().avro_to_iceberg(json.loads(avro_schema))
    return _of_struct(schema.as_struct())


def _of_struct(struct: StructType) -> list[tuple[int, Step]]:
    steps: list[tuple[int, Step]] = []
    for field in struct.fields:
        if field.field_id == _FILE and isinstance(field.field_type, StructType):
            steps += _of_struct(field.field_type)  # it is never null
            continue
        slot = _SLOTS.get(field.field_id, -1)
        step = _step(field.field_id, field.field_type, slot >= 0)
        steps.append((slot, step if field.required else _optional(step)))
    return steps


def _step(field_id: int, kind: IcebergType, kept: bool) -> Step:
    if isinstance(kind, MapType) and isinstance(kind.key_type, IntegerType):
        if isinstance(kind.value_type, BinaryType):
            return _path_bound if kept else _bytes_map
        if isinstance(kind.value_type, LongType):
            return _skip_numbers_map
    if field_id == _PARTITION and isinstance(kind, StructType):
        return _tuple(kind)
    reader = construct_reader(kind)
    return reader.read if kept else reader.skip


def _optional(step: Step) -> Step:
    return lambda decoder: step(decoder) if decoder.read_int() > 0 else None


def _tuple(struct: StructType) -> Step:
    steps = []
    for field in struct.fields:
        read = construct_reader(field.field_type).read
        steps.append(read if field.required else _optional(read))
    return lambda decoder: tuple([step(decoder) for step in steps])


def _skip_numbers_map(decoder: BinaryDecoder) -> None:
    # In one call for a block, and the size of the next: going number by number takes longer.
    count = decoder.read_int()
    while count:
        count = decoder.read_ints(2 * _pairs(decoder, count) + 1)[-1]


def _bytes_map(decoder: BinaryDecoder) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while count := decoder.read_int():
        decoder.read_int_bytes_dict(_pairs(decoder, count), found)
    return found


def _path_bound(decoder: BinaryDecoder) -> bytes | None:
    return _bytes_map(decoder).get(_PATH_ID)


def _pairs(decoder: BinaryDecoder, count: int) -> int:
    """How many pairs a block of a map has; a negative count is followed by the size in bytes."""
    if count < 0:
        decoder.read_int()
    return abs(count)
