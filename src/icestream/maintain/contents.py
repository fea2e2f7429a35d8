"""Contents: the live files of a table in columns, and which of their rows are deleted."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.io import FileIO

from icestream.tables.live_files import opener
from icestream.tables.manifests import (
    DATA,
    EQUALITY_DELETES,
    POSITION_DELETES,
    ManifestColumns,
    Numbers,
)
from icestream.tables.position_deletes import count_positions

Values = tuple[Any, ...]  # of a partition, as Iceberg stores them
Namer = Callable[[Values], str]

READ_AT_MOST = 256  # delete files that a look opens; what others delete is guessed until then


@dataclass(frozen=True)
class TablePartition:
    """A partition of a table, under one of its specs."""

    spec_id: int
    values: Values
    name: str  # for people: `day=2026-11-14`, or empty


@dataclass(frozen=True)
class DataFileColumns:
    """The data files, column by column."""

    paths: pa.StringArray
    bytes: Numbers
    records: Numbers
    deleted: Numbers  # rows of each that are deleted
    delete_files: Numbers  # how many are read with each
    added_at: NDArray[np.float64]  # when each came, in seconds; if that is forgotten, at the latest
    only_rewritten: NDArray[
        np.bool_
    ]  # no sign of writing: by a compaction, or before all that is known
    partition_numbers: Numbers  # numbers in `Contents.partitions`

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True)
class DeleteFileColumns:
    """The position-delete files, column by column."""

    paths: pa.StringArray
    bytes: Numbers
    records: Numbers
    places: Numbers
    shared: NDArray[np.bool_]  # about several data files: read with each of its partition

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True)
class SnapshotContents:
    """What a snapshot holds."""

    partitions: tuple[TablePartition, ...]
    data: DataFileColumns
    deletes: DeleteFileColumns
    equality_deletes: int = 0  # files; other programs write them


@dataclass(frozen=True)
class SnapshotTime:
    """When a snapshot was made, and whether it only moved rows."""

    at: float
    moved: bool


class DeleteFileReader:
    """What position-delete files for several data files say of each, read once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[pa.Array, Numbers]] = {}

    def read(self, io: FileIO, paths: Sequence[str]) -> dict[str, tuple[pa.Array, Numbers]]:
        """Data files and rows deleted in each, by delete file; a bounded number of new ones."""
        left = READ_AT_MOST
        found = {}
        for path in paths:
            if path in self._known:
                found[path] = self._known[path]
            elif left:
                left -= 1
                with suppress(OSError, pa.ArrowException):  # not Parquet, or gone: `verify` tells
                    found[path] = count_positions(opener(io), path)
        self._known = found
        return found


def contents_of(
    entries: Sequence[ManifestColumns],
    moments: Mapping[int, SnapshotTime],
    forgotten: float,
    names: Mapping[int, Namer],
    io: FileIO,
    deletes: DeleteFileReader,
) -> SnapshotContents:
    """Put the manifests' entries together.

    `moments` are the snapshots that are still known; files of others came `forgotten`, or before.
    `names` make a text for people of partition values, by spec id.
    """
    seen: dict[tuple[int, tuple[Any, ...]], int] = {}
    placed = []
    for each in entries:
        known = [seen.setdefault((each.spec_id, some), len(seen)) for some in each.partitions]
        placed.append(np.array(known, dtype=np.int64)[each.partition_numbers])
    content = _concat(each.content for each in entries)
    paths = _concat_texts(each.paths for each in entries)
    about = _concat_texts(each.referenced_data_file for each in entries)
    numbers = [
        _concat(each.bytes for each in entries),
        _concat(each.records for each in entries),
        _concat(placed),
        _concat(each.snapshots for each in entries),
    ]
    is_data, is_delete = content == DATA, content == POSITION_DELETES
    size, records, places, snapshots = (column[is_data] for column in numbers)
    added, moved = _moments(snapshots, moments, forgotten)
    data = DataFileColumns(
        paths=paths.filter(pa.array(is_data)),
        bytes=size,
        records=records,
        deleted=np.zeros(len(size), dtype=np.int64),
        delete_files=np.zeros(len(size), dtype=np.int64),
        added_at=added,
        only_rewritten=moved,
        partition_numbers=places,
    )
    size, records, places, _ = (column[is_delete] for column in numbers)
    about = about.filter(pa.array(is_delete))
    shared = about.is_null().to_numpy(zero_copy_only=False)
    dead = DeleteFileColumns(paths.filter(pa.array(is_delete)), size, records, places, shared)
    if len(dead):
        _count_deleted(data, dead, about, io, deletes)
    partitions = tuple(TablePartition(spec, some, names[spec](some)) for spec, some in seen)
    return SnapshotContents(partitions, data, dead, int((content == EQUALITY_DELETES).sum()))


def _concat(parts: Any) -> Numbers:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _concat_texts(parts: Any) -> pa.StringArray:
    return pa.chunked_array(list(parts), pa.string()).combine_chunks()


def _moments(
    snapshots: Numbers, moments: Mapping[int, SnapshotTime], forgotten: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """When the files of these snapshots came, and whether that tells nothing of writing."""
    ids, where = np.unique(snapshots, return_inverse=True)
    told = [moments.get(int(each), SnapshotTime(forgotten, True)) for each in ids]
    at = np.array([each.at for each in told], dtype=np.float64)
    moved = np.array([each.moved for each in told], dtype=np.bool_)
    return at[where], moved[where]


def _count_deleted(
    data: DataFileColumns,
    dead: DeleteFileColumns,
    about: pa.StringArray,
    io: FileIO,
    deletes: DeleteFileReader,
) -> None:
    """Count the deleted rows of each data file, from metadata where that says it."""
    one = pc.index_in(about, value_set=data.paths).fill_null(-1).to_numpy()
    scoped = one >= 0
    np.add.at(data.deleted, one[scoped], dead.records[scoped])
    np.add.at(data.delete_files, one[scoped], 1)
    several = np.flatnonzero(dead.shared)
    # The newest first: those are the ones that were not seen before.
    paths = {int(at): dead.paths[int(at)].as_py() for at in several[::-1]}
    known = deletes.read(io, list(paths.values()))
    if read := [known[path] for path in paths.values() if path in known]:
        named = pa.concat_arrays([some for some, _ in read])
        counts = np.concatenate([some for _, some in read])
        found = pc.index_in(named, value_set=data.paths).fill_null(-1).to_numpy()
        there = found >= 0
        np.add.at(data.deleted, found[there], counts[there])
        np.add.at(data.delete_files, found[there], 1)
    _estimate_deleted(data, dead, [at for at, path in paths.items() if path not in known])
    np.minimum(data.deleted, data.records, out=data.deleted)


def _estimate_deleted(
    data: DataFileColumns, dead: DeleteFileColumns, unread: Sequence[int]
) -> None:
    """Take it that a delete file hits the rows of its partition evenly."""
    if not unread:
        return
    some = np.array(unread, dtype=np.int64)
    number = int(max(data.partition_numbers.max(initial=0), dead.places.max(initial=0))) + 1
    rows = np.bincount(dead.places[some], weights=dead.records[some], minlength=number)
    files = np.bincount(dead.places[some], minlength=number)
    there = np.bincount(data.partition_numbers, weights=data.records, minlength=number)
    share = rows / np.maximum(1, there)
    data.deleted[:] += (data.records * share[data.partition_numbers]).round().astype(np.int64)
    data.delete_files[:] += files[data.partition_numbers]
