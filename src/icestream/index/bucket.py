"""Lookups of keys in one bucket: in its sorted runs, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icestream.index.entries import COLUMNS, SIZE, TOMBSTONE
from icestream.index.keys import Hashes
from icestream.index.sequences import SourceSequences
from icestream.index.sorted_run import SortedRun


@dataclass(frozen=True)
class LookupResult:
    """What the index knows about each key that was asked for; both masks False: nothing."""

    hit: NDArray[np.bool_]  # the table has a row, at `position` of data file number `file`
    tombstone: NDArray[np.bool_]  # it was deleted, by a change with this sequence
    file: NDArray[np.uint32]
    position: NDArray[np.uint32]
    sequences: SourceSequences

    def take(self, rows: NDArray[Any]) -> "LookupResult":
        """Return the results of some keys, in this order."""
        return LookupResult(
            self.hit[rows],
            self.tombstone[rows],
            self.file[rows],
            self.position[rows],
            self.sequences.take(rows),
        )


def concat_lookups(parts: Sequence[LookupResult]) -> LookupResult:
    """Join the results of several lookups."""
    columns = [
        (part.hit, part.tombstone, part.file, part.position, *vars(part.sequences).values())
        for part in parts
    ]
    hit, tombstone, file, position, hi, lo, size = map(np.concatenate, zip(*columns, strict=True))
    return LookupResult(hit, tombstone, file, position, SourceSequences(hi, lo, size))


def lookup(runs: Sequence[SortedRun], live: NDArray[np.uint32], hashes: Hashes) -> LookupResult:
    """Find the newest entry of each key; `live` are the sorted numbers of the table's data files.

    A newest entry in a file that is no longer live means that there is no row: had the row moved,
    a newer entry would say so. An older entry is never asked instead.
    """
    count = len(hashes)
    order = np.argsort(hashes[:, 0])
    hi, lo = hashes[order, 0], hashes[order, 1]
    names = ("sequence_hi", "sequence_lo", "file", "position", "marks")
    facts: dict[str, NDArray[Any]] = {name: np.zeros(count, COLUMNS[name]) for name in names}
    is_known = np.zeros(count, dtype=bool)
    unknown_rows = np.arange(count)
    for run in runs:
        if not len(unknown_rows):
            break
        entry_rows = run.find(hi[unknown_rows], lo[unknown_rows])
        is_found = entry_rows >= 0
        entries, key_rows = run.at(entry_rows[is_found]), order[unknown_rows[is_found]]
        for name, values in facts.items():
            values[key_rows] = getattr(entries, name)
        is_known[key_rows] = True
        unknown_rows = unknown_rows[~is_found]
    is_deleted = is_known & ((facts["marks"] & TOMBSTONE) != 0)
    return LookupResult(
        hit=is_known & ~is_deleted & is_live(live, facts["file"]),
        tombstone=is_deleted,
        file=facts["file"],
        position=facts["position"],
        sequences=SourceSequences(
            facts["sequence_hi"], facts["sequence_lo"], facts["marks"] & np.uint8(SIZE)
        ),
    )


def is_live(live: NDArray[np.uint32], files: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Tell which of these file numbers are among the sorted numbers of live files."""
    if not len(live):
        return np.zeros(len(files), dtype=bool)
    indices = np.minimum(np.searchsorted(live, files), len(live) - 1)
    is_equal: NDArray[np.bool_] = live[indices] == files
    return is_equal
