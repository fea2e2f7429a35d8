"""Finds where a column that an event does not carry was last set, also under another key."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icestream.formats import DELETE
from icestream.index.keys import Hashes
from icestream.upsert.changes import ChangeBatch
from icestream.upsert.fold import sequence_ranks

Indices = NDArray[np.intp]  # of changes


@dataclass(frozen=True)
class ValueOrigin:
    """A change that carries the column, or the key whose row in the table has it, or neither."""

    change: int | None = None
    key: Hashes | None = None
    moved: int | None = None  # the change that took the row over from another key


class ValueOriginFinder:
    """Walks back through folded changes: in order, none older than what the table has."""

    def __init__(self, changes: ChangeBatch) -> None:
        self._changes = changes
        self._ranks = sequence_ranks(changes.sequence)
        self._old_keys = np.column_stack(
            [half.fill_null(0).to_numpy() for half in (changes.old_hi, changes.old_lo)]
        )
        self._has_old_key: NDArray[np.bool_] = changes.old_hi.is_valid().to_numpy(
            zero_copy_only=False
        )

    def changed_key(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Tell which keys may have taken a row over from another key."""
        new_keys = self._changes.hashes[self._has_old_key, 0]
        may_have: NDArray[np.bool_] = np.isin(hashes[:, 0], new_keys)
        return may_have

    def find(self, column: str, key: Hashes) -> ValueOrigin:
        """Find where a column's value was last set: walk the changes of a key backwards.

        At a key change go on with the old key, from there back.
        """
        is_missing, moved = self._changes.is_missing(column), None
        while True:
            changes = np.flatnonzero((self._changes.hashes == key).all(axis=1))
            if moved is not None:
                changes = self._before_move(changes, moved)
            for change in changes[::-1].tolist():
                if self._changes.ops[change] == DELETE:
                    return ValueOrigin(moved=moved)
                if not is_missing[change]:
                    return ValueOrigin(change=change, moved=moved)
                if self._has_old_key[change]:
                    key, moved = self._old_keys[change], change
                    break
            else:
                return ValueOrigin(key=key, moved=moved)

    def _before_move(self, changes: Indices, moved: int) -> Indices:
        """Keep the changes before a key change, without the delete that is its other half."""
        offsets = self._changes.offset
        # Without a source sequence the offset decides; then the delete is the last one before.
        order = self._ranks if self._ranks[moved] else offsets
        earlier: Indices = changes[order[changes] < order[moved]]
        if order is offsets and len(earlier) and self._changes.ops[earlier[-1]] == DELETE:
            return earlier[:-1]
        return earlier
