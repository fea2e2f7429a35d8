"""Index entries: what the index knows about some keys, one array per fact."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icestream.index.keys import Hashes, bucket_of
from icestream.index.sequences import SourceSequences

COLUMNS: dict[str, np.dtype[Any]] = {
    "hash_hi": np.dtype("<u8"),
    "hash_lo": np.dtype("<u8"),
    "sequence_hi": np.dtype("<u8"),
    "sequence_lo": np.dtype("<u8"),
    "file": np.dtype("<u4"),
    "position": np.dtype("<u4"),  # of a tombstone: when the key was deleted, seconds since 1970
    "marks": np.dtype("u1"),
}
TOMBSTONE = 0x80  # in `marks`, beside the size of the sequence
SIZE = 0x1F
LARGEST = 2**32 - 1


@dataclass(frozen=True)
class IndexEntries:
    """Live rows and deleted keys; unless stated otherwise one entry per key, sorted by its hash."""

    hash_hi: NDArray[np.uint64]
    hash_lo: NDArray[np.uint64]
    sequence_hi: NDArray[np.uint64]
    sequence_lo: NDArray[np.uint64]
    file: NDArray[np.uint32]
    position: NDArray[np.uint32]
    marks: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.hash_hi)

    @property
    def tombstone(self) -> NDArray[np.bool_]:
        """Which entries say that the key was deleted."""
        is_tombstone: NDArray[np.bool_] = (self.marks & TOMBSTONE) != 0
        return is_tombstone

    @property
    def sequences(self) -> SourceSequences:
        """The source sequence of each entry."""
        return SourceSequences(self.sequence_hi, self.sequence_lo, self.marks & np.uint8(SIZE))

    def columns(self) -> list[tuple[str, NDArray[Any]]]:
        """Return all facts by name, in the order of COLUMNS."""
        return [(name, getattr(self, name)) for name in COLUMNS]

    def take(self, rows: "NDArray[Any] | slice") -> "IndexEntries":
        """Return some of the entries, in this order."""
        return IndexEntries(*(column[rows] for _, column in self.columns()))

    def newest(self) -> "IndexEntries":
        """Sort by hash and keep the first entry of each key: the caller puts the newest first."""
        order = np.argsort(self.hash_hi, kind="stable")
        hi, lo = self.hash_hi[order], self.hash_lo[order]
        is_same = hi[1:] == hi[:-1]
        if (is_same & (lo[1:] != lo[:-1])).any():  # two keys agree in 64 bits: rare, and allowed
            order = np.lexsort((self.hash_lo, self.hash_hi))
            hi, lo = self.hash_hi[order], self.hash_lo[order]
            is_same = (hi[1:] == hi[:-1]) & (lo[1:] == lo[:-1])
        is_first = np.concatenate([np.ones(min(len(order), 1), dtype=bool), ~is_same])
        return self.take(order[is_first])

    def by_bucket(self, buckets: int) -> "Iterator[tuple[int, IndexEntries]]":
        """Cut sorted entries by bucket; buckets without entries are left out."""
        # A bucket is the first bits of the hash, so in sorted entries each bucket is a slice.
        numbers = bucket_of(self.hash_hi.reshape(-1, 1), buckets)
        bounds = np.searchsorted(numbers, np.arange(buckets + 1)).tolist()
        for bucket, (start, stop) in enumerate(itertools.pairwise(bounds)):
            if start < stop:
                yield bucket, self.take(slice(start, stop))


def row_entries(
    hashes: Hashes,
    file: "int | NDArray[Any]",
    position: NDArray[Any],
    sequence: pa.Array | None = None,
) -> IndexEntries:
    """Return entries of live rows; `file` is one number for all, or one for each row."""
    count = len(hashes)
    if count and int(position.max()) > LARGEST:
        raise ValueError("a data file has more than 2^32 rows")
    words = SourceSequences.of(sequence, count)
    files = np.broadcast_to(np.asarray(file, dtype=np.uint32), (count,))
    return IndexEntries(
        hashes[:, 0],
        hashes[:, 1],
        words.hi,
        words.lo,
        files,
        position.astype(np.uint32),
        words.size,
    )


def tombstone_entries(
    hashes: Hashes, sequence: pa.Array | None, seconds: "int | NDArray[Any]"
) -> IndexEntries:
    """Return tombstones of deleted keys; `seconds` since 1970 says when they were deleted."""
    entries = row_entries(hashes, 0, np.broadcast_to(np.asarray(seconds), (len(hashes),)), sequence)
    return replace(entries, marks=entries.marks | np.uint8(TOMBSTONE))


def concat_entries(parts: Sequence[IndexEntries]) -> IndexEntries:
    """Join the entries of all parts, in their order."""
    if not parts:
        return IndexEntries(*(np.zeros(0, dtype) for dtype in COLUMNS.values()))
    columns = [[column for _, column in part.columns()] for part in parts]
    return IndexEntries(*(np.concatenate(pieces) for pieces in zip(*columns, strict=True)))
