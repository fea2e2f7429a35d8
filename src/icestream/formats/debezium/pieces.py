"""Rows that were treated in different ways, put back into one column."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Rows = npt.NDArray[np.int64]


def spread(pieces: Sequence[tuple[Rows, pa.Array]], size: int, kind: pa.DataType) -> pa.Array:
    """Put each piece into its rows; the rows of none are null."""
    if len(pieces) == 1 and len(pieces[0][0]) == size:
        return pieces[0][1]
    place = np.zeros(size, np.int64)  # the null that stands first
    begin = 1
    for rows, values in pieces:
        place[rows] = np.arange(begin, begin + len(values))
        begin += len(values)
    return pa.concat_arrays([pa.nulls(1, kind), *(each for _, each in pieces)]).take(
        pa.array(place)
    )
