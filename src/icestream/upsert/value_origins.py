"""Origins: where a column that an event does not carry was last said, also under another key."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icestream.formats import DELETE
from icestream.index.keys import Hashes
from icestream.upsert.changes import ChangeBatch
from icestream.upsert.fold import sequence_ranks

Places = NDArray[np.intp]


@dataclass(frozen=True)
class ValueOrigin:
    """A change that carries the column, or the key whose row in the table has it; else nothing."""

    change: int | None = None
    key: Hashes | None = None
    moved: int | None = None  # the change that took the row over from another key


class ValueOriginFinder:
    """Looks back through changes that are in order, none of them older than the table's row."""

    def __init__(self, changes: ChangeBatch) -> None:
        self._changes = changes
        self._ranks = sequence_ranks(changes.sequence)
        self._old = np.column_stack(
            [half.fill_null(0).to_numpy() for half in (changes.old_hi, changes.old_lo)]
        )
        self._has_old: NDArray[np.bool_] = changes.old_hi.is_valid().to_numpy(zero_copy_only=False)

    def changed_key(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Keys that may have taken a row over from another one."""
        found: NDArray[np.bool_] = np.isin(hashes[:, 0], self._changes.hashes[self._has_old, 0])
        return found

    def find(self, column: str, key: Hashes) -> ValueOrigin:
        """Go back from the last change of a key, and on with the key that it had before."""
        lacks, moved = self._changes.is_missing(column), None
        while True:
            mine = np.flatnonzero((self._changes.hashes == key).all(axis=1))
            before = mine if moved is None else self._earlier(mine, moved)
            for at in before[::-1].tolist():
                if self._changes.ops[at] == DELETE:
                    return ValueOrigin(moved=moved)
                if not lacks[at]:
                    return ValueOrigin(change=at, moved=moved)
                if self._has_old[at]:
                    key, moved = self._old[at], at
                    break
            else:
                return ValueOrigin(key=key, moved=moved)

    def _earlier(self, mine: Places, moved: int) -> Places:
        """Without what came later, nor the delete that is the other half of the move."""
        offsets = self._changes.offset
        place = self._ranks if self._ranks[moved] else offsets  # without a log, by the offset
        earlier: Places = mine[place[mine] < place[moved]]
        if place is offsets and len(earlier) and self._changes.ops[earlier[-1]] == DELETE:
            return earlier[:-1]
        return earlier
