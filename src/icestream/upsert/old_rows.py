"""Reads single columns of single rows of data files, at the positions that the key index gives."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from icestream.tables.arrow import FIELD_ID
from icestream.tables.storage import filesystem


def read_rows(path: str, positions: NDArray[np.int64], fields: Sequence[pa.Field]) -> pa.Table:
    """Read columns of the rows at these positions, in their order; other row groups stay unread.

    `fields` are the table's columns with their ids; one that the file does not have is null.
    """
    system, name = filesystem(path)
    with system.open_input_file(name) as source:
        file = pq.ParquetFile(source)
        names = {_id(field): field.name for field in file.schema_arrow}
        present = [names[_id(field)] for field in fields if _id(field) in names]
        sorted_, inverse = np.unique(positions, return_inverse=True)
        ends = np.cumsum([file.metadata.row_group(n).num_rows for n in range(_groups(file))])
        groups = np.searchsorted(ends, sorted_, side="right")
        parts = []
        for group in np.unique(groups).tolist():
            first = ends[group - 1] if group else 0
            rows = pa.array(sorted_[groups == group] - first)
            parts.append(file.read_row_group(group, columns=present).take(rows))
        table = pa.concat_tables(parts).take(pa.array(inverse))
    columns = [
        table.column(names[_id(field)]).cast(field.type)
        if _id(field) in names
        else pa.nulls(len(positions), field.type)
        for field in fields
    ]
    return pa.table(columns, schema=pa.schema(fields))


def _groups(file: pq.ParquetFile) -> int:
    return int(file.metadata.num_row_groups)


def _id(field: pa.Field) -> bytes | None:
    field_id: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return field_id
