"""Mirrors: what a batch does more for upsert tables: keys, key index, shuffle, position deletes."""

import math
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from icestream import events
from icestream.batch.decode_task import StageTask
from icestream.batch.report import TaskReport
from icestream.batch.table_batch import TableBatch
from icestream.batch.table_task import UpsertTaskInput
from icestream.batch.write_task import ApplyTask
from icestream.commit.port import CommitFailed
from icestream.commit.table_builder import TableBuilder
from icestream.config.model import PipelineConfig
from icestream.events import EventBus
from icestream.index.follow import CatchUpResult
from icestream.index.rewrite_update import IndexStaging, RewriteIndexUpdate
from icestream.spark.types import block_type, report_type
from icestream.tables.design import key_columns
from icestream.tables.metadata import current_fields
from icestream.upsert.apply import MirrorTaskInput
from icestream.upsert.change_rules import ChangeRules
from icestream.upsert.indexes import KeyIndexes
from icestream.write.position_deletes import merge_positions, unpack_positions, write_deletes
from icestream.write.stage import StagedFile
from icestream.write.target import stage_target

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import DataFrame


_COUNTING = ("kafka", "generator")  # sources whose positions count records
_LEAST_RECORDS = 25_000  # that are worth a task of their own
_RECORDS_PER_GROUP = 100_000  # what comes to a group is packed by itself, with all its columns
_BYTES_PER_GROUP = 128 << 20  # a task holds the changes of a group in memory


class Mirrors:
    """The upsert tables of one run."""

    def __init__(
        self,
        config: PipelineConfig,
        io: Callable[[str], "FileIO"],
        builder: TableBuilder,
        bus: EventBus,
        cores: int,
    ) -> None:
        self._pipeline = config.name
        self._cores = cores
        self._builder = builder
        self._bus = bus
        self._indexes = KeyIndexes(
            Path(config.state_location) / config.name / "index", io, self._on_index_followed
        )
        self._one_task_tables: set[str] = set()  # tables whose batch is applied by one task
        self._keyless: set[str] = set()
        self._positions_count_records = config.source.type in _COUNTING
        self._largest_record: dict[
            str, int
        ] = {}  # bytes of the largest record in a table's last batch

    # -- plan ----------------------------------------------------------------------------------

    def with_index(self, work: TableBatch) -> TableBatch:
        """Bring the table's key index to the snapshot that the batch is planned from."""
        keys = _keys(work)
        if not keys or not set(keys) <= set(current_fields(work.state.base.document)):
            return replace(work, keys=keys or ())  # the first batch tells, and adds the columns
        index = self._indexes.reader_at(work.table.name, work.state, keys)
        return replace(work, keys=keys, index=index)

    def task_input(self, work: TableBatch, prefix: str) -> UpsertTaskInput | None:
        """What tasks must know; None: without a key, every record is a row."""
        rule, document = work.table.rule, work.state.base.document
        if _keys(work) == ():
            return None
        terms = ChangeRules(
            keys=work.keys,
            sequence_by=tuple(rule.sequence_by or ()),
            delete_if=rule.apply_as_deletes,
            soft=rule.deletes == "soft",
            truncate=rule.truncate,
        )
        if work.index is None:
            return UpsertTaskInput(terms)
        gathered = work.table.name in self._one_task_tables
        target = stage_target(document, prefix)
        location = str(document["location"])
        until = work.range.stop
        mirror = MirrorTaskInput(
            target, location, work.keys, work.index, work.commit_id, until, gathered
        )
        buckets = work.index.buckets
        records = _record_count(work) if self._positions_count_records else None
        widest = self._largest_record.get(work.table.name)
        groups = 1 if gathered else group_count(records, widest, buckets, self._cores)
        return UpsertTaskInput(terms, buckets, groups, mirror)

    # -- stage ---------------------------------------------------------------------------------

    def run_batch(
        self, frame: "DataFrame", task: StageTask, tasks: int | None
    ) -> Sequence[tuple[str, str]]:
        """Decode, bring the changes of a key together, apply them; → tables and reports."""
        from pyspark.sql import functions as f

        second = ApplyTask(task.pipeline, task.tables, task.ingested_at)
        cores = frame.sparkSession.sparkContext.defaultParallelism
        width = min(cores, tasks or cores)
        blocks = frame.mapInArrow(task, block_type())  # type: ignore[arg-type]
        shared = blocks.repartitionById(width, f.pmod("group", f.lit(width)).cast("int"))
        ordered = shared.sortWithinPartitions("table", "group")
        found = ordered.mapInArrow(second, report_type()).collect()  # type: ignore[arg-type]
        return [(row[0], row[1]) for row in found]

    def handle_requests(self, work: TableBatch, report: TaskReport) -> bool:
        """Do what the tasks asked for; → whether the batch must be planned again."""
        name = work.table.name
        if _keys(work) is None and (report.keys or not report.new_fields):
            with suppress(CommitFailed):  # somebody was faster: planning again sees what is there
                self._builder.set_keys(work.table.design, work.state.base, report.keys)
            return True
        if report.needs_one_task and name not in self._one_task_tables:
            self._one_task_tables.add(name)
            return True
        return False

    # -- land ----------------------------------------------------------------------------------

    def stage_deletes(self, work: TableBatch, report: TaskReport) -> list[StagedFile]:
        """Stage the position deletes of a batch, and say what it will change in the index."""
        self._one_task_tables.discard(work.table.name)
        self._largest_record[work.table.name] = report.largest_record
        if work.index is None:
            if work.table.rule.mode == "upsert" and work.table.name not in self._keyless:
                self._keyless.add(work.table.name)
                self._bus.emit(events.KeyMissing(self._pipeline, work.table.name))
            return []
        name, view = work.table.name, work.state
        paths = [file.path for file in report.files]
        self._indexes.add_files(name, [file.content_json for file in report.files], paths)
        self._indexes.prepare_commit(name, work.commit_id, report.index_runs)
        dead = merge_positions(
            {p: unpack_positions(text) for p, text in part.items()}
            for part in report.deleted_positions
        )
        if not dead:
            return []
        generation = view.marker.generation if view.marker else 0
        prefix = f"{self._pipeline}-{generation:05d}-{work.commit_id}"
        target = stage_target(view.base.document, prefix)
        place_of = self._indexes.partition_of(name, view)
        return write_deletes(dead, place_of, target, uuid.uuid4().hex[:12])

    def abandon(self, work: TableBatch) -> None:
        """Forget what was staged for a batch that is planned again."""
        if work.index is not None:
            self._indexes.abandon(work.table.name, work.commit_id)

    # -- maintenance ---------------------------------------------------------------------------

    def index_staging(self, table: str) -> IndexStaging | None:
        """Where a rewrite stages what it changes in the key index; None: there is none in use."""
        return self._indexes.index_staging(table)

    def announce_rewrite(self, table: str, move: RewriteIndexUpdate) -> None:
        """A rewrite is about to be committed: the index goes along when it sees it in the table."""
        self._indexes.announce_rewrite(table, move)

    def withdraw_rewrite(self, table: str, rewrite_id: str) -> None:
        """It was not committed, and never will be."""
        self._indexes.withdraw_rewrite(table, rewrite_id)

    def close(self) -> None:
        """Let work in the background end."""
        self._indexes.close()

    def _on_index_followed(self, table: str, how: CatchUpResult) -> None:
        self._bus.emit(events.IndexFollowed(self._pipeline, table, str(how)))


def group_count(records: int | None, widest: int | None, most: int, cores: int) -> int:
    """In how many groups of keys a batch is applied: each costs some milliseconds, however small.

    A power of two, so that tasks share them evenly: as many as there are cores, if the batch is
    worth it, and more where they would be large. What is not known, as of a first batch, counts
    as much.
    """
    if records is None or widest is None:
        return most
    busy = min(cores, records / _LEAST_RECORDS)
    least = max(busy, records / _RECORDS_PER_GROUP, records * widest / _BYTES_PER_GROUP, 1)
    return min(most, 1 << math.ceil(math.log2(least)))


def _record_count(work: TableBatch) -> int:
    start = work.range.start
    return sum(
        at - start.get(stream, {}).get(number, 0)
        for stream, partitions in work.range.stop.items()
        for number, at in partitions.items()
    )


def _keys(work: TableBatch) -> tuple[str, ...] | None:
    return key_columns(work.table.rule, work.state.base.document["properties"])
