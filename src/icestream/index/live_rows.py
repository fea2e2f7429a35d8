"""Live rows: what a snapshot holds, file by file, with deletes applied; by PyIceberg, no JVM."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.schema import Schema

from icestream.errors import SchemaRefused, TableRefused
from icestream.index.entries import IndexEntries, row_entries
from icestream.index.keys import key_hashes
from icestream.tables.arrow import FIELD_ID

SEQUENCE = "_src_sequence"
_PATH_ID = 2147483546  # `file_path` of a position delete, reserved by the specification
_BATCH = 1 << 16

RowPositions = NDArray[np.int64]


@dataclass(frozen=True)
class IndexedColumns:
    """The columns to read, by field id; names are for files that have no ids."""

    keys: Mapping[str, int]
    sequence: int | None

    @staticmethod
    def of(schema: Schema, keys: Sequence[str]) -> "IndexedColumns":
        """Find them in a table's schema."""
        names = {each.name: each.field_id for each in schema.fields}
        missing = [name for name in keys if name not in names]
        if missing:
            raise SchemaRefused(
                f"the table has no key column `{missing[0]}`",
                hint="correct `keys:`; a part of a struct cannot be a key",
            )
        return IndexedColumns({name: names[name] for name in keys}, names.get(SEQUENCE))


@dataclass
class LiveFiles:
    """Files of some manifests: data files by path, and position-delete files."""

    data: dict[str, ManifestEntry] = field(default_factory=dict)
    deletes: list[ManifestEntry] = field(default_factory=list)


def read_manifests(io: FileIO, manifests: Iterable[ManifestFile]) -> LiveFiles:
    """Read manifests; what the index cannot follow is refused here."""
    found = LiveFiles()
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(io):
            file = entry.data_file
            if file.content == DataFileContent.EQUALITY_DELETES:
                raise TableRefused(
                    "the table has equality deletes, written by another program",
                    where=file.file_path,
                    hint="remove them first: `CALL system.rewrite_data_files` with "
                    "`delete-file-threshold => 1`, and upsert by one program only",
                )
            if file.file_format != FileFormat.PARQUET:
                raise TableRefused(
                    f"upserts need Parquet files with position deletes, this is "
                    f"{file.file_format.name.lower()}",
                    where=file.file_path,
                    hint="rewrite the table as format version 2 with Parquet files",
                )
            if file.content == DataFileContent.DATA:
                found.data[file.file_path] = entry
            else:
                found.deletes.append(entry)
    return found


def is_delete(manifest: ManifestFile) -> bool:
    """Whether a manifest lists delete files."""
    return bool(manifest.content == ManifestContent.DELETES)


def write_order(entry: ManifestEntry) -> tuple[int, str]:
    """Data files in the order in which they were written."""
    return entry.sequence_number or 0, entry.data_file.file_path


def deleted_positions(
    io: FileIO, deletes: Iterable[ManifestEntry], data: Mapping[str, ManifestEntry]
) -> dict[str, RowPositions]:
    """Positions that are deleted in these data files, sorted."""
    found: dict[str, list[RowPositions]] = {}
    wanted = sorted(path.encode() for path in data)
    for entry in deletes:
        if not _may_concern(entry, wanted):
            continue
        for path, positions in read_deletes(io, entry):
            hit = data.get(path)
            # A delete is about files that were there before it, or came with it.
            if hit is not None and (hit.sequence_number or 0) <= (entry.sequence_number or 0):
                found.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}


def read_deletes(io: FileIO, entry: ManifestEntry) -> Iterator[tuple[str, RowPositions]]:
    """Give the positions in a position-delete file, data file by data file."""
    with io.new_input(entry.data_file.file_path).open() as stream:
        yield from positions_in(stream)


def positions_in(stream: Any) -> Iterator[tuple[str, RowPositions]]:
    """Give the positions in an open position-delete file, data file by data file."""
    table = pq.read_table(stream, columns=["file_path", "pos"])
    coded = table.column("file_path").combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    positions = table.column("pos").to_numpy()[order]
    bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
    for number, path in enumerate(coded.dictionary.to_pylist()):
        yield path, positions[bounds[number] : bounds[number + 1]]


def live_rows(
    io: FileIO,
    entry: ManifestEntry,
    columns: IndexedColumns,
    gone: RowPositions | None,
    number: int,
) -> Iterator[IndexEntries]:
    """Give the live rows of a data file, batch by batch."""
    with io.new_input(entry.data_file.file_path).open() as stream:
        file = pq.ParquetFile(stream)
        names = _names(file.schema_arrow, columns)
        wanted = [name for name in names.values() if name is not None]
        at = 0
        for batch in file.iter_batches(_BATCH, columns=wanted):
            positions = np.arange(at, at + batch.num_rows)
            at += batch.num_rows
            if gone is not None and batch.num_rows:
                left = np.ones(batch.num_rows, dtype=bool)
                first, last = np.searchsorted(gone, [at - batch.num_rows, at])
                left[gone[first:last] - positions[0]] = False
                batch, positions = batch.filter(pa.array(left)), positions[left]
            if not batch.num_rows:
                continue
            keys = [_column(batch, names[each]) for each in columns.keys.values()]
            sequence = None
            if columns.sequence is not None and names[columns.sequence] is not None:
                sequence = _column(batch, names[columns.sequence])
            yield row_entries(key_hashes(keys), number, positions, sequence)


def _column(batch: pa.RecordBatch, name: str | None) -> pa.Array:
    """A column; one that the file does not have yet is null."""
    return pa.nulls(batch.num_rows) if name is None else batch.column(name)


def _names(schema: pa.Schema, columns: IndexedColumns) -> dict[int, str | None]:
    """Field id → the name of the column in a file; by name if the file has no ids."""
    by_id = {
        int(each.metadata[FIELD_ID]): each.name
        for each in schema
        if each.metadata and FIELD_ID in each.metadata
    }
    told = {**columns.keys} | ({SEQUENCE: columns.sequence} if columns.sequence else {})
    if not by_id:
        by_id = {number: name for name, number in told.items() if name in schema.names}
    return {number: by_id.get(number) for number in told.values()}


def _may_concern(entry: ManifestEntry, wanted: Sequence[bytes]) -> bool:
    """Whether a delete file can be about these (sorted) data files, as its bounds tell."""
    if not wanted:
        return False
    lower = (entry.data_file.lower_bounds or {}).get(_PATH_ID)
    upper = (entry.data_file.upper_bounds or {}).get(_PATH_ID)
    if lower is None or upper is None:
        return True
    at = bisect_left(wanted, lower)
    return at < len(wanted) and wanted[at] <= upper
