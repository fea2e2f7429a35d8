"""Reads the live rows of data files as index entries, with deletes applied; no JVM."""

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
    """Field ids of the columns that the index needs; names are for files that have no ids."""

    keys: Mapping[str, int]
    sequence: int | None  # of `_src_sequence`, if the table has it

    @staticmethod
    def of(schema: Schema, keys: Sequence[str]) -> "IndexedColumns":
        """Find the key columns in a table's schema; raises SchemaRefused if one is missing."""
        field_ids = {field.name: field.field_id for field in schema.fields}
        missing = [name for name in keys if name not in field_ids]
        if missing:
            raise SchemaRefused(
                f"the table has no key column `{missing[0]}`",
                hint="correct `keys:`; a part of a struct cannot be a key",
            )
        return IndexedColumns({name: field_ids[name] for name in keys}, field_ids.get(SEQUENCE))


def live_rows(
    io: FileIO,
    path: str,
    columns: IndexedColumns,
    deleted: RowPositions | None,
    number: int,
) -> Iterator[IndexEntries]:
    """Yield index entries of the live rows of a data file; `number` is the file's in the index."""
    with io.new_input(path).open() as stream:
        file = pq.ParquetFile(stream)
        names = _names(file.schema_arrow, columns)
        present = [name for name in names.values() if name is not None]
        start = 0
        for batch in file.iter_batches(_BATCH, columns=present):
            is_live = live_mask(deleted, start, batch.num_rows)
            positions = np.arange(start, start + batch.num_rows)
            start += batch.num_rows
            if is_live is not None:
                batch, positions = batch.filter(pa.array(is_live)), positions[is_live]
            if not batch.num_rows:
                continue
            keys = [_column(batch, names[field_id]) for field_id in columns.keys.values()]
            sequence = None
            if columns.sequence is not None and names[columns.sequence] is not None:
                sequence = _column(batch, names[columns.sequence])
            yield row_entries(key_hashes(keys), number, positions, sequence)


def _column(batch: pa.RecordBatch, name: str | None) -> pa.Array:
    """Return a column; nulls for one that was added after the file was written."""
    return pa.nulls(batch.num_rows) if name is None else batch.column(name)


def _names(schema: pa.Schema, columns: IndexedColumns) -> dict[int, str | None]:
    """Map field ids to the names of the columns in a file; by name if the file has no ids."""
    by_id = {
        int(field.metadata[FIELD_ID]): field.name
        for field in schema
        if field.metadata and FIELD_ID in field.metadata
    }
    wanted = {**columns.keys} | ({SEQUENCE: columns.sequence} if columns.sequence else {})
    if not by_id:
        by_id = {field_id: name for name, field_id in wanted.items() if name in schema.names}
    return {field_id: by_id.get(field_id) for field_id in wanted.values()}
