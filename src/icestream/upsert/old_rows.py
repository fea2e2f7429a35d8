"""Old rows: single columns of single rows of data files, read where the key index says they are."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from icestream.tables.arrow import FIELD_ID
from icestream.tables.storage import filesystem


def read_rows(path: str, positions: NDArray[np.int64], fields: Sequence[pa.Field]) -> pa.Table:
    """Read columns of the rows at these positions, in their order; others are not touched.

    `fields` are the table's columns with their ids; one that the file does not have is null.
    """
    system, name = filesystem(path)
    with system.open_input_file(name) as source:
        file = pq.ParquetFile(source)
        there = {_id(each): each.name for each in file.schema_arrow}
        wanted = [there[_id(each)] for each in fields if _id(each) in there]
        sorted_, back = np.unique(positions, return_inverse=True)
        groups = np.cumsum([file.metadata.row_group(n).num_rows for n in range(_groups(file))])
        which = np.searchsorted(groups, sorted_, side="right")
        parts = []
        for group in np.unique(which).tolist():
            first = groups[group - 1] if group else 0
            inside = pa.array(sorted_[which == group] - first)
            parts.append(file.read_row_group(group, columns=wanted).take(inside))
        found = pa.concat_tables(parts).take(pa.array(back))
    columns = [
        found.column(there[_id(each)]).cast(each.type)
        if _id(each) in there
        else pa.nulls(len(positions), each.type)
        for each in fields
    ]
    return pa.table(columns, schema=pa.schema(fields))


def _groups(file: pq.ParquetFile) -> int:
    return int(file.metadata.num_row_groups)


def _id(field: pa.Field) -> bytes | None:
    found: bytes | None = (field.metadata or {}).get(FIELD_ID)
    return found
