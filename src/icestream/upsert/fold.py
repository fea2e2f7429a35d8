"""Folds the changes of each key, in order, to the one that applies. Numpy and Arrow only.

A change that is strictly older than what the table has loses. Of the others the last one counts,
and columns that it does not carry come from the changes before it, or from the row in the table.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icestream.formats import DELETE, IGNORE, TRUNCATE, UPSERT
from icestream.index.bucket import LookupResult
from icestream.index.keys import Hashes
from icestream.index.sequences import UNDECIDED, SourceSequences
from icestream.upsert.changes import ChangeBatch

Indices = NDArray[np.intp]  # of changes, or of keys
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class MissingColumn:
    """A column that some of the folded rows take from their old row."""

    column: str
    rows: Indices  # among the folded rows


@dataclass(frozen=True)
class FoldResult:
    """What becomes of each key: one entry per key, in the order of the keys."""

    last: ChangeBatch  # the last change of each key, which applies
    lookup: LookupResult  # what the table has
    missing: tuple[MissingColumn, ...]
    incomplete: Flags  # a column is missing and there is nothing to take it from
    applicable: ChangeBatch  # all changes that are not older than what the table has
    last_at: Indices  # indices of the last changes among `applicable`
    delete_before: Indices  # and of the delete before each, or -1

    @property
    def upserts(self) -> Flags:
        """Keys that have a row after this batch."""
        is_upsert: Flags = (self.last.ops == UPSERT) & ~self.incomplete
        return is_upsert

    @property
    def keeps_delete(self) -> Flags:
        """Keys whose last change is unusable, but that the batch deleted before: that applies."""
        is_kept: Flags = self.incomplete & (self.delete_before >= 0)
        return is_kept

    @property
    def deleted(self) -> Flags:
        """Keys that the batch leaves without a row; each gets a tombstone."""
        is_deleted: Flags = (self.last.ops == DELETE) | self.keeps_delete
        return is_deleted

    @property
    def old_row_deleted(self) -> Flags:
        """Keys whose row in the table is deleted, with or without a new one."""
        is_deleted: Flags = self.lookup.hit & (~self.incomplete | self.keeps_delete)
        return is_deleted

    @property
    def deletes(self) -> pa.BinaryArray:
        """Source sequences of the deletes, in the order of the deleted keys."""
        indices = np.where(self.keeps_delete, self.delete_before, self.last_at)[self.deleted]
        return self.applicable.sequence.take(pa.array(indices))


def sorted_by_key(changes: ChangeBatch) -> ChangeBatch:
    """Sort by key, then by the source's log, then by offset; leaves out ignored changes."""
    if (changes.ops == IGNORE).any():
        changes = changes.take(np.flatnonzero(changes.ops != IGNORE))
    first_words = changes.hashes[:, 0]
    order = np.argsort(first_words)
    equal_next = np.flatnonzero(np.diff(first_words[order]) == 0)
    if len(equal_next):  # only these need the other columns: most keys have a single change
        indices = np.union1d(equal_next, equal_next + 1)
        several = changes.take(order[indices])
        ranks = sequence_ranks(several.sequence)
        sort_keys = (several.partition, several.offset, ranks, *several.hashes.T[::-1])
        order[indices] = order[indices][np.lexsort(sort_keys)]
    return changes.take(order)


def fold(
    changes: ChangeBatch,
    look_up: Callable[[Hashes], LookupResult],
    settle: Callable[[LookupResult, Indices], pa.BinaryArray],
) -> FoldResult:
    """Fold changes that `sorted_by_key` has sorted; truncates were applied before.

    `settle` reads whole sequences from the table's rows, for keys whose sequences agree in the
    bytes that the index keeps.
    """
    starts = _starts(changes.hashes)
    lookup = look_up(changes.hashes[starts])
    is_start = np.zeros(len(changes), dtype=np.int64)
    is_start[starts] = 1
    key_of = np.cumsum(is_start) - 1
    is_stale = _is_stale(changes, lookup, key_of, settle)
    if is_stale.any():
        changes = changes.take(np.flatnonzero(~is_stale))
        lookup = lookup.take(np.unique(key_of[~is_stale]))
        starts = _starts(changes.hashes)
    ends = np.append(starts, len(changes))[1:] - 1
    # For each change the last delete up to it, which may be one of another key before.
    last_deletes = _last_indices(changes.ops == DELETE)
    last, missing, is_incomplete = _fill_missing(changes, starts, ends, lookup, last_deletes)
    delete_before = np.where(last_deletes[ends] >= starts, last_deletes[ends], -1)
    return FoldResult(last, lookup, missing, is_incomplete, changes, ends, delete_before)


def apply_truncates(changes: ChangeBatch) -> tuple[ChangeBatch, pa.BinaryArray | None]:
    """Apply truncates to earlier changes; returns the later ones, and the last truncate's sequence.

    Without a source sequence a truncate is as new as its offset. None: there is no truncate.
    """
    is_truncate = changes.ops == TRUNCATE
    if not is_truncate.any():
        return changes, None
    ranks, offsets = sequence_ranks(changes.sequence), changes.offset
    order = np.lexsort((offsets, ranks))
    newest = order[is_truncate[order]][-1]
    is_later = (ranks > ranks[newest]) | ((ranks == ranks[newest]) & (offsets > offsets[newest]))
    sequence = changes.sequence.take(pa.array([newest]))
    return changes.take(np.flatnonzero(is_later & ~is_truncate)), sequence


def _is_stale(
    changes: ChangeBatch,
    lookup: LookupResult,
    key_of: Indices,
    settle: Callable[[LookupResult, Indices], pa.BinaryArray],
) -> Flags:
    """Tell which changes are strictly older than what the table has of their key."""
    # Tombstones too: a late, older event must not bring a deleted row back.
    is_known = (lookup.hit | lookup.tombstone)[key_of]
    if not is_known.any():
        return np.zeros(len(changes), dtype=bool)
    in_table = lookup.sequences.take(key_of)
    order = SourceSequences.of(changes.sequence, len(changes)).compare(in_table)
    # A deleted key has no row to read the whole sequence from: undecided changes of it apply.
    undecided = np.flatnonzero(is_known & (order == UNDECIDED) & lookup.hit[key_of])
    if len(undecided):
        keys = np.unique(key_of[undecided])
        whole = settle(lookup, keys).take(pa.array(np.searchsorted(keys, key_of[undecided])))
        is_older = pc.less(changes.sequence.take(pa.array(undecided)), whole).fill_null(False)
        order[undecided] = np.where(is_older.to_numpy(zero_copy_only=False), -1, 1)
    is_stale: Flags = is_known & (order == -1)
    return is_stale


def _fill_missing(
    changes: ChangeBatch,
    starts: Indices,
    ends: Indices,
    lookup: LookupResult,
    last_deletes: Indices,
) -> tuple[ChangeBatch, tuple[MissingColumn, ...], Flags]:
    """Take the last change of each key, with the columns it lacks from the changes before it.

    Returns also the columns to take from old rows, and which keys are incomplete all the same.
    """
    last = changes.take(ends)
    is_incomplete = np.zeros(len(ends), dtype=bool)
    from_old_rows: list[MissingColumn] = []
    if not changes.missing_columns:
        return last, (), is_incomplete
    rows = last.rows
    is_upsert = changes.ops == UPSERT
    for column in changes.missing_columns:
        is_missing = changes.is_missing(column)
        carriers = _last_indices(is_upsert & ~is_missing)
        keys = np.flatnonzero(is_missing[ends] & is_upsert[ends])
        if not len(keys):
            continue
        # Not across a delete: a value from before it belonged to a row that is gone.
        key_ends = ends[keys]
        has_carrier = carriers[key_ends] >= starts[keys]
        has_carrier &= carriers[key_ends] > last_deletes[key_ends]
        value_indices = ends.copy()
        value_indices[keys[has_carrier]] = carriers[key_ends[has_carrier]]
        index = rows.schema.get_field_index(column)
        values = changes.rows.column(column).take(pa.array(value_indices))
        rows = rows.set_column(index, rows.schema.field(index), values)
        unfilled = keys[~has_carrier]
        has_old_row = lookup.hit[unfilled] & (last_deletes[ends[unfilled]] < starts[unfilled])
        is_incomplete[unfilled[~has_old_row]] = True
        if has_old_row.any():
            from_old_rows.append(MissingColumn(column, unfilled[has_old_row]))
    return last.with_rows(rows), tuple(from_old_rows), is_incomplete


def _last_indices(mask: Flags) -> Indices:
    """Return for each change the index of the last True up to it, or -1."""
    return np.maximum.accumulate(np.where(mask, np.arange(len(mask)), -1))


def sequence_ranks(sequence: pa.BinaryArray) -> NDArray[np.int64]:
    """Return numbers that are in the order of the sequences; null comes first."""
    coded = sequence.dictionary_encode()
    order = pc.array_sort_indices(coded.dictionary).to_numpy()
    ranks = np.empty(len(order) + 1, dtype=np.int64)
    ranks[order] = np.arange(1, len(order) + 1)
    ranks[-1] = 0
    codes = coded.indices.fill_null(len(order)).to_numpy()
    change_ranks: NDArray[np.int64] = ranks[codes]
    return change_ranks


def _starts(hashes: Hashes) -> Indices:
    """Return the index of each key's first change."""
    if not len(hashes):
        return np.zeros(0, dtype=np.intp)
    hi, lo = hashes.T
    is_new = (hi[1:] != hi[:-1]) | (lo[1:] != lo[:-1])
    return np.flatnonzero(np.concatenate([[True], is_new]))
