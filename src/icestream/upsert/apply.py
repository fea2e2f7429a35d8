"""Apply: the second half of an upsert batch, in a Spark task that has some of the keys.

fold ▸ look the old rows up ▸ stage new rows and index entries ▸ note the positions that die.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.schema import Schema

from icestream.index.bucket import LookupResult
from icestream.index.entries import IndexEntries, concat_entries, row_entries, tombstone_entries
from icestream.index.keys import EVERY_KEY, Hashes, bucket_of, key_hashes
from icestream.index.reader import IndexReader
from icestream.index.sequences import SourceSequences
from icestream.index.tombstones import write_tombstones
from icestream.positions import Positions
from icestream.tables.arrow import arrow_schema
from icestream.upsert.changes import SEQUENCE, ChangeBatch
from icestream.upsert.fold import (
    FoldResult,
    apply_truncates,
    concat_lookups,
    fold,
    sorted_by_key,
    take_lookups,
)
from icestream.upsert.old_rows import read_rows
from icestream.upsert.value_origins import ValueOrigin, ValueOriginFinder
from icestream.write.position_deletes import pack_positions
from icestream.write.stage import StagedFile, Stager, StageTarget

_NO_ROW = "an update without `{}`, and no row to take it from"


@dataclass(frozen=True)
class MirrorTaskInput:
    """What a task must know of one upsert table to apply changes to it."""

    target: StageTarget
    location: str  # of the table
    keys: tuple[str, ...]
    index: IndexReader
    commit_id: str
    stop_positions: Positions  # behind the batch's last records
    has_all_keys: bool = False  # this task has all keys of the batch


@dataclass(frozen=True)
class ApplyResult:
    """What one task did for one table."""

    files: tuple[StagedFile, ...] = ()
    runs: tuple[str, ...] = ()
    deleted_positions: Mapping[str, str] = field(
        default_factory=dict
    )  # data file → packed positions
    needs_one_task: bool = False  # a row needs one of another task's


class ChangeApplier:
    """Applies the changes of some keys to one table, group of buckets by group of buckets."""

    def __init__(self, mirror: MirrorTaskInput, attempt: str, memory: int, now: datetime) -> None:
        self._mirror = mirror
        self._schema = arrow_schema(Schema.model_validate_json(mirror.target.schema_json))
        self._stager = Stager(mirror.target, attempt, memory)
        self._now = int(now.timestamp())
        self._dead: dict[int, list[NDArray[np.int64]]] = {}
        self._tombs: list[IndexEntries] = []
        self._tomb_sequences: list[pa.Array] = []
        self._rows: list[tuple[Hashes, pa.Array]] = []
        self.needs_one_task = False

    def apply(self, changes: ChangeBatch, buckets: Iterable[int]) -> pa.RecordBatch | None:
        """Take all changes of these buckets; → records that turn out to be bad, if any."""
        changes, emptied = apply_truncates(changes)
        if emptied is not None:
            self._truncate(emptied, buckets)
        changes = sorted_by_key(self._without_truncated(changes))
        if not len(changes):
            return None
        folded = fold(changes, self._look_up, self._whole_sequences)
        if not len(folded.last):
            return None
        folded, bad = self._fill_from_old_keys(folded)
        last = folded.last
        for number in np.unique(folded.lookup.file[folded.old_row_deleted]).tolist():
            hit = folded.old_row_deleted & (folded.lookup.file == number)
            self._dead.setdefault(number, []).append(folded.lookup.position[hit].astype(np.int64))
        self._add_tombstones(last.hashes[folded.deleted], folded.deletes)
        # Not in the order of the hashes: neighbours are alike, which is small and quick to read.
        fresh = last.in_arrival_order(np.flatnonzero(folded.upserts))
        if len(fresh):
            new = self._with_missing_values(folded, fresh)
            self._stager.write(new)
            self._rows.append((last.hashes[fresh], new.column(SEQUENCE)))
        return bad

    def finish(self) -> ApplyResult:
        """Close the files, stage the index entries."""
        files = tuple(self._stager.finish())
        # A key that was truncated away and came back is a row, not a tombstone.
        entries = concat_entries([self._entries(files), *self._tombs]).newest()
        if self._tombs:
            told = concat_entries(self._tombs)
            write_tombstones(
                self._mirror.location,
                self._mirror.commit_id,
                np.column_stack([told.hash_hi, told.hash_lo]),
                pa.concat_arrays(self._tomb_sequences),
                time.time_ns() // 1000,
                self._mirror.stop_positions,
            )
        index = self._mirror.index
        return ApplyResult(
            files=files,
            runs=tuple(self._stage_runs(entries, [file.path for file in files])),
            deleted_positions={
                index.path(number): pack_positions(np.concatenate(positions))
                for number, positions in self._dead.items()
            },
            needs_one_task=self.needs_one_task,
        )

    def abort(self) -> None:
        """Let go of what is open."""
        self._stager.abort()

    # -- the index -----------------------------------------------------------------------------

    def _look_up(self, hashes: Hashes) -> LookupResult:
        """In whichever buckets they are."""
        index = self._mirror.index
        bucket = bucket_of(hashes, index.buckets)
        there = np.unique(bucket)
        if len(there) == 1:
            return index.lookup(int(there[0]), hashes)
        places = [np.flatnonzero(bucket == number) for number in there]
        parts = [index.lookup(int(n), hashes[at]) for n, at in zip(there, places, strict=True)]
        back = np.argsort(np.concatenate(places), kind="stable")
        return take_lookups(concat_lookups(parts), back)

    def _entries(self, files: Sequence[StagedFile]) -> IndexEntries:
        """Where the new rows are: in the order written, or as the files themselves say."""
        if not self._rows:
            return concat_entries([])
        hashes = np.concatenate([each for each, _ in self._rows])
        sequence = pa.concat_arrays([each for _, each in self._rows])
        counts = [file.records for file in files]
        numbers = np.repeat(np.arange(len(files)), counts)
        places = np.arange(len(numbers)) - np.repeat(np.cumsum([0, *counts[:-1]]), counts)
        if self._stager.keeps_order:
            return row_entries(hashes, numbers, places, sequence)
        keys = [self._schema.field(name) for name in (*self._mirror.keys, SEQUENCE)]
        parts = []
        for number, file in enumerate(files):
            read = read_rows(file.path, np.arange(file.records), keys).combine_chunks()
            *columns, told = (read.column(each.name).combine_chunks() for each in keys)
            parts.append(row_entries(key_hashes(columns), number, np.arange(file.records), told))
        return concat_entries(parts)

    def _stage_runs(self, entries: IndexEntries, paths: Sequence[str]) -> Iterator[str]:
        index = self._mirror.index
        bucket = bucket_of(entries.hash_hi.reshape(-1, 1), index.buckets)
        for number in np.unique(bucket).tolist():
            some = entries.take(np.flatnonzero(bucket == number))
            yield index.stage(number, self._mirror.commit_id, some, paths)

    def _add_tombstones(self, hashes: Hashes, sequence: pa.Array) -> None:
        if len(hashes):
            self._tombs.append(tombstone_entries(hashes, sequence, self._now))
            self._tomb_sequences.append(sequence.cast(pa.binary()))

    # -- old rows ------------------------------------------------------------------------------

    def _with_missing_values(self, folded: FoldResult, fresh: NDArray[np.intp]) -> pa.RecordBatch:
        """Some of the last rows, with the columns that they lack from the table."""
        if not folded.missing:
            return folded.last.take(fresh).rows
        batch = folded.last.rows
        for lack in folded.missing:
            kept = self._read_old_rows(folded.lookup, lack.rows, [lack.column]).column(lack.column)
            index = batch.schema.get_field_index(lack.column)
            column = batch.column(index)
            order = np.arange(len(column))
            order[lack.rows] = len(column) + np.arange(len(lack.rows))
            both = pa.concat_arrays([column, kept.combine_chunks().cast(column.type)])
            batch = batch.set_column(index, batch.schema.field(index), both.take(pa.array(order)))
        return batch.take(pa.array(fresh))

    def _read_old_rows(
        self, found: LookupResult, which: NDArray[np.intp], columns: Sequence[str]
    ) -> pa.Table:
        """Columns of old rows, in the order of `which`."""
        fields = [self._schema.field(name) for name in columns]
        parts, places = [], []
        for number in np.unique(found.file[which]).tolist():
            mine = np.flatnonzero(found.file[which] == number)
            at = found.position[which[mine]].astype(np.int64)
            parts.append(read_rows(self._mirror.index.path(number), at, fields))
            places.append(mine)
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(places))))

    def _whole_sequences(self, found: LookupResult, which: NDArray[np.intp]) -> pa.BinaryArray:
        read = self._read_old_rows(found, which, [SEQUENCE]).column(SEQUENCE).combine_chunks()
        return read.cast(pa.binary())

    def _fill_from_old_keys(self, folded: FoldResult) -> tuple[FoldResult, pa.RecordBatch | None]:
        """Rows that lack columns and were found nowhere: under an old key, or they are bad."""
        if not folded.incomplete.any():
            return folded, None
        last, still = folded.last, folded.incomplete.copy()
        origins = ValueOriginFinder(folded.applicable)
        moved = np.flatnonzero(still & origins.changed_key(last.hashes)).tolist()
        lacks = {name: last.is_missing(name) for name in last.missing_columns} if moved else {}
        rows_ = last.rows
        for at in moved:  # rare: a new key, and a column kept aside
            names = [name for name, lacking in lacks.items() if lacking[at]]
            told = {name: origins.find(name, last.hashes[at]) for name in names}
            if not self._mirror.has_all_keys and any(
                each.moved is not None for each in told.values()
            ):
                self.needs_one_task = True  # the old key's changes of this batch are another task's
                return folded, None
            values = [
                self._value_at(folded.applicable, name, origin) for name, origin in told.items()
            ]
            if all(value is not None for value in values):
                rows_ = _with_values(rows_, at, pa.table(values, names=names))
                still[at] = False
        last = last.with_rows(rows_)
        # A soft delete of nothing has no record here: there is nothing to keep, nor to complain of.
        known = last.record.is_valid().to_numpy(zero_copy_only=False) & still
        bad = None
        if known.any():
            bad = _bad_records(last.take(np.flatnonzero(known)))
        return replace(folded, last=last, incomplete=still), bad

    def _value_at(self, changes: ChangeBatch, column: str, origin: ValueOrigin) -> pa.Array | None:
        """One row's value of a column, from a change of the batch or from the table."""
        if origin.change is not None:
            return changes.rows.column(column).slice(origin.change, 1)
        if origin.key is None:
            return None
        there = self._look_up(origin.key.reshape(1, 2))
        if origin.moved is not None:
            # A row that is newer than the move took the old key's place: the one meant is gone.
            place = SourceSequences.of(changes.sequence.slice(origin.moved, 1), 1)
            if there.sequences.compare(place)[0] == 1:
                return None
        if not there.hit[0]:
            return None
        return self._read_old_rows(there, np.array([0]), [column]).column(column).combine_chunks()

    # -- truncate ------------------------------------------------------------------------------

    def _without_truncated(self, changes: ChangeBatch) -> ChangeBatch:
        """Without those that a truncate of an earlier batch has already emptied out."""
        told = self._last_truncate
        if not told.tombstone[0]:
            return changes
        order = SourceSequences.of(changes.sequence, len(changes)).compare(
            _repeated(told.sequences, len(changes))
        )
        return changes if (order != -1).all() else changes.take(np.flatnonzero(order != -1))

    @cached_property
    def _last_truncate(self) -> LookupResult:
        """What is known of the last one."""
        return self._look_up(EVERY_KEY)

    def _truncate(self, sequence: pa.BinaryArray, buckets: Iterable[int]) -> None:
        """All rows that are not newer die, and leave tombstones: they may be delivered again.

        So may rows that nobody has seen yet, hence one more tombstone for all of them.
        """
        place = SourceSequences.of(sequence, 1)
        known = self._last_truncate
        newer = not known.tombstone[0] or place.compare(known.sequences)[0] != -1
        for bucket in buckets:
            if newer and bucket == bucket_of(EVERY_KEY, self._mirror.index.buckets)[0]:
                self._add_tombstones(EVERY_KEY, sequence)
            for entries in self._mirror.index.live(bucket):
                at = _repeated(place, len(entries))
                old = entries.take(np.flatnonzero(entries.sequences.compare(at) != 1))
                for number in np.unique(old.file).tolist():
                    hit = old.position[old.file == number].astype(np.int64)
                    self._dead.setdefault(number, []).append(hit)
                hashes = np.column_stack([old.hash_hi, old.hash_lo])
                self._add_tombstones(
                    hashes, sequence.take(pa.array(np.zeros(len(old), dtype=np.int64)))
                )


def _repeated(one: SourceSequences, count: int) -> SourceSequences:
    return SourceSequences(*(np.repeat(getattr(one, name), count) for name in ("hi", "lo", "size")))


def _with_values(batch: pa.RecordBatch, at: int, values: pa.Table) -> pa.RecordBatch:
    for name in values.column_names:
        index = batch.schema.get_field_index(name)
        column = batch.column(index)
        value = values.column(name).combine_chunks().cast(column.type)
        joined = pa.concat_arrays([column.slice(0, at), value, column.slice(at + 1)])
        batch = batch.set_column(index, batch.schema.field(index), joined)
    return batch


def _bad_records(changes: ChangeBatch) -> pa.RecordBatch:
    """Their records, with the reason."""
    reason = _NO_ROW.format("`, `".join(changes.missing_columns))
    return pa.RecordBatch.from_struct_array(changes.record).append_column(
        "error", pa.repeat(pa.scalar(reason), len(changes))
    )
