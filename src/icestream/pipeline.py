"""READ FIRST: one micro-batch, from the source to the commit.

    Pipeline.claim            claim every table for this run, or refuse to start
    Pipeline.open             open the stream at the nearest marker of the tables
    Pipeline.process          plan ▸ stage (one Spark job) ▸ change tables and again ▸ commit
    Pipeline.commit_consumed  at a clean stop: commit the positions of tables without rows

The rules are in commit/protocol.py, which is pure; commit/table_commits.py carries them out. What
a batch does to each table is in batch/: run_tables.py plans, spark_job.py stages (its tasks are
decode_task.py and write_task.py), commit_batch.py commits.
"""

from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream import events
from icestream.batch.commit_batch import BatchCommitter
from icestream.batch.run_tables import Claimed, RunTables
from icestream.batch.spark_job import BatchJob, StagedBatch
from icestream.batch.table_batch import TableBatch
from icestream.commit.port import CommitFailed, TableChanges
from icestream.commit.protocol import BatchVerdict
from icestream.commit.table_commits import TableCommitter
from icestream.errors import BadRecord, GaveUp, IcestreamError, SchemaRefused
from icestream.events import EventBus
from icestream.failpoints import failpoint
from icestream.positions import PositionRange, Positions, describe_range
from icestream.schema import merge_new_fields
from icestream.sources import Source, Stream
from icestream.spark.offset_log import read_offset_log
from icestream.tables.design import awaits_layout, laid_out_columns
from icestream.upsert.indexes import KeyIndexes
from icestream.write.staged import discard

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MOST_PLANS = 12  # of a batch: again after a new column, a new table, another writer's commit
_PARALLEL_COMMITS = 4


class Pipeline:
    """One run of one pipeline; made by run/assemble.py, called by its query for each batch."""

    def __init__(
        self,
        name: str,
        run_id: str,
        source: Source,
        tables: RunTables,
        changes: TableChanges,
        job: BatchJob,
        committer: TableCommitter,
        indexes: KeyIndexes,
        bus: EventBus,
        commit_threads: Executor | None = None,
    ) -> None:
        self.name = name
        self.run_id = run_id
        self.indexes = indexes
        self.current_range: PositionRange | None = None  # of the batch under way, or that failed
        self._source = source
        self._tables = tables
        self._changes = changes
        self._job = job
        self._committer = committer
        self._batch_committer = BatchCommitter(committer, source, bus)
        self._bus = bus
        self._start: Positions = {}
        self._scratch: Path | None = None
        # For the whole run: each thread has a connection to Java, which outlives the thread.
        self._commit_threads = commit_threads or ThreadPoolExecutor(
            _PARALLEL_COMMITS, thread_name_prefix="commit"
        )

    # -- start ---------------------------------------------------------------------------------

    def claim(self, accept_loss: bool = False) -> Claimed:
        """Claim every table in name order, and find the position at which the stream begins."""
        claimed = self._tables.claim(self.run_id, accept_loss)
        self._start = claimed.start
        return claimed

    def open(self, spark: "SparkSession", claimed: Claimed, scratch: Path, once: bool) -> Stream:
        """Open the stream at the nearest marker; it logs its batches in `scratch`."""
        self._scratch = scratch
        stream = self._source.open(spark, claimed.start, scratch, once)
        self._emit(
            events.RunStarted,
            run_id=self.run_id,
            generation=claimed.generation,
            tables=tuple(sorted(table.name for table in self._tables)),
        )
        return stream

    # -- one batch -----------------------------------------------------------------------------

    def process(self, frame: "DataFrame", batch_id: int) -> None:
        """Write one range of the source to the tables, each record once."""
        # 1. The range: what was logged for this batch, never derived from the rows.
        batch = self.current_range = self._batch_range(batch_id)
        failpoint("offsets-logged")
        # 2. The tables that its topics go to; new ones are created and claimed.
        routes = self._tables.routes(batch)
        for _ in range(_MOST_PLANS):
            # 3. Plan: what each table has of the range already, by its current state.
            planned = self._tables.plan(batch, routes)
            due = [part for part in planned if part.plan.verdict is BatchVerdict.COMMIT]
            self._emit(
                events.BatchPlanned,
                batch=batch_id,
                tables={part.name: part.plan.verdict.value for part in planned},
            )
            if not due:
                break
            # 4. Stage: files of all tables that no snapshot names yet, by one Spark job.
            staged = self._job.run(frame, batch, due, routes, self._committer.claim)
            # 5. Change tables as the records ask for, and plan again; or commit.
            self._refuse_bad_batch(due, staged)
            if self._change_tables(due, staged):
                self._discard(due, staged)
            elif self._commit(due, staged):
                break
        else:
            raise GaveUp(
                f"pipeline `{self.name}`: batch {batch_id} had to be planned {_MOST_PLANS} times",
                where=describe_range(batch),
                hint="somebody keeps changing the tables; a restart is safe",
            )
        if due:
            failpoint("tables-done")
        # 6. The run has consumed the range, for tables without a row as well.
        self._tables.note_consumed(batch, routes)
        self.current_range = None

    def _batch_range(self, batch_id: int) -> PositionRange:
        assert self._scratch is not None, "a batch comes after `open`"
        stop = read_offset_log(self._scratch, batch_id)
        start = read_offset_log(self._scratch, batch_id - 1) if batch_id else self._start
        return PositionRange(start, stop)

    def _refuse_bad_batch(self, due: Sequence[TableBatch], staged: StagedBatch) -> None:
        """Raise, before anything is committed, if a layout column is missing or a record is bad."""
        for part in due:
            report = staged.reports[part.name]
            missing = laid_out_columns(part.table.design) - set(part.state.metadata.columns)
            if missing and report.counts.landed and not report.requests.new_fields:
                raise SchemaRefused(
                    f"table `{part.name}`: `partition_by` or `sort_by` names "
                    f"`{min(missing)}`, which no record has",
                    hint="declare it under `columns:`, or correct the name",
                )
            if bad := report.requests.first_bad:
                raise BadRecord(
                    f"table `{part.name}`: {bad.error}",
                    where=f"topic {bad.topic}, partition {bad.partition}, offset {bad.offset}",
                    hint="keep such records by `bad_records: quarantine`; try `icestream preview`",
                )

    def _change_tables(self, due: Sequence[TableBatch], staged: StagedBatch) -> bool:
        """Add the columns and quarantine tables that the tasks asked for. True: plan again."""
        changed = False
        for part in due:
            table, report = part.table, staged.reports[part.name]
            new = merge_new_fields(report.requests.new_fields)
            # Several tasks report the same column.
            wider = list({field.name: field for field in report.requests.widened}.values())
            if new or wider or awaits_layout(table.design, part.state.metadata):
                changed = True
                try:
                    self._changes.evolve(table.design, part.state.base, new, wider)
                except CommitFailed:
                    continue  # another writer was faster: planning again sees its state
                failpoint("schema-evolved")
                columns = tuple(".".join((*field.parent, field.name)) for field in [*new, *wider])
                if columns:
                    self._emit(events.SchemaEvolved, table=part.name, columns=columns)
            if table.mode.handle_requests(part, report):
                changed = True
            if report.requests.needs_quarantine and not table.has_quarantine:
                changed = True
                self._tables.add_quarantine(table)
        return changed

    def _discard(self, due: Sequence[TableBatch], staged: StagedBatch) -> None:
        """Delete the files that were staged for a plan that is given up."""
        # No commit was tried with them. After a tried commit staged files are never deleted: it
        # may land late.
        for part in due:
            changes = staged.reports[part.name].staged
            discard([*changes.files, *changes.quarantine_files])
            part.table.mode.abandon(part)

    def _commit(self, due: Sequence[TableBatch], staged: StagedBatch) -> bool:
        """Commit what was staged, several tables at once. False: plan again."""
        self._tables.refuse_recreated_streams(due)

        def commit(part: TableBatch) -> bool:
            report, mode = staged.reports[part.name], part.table.mode
            deletes = mode.stage_deletes(part, report)
            is_done = self._batch_committer.commit(part, report, staged.seconds, deletes)
            mode.after_commit(report)
            failpoint("between-tables")
            return is_done

        # A list, so that every table's commit has ended: `all` on the iterator would return at
        # the first False, with others still at work.
        return all(list(self._commit_threads.map(commit, due)))

    # -- the end -------------------------------------------------------------------------------

    def commit_consumed(self) -> None:
        """At a clean stop: commit the consumed positions of tables that had no rows lately.

        So the next start does not read those ranges again.
        """
        for table in self._tables:
            self._tables.commit_consumed(table)

    def explain_failure(self) -> IcestreamError | None:
        """After a failure: return the error if fenced, or if the source is at fault; else None."""
        return self._tables.explain_failure()

    def shut_down(self) -> None:
        """End the threads of commits and index merges; PipelineRun calls it after every end."""
        self._commit_threads.shutdown()
        self.indexes.close()

    def _emit(self, kind: type[events.Event], **facts: Any) -> None:
        self._bus.emit(kind(pipeline=self.name, **facts))
