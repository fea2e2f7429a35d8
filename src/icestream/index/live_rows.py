"""Live rows: what a snapshot holds, file by file, with deletes applied; by PyIceberg, no JVM."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema

from icestream.errors import SchemaRefused
from icestream.index.entries import IndexEntries, row_entries
from icestream.index.keys import key_hashes
from icestream.tables.arrow import FIELD_ID
from icestream.tables.position_deletes import RowPositions, live_mask

SEQUENCE = "_src_sequence"
_BATCH = 1 << 16


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


def live_rows(
    io: FileIO,
    path: str,
    columns: IndexedColumns,
    deleted: RowPositions | None,
    number: int,
) -> Iterator[IndexEntries]:
    """Give the live rows of a data file, batch by batch."""
    with io.new_input(path).open() as stream:
        file = pq.ParquetFile(stream)
        names = _names(file.schema_arrow, columns)
        wanted = [name for name in names.values() if name is not None]
        at = 0
        for batch in file.iter_batches(_BATCH, columns=wanted):
            is_live = live_mask(deleted, at, batch.num_rows)
            positions = np.arange(at, at + batch.num_rows)
            at += batch.num_rows
            if is_live is not None:
                batch, positions = batch.filter(pa.array(is_live)), positions[is_live]
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
