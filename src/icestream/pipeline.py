"""READ FIRST: one micro-batch, from the source to the commit.

    Pipeline.open             claim the tables, open the stream where their markers stand
    Pipeline.process          plan ▸ stage (one Spark job) ▸ evolve and again if need be ▸ commit
    Pipeline.commit_consumed  write down how far the quiet tables have come

The rules are in commit/protocol.py, which is pure; this file and commit/table_commits.py carry them
out. The job's tasks are batch/decode_task.py and batch/write_task.py.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream import events, positions
from icestream.batch import arrow_batches
from icestream.batch.arrow_batches import BatchSizes
from icestream.batch.decode_task import StageTask
from icestream.batch.mirrors import Mirrors
from icestream.batch.report import TaskReport
from icestream.batch.run_tables import RunTable
from icestream.batch.table_batch import TableBatch
from icestream.batch.table_task import TableTaskInput
from icestream.commit import port, protocol
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.protocol import BatchVerdict, Claim
from icestream.commit.refusals import loss_refusal, refusal
from icestream.commit.table_builder import TableBuilder
from icestream.commit.table_commits import TableCommitter
from icestream.commit.table_state import TableState, located_marker
from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.config.route import Route, Router
from icestream.errors import BadRecord, GaveUp, IcestreamError, SchemaRefused
from icestream.events import EventBus
from icestream.failpoints import failpoint
from icestream.formats import Format
from icestream.positions import PositionRange, Positions, describe_range
from icestream.run.scratch import make_scratch
from icestream.schema import merge_new_fields
from icestream.sources import LossReport, Source, StartPositions, Stream
from icestream.spark.offset_log import read_offset_log
from icestream.spark.types import report_type
from icestream.tables.design import (
    TableDesign,
    awaits_layout,
    laid_out_columns,
    missing_included,
    quarantine_design,
    quarantine_name,
)
from icestream.tables.metadata import current_fields
from icestream.write.staged import discard
from icestream.write.target import stage_target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROUNDS = 12  # planning again after a new column, a new table or somebody else's change
_ADVANCE_SECONDS = 3600  # a table without rows says how far it has come at least this often
_PARALLEL_COMMITS = 4


class Pipeline:
    """One run of one pipeline; made by the runner, driven by a stream, batch by batch."""

    def __init__(
        self,
        config: PipelineConfig,
        source: Source,
        record_format: Format,
        tables: IcebergTables,
        builder: TableBuilder,
        design: Callable[[str, TableRule], TableDesign],
        bus: EventBus,
        mirrors: Mirrors,
        after: Sequence[str] = (),
    ) -> None:
        self.name = config.name
        self.run_id = uuid.uuid4().hex
        self._earlier_runs = after  # runs of this process that broke; this one stands in for them
        self._config = config
        self._source = source
        self._format = record_format
        self._tables = tables
        self._builder = builder
        self._design = design
        self._bus = bus
        self._mirrors = mirrors
        self._router = Router(config)
        self._landing = TableCommitter(tables, source, bus, Claim(self.name, 0, self.run_id))
        self._run_tables: dict[str, RunTable] = {}
        self._unrouted: set[str] = set()
        self._begin: Positions = {}
        self.current_range: PositionRange | None = None  # the batch at work, or the one that failed
        self._last_sizes: BatchSizes | None = None  # of the last batch
        self._max_arrow_records = 0  # records that Python may get; 0: not known yet
        self.scratch: Path | None = None  # once the tables are claimed
        # For the whole run: each thread has a connection to Java, which outlives the thread.
        self._committers = ThreadPoolExecutor(_PARALLEL_COMMITS, thread_name_prefix="commit")

    # -- start ---------------------------------------------------------------------------------

    def open(
        self, spark: "SparkSession", folder: Path, once: bool, accept_loss: bool = False
    ) -> Stream:
        """Claim every table in name order, then open the stream at the nearest marker.

        `folder` has a place for each run's scratch.
        """
        for route in self._initial_routes():
            self._open_table(route)
        aside = [
            quarantine_name(name) for name, each in self._run_tables.items() if each.has_quarantine
        ]
        views = {name: self._tables.load(name) for name in sorted([*self._run_tables, *aside])}
        if self._earlier_runs and (taken := protocol.claimed_by_another(views, self._earlier_runs)):
            raise refusal(taken, BatchVerdict.FENCED.value, views[taken])
        generation = protocol.next_generation(views.values())
        self._landing.claim = Claim(self.name, generation, self.run_id)
        self._source.load_details([located_marker(view) for view in views.values() if view.marker])
        start = StartPositions({})
        if any(view.marker is None for name, view in views.items() if name in self._run_tables):
            start = self._source.resolve_start(self._config.source.start)
        for name, view in views.items():
            views[name] = self._landing.claim_table(name, view, self._start_of_table(name, start))
        self.scratch = make_scratch(folder, generation, self.run_id)
        # Again: the run before us may have committed until the moment of our claim.
        self._source.load_details([located_marker(view) for view in views.values()])
        views = self._handle_losses(views, accept_loss)
        self._begin = positions.min_positions(
            *(located_marker(views[name]).marker.positions for name in self._run_tables)
        )
        stream = self._source.open(spark, self._begin, self.scratch, once)
        self._emit(
            events.RunStarted,
            run_id=self.run_id,
            generation=generation,
            tables=tuple(sorted(self._run_tables)),
        )
        return stream

    def _handle_losses(
        self, views: Mapping[str, TableState], accept: bool
    ) -> dict[str, TableState]:
        """Stop at records that the source no longer has, or write down that they are given up."""
        found = {name: self._losses(view) for name, view in views.items()}
        for name in set(views) - set(self._run_tables):
            # What a quarantine table has not seen yet is not missing from it.
            told = [loss for loss in found[name].lost if loss.kind != "retention"]
            found[name] = replace(found[name], lost=tuple(told))
        hurt = sorted(name for name in views if found[name].lost)
        if hurt and not accept:
            first = min(hurt, key=lambda name: name not in self._run_tables)
            raise loss_refusal(first, found[first].lost)
        seen = dict(views)
        # Quarantine tables first: a crash in between still finds the table's own losses and asks.
        for name in sorted(hurt, key=lambda name: name in self._run_tables):
            seen[name] = self._landing.accept_losses(name, views[name], found[name])
        return seen

    def _losses(self, view: TableState) -> LossReport:
        marker = located_marker(view).marker
        return self._source.losses(marker.positions, marker.stream_ids)

    def explain_failure(self) -> IcestreamError | None:
        """After a failure: are we fenced, has the source lost something, or gone away itself?"""
        if self.scratch is None:
            return None  # nothing was ours yet
        try:
            views = {name: self._tables.load(name) for name in self._run_tables}
            if taken := protocol.claimed_by_another(views, [*self._earlier_runs, self.run_id]):
                return refusal(taken, BatchVerdict.FENCED.value, views[taken])
            for name, view in views.items():
                if lost := self._losses(view).lost:
                    return loss_refusal(name, lost)
            self._source.check()
        except IcestreamError as failure:
            return failure
        return None

    def _initial_routes(self) -> Sequence[Route]:
        """Tables by fixed name, by known topics, and those that an earlier run made."""
        known = [self._router.route(topic) for topic in self._source.known_topics()]
        found = {route.table: route for route in [*self._router.fixed(), *known] if route}
        for name in self._tables.list_tables(self._router.reaches):
            rule = self._router.owner(name)
            if rule and name not in found and self._tables.load(name).marker:
                found[name] = Route(name, rule)
        return [found[name] for name in sorted(found)]

    def _open_table(self, route: Route) -> None:
        design = self._design(route.table, route.rule)
        if self._builder.create(design):
            self._emit(events.TableCreated, table=route.table)
            failpoint("table-created")
        base = self._tables.load(route.table).base
        if lacking := missing_included(design, base.document):
            self._builder.evolve(design, base, lacking)
        has_quarantine = self._tables.exists(quarantine_name(route.table))
        self._run_tables[route.table] = RunTable(route.table, route.rule, design, has_quarantine)

    def _start_of_table(self, name: str, start: StartPositions) -> StartPositions:
        """Where one table begins; a quarantine table follows its table and begins nowhere."""
        if name not in self._run_tables:
            return StartPositions({})
        streams = self._streams_of_table(name, self._source.known_topics(), start.positions)
        return StartPositions(
            {stream: at for stream, at in start.positions.items() if stream in streams},
            {stream: one for stream, one in start.stream_ids.items() if stream in streams},
        )

    # -- one batch -----------------------------------------------------------------------------

    def process(self, frame: "DataFrame", batch_id: int) -> None:
        """Bring one range of the source into the tables, each record once."""
        batch = self.current_range = self._batch_range(batch_id)
        failpoint("offsets-logged")
        routes = self._routes(batch)
        for _ in range(_ROUNDS):
            ids = self._source.stream_ids(batch.stop)
            works = [
                self._plan_table(table, batch, routes, ids) for table in self._tables_of(routes)
            ]
            due = [work for work in works if work.plan.verdict is BatchVerdict.COMMIT]
            self._emit(
                events.BatchPlanned,
                batch=batch_id,
                tables={work.table.name: work.plan.verdict.value for work in works},
            )
            if not due or self._commit_or_replan(due, self._stage(frame, batch, due, routes)):
                break
        else:
            raise GaveUp(
                f"pipeline `{self.name}`: batch {batch_id} had to be planned {_ROUNDS} times",
                where=describe_range(batch),
                hint="somebody keeps changing the tables; a restart is safe",
            )
        if due:
            failpoint("tables-done")
        for table in self._run_tables.values():
            self._note_consumed(table, batch, routes)
        self.current_range = None

    def _batch_range(self, batch_id: int) -> PositionRange:
        """What was logged for this batch, never what was seen of it."""
        assert self.scratch is not None, "a batch comes after `open`"
        stop = read_offset_log(self.scratch, batch_id)
        start = read_offset_log(self.scratch, batch_id - 1) if batch_id else self._begin
        return PositionRange(start, stop)

    def _routes(self, batch: PositionRange) -> dict[str, str]:
        """Topic → table for this range; tables seen for the first time are made and claimed."""
        routes: dict[str, str] = {}
        for topic in self._source.topics(batch):
            route = self._router.route(topic)
            if route is None:
                if topic not in self._unrouted and self._router.forgotten(topic):
                    self._unrouted.add(topic)
                    self._emit(events.TopicUnrouted, topic=topic)
                continue
            if route.table not in self._run_tables:
                self._open_table(route)
                begin = StartPositions(batch.start, self._source.stream_ids(batch.start))
                view = self._tables.load(route.table)
                self._landing.claim_table(
                    route.table, view, self._start_of_table(route.table, begin)
                )
            routes[topic] = route.table
        return routes

    def _tables_of(self, routes: Mapping[str, str]) -> list[RunTable]:
        return [self._run_tables[name] for name in sorted(set(routes.values()))]

    def _plan_table(
        self,
        table: RunTable,
        batch: PositionRange,
        routes: Mapping[str, str],
        ids: Mapping[str, str],
    ) -> TableBatch:
        topics = [topic for topic, name in routes.items() if name == table.name]
        own = self._range_of_table(table.name, batch, topics)
        view = self._tables.load(table.name)
        plan = protocol.plan_batch(view, self._landing.claim, own, table.consumed, ids)
        if plan.verdict not in (BatchVerdict.COMMIT, BatchVerdict.SKIP):
            at_source = plan.verdict in (BatchVerdict.GAP, BatchVerdict.INCARNATION)
            lost = self.explain_failure() if at_source else None
            raise lost or refusal(table.name, plan.verdict.value, view, plan.gaps)
        quarantine = None
        if table.has_quarantine:
            name = quarantine_name(table.name)
            quarantine = self._tables.load(name)
            if not self._landing.owns(quarantine):
                quarantine = self._landing.claim_table(name, quarantine, StartPositions({}))
        work = TableBatch(table, own, view, plan, quarantine, uuid.uuid4().hex, ids)
        if table.rule.mode == "upsert" and plan.verdict is BatchVerdict.COMMIT:
            return self._mirrors.with_index(work)
        return work

    def _stage(
        self,
        frame: "DataFrame",
        batch: PositionRange,
        due: Sequence[TableBatch],
        routes: Mapping[str, str],
    ) -> tuple[dict[str, TaskReport], float]:
        """One Spark job for all tables; → what it did for each, and how long it took."""
        names = {work.table.name: work for work in due}
        task = StageTask(
            pipeline=self.name,
            reader=self._source.reader,
            routes={topic: name for topic, name in routes.items() if name in names},
            tables={name: self._table_task(work) for name, work in names.items()},
            ingested_at=datetime.now(UTC),
        )
        began = time.monotonic()
        reports = {name: TaskReport() for name in names}
        tasks = self._source.max_tasks(batch, frame.sparkSession.sparkContext.defaultParallelism)
        frame = self._sized_for_tasks(frame, tasks)
        if task.shuffles:
            told = self._mirrors.run_batch(frame, task, tasks)
        else:
            told = frame.mapInArrow(task, report_type()).collect()  # type: ignore[arg-type]
        for name, text in sorted(told):  # errors have no table, so they come first
            if not name:
                raise IcestreamError.from_facts(json.loads(text))
            reports[name] += TaskReport.from_json(text)
        self._last_sizes = BatchSizes(
            sum(report.read for report in reports.values()),
            sum(report.bytes for report in reports.values()),
            max(report.largest_record for report in reports.values()),
        )
        failpoint("files-staged")
        return reports, time.monotonic() - began

    def _sized_for_tasks(self, frame: "DataFrame", tasks: int | None) -> "DataFrame":
        """The batch in as many tasks as it is worth, and in Arrow batches that fit into memory."""
        spark = frame.sparkSession
        self._max_arrow_records = self._max_arrow_records or int(
            spark.conf.get(arrow_batches.MOST) or "0"
        )
        for name, value in arrow_batches.arrow_batch_settings(
            self._max_arrow_records, self._last_sizes
        ).items():
            spark.conf.set(name, value)
        return frame if tasks is None else frame.coalesce(tasks)

    def _table_task(self, work: TableBatch) -> TableTaskInput:
        table, batch = work.table, work.range
        prefix = f"{self.name}-{self._landing.claim.generation:05d}-{work.commit_id}"
        aside = stage_target(work.quarantine.base.document, prefix) if work.quarantine else None
        floors = self._source.record_floors(batch, work.plan.floors)
        trims = self._source.record_floors(
            batch, protocol.quarantine_floors(work.quarantine, batch)
        )
        return TableTaskInput(
            target=stage_target(work.state.base.document, prefix),
            quarantine=aside,
            floors=floors,
            quarantine_floors=trims,
            format=self._format,
            schema_evolution=table.rule.schema_evolution,
            bad_records=table.rule.bad_records,
            metadata_columns=table.rule.metadata_columns,
            dropped_columns=frozenset(table.rule.except_columns),
            declared=frozenset(table.rule.columns),
            upsert=self._mirrors.task_input(work, prefix) if table.rule.mode == "upsert" else None,
            shuffle_by_partition=table.file_spread.shuffle_pays,
        )

    def _commit_or_replan(
        self, due: Sequence[TableBatch], staged: tuple[dict[str, TaskReport], float]
    ) -> bool:
        """Commit what was staged; False: something had to change first, so plan again."""
        reports, seconds = staged
        self._refuse_bad_batch(due, reports)
        if self._change_tables(due, reports):
            for work in due:
                report = reports[work.table.name]
                discard([*report.files, *report.quarantine_files])
                self._mirrors.abandon(work)
            return False
        self._refuse_recreated_streams(due)

        def land(work: TableBatch) -> bool:
            report = reports[work.table.name]
            deletes = self._mirrors.stage_deletes(work, report)
            staged = [*report.files, *report.quarantine_files, *deletes]
            done = self._landing.check_staged_files(
                work.table.name, staged
            ) and self._landing.commit_batch(work, report, seconds, deletes)
            if work.table.rule.mode == "append":
                work.table.file_spread.observe(report.files, work.table.file_spread.shuffle_pays)
            failpoint("between-tables")
            return done

        return all(list(self._committers.map(land, due)))

    def _refuse_recreated_streams(self, due: Sequence[TableBatch]) -> None:
        """What was read came from the streams that were planned for: their identities held."""
        before: dict[str, str] = {}
        for work in due:
            # The marker's too: one that was gone when we planned may be back as another.
            ids = {**located_marker(work.state).marker.stream_ids, **work.stream_ids}
            before |= {stream: one for stream, one in ids.items() if stream in work.range.stop}
        if self._source.stream_ids(before) != before:
            raise self.explain_failure() or refusal(due[0].table.name, "incarnation", due[0].state)

    def _refuse_bad_batch(
        self, due: Sequence[TableBatch], reports: Mapping[str, TaskReport]
    ) -> None:
        """Stop before anything is written at what the pipeline file forbids or cannot mean."""
        for work in due:
            report, design = reports[work.table.name], work.table.design
            missing = laid_out_columns(design) - set(current_fields(work.state.base.document))
            if missing and report.landed and not report.new_fields:
                raise SchemaRefused(
                    f"table `{work.table.name}`: `partition_by` or `sort_by` names "
                    f"`{min(missing)}`, which no record has",
                    hint="declare it under `columns:`, or correct the name",
                )
            if bad := report.first_bad:
                raise BadRecord(
                    f"table `{work.table.name}`: {bad.error}",
                    where=f"topic {bad.topic}, partition {bad.partition}, offset {bad.offset}",
                    hint="keep such records by `bad_records: quarantine`; try `icestream preview`",
                )

    def _change_tables(self, due: Sequence[TableBatch], reports: Mapping[str, TaskReport]) -> bool:
        """Add the columns and quarantine tables that the tasks asked for; → whether any was."""
        asked = False
        for work in due:
            table, report = work.table, reports[work.table.name]
            new = merge_new_fields(report.new_fields)
            wider = list({each.name: each for each in report.widened}.values())
            if new or wider or awaits_layout(table.design, work.state.base.document):
                asked = True
                try:
                    self._builder.evolve(table.design, work.state.base, new, wider)
                except port.CommitFailed:
                    continue  # somebody was faster: planning again sees what is there now
                failpoint("schema-evolved")
                names = tuple(".".join((*each.parent, each.name)) for each in [*new, *wider])
                if names:
                    self._emit(events.SchemaEvolved, table=table.name, columns=names)
            if table.rule.mode == "upsert" and self._mirrors.handle_requests(work, report):
                asked = True
            if report.wants_quarantine and not table.has_quarantine:
                asked = True
                design = quarantine_design(table.name)
                if self._builder.create(design):
                    self._emit(events.TableCreated, table=design.name)
                table.has_quarantine = True
        return asked

    # -- quiet tables --------------------------------------------------------------------------

    def _note_consumed(
        self, table: RunTable, batch: PositionRange, routes: Mapping[str, str]
    ) -> None:
        topics = [topic for topic, name in routes.items() if name == table.name]
        own = self._range_of_table(table.name, batch, topics)
        table.consumed = positions.max_positions(table.consumed, own.stop)
        if time.monotonic() - table.marker_written_at > _ADVANCE_SECONDS:
            self._landing.commit_consumed(table)

    def commit_consumed(self) -> None:
        """At a clean stop every table says how far it has come."""
        for table in self._run_tables.values():
            self._landing.commit_consumed(table)

    def shut_down(self) -> None:
        """However the run ended: no thread of it is left."""
        self._committers.shutdown()
        self._mirrors.close()

    # -- small things --------------------------------------------------------------------------

    def _range_of_table(
        self, name: str, batch: PositionRange, topics: Sequence[str]
    ) -> PositionRange:
        """The part of a range that a table's positions speak of."""
        streams = self._streams_of_table(name, topics, batch.stop)
        return PositionRange(
            {stream: at for stream, at in batch.start.items() if stream in streams},
            {stream: at for stream, at in batch.stop.items() if stream in streams},
        )

    def _streams_of_table(self, name: str, topics: Sequence[str], among: Positions) -> set[str]:
        routed = {
            self._source.stream_of(topic)
            for topic in topics
            if (route := self._router.route(topic)) and route.table == name
        }
        return {
            stream for stream in among if stream in routed or stream in self._source.shared_streams
        }

    def _emit(self, kind: type[events.Event], **facts: Any) -> None:
        self._bus.emit(kind(pipeline=self.name, **facts))
