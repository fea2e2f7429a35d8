"""Source sequences: the place of a change in its source's log, as bytes that compare as the log.

The index keeps the first 16 bytes of each, and its length. That decides nearly every comparison;
the others are UNDECIDED, and the caller reads the whole values from the rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

KEPT = 16
LONGER = 17  # as a size: more bytes than are kept
NONE = 31  # as a size: no sequence at all
UNDECIDED = 2

Words = NDArray[np.uint64]


@dataclass(frozen=True)
class SourceSequences:
    """The first 16 bytes as two numbers, and the size of each sequence."""

    hi: Words
    lo: Words
    size: NDArray[np.uint8]

    def take(self, rows: NDArray[Any]) -> "SourceSequences":
        """Return the sequences of some rows, in this order."""
        return SourceSequences(self.hi[rows], self.lo[rows], self.size[rows])

    @staticmethod
    def of(column: pa.Array | None, count: int) -> "SourceSequences":
        """Read the sequences of a binary column; None is a column of nulls."""
        if column is None or count == 0 or column.null_count == count:
            zeros = np.zeros(count, dtype=np.uint64)
            return SourceSequences(zeros, zeros, np.full(count, NONE, dtype=np.uint8))
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        is_null = column.is_null().to_numpy(zero_copy_only=False)
        if pa.types.is_fixed_size_binary(column.type):
            column = column.cast(pa.binary())
        column = column.cast(pa.large_binary()).fill_null(b"")
        _, offsets, data = column.buffers()
        bounds = np.frombuffer(offsets, dtype=np.int64)[column.offset : column.offset + count + 1]
        lengths = np.diff(bounds)
        words = _first_words(np.frombuffer(data or b"", dtype=np.uint8), bounds, lengths)
        size = np.where(is_null, NONE, np.minimum(lengths, LONGER)).astype(np.uint8)
        return SourceSequences(words[:, 0], words[:, 1], size)

    def compare(self, other: "SourceSequences") -> NDArray[np.int8]:
        """Compare row by row: -1 earlier, 0 equal, 1 later than `other`, or UNDECIDED.

        A row without a sequence is equal to any other: then the offset alone decides.
        """
        result = np.zeros(len(self.size), dtype=np.int8)
        pairs: Sequence[tuple[NDArray[np.uint64] | NDArray[np.uint8], ...]]
        pairs = ((self.size, other.size), (self.lo, other.lo), (self.hi, other.hi))
        for values, others in pairs:  # the most significant pair comes last and overrules the rest
            result = np.where(values > others, 1, np.where(values < others, -1, result))
        is_cut = (self.size == LONGER) & (other.size == LONGER)
        has_none = (self.size == NONE) | (other.size == NONE)
        result = np.where(is_cut & (result == 0), UNDECIDED, result)
        return np.where(has_none, 0, result).astype(np.int8)


def _first_words(
    data: NDArray[np.uint8], bounds: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Words:
    """Return the first 16 bytes of each value, filled up with zeros, as two big-endian words."""
    first = np.zeros((len(lengths), KEPT), dtype=np.uint8)
    width = int(lengths[0])
    if (lengths == width).all():  # one connector writes one width
        block = data[bounds[0] : bounds[-1]].reshape(len(lengths), width)[:, :KEPT]
        first[:, : block.shape[1]] = block
    else:
        offsets = np.arange(KEPT)
        is_inside = offsets < lengths[:, None]
        first[is_inside] = data[(bounds[:-1, None] + offsets)[is_inside]]
    return first.view(">u8").astype(np.uint64)
