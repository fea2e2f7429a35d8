"""The live files of a table in columns, and how many rows of each are deleted."""

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
Namer = Callable[[Values], str]  # makes a text for people of partition values

READ_AT_MOST = 256  # delete files that are opened at once; what others delete is estimated


@dataclass(frozen=True)
class TablePartition:
    """A table partition, under one of the table's specs."""

    spec_id: int
    values: Values
    name: str  # for people: `day=2026-11-14`, or empty


@dataclass(frozen=True)
class DataFileColumns:
    """The data files of a snapshot, column by column."""

    paths: pa.StringArray
    bytes: Numbers
    records: Numbers
    deleted: Numbers  # rows of each that are deleted
    delete_files: Numbers  # how many are read with each
    added_at: NDArray[np.float64]  # in seconds; if its snapshot is expired, the latest possible
    # Added by a compaction, or by an expired snapshot: shows no recent writing to the partition.
    only_rewritten: NDArray[np.bool_]
    partition_numbers: Numbers  # indices in `SnapshotContents.partitions`

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True)
class DeleteFileColumns:
    """The position-delete files of a snapshot, column by column."""

    paths: pa.StringArray
    bytes: Numbers
    records: Numbers
    partition_numbers: Numbers  # indices in `SnapshotContents.partitions`
    shared: NDArray[np.bool_]  # about several data files: read with each file of its partition

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True)
class SnapshotContents:
    """The live files of a snapshot."""

    partitions: tuple[TablePartition, ...]
    data: DataFileColumns
    deletes: DeleteFileColumns
    equality_deletes: int = 0  # files; other programs write them


@dataclass(frozen=True)
class SnapshotTime:
    """When a snapshot was made, in seconds, and whether it only moved rows, as compaction does."""

    at: float
    only_rewrote: bool


class DeleteFileReader:
    """Counts the rows that position-delete files delete in each data file; reads each file once."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[pa.Array, Numbers]] = {}

    def read(self, io: FileIO, paths: Sequence[str]) -> dict[str, tuple[pa.Array, Numbers]]:
        """Return data files and deleted rows of each, by delete file; opens `READ_AT_MOST`."""
        reads_left = READ_AT_MOST
        counts = {}
        for path in paths:
            if path in self._known:
                counts[path] = self._known[path]
            elif reads_left:
                reads_left -= 1
                with suppress(OSError, pa.ArrowException):  # not Parquet, or deleted: see `verify`
                    counts[path] = count_positions(opener(io), path)
        self._known = counts
        return counts


def contents_of(
    entries: Sequence[ManifestColumns],
    snapshot_times: Mapping[int, SnapshotTime],
    oldest: float,
    names: Mapping[int, Namer],
    io: FileIO,
    deletes: DeleteFileReader,
) -> SnapshotContents:
    """Put the entries of manifests together.

    `snapshot_times` has the retained snapshots; files of others count as added at `oldest`.
    `names` is by spec id.
    """
    known: dict[tuple[int, Values], int] = {}  # partitions, with their numbers
    partition_numbers = []
    for each in entries:
        numbers = [known.setdefault((each.spec_id, v), len(known)) for v in each.partitions]
        partition_numbers.append(np.array(numbers, dtype=np.int64)[each.partition_numbers])
    content = _concat(each.content for each in entries)
    paths = _concat_texts(each.paths for each in entries)
    named_files = _concat_texts(each.referenced_data_file for each in entries)
    columns = [
        _concat(each.bytes for each in entries),
        _concat(each.records for each in entries),
        _concat(partition_numbers),
        _concat(each.snapshots for each in entries),
    ]
    is_data, is_delete = content == DATA, content == POSITION_DELETES
    sizes, records, partition, snapshots = (column[is_data] for column in columns)
    added_at, only_rewritten = _added_at(snapshots, snapshot_times, oldest)
    data = DataFileColumns(
        paths=paths.filter(pa.array(is_data)),
        bytes=sizes,
        records=records,
        deleted=np.zeros(len(sizes), dtype=np.int64),
        delete_files=np.zeros(len(sizes), dtype=np.int64),
        added_at=added_at,
        only_rewritten=only_rewritten,
        partition_numbers=partition,
    )
    sizes, records, partition, _ = (column[is_delete] for column in columns)
    named_files = named_files.filter(pa.array(is_delete))
    is_shared = named_files.is_null().to_numpy(zero_copy_only=False)
    delete_paths = paths.filter(pa.array(is_delete))
    delete_files = DeleteFileColumns(delete_paths, sizes, records, partition, is_shared)
    if len(delete_files):
        _count_deleted(data, delete_files, named_files, io, deletes)
    partitions = tuple(TablePartition(spec_id, v, names[spec_id](v)) for spec_id, v in known)
    equality_deletes = int((content == EQUALITY_DELETES).sum())
    return SnapshotContents(partitions, data, delete_files, equality_deletes)


def _concat(parts: Any) -> Numbers:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _concat_texts(parts: Any) -> pa.StringArray:
    return pa.chunked_array(list(parts), pa.string()).combine_chunks()


def _added_at(
    snapshots: Numbers, snapshot_times: Mapping[int, SnapshotTime], oldest: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return when files of these snapshots were added, and whether only by a rewrite."""
    ids, indices = np.unique(snapshots, return_inverse=True)
    times = [snapshot_times.get(int(id_), SnapshotTime(oldest, True)) for id_ in ids]
    added_at = np.array([time.at for time in times], dtype=np.float64)
    only_rewritten = np.array([time.only_rewrote for time in times], dtype=np.bool_)
    return added_at[indices], only_rewritten[indices]


def _count_deleted(
    data: DataFileColumns,
    delete_files: DeleteFileColumns,
    named_files: pa.StringArray,
    io: FileIO,
    deletes: DeleteFileReader,
) -> None:
    """Count the deleted rows of each data file, from metadata where that names the data file."""
    _add_deleted(data, named_files, delete_files.records)
    shared = np.flatnonzero(delete_files.shared)
    # The newest first: those were not read before.
    paths = {int(i): delete_files.paths[int(i)].as_py() for i in shared[::-1]}
    counts = deletes.read(io, list(paths.values()))
    if read := [counts[path] for path in paths.values() if path in counts]:
        data_files = pa.concat_arrays([data_files for data_files, _ in read])
        _add_deleted(data, data_files, np.concatenate([deleted for _, deleted in read]))
    _estimate_deleted(data, delete_files, [i for i, path in paths.items() if path not in counts])
    np.minimum(data.deleted, data.records, out=data.deleted)


def _add_deleted(data: DataFileColumns, paths: pa.StringArray, counts: Numbers) -> None:
    """Add a delete file to each data file of these paths, with the rows that it deletes there."""
    indices = pc.index_in(paths, value_set=data.paths).fill_null(-1).to_numpy()
    is_live = indices >= 0
    np.add.at(data.deleted, indices[is_live], counts[is_live])
    np.add.at(data.delete_files, indices[is_live], 1)


def _estimate_deleted(
    data: DataFileColumns, deletes: DeleteFileColumns, unread: Sequence[int]
) -> None:
    """Add delete files that were not read, as if their rows were spread evenly in the partition."""
    if not unread:
        return
    indices = np.array(unread, dtype=np.int64)
    partitions = deletes.partition_numbers[indices]
    count = int(max(data.partition_numbers.max(initial=0), deletes.partition_numbers.max())) + 1
    rows = np.bincount(partitions, weights=deletes.records[indices], minlength=count)
    files = np.bincount(partitions, minlength=count)
    data_rows = np.bincount(data.partition_numbers, weights=data.records, minlength=count)
    share = rows / np.maximum(1, data_rows)
    data.deleted[:] += (data.records * share[data.partition_numbers]).round().astype(np.int64)
    data.delete_files[:] += files[data.partition_numbers]
