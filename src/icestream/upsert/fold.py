"""Fold: the changes of each key, in order, down to what becomes of its row. Numpy and Arrow only.

A change that is strictly older than what the table has loses. Of the others the last one counts,
and columns that it does not carry come from the changes before it, or from the row in the table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icestream.formats import DELETE, IGNORE, TRUNCATE, UPSERT
from icestream.index.bucket import LookupResult
from icestream.index.keys import Hashes
from icestream.index.sequences import UNDECIDED, SourceSequences
from icestream.upsert.changes import ChangeBatch

Places = NDArray[np.intp]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class MissingColumn:
    """A column that some of the folded rows take from their old row."""

    column: str
    rows: Places  # among the folded rows


@dataclass(frozen=True)
class FoldResult:
    """What becomes of each key: one entry per key, in the order of the keys."""

    last: ChangeBatch  # the change that counts
    lookup: LookupResult  # what the table had
    missing: tuple[MissingColumn, ...]
    incomplete: Flags  # a column is missing and there is nothing to take it from
    applicable: ChangeBatch  # all changes that are not older than what the table had
    last_at: Places  # the places of the last ones among them
    delete_before: Places  # and of the delete before, or -1

    @property
    def upserts(self) -> Flags:
        """Keys that have a row from now on."""
        found: Flags = (self.last.ops == UPSERT) & ~self.incomplete
        return found

    @property
    def keeps_delete(self) -> Flags:
        """Keys that were deleted before a change that comes to nothing: the delete counts."""
        found: Flags = self.incomplete & (self.delete_before >= 0)
        return found

    @property
    def deleted(self) -> Flags:
        """Keys that have none."""
        found: Flags = (self.last.ops == DELETE) | self.keeps_delete
        return found

    @property
    def old_row_deleted(self) -> Flags:
        """Keys whose row in the table dies."""
        found: Flags = self.lookup.hit & (~self.incomplete | self.keeps_delete)
        return found

    @property
    def deletes(self) -> pa.BinaryArray:
        """The sequences of the deletes, in the order of the deleted keys."""
        at = np.where(self.keeps_delete, self.delete_before, self.last_at)[self.deleted]
        return self.applicable.sequence.take(pa.array(at))


def sorted_by_key(changes: ChangeBatch) -> ChangeBatch:
    """By key, and for each key by the source's log and then by offset; without what is ignored."""
    if (changes.ops == IGNORE).any():
        changes = changes.take(np.flatnonzero(changes.ops != IGNORE))
    first = changes.hashes[:, 0]
    order = np.argsort(first)
    again = np.flatnonzero(np.diff(first[order]) == 0)
    if len(again):  # most keys are there once
        places = np.union1d(again, again + 1)
        some = order[places]
        told = changes.take(some)
        by = (told.partition, told.offset, sequence_ranks(told.sequence), *told.hashes.T[::-1])
        order[places] = some[np.lexsort(by)]
    return changes.take(order)


def fold(
    changes: ChangeBatch,
    look_up: Callable[[Hashes], LookupResult],
    settle: Callable[[LookupResult, Places], pa.BinaryArray],
) -> FoldResult:
    """Fold changes that are in order and truncate nothing.

    `settle` reads the whole sequences of some of the found rows, where their beginning does not
    decide.
    """
    starts = _starts(changes.hashes)
    found = look_up(changes.hashes[starts])
    key_of = np.cumsum(_start_marks(starts, len(changes))) - 1
    stale = _stale(changes, found, key_of, settle)
    if stale.any():
        changes = changes.take(np.flatnonzero(~stale))
        kept = np.unique(key_of[~stale])
        found = take_lookups(found, kept)
        starts = _starts(changes.hashes)
    ends = np.append(starts, len(changes))[1:] - 1
    places = np.arange(len(changes))
    gone = np.maximum.accumulate(np.where(changes.ops == DELETE, places, -1))
    last, lacks, orphans = _fill_missing(changes, starts, ends, found, gone)
    before = np.where(gone[ends] >= starts, gone[ends], -1)
    return FoldResult(last, found, lacks, orphans, changes, ends, before)


def apply_truncates(changes: ChangeBatch) -> tuple[ChangeBatch, pa.BinaryArray | None]:
    """Apply truncates to the changes before them; → what is left, and the last one's sequence.

    Without a place in a log a truncate is as new as its offset.
    """
    emptied = changes.ops == TRUNCATE
    if not emptied.any():
        return changes, None
    ranks, offsets = sequence_ranks(changes.sequence), changes.offset
    order = np.lexsort((offsets, ranks))
    newest = order[emptied[order]][-1]
    later = (ranks > ranks[newest]) | ((ranks == ranks[newest]) & (offsets > offsets[newest]))
    place = changes.sequence.take(pa.array([newest]))
    return changes.take(np.flatnonzero(later & ~emptied)), place


def _stale(
    changes: ChangeBatch,
    found: LookupResult,
    key_of: Places,
    settle: Callable[[LookupResult, Places], pa.BinaryArray],
) -> Flags:
    """Changes that are strictly older than what the table has of their key."""
    known = (found.hit | found.tombstone)[key_of]
    if not known.any():
        return np.zeros(len(changes), dtype=bool)
    theirs = SourceSequences(
        found.sequences.hi[key_of], found.sequences.lo[key_of], found.sequences.size[key_of]
    )
    order = SourceSequences.of(changes.sequence, len(changes)).compare(theirs)
    open_ = np.flatnonzero(known & (order == UNDECIDED) & found.hit[key_of])
    if len(open_):
        keys = np.unique(key_of[open_])
        whole = settle(found, keys).take(pa.array(np.searchsorted(keys, key_of[open_])))
        older = pc.less(changes.sequence.take(pa.array(open_)), whole).fill_null(False)
        order[open_] = np.where(older.to_numpy(zero_copy_only=False), -1, 1)
    stale: Flags = known & (order == -1)
    return stale


def _fill_missing(
    changes: ChangeBatch, starts: Places, ends: Places, found: LookupResult, gone: Places
) -> tuple[ChangeBatch, tuple[MissingColumn, ...], Flags]:
    """The last change of each key, with the columns it lacks from the changes before it."""
    last = changes.take(ends)
    orphans = np.zeros(len(ends), dtype=bool)
    lacks: list[MissingColumn] = []
    if not changes.missing_columns:
        return last, (), orphans
    rows = last.rows
    places = np.arange(len(changes))
    upserts = changes.ops == UPSERT
    for column in changes.missing_columns:
        lacking = changes.is_missing(column)
        carried = np.maximum.accumulate(np.where(upserts & ~lacking, places, -1))
        want = np.flatnonzero(lacking[ends] & upserts[ends])
        if not len(want):
            continue
        at, first = ends[want], starts[want]
        inside = (carried[at] >= first) & (carried[at] > gone[at])
        taken = ends.copy()
        taken[want[inside]] = carried[at[inside]]
        index = rows.schema.get_field_index(column)
        filled = changes.rows.column(column).take(pa.array(taken))
        rows = rows.set_column(index, rows.schema.field(index), filled)
        rest = want[~inside]
        from_table = found.hit[rest] & (gone[ends[rest]] < starts[rest])
        orphans[rest[~from_table]] = True
        if from_table.any():
            lacks.append(MissingColumn(column, rest[from_table]))
    return last.with_rows(rows), tuple(lacks), orphans


def sequence_ranks(sequence: pa.BinaryArray) -> NDArray[np.int64]:
    """Numbers that are in the order of the sequences; those without one come first."""
    coded = sequence.dictionary_encode()
    order = pc.array_sort_indices(coded.dictionary).to_numpy()
    ranks = np.empty(len(order) + 1, dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    ranks[-1] = 0
    codes = coded.indices.fill_null(len(order)).to_numpy()
    found: NDArray[np.int64] = ranks[codes]
    return found


def _starts(hashes: Hashes) -> Places:
    """Where each key begins."""
    if not len(hashes):
        return np.zeros(0, dtype=np.intp)
    first, second = hashes.T
    new = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    return np.flatnonzero(np.concatenate([[True], new]))


def _start_marks(starts: Places, count: int) -> NDArray[np.int64]:
    marks = np.zeros(count, dtype=np.int64)
    marks[starts] = 1
    return marks


def concat_lookups(parts: Sequence[LookupResult]) -> LookupResult:
    """What several lookups found, as one."""

    def whole(name: str, of: Sequence[Any]) -> NDArray[Any]:
        return np.concatenate([getattr(each, name) for each in of])

    told = [whole(name, [each.sequences for each in parts]) for name in ("hi", "lo", "size")]
    return LookupResult(
        whole("hit", parts),
        whole("tombstone", parts),
        whole("file", parts),
        whole("position", parts),
        SourceSequences(*told),
    )


def take_lookups(found: LookupResult, which: Places) -> LookupResult:
    """Some of it, in this order."""
    told = found.sequences
    return LookupResult(
        found.hit[which],
        found.tombstone[which],
        found.file[which],
        found.position[which],
        SourceSequences(told.hi[which], told.lo[which], told.size[which]),
    )
