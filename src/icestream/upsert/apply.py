"""Applies the changes of some keys to a mirror: the second half of a batch, in a Spark task.

fold ▸ look the old rows up ▸ stage new rows and index entries ▸ note deleted positions.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.schema import Schema

from icestream.index.bucket import LookupResult, concat_lookups
from icestream.index.entries import IndexEntries, concat_entries, row_entries, tombstone_entries
from icestream.index.keys import EVERY_KEY, Hashes, bucket_of, key_hashes
from icestream.index.reader import IndexReader
from icestream.index.sequences import SourceSequences
from icestream.index.tombstones import write_tombstones
from icestream.positions import Positions
from icestream.tables.arrow import arrow_schema
from icestream.upsert.changes import SEQUENCE, ChangeBatch
from icestream.upsert.fold import FoldResult, apply_truncates, fold, sorted_by_key
from icestream.upsert.old_rows import read_rows
from icestream.upsert.value_origins import ValueOrigin, ValueOriginFinder
from icestream.write.position_deletes import pack_positions
from icestream.write.stage import StagedFile, Stager, StageTarget

_NO_ROW = "an update without `{}`, and no row to take it from"


@dataclass(frozen=True)
class MirrorTaskInput:
    """What a task must know of one mirror to apply changes to it."""

    target: StageTarget
    location: str  # of the table
    keys: tuple[str, ...]
    index: IndexReader
    commit_id: str
    stop_positions: Positions  # behind the batch's last records
    has_all_keys: bool = False  # all changes of the batch are in this task


@dataclass(frozen=True)
class ApplyResult:
    """What one task staged for one mirror."""

    files: tuple[StagedFile, ...] = ()
    runs: tuple[str, ...] = ()
    deleted_positions: Mapping[str, str] = field(default_factory=dict)  # data file → packed
    needs_one_task: bool = False  # a change needs a row of another task: do the batch again


class ChangeApplier:
    """Applies the changes of some keys to one mirror, one group of buckets at a time."""

    def __init__(self, mirror: MirrorTaskInput, attempt: str, memory: int, now: datetime) -> None:
        self._mirror = mirror
        self._schema = arrow_schema(Schema.model_validate_json(mirror.target.schema_json))
        self._stager = Stager(mirror.target, attempt, memory)
        self._now = int(now.timestamp())
        self._deleted_positions: dict[int, list[NDArray[np.int64]]] = {}  # by number of data file
        self._tombstones: list[IndexEntries] = []
        self._tombstone_sequences: list[pa.Array] = []
        self._rows: list[tuple[Hashes, pa.Array]] = []  # key hashes and sequences of staged rows
        self.needs_one_task = False

    def apply(self, changes: ChangeBatch, buckets: Iterable[int]) -> pa.RecordBatch | None:
        """Apply all changes of these buckets; returns records that turn out to be bad, if any."""
        changes, truncate_sequence = apply_truncates(changes)
        if truncate_sequence is not None:
            self._truncate(truncate_sequence, buckets)
        changes = sorted_by_key(self._without_truncated(changes))
        if not len(changes):
            return None
        folded = fold(changes, self._look_up, self._whole_sequences)
        if not len(folded.last):
            return None
        folded, bad = self._fill_from_old_keys(folded)
        last = folded.last
        is_deleted = folded.old_row_deleted
        self._delete_rows(folded.lookup.file[is_deleted], folded.lookup.position[is_deleted])
        self._add_tombstones(last.hashes[folded.deleted], folded.deletes)
        # Not in the order of the hashes: neighbours are alike, which is small and quick to read.
        keys = last.in_arrival_order(np.flatnonzero(folded.upserts))
        if len(keys):
            rows = self._with_missing_values(folded, keys)
            self._stager.write(rows)
            self._rows.append((last.hashes[keys], rows.column(SEQUENCE)))
        return bad

    def finish(self) -> ApplyResult:
        """Close the data files; stage the index entries and write the tombstone file."""
        files = tuple(self._stager.finish())
        # A key that was truncated away and came back is a row, not a tombstone: rows come first.
        entries = concat_entries([self._entries(files), *self._tombstones]).newest()
        if self._tombstones:
            tombstones = concat_entries(self._tombstones)
            write_tombstones(
                self._mirror.location,
                self._mirror.commit_id,
                np.column_stack([tombstones.hash_hi, tombstones.hash_lo]),
                pa.concat_arrays(self._tombstone_sequences),
                time.time_ns() // 1000,
                self._mirror.stop_positions,
            )
        index, paths = self._mirror.index, [file.path for file in files]
        return ApplyResult(
            files=files,
            runs=tuple(
                index.stage(bucket, self._mirror.commit_id, part, paths)
                for bucket, part in entries.by_bucket(index.buckets)
            ),
            deleted_positions={
                index.path(number): pack_positions(np.concatenate(positions))
                for number, positions in self._deleted_positions.items()
            },
            needs_one_task=self.needs_one_task,
        )

    def abort(self) -> None:
        """Close what is open after an error."""
        self._stager.abort()

    def _delete_rows(self, files: NDArray[np.uint32], positions: NDArray[np.uint32]) -> None:
        """Note the positions of rows to delete, by the number of their data file."""
        for number in np.unique(files).tolist():
            in_file = positions[files == number].astype(np.int64)
            self._deleted_positions.setdefault(number, []).append(in_file)

    # -- the index -----------------------------------------------------------------------------

    def _look_up(self, hashes: Hashes) -> LookupResult:
        """Look up keys of any buckets: one lookup per bucket, results in the order of `hashes`."""
        index = self._mirror.index
        bucket_numbers = bucket_of(hashes, index.buckets)
        buckets = np.unique(bucket_numbers).tolist()
        if len(buckets) == 1:
            return index.lookup(buckets[0], hashes)
        rows = [np.flatnonzero(bucket_numbers == bucket) for bucket in buckets]
        parts = [index.lookup(b, hashes[part]) for b, part in zip(buckets, rows, strict=True)]
        return concat_lookups(parts).take(np.argsort(np.concatenate(rows), kind="stable"))

    def _entries(self, files: Sequence[StagedFile]) -> IndexEntries:
        """Return the index entries of the staged rows."""
        if not self._rows:
            return concat_entries([])
        if self._stager.keeps_order:
            hashes = np.concatenate([part for part, _ in self._rows])
            sequence = pa.concat_arrays([part for _, part in self._rows])
            counts = [file.records for file in files]
            numbers = np.repeat(np.arange(len(files)), counts)
            firsts = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
            return row_entries(hashes, numbers, np.arange(len(numbers)) - firsts, sequence)
        # A partition or a sort order has moved the rows: the new files say where they are.
        fields = [self._schema.field(name) for name in (*self._mirror.keys, SEQUENCE)]
        parts = []
        for number, file in enumerate(files):
            positions = np.arange(file.records)
            columns = read_rows(file.path, positions, fields).combine_chunks().columns
            *keys, sequence = (column.combine_chunks() for column in columns)
            parts.append(row_entries(key_hashes(keys), number, positions, sequence))
        return concat_entries(parts)

    def _add_tombstones(self, hashes: Hashes, sequence: pa.Array) -> None:
        if len(hashes):
            self._tombstones.append(tombstone_entries(hashes, sequence, self._now))
            self._tombstone_sequences.append(sequence.cast(pa.binary()))

    # -- old rows ------------------------------------------------------------------------------

    def _with_missing_values(self, folded: FoldResult, keys: NDArray[np.intp]) -> pa.RecordBatch:
        """Return the last rows of some keys, with columns that they lack from the table's rows."""
        if not folded.missing:
            return folded.last.take(keys).rows
        batch = folded.last.rows
        for missing in folded.missing:
            values = self._read_old_rows(folded.lookup, missing.rows, missing.column)
            batch = _put(batch, missing.column, missing.rows, values)
        return batch.take(pa.array(keys))

    def _read_old_rows(self, lookup: LookupResult, keys: NDArray[np.intp], column: str) -> pa.Array:
        """Read a column of the table's rows of some keys of a lookup, in the order of `keys`."""
        files, positions = lookup.file[keys], lookup.position[keys].astype(np.int64)
        parts, rows = [], []
        for number in np.unique(files).tolist():
            in_file = np.flatnonzero(files == number)
            path = self._mirror.index.path(number)
            parts.append(read_rows(path, positions[in_file], [self._schema.field(column)]))
            rows.append(in_file)
        table = pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(rows))))
        return table.column(column).combine_chunks()

    def _whole_sequences(self, lookup: LookupResult, keys: NDArray[np.intp]) -> pa.BinaryArray:
        return self._read_old_rows(lookup, keys, SEQUENCE).cast(pa.binary())

    def _fill_from_old_keys(self, folded: FoldResult) -> tuple[FoldResult, pa.RecordBatch | None]:
        """Fill incomplete rows from the keys that they had before.

        Returns also the records of rows that stay incomplete, which are bad. Sets `needs_one_task`,
        and fills nothing, if the changes of such a key may be in another task.
        """
        if not folded.incomplete.any():
            return folded, None
        last, is_incomplete = folded.last, folded.incomplete.copy()
        finder = ValueOriginFinder(folded.applicable)
        moved_keys = np.flatnonzero(is_incomplete & finder.changed_key(last.hashes)).tolist()
        is_missing = (
            {name: last.is_missing(name) for name in last.missing_columns} if moved_keys else {}
        )
        rows = last.rows
        for key in moved_keys:  # rare: a changed key, and a TOAST column
            names = [name for name, mask in is_missing.items() if mask[key]]
            origins = {name: finder.find(name, last.hashes[key]) for name in names}
            has_moved = any(origin.moved is not None for origin in origins.values())
            if has_moved and not self._mirror.has_all_keys:
                self.needs_one_task = True  # the old key's changes of this batch are another task's
                return folded, None
            values = {
                name: self._value_at(folded.applicable, name, origin)
                for name, origin in origins.items()
            }
            if all(value is not None for value in values.values()):
                for name, value in values.items():
                    rows = _put(rows, name, np.array([key]), value)
                is_incomplete[key] = False
        last = last.with_rows(rows)
        # A soft delete of nothing has no record here: there is nothing to keep, nor to complain of.
        is_bad = last.record.is_valid().to_numpy(zero_copy_only=False) & is_incomplete
        bad = _bad_records(last.take(np.flatnonzero(is_bad))) if is_bad.any() else None
        return replace(folded, last=last, incomplete=is_incomplete), bad

    def _value_at(self, changes: ChangeBatch, column: str, origin: ValueOrigin) -> pa.Array | None:
        """Read one row's value of a column, from a change of the batch or from the table."""
        if origin.change is not None:
            return changes.rows.column(column).slice(origin.change, 1)
        if origin.key is None:
            return None
        lookup = self._look_up(origin.key.reshape(1, 2))
        if origin.moved is not None:
            # A row that is newer than the move took the old key's place: the one meant is gone.
            move_sequence = SourceSequences.of(changes.sequence.slice(origin.moved, 1), 1)
            if lookup.sequences.compare(move_sequence)[0] == 1:
                return None
        return self._read_old_rows(lookup, np.array([0]), column) if lookup.hit[0] else None

    # -- truncate ------------------------------------------------------------------------------

    def _without_truncated(self, changes: ChangeBatch) -> ChangeBatch:
        """Leave out changes from before a truncate of an earlier batch."""
        truncate = self._last_truncate
        if not truncate.tombstone[0]:
            return changes
        order = SourceSequences.of(changes.sequence, len(changes)).compare(
            truncate.sequences.take(np.zeros(len(changes), dtype=np.intp))
        )
        return changes if (order != -1).all() else changes.take(np.flatnonzero(order != -1))

    @cached_property
    def _last_truncate(self) -> LookupResult:
        """The tombstone of the last truncate of earlier batches, if the index has one."""
        return self._look_up(EVERY_KEY)

    def _truncate(self, sequence: pa.BinaryArray, buckets: Iterable[int]) -> None:
        """Delete all rows that are not newer; they leave tombstones: they may be delivered again.

        So may rows that nobody has seen yet, hence one more tombstone for all of them.
        """
        truncate = SourceSequences.of(sequence, 1)
        last = self._last_truncate
        is_newest = not last.tombstone[0] or truncate.compare(last.sequences)[0] != -1
        for bucket in buckets:
            if is_newest and bucket == bucket_of(EVERY_KEY, self._mirror.index.buckets)[0]:
                self._add_tombstones(EVERY_KEY, sequence)
            for entries in self._mirror.index.live(bucket):
                order = entries.sequences.compare(
                    truncate.take(np.zeros(len(entries), dtype=np.intp))
                )
                old = entries.take(np.flatnonzero(order != 1))
                self._delete_rows(old.file, old.position)
                hashes = np.column_stack([old.hash_hi, old.hash_lo])
                repeated = sequence.take(pa.array(np.zeros(len(old), dtype=np.int64)))
                self._add_tombstones(hashes, repeated)


def _put(
    batch: pa.RecordBatch, name: str, rows: NDArray[np.intp], values: pa.Array
) -> pa.RecordBatch:
    """Put values of a column into these rows of a batch."""
    index = batch.schema.get_field_index(name)
    column = batch.column(index)
    order = np.arange(len(column))
    order[rows] = len(column) + np.arange(len(rows))
    both = pa.concat_arrays([column, values.cast(column.type)])
    return batch.set_column(index, batch.schema.field(index), both.take(pa.array(order)))


def _bad_records(changes: ChangeBatch) -> pa.RecordBatch:
    """Return the source records of changes that stay incomplete, with the reason."""
    reason = _NO_ROW.format("`, `".join(changes.missing_columns))
    return pa.RecordBatch.from_struct_array(changes.record).append_column(
        "error", pa.repeat(pa.scalar(reason), len(changes))
    )
