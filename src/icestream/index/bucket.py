"""A bucket: the runs of one share of the keys, newest first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icestream.index.entries import SIZE, TOMBSTONE
from icestream.index.keys import Hashes
from icestream.index.sequences import LONGER, SourceSequences
from icestream.index.sorted_run import SortedRun


@dataclass(frozen=True)
class LookupResult:
    """What the index knows about each key that was asked for; both masks False: nothing."""

    hit: NDArray[np.bool_]  # a row is there, at `position` of data file number `file`
    tombstone: NDArray[np.bool_]  # it was deleted, by a change with this sequence
    file: NDArray[np.uint32]
    position: NDArray[np.uint32]
    sequences: SourceSequences

    @property
    def longer(self) -> NDArray[np.bool_]:
        """Rows whose sequence is longer than what the index holds of it."""
        found: NDArray[np.bool_] = self.hit & (self.sequences.size == LONGER)
        return found


def lookup(runs: Sequence[SortedRun], live: NDArray[np.uint32], hashes: Hashes) -> LookupResult:
    """Find the newest entry of each key; `live` are the sorted numbers of the table's data files.

    A newest entry in a file that is no longer live means that there is no row: had the row moved,
    a newer entry would say so. An older entry is never asked instead.
    """
    count = len(hashes)
    order = np.argsort(hashes[:, 0])
    hi, lo = hashes[order, 0], hashes[order, 1]
    facts: dict[str, NDArray[Any]] = {
        name: np.zeros(count, dtype=kind)
        for name, kind in (
            ("sequence_hi", np.uint64), ("sequence_lo", np.uint64),
            ("file", np.uint32), ("position", np.uint32), ("marks", np.uint8),
        )
    }  # fmt: skip
    known = np.zeros(count, dtype=bool)
    left = np.arange(count)
    for run in runs:
        if not len(left):
            break
        places = run.find(hi[left], lo[left])
        got = places >= 0
        some, which = run.at(places[got]), order[left[got]]
        for name, values in facts.items():
            values[which] = getattr(some, name)
        known[which] = True
        left = left[~got]
    deleted = known & ((facts["marks"] & TOMBSTONE) != 0)
    return LookupResult(
        hit=known & ~deleted & is_live(live, facts["file"]),
        tombstone=deleted,
        file=facts["file"],
        position=facts["position"],
        sequences=SourceSequences(
            facts["sequence_hi"], facts["sequence_lo"], facts["marks"] & np.uint8(SIZE)
        ),
    )


def is_live(live: NDArray[np.uint32], files: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Which of these file numbers are among the sorted numbers of live files."""
    if not len(live):
        return np.zeros(len(files), dtype=bool)
    at = np.minimum(np.searchsorted(live, files), len(live) - 1)
    found: NDArray[np.bool_] = live[at] == files
    return found
