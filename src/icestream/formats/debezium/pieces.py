"""Puts rows that were decoded in different ways back into one column."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows = npt.NDArray[np.int64]


def spread(pieces: Sequence[tuple[Rows, pa.Array]], size: int, arrow_type: pa.DataType) -> pa.Array:
    """Return a column with the values of each piece in its rows; rows in no piece are null."""
    if len(pieces) == 1 and len(pieces[0][0]) == size:
        return pieces[0][1]
    indices = np.zeros(size, np.int64)  # the null that stands first
    start = 1
    for rows, values in pieces:
        indices[rows] = np.arange(start, start + len(values))
        start += len(values)
    parts = [pa.nulls(1, arrow_type), *(values for _, values in pieces)]
    return pa.concat_arrays(parts).take(pa.array(indices))
