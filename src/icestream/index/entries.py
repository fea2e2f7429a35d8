"""Entries: what the index knows about some keys, one array per fact."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from icestream.index.keys import Hashes
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
    """Rows and deletions; where nothing else is said, one entry per key, sorted by its hash."""

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
        found: NDArray[np.bool_] = (self.marks & TOMBSTONE) != 0
        return found

    @property
    def sequences(self) -> SourceSequences:
        """The sequence of each entry."""
        return SourceSequences(self.sequence_hi, self.sequence_lo, self.marks & np.uint8(SIZE))

    def columns(self) -> list[tuple[str, NDArray[Any]]]:
        """All facts by name, in the order of COLUMNS."""
        return [(name, getattr(self, name)) for name in COLUMNS]

    def take(self, which: "NDArray[Any] | slice") -> "IndexEntries":
        """Some of the entries."""
        return IndexEntries(*(column[which] for _, column in self.columns()))

    def newest(self) -> "IndexEntries":
        """Sorted, and only the first entry of each key: give the newest first."""
        order = np.argsort(self.hash_hi, kind="stable")
        hi, lo = self.hash_hi[order], self.hash_lo[order]
        same = hi[1:] == hi[:-1]
        if (same & (lo[1:] != lo[:-1])).any():  # two keys agree in 64 bits: rare, and allowed
            order = np.lexsort((self.hash_lo, self.hash_hi))
            hi, lo = self.hash_hi[order], self.hash_lo[order]
            same = (hi[1:] == hi[:-1]) & (lo[1:] == lo[:-1])
        first = np.concatenate([np.ones(min(len(order), 1), dtype=bool), ~same])
        return self.take(order[first])


def row_entries(
    hashes: Hashes,
    file: "int | NDArray[Any]",
    position: NDArray[Any],
    sequence: pa.Array | None = None,
) -> IndexEntries:
    """Live rows; `file` is a number, one for all or one each, `position` the place in it."""
    count = len(hashes)
    if count and int(position.max()) > LARGEST:
        raise ValueError("a data file has more than 2^32 rows")
    told = SourceSequences.of(sequence, count)
    files = np.broadcast_to(np.asarray(file, dtype=np.uint32), (count,))
    return IndexEntries(
        hashes[:, 0], hashes[:, 1], told.hi, told.lo, files, position.astype(np.uint32), told.size
    )


def tombstone_entries(
    hashes: Hashes, sequence: pa.Array | None, seconds: "int | NDArray[Any]"
) -> IndexEntries:
    """Deleted keys, and when they were deleted."""
    when = np.broadcast_to(np.asarray(seconds), (len(hashes),))
    found = row_entries(hashes, 0, when, sequence)
    return IndexEntries(
        found.hash_hi, found.hash_lo, found.sequence_hi, found.sequence_lo,
        found.file, found.position, found.marks | np.uint8(TOMBSTONE),
    )  # fmt: skip


def concat_entries(parts: Sequence[IndexEntries]) -> IndexEntries:
    """All entries of all parts, in their order."""
    if not parts:
        return IndexEntries(*(np.zeros(0, dtype=kind) for kind in COLUMNS.values()))
    columns = [[column for _, column in part.columns()] for part in parts]
    return IndexEntries(*(np.concatenate(each) for each in zip(*columns, strict=True)))
