"""The modes of a table: append, where every record is a row, and mirror (`mode: upsert`)."""

import math
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from icestream import events
from icestream.batch.report import TaskReport
from icestream.batch.shuffle import FileSpread
from icestream.batch.table_batch import TableBatch
from icestream.batch.table_task import UpsertTaskInput
from icestream.commit.port import CommitFailed, TableChanges
from icestream.config.model import PipelineConfig
from icestream.events import EventBus
from icestream.tables.design import key_columns
from icestream.upsert.apply import MirrorTaskInput
from icestream.upsert.change_rules import ChangeRules
from icestream.upsert.indexes import KeyIndexes
from icestream.write.position_deletes import merge_positions, unpack_positions, write_deletes
from icestream.write.target import StagedFile, stage_target

_COUNTING = ("kafka", "generator")  # sources whose positions count records
_LEAST_RECORDS = 25_000  # that are worth a task of their own
_RECORDS_PER_GROUP = 100_000  # changes of a group are packed by themselves, with all columns
_BYTES_PER_GROUP = 128 << 20  # a task holds the changes of a group in memory


class AppendMode:
    """Every record is a row."""

    def __init__(self) -> None:
        self._spread = FileSpread()

    @property
    def shuffle_by_partition(self) -> bool:
        """Whether the last commits had many tiny files."""
        return self._spread.shuffle_pays

    def plan(self, batch: TableBatch) -> TableBatch:
        """Nothing to add: append tables have no keys."""
        return batch

    def task_input(self, batch: TableBatch, file_prefix: str) -> None:
        """None: every record is a row."""

    def handle_requests(self, batch: TableBatch, report: TaskReport) -> bool:
        """False: tasks of an append table ask for nothing that concerns its mode."""
        return False

    def stage_deletes(self, batch: TableBatch, report: TaskReport) -> Sequence[StagedFile]:
        """None: an append table deletes no rows."""
        return ()

    def after_commit(self, report: TaskReport) -> None:
        """Remember how the rows were spread over files."""
        self._spread.observe(report.staged.files, self._spread.shuffle_pays)

    def abandon(self, batch: TableBatch) -> None:
        """Nothing to forget: only files are staged, which `Pipeline` removes."""


class MirrorMode:
    """One row per key, kept equal to a source table: keys, key index, position deletes."""

    shuffle_by_partition = False  # its changes are shuffled by key

    def __init__(
        self,
        config: PipelineConfig,
        changes: TableChanges,
        indexes: KeyIndexes,
        bus: EventBus,
        cores: int,
    ) -> None:
        self._pipeline = config.name
        self._changes = changes
        self._indexes = indexes
        self._bus = bus
        self._cores = cores
        self._positions_count_records = config.source.type in _COUNTING
        self._in_one_task = False  # this batch is planned again, with all keys in one task
        self._is_keyless = False  # and `key_missing` was emitted
        self._largest_record: int | None = None  # bytes, in the last batch

    def plan(self, batch: TableBatch) -> TableBatch:
        """Bring the table's key index to the snapshot that the batch is planned from."""
        keys = _keys(batch)
        if not keys or not set(keys) <= set(batch.state.metadata.columns):
            return replace(batch, keys=keys or ())  # its tasks report the keys and new columns
        index = self._indexes.reader_at(batch.name, batch.state, keys)
        return replace(batch, keys=keys, index=index)

    def task_input(self, batch: TableBatch, file_prefix: str) -> UpsertTaskInput | None:
        """Return how changes are read and applied; None: without a key, every record is a row."""
        rule = batch.table.rule
        if _keys(batch) == ():
            return None
        rules = ChangeRules(
            keys=batch.keys,
            sequence_by=tuple(rule.sequence_by or ()),
            delete_if=rule.apply_as_deletes,
            soft=rule.deletes == "soft",
            truncate=rule.truncate,
        )
        if batch.index is None:
            return UpsertTaskInput(rules)
        mirror = MirrorTaskInput(
            stage_target(batch.state.metadata, file_prefix),
            batch.state.metadata.location,
            batch.keys,
            batch.index,
            batch.commit_id,
            batch.range.stop,
            self._in_one_task,
        )
        buckets = batch.index.buckets
        records = batch.range.records if self._positions_count_records else None
        groups = group_count(records, self._largest_record, buckets, self._cores)
        return UpsertTaskInput(rules, buckets, 1 if self._in_one_task else groups, mirror)

    def handle_requests(self, batch: TableBatch, report: TaskReport) -> bool:
        """Store keys that the records name in the table, or bring all keys into one task."""
        requests = report.requests
        if _keys(batch) is None and (requests.keys or not requests.new_fields):
            with suppress(CommitFailed):  # another writer was faster: planning again sees its state
                self._changes.set_keys(batch.table.design, batch.state.base, requests.keys)
            return True
        if requests.needs_one_task and not self._in_one_task:
            self._in_one_task = True
            return True
        return False

    def stage_deletes(self, batch: TableBatch, report: TaskReport) -> Sequence[StagedFile]:
        """Stage position deletes, and prepare what the commit will change in the key index.

        The plan of the next batch confirms the index when it sees the commit in the table, so a
        crash in between is harmless.
        """
        self._in_one_task = False
        self._largest_record = report.stats.largest
        if batch.index is None:
            if not self._is_keyless:
                self._is_keyless = True
                self._bus.emit(events.KeyMissing(self._pipeline, batch.name))
            return ()
        staged = report.staged
        paths = [file.path for file in staged.files]
        self._indexes.add_files(batch.name, [file.content_json for file in staged.files], paths)
        self._indexes.prepare_commit(batch.name, batch.commit_id, staged.index_runs)
        deleted = merge_positions(
            {path: unpack_positions(packed) for path, packed in part.items()}
            for part in staged.deleted_positions
        )
        if not deleted:
            return ()
        generation = batch.state.marker.generation if batch.state.marker else 0
        prefix = f"{self._pipeline}-{generation:05d}-{batch.commit_id}"
        target = stage_target(batch.state.metadata, prefix)
        partition_of = self._indexes.partition_of(batch.name, batch.state)
        return write_deletes(deleted, partition_of, target, uuid.uuid4().hex[:12])

    def after_commit(self, report: TaskReport) -> None:
        """Nothing to remember: `stage_deletes` did, and the next plan reads the table."""

    def abandon(self, batch: TableBatch) -> None:
        """Forget what was staged for the key index."""
        if batch.index is not None:
            self._indexes.abandon(batch.name, batch.commit_id)


def group_count(records: int | None, widest: int | None, most: int, cores: int) -> int:
    """Return the number of key groups of a batch; each costs some milliseconds, however small.

    A power of two, so that tasks share them evenly: as many as there are cores, if the batch is
    worth it, and more where groups would be large. If sizes are unknown, as of a first batch, it
    is `most`.
    """
    if records is None or widest is None:
        return most
    busy = min(cores, records / _LEAST_RECORDS)
    least = max(busy, records / _RECORDS_PER_GROUP, records * widest / _BYTES_PER_GROUP, 1)
    return min(most, 1 << math.ceil(math.log2(least)))


def _keys(batch: TableBatch) -> tuple[str, ...] | None:
    return key_columns(batch.table.rule, batch.state.metadata.properties)
