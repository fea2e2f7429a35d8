"""One Spark job for all tables of a batch; the only module here that hands a batch to Spark."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from icestream.batch import arrow_batches
from icestream.batch.arrow_batches import BatchSizes
from icestream.batch.decode_task import StageTask
from icestream.batch.report import TaskReport, add_reports
from icestream.batch.table_batch import TableBatch
from icestream.batch.table_task import TableTaskInput
from icestream.batch.write_task import WriteTask
from icestream.commit import protocol
from icestream.commit.protocol import Claim
from icestream.failpoints import failpoint
from icestream.formats import Format
from icestream.positions import PositionRange
from icestream.sources import Source
from icestream.spark.types import task_output_type
from icestream.write.target import stage_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class StagedBatch:
    """The reports of all tasks of a batch, added up per table."""

    reports: Mapping[str, TaskReport]
    seconds: float


class BatchJob:
    """Stages the records of a batch, for all tables in one pass over them."""

    def __init__(self, source: Source, record_format: Format) -> None:
        self._source = source
        self._format = record_format
        self._last_sizes: BatchSizes | None = None  # of the records of the last batch
        self._max_arrow_records = 0  # records that Python may get at once; 0: not known yet

    def run(
        self,
        frame: "DataFrame",
        batch: PositionRange,
        due: Sequence[TableBatch],
        routes: Mapping[str, str],
        claim: Claim,
    ) -> StagedBatch:
        """Run the job and add up its tasks' reports; raises the error that stopped a task."""
        began = time.monotonic()
        tables = {part.name: part for part in due}
        task = StageTask(
            pipeline=claim.pipeline,
            reader=self._source.reader,
            routes={topic: name for topic, name in routes.items() if name in tables},
            tables={name: self._table_input(part, claim) for name, part in tables.items()},
            ingested_at=datetime.now(UTC),
        )
        cores = frame.sparkSession.sparkContext.defaultParallelism
        tasks = self._source.max_tasks(batch, cores)
        frame = self._sized_for_tasks(frame, tasks)
        output = frame.mapInArrow(task, task_output_type())  # type: ignore[arg-type]
        if task.shuffles:
            output = _shuffled(output, task, min(cores, tasks or cores))
        rows = [(row[0], row[1], row[2]) for row in output.collect()]
        reports = add_reports(rows, tables)
        stats = [report.stats for report in reports.values()]
        self._last_sizes = BatchSizes(
            sum(each.records for each in stats),
            sum(each.bytes for each in stats),
            max(each.largest for each in stats),
        )
        failpoint("files-staged")
        return StagedBatch(reports, time.monotonic() - began)

    def _table_input(self, part: TableBatch, claim: Claim) -> TableTaskInput:
        rule, mode = part.table.rule, part.table.mode
        prefix = f"{claim.pipeline}-{claim.generation:05d}-{part.commit_id}"
        quarantine = part.quarantine
        quarantine_floors = protocol.quarantine_floors(quarantine, part.range)
        return TableTaskInput(
            target=stage_target(part.state.metadata, prefix),
            quarantine=stage_target(quarantine.metadata, prefix) if quarantine else None,
            floors=self._source.record_floors(part.range, part.plan.floors),
            quarantine_floors=self._source.record_floors(part.range, quarantine_floors),
            format=self._format,
            schema_evolution=rule.schema_evolution,
            bad_records=rule.bad_records,
            metadata_columns=rule.metadata_columns,
            dropped_columns=frozenset(rule.except_columns),
            declared=frozenset(rule.columns),
            upsert=mode.task_input(part, prefix),
            shuffle_by_partition=mode.shuffle_by_partition,
        )

    def _sized_for_tasks(self, frame: "DataFrame", tasks: int | None) -> "DataFrame":
        """Give the batch as many tasks as it is worth, and Arrow batches that fit into memory."""
        conf = frame.sparkSession.conf
        # Read once: it is the user's limit, and the loop below overwrites it in the session.
        limit = self._max_arrow_records or int(conf.get(arrow_batches.MOST) or "0")
        self._max_arrow_records = limit
        settings = arrow_batches.arrow_batch_settings(limit, self._last_sizes)
        for name, value in settings.items():
            conf.set(name, value)
        return frame if tasks is None else frame.coalesce(tasks)


def _shuffled(blocks: "DataFrame", task: StageTask, width: int) -> "DataFrame":
    """Shuffle changes by key group, or rows by partition group, then write them."""
    from pyspark.sql import functions as f

    write_task = WriteTask(task.pipeline, task.tables, task.ingested_at)
    # By id, not by hash: group n goes to task n mod `width`, so that the groups spread evenly.
    shuffled = blocks.repartitionById(width, f.pmod("group", f.lit(width)).cast("int"))
    ordered = shuffled.sortWithinPartitions("table", "group")
    return ordered.mapInArrow(write_task, task_output_type())  # type: ignore[arg-type]
