"""The tables of a run: finds, creates and claims them, and plans each one's part of a batch."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icestream import events
from icestream.batch.table_batch import RunTable, TableBatch, TableMode
from icestream.commit import protocol
from icestream.commit.port import RunCatalog, TableChanges
from icestream.commit.protocol import BatchPlan, BatchVerdict, Claim
from icestream.commit.refusals import loss_refusal, refusal
from icestream.commit.table_commits import TableCommitter
from icestream.commit.table_state import TableState, located_marker
from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.config.route import Route, Router
from icestream.errors import IcestreamError
from icestream.events import EventBus
from icestream.failpoints import failpoint
from icestream.positions import PositionRange, Positions, max_positions, min_positions
from icestream.sources import LossReport, Source, StartPositions
from icestream.tables.design import (
    TableDesign,
    missing_included,
    quarantine_design,
    quarantine_name,
)

_MARKER_SECONDS = 3600  # a table without rows gets its consumed positions at least this often


@dataclass(frozen=True)
class Claimed:
    """What a run knows once it has claimed every table."""

    generation: int
    start: Positions  # of the stream: the nearest marker of all tables


class RunTables:
    """Finds the tables of a pipeline, claims them, and plans each one's part of a batch."""

    def __init__(
        self,
        config: PipelineConfig,
        source: Source,
        catalog: RunCatalog,
        changes: TableChanges,
        committer: TableCommitter,
        design: Callable[[str, TableRule], TableDesign],
        mode: Callable[[str, TableRule], TableMode],
        bus: EventBus,
        earlier_runs: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._source = source
        self._catalog = catalog
        self._changes = changes
        self._committer = committer
        self._design = design
        self._mode = mode
        self._bus = bus
        self._earlier_runs = earlier_runs  # of this process, that failed; this one replaces them
        self._router = Router(config)
        self._tables: dict[str, RunTable] = {}
        self._unrouted: set[str] = set()
        self._is_claimed = False

    def __iter__(self) -> Iterator[RunTable]:
        return iter(self._tables.values())

    # -- start ---------------------------------------------------------------------------------

    def claim(self, run_id: str, accept_loss: bool) -> Claimed:
        """Claim every table, and find the position at which the stream has to begin."""
        for route in self._initial_routes():
            self._open_table(route)
        quarantines = [quarantine_name(table.name) for table in self if table.has_quarantine]
        # In name order: two runs that start together both try the same first table, and one is
        # refused there.
        names = self._in_claim_order([*self._tables, *quarantines])
        states = {name: self._catalog.load(name) for name in names}
        if self._earlier_runs:
            taken_table = protocol.claimed_by_another(states, self._earlier_runs)
            if taken_table:
                raise refusal(taken_table, BatchVerdict.FENCED, states[taken_table])
        generation = protocol.next_generation(states.values())
        self._committer.claim = Claim(self._config.name, generation, run_id)
        self._source.load_details([located_marker(s) for s in states.values() if s.marker])
        start = StartPositions({})
        if any(state.marker is None for name, state in states.items() if name in self._tables):
            start = self._source.resolve_start(self._config.source.start)
        for name, state in states.items():
            of_table = self._start_of_table(name, start)
            states[name] = self._committer.claim_table(name, state, of_table)
        self._is_claimed = True
        # Again: the run before us may have committed until our claim.
        self._source.load_details([located_marker(state) for state in states.values()])
        states = self._handle_losses(states, accept_loss)
        markers = [located_marker(states[name]).marker for name in self._tables]
        return Claimed(generation, self._first_positions([marker.positions for marker in markers]))

    def _in_claim_order(self, names: Sequence[str]) -> list[str]:
        return sorted(names)

    def _first_positions(self, committed: Sequence[Positions]) -> Positions:
        return min_positions(*committed)

    def _initial_routes(self) -> Sequence[Route]:
        """Return routes to tables by fixed name, by known topics, and that an earlier run made."""
        by_topic = [self._router.route(topic) for topic in self._source.known_topics()]
        routes = {route.table: route for route in [*self._router.fixed(), *by_topic] if route}
        for name in self._catalog.list_tables(self._router.reaches):
            rule = self._router.owner(name)
            if rule and name not in routes and self._catalog.load(name).marker:
                routes[name] = Route(name, rule)
        return [routes[name] for name in sorted(routes)]

    def _open_table(self, route: Route) -> None:
        design = self._design(route.table, route.rule)
        if self._changes.create(design):
            self._emit(events.TableCreated, table=route.table)
            failpoint("table-created")
        state = self._catalog.load(route.table)
        if lacking := missing_included(design, state.metadata):
            self._changes.evolve(design, state.base, lacking)
        self._tables[route.table] = RunTable(
            name=route.table,
            rule=route.rule,
            design=design,
            has_quarantine=self._catalog.exists(quarantine_name(route.table)),
            mode=self._mode(route.table, route.rule),
        )

    def _start_of_table(self, name: str, start: StartPositions) -> StartPositions:
        """Return the table's part of `start`; a quarantine table has none, it follows its table."""
        if name not in self._tables:
            return StartPositions({})
        streams = self._streams_of_table(name, self._source.known_topics(), start.positions)
        return StartPositions(
            {stream: part for stream, part in start.positions.items() if stream in streams},
            {stream: id_ for stream, id_ in start.stream_ids.items() if stream in streams},
        )

    def _handle_losses(
        self, states: Mapping[str, TableState], accept: bool
    ) -> dict[str, TableState]:
        """Raise if the source has lost records, or write into the tables that they are given up."""
        reports = {name: self._losses(state) for name, state in states.items()}
        for name in set(states) - set(self._tables):
            # A quarantine's positions are only floors: behind them, nothing is missing from it.
            lost = [loss for loss in reports[name].lost if loss.kind != "retention"]
            reports[name] = replace(reports[name], lost=tuple(lost))
        affected = sorted(name for name in states if reports[name].lost)
        if affected and not accept:
            first = min(affected, key=lambda name: name not in self._tables)
            raise loss_refusal(first, reports[first].lost)
        result = dict(states)
        # Quarantine tables first: after a crash in between, the table's own losses are found again.
        for name in sorted(affected, key=lambda name: name in self._tables):
            result[name] = self._committer.accept_losses(name, states[name], reports[name])
        return result

    def _losses(self, state: TableState) -> LossReport:
        marker = located_marker(state).marker
        return self._source.losses(marker.positions, marker.stream_ids)

    def explain_failure(self) -> IcestreamError | None:
        """After a failure: return the error if fenced, or if the source lost records or is gone."""
        if not self._is_claimed:
            return None  # we had no table that another run could take
        try:
            states = {name: self._catalog.load(name) for name in self._tables}
            own_runs = [*self._earlier_runs, self._committer.claim.run_id]
            if taken_table := protocol.claimed_by_another(states, own_runs):
                return refusal(taken_table, BatchVerdict.FENCED, states[taken_table])
            for name, state in states.items():
                if lost := self._losses(state).lost:
                    return loss_refusal(name, lost)
            self._source.check()
        except IcestreamError as failure:
            return failure
        return None

    # -- one batch -----------------------------------------------------------------------------

    def routes(self, batch: PositionRange) -> dict[str, str]:
        """Map the topics of this range to tables; new tables are created and claimed."""
        routes: dict[str, str] = {}
        for topic in self._source.topics(batch):
            route = self._router.route(topic)
            if route is None:
                if topic not in self._unrouted and self._router.forgotten(topic):
                    self._unrouted.add(topic)
                    self._emit(events.TopicUnrouted, topic=topic)
                continue
            if route.table not in self._tables:
                self._open_table(route)
                start = StartPositions(batch.start, self._source.stream_ids(batch.start))
                state = self._catalog.load(route.table)
                of_table = self._start_of_table(route.table, start)
                self._committer.claim_table(route.table, state, of_table)
            routes[topic] = route.table
        return routes

    def plan(self, batch: PositionRange, routes: Mapping[str, str]) -> list[TableBatch]:
        """Plan each table's part of the batch; raises if one of them must not be written to."""
        ids = self._source.stream_ids(batch.stop)
        names = sorted(set(routes.values()))
        return [self._plan_table(self._tables[name], batch, routes, ids) for name in names]

    def _plan_table(
        self,
        table: RunTable,
        batch: PositionRange,
        routes: Mapping[str, str],
        ids: Mapping[str, str],
    ) -> TableBatch:
        table_range = self._range_of_table(table.name, batch, routes)
        state = self._catalog.load(table.name)
        plan = self._judge(table, state, table_range, ids)
        if plan.verdict not in (BatchVerdict.COMMIT, BatchVerdict.SKIP):
            # The source can say why positions are gone (retention, truncated, re-created topic);
            # the verdict cannot.
            at_source = plan.verdict in (BatchVerdict.GAP, BatchVerdict.INCARNATION)
            lost = self.explain_failure() if at_source else None
            raise lost or refusal(table.name, plan.verdict, state, plan.gaps)
        quarantine = None
        if table.has_quarantine:
            # One that came up during this run has no claim of it yet: claimed with the first
            # batch that has the table.
            name = quarantine_name(table.name)
            quarantine = self._catalog.load(name)
            if not self._committer.owns(quarantine):
                quarantine = self._committer.claim_table(name, quarantine, StartPositions({}))
        planned = TableBatch(table, table_range, state, plan, quarantine, uuid.uuid4().hex, ids)
        return table.mode.plan(planned) if plan.verdict is BatchVerdict.COMMIT else planned

    def _judge(
        self,
        table: RunTable,
        state: TableState,
        table_range: PositionRange,
        ids: Mapping[str, str],
    ) -> BatchPlan:
        return protocol.plan_batch(state, self._committer.claim, table_range, table.consumed, ids)

    def refuse_recreated_streams(self, batches: Sequence[TableBatch]) -> None:
        """Raise if a stream was re-created since the plan: its records may not be those planned."""
        # Second comparison in this batch: what was read between two equal answers came from that
        # stream.
        planned_ids: dict[str, str] = {}
        for batch in batches:
            # The marker's too: a stream that did not exist at the plan may be back as another one.
            ids = {**located_marker(batch.state).marker.stream_ids, **batch.stream_ids}
            planned_ids |= {name: id_ for name, id_ in ids.items() if name in batch.range.stop}
        if self._source.stream_ids(planned_ids) != planned_ids:
            first = batches[0]
            raise self.explain_failure() or refusal(
                first.table.name, BatchVerdict.INCARNATION, first.state
            )

    def add_quarantine(self, table: RunTable) -> None:
        """Create the table for bad records of `table`; it is claimed when it is planned."""
        design = quarantine_design(table.name)
        if self._changes.create(design):
            self._emit(events.TableCreated, table=design.name)
        table.has_quarantine = True

    # -- consumed positions --------------------------------------------------------------------

    def note_consumed(self, batch: PositionRange, routes: Mapping[str, str]) -> None:
        """After a batch: every table has consumed its range, with rows or without."""
        for table in self:
            table_range = self._range_of_table(table.name, batch, routes)
            table.consumed = max_positions(table.consumed, table_range.stop)
            if time.monotonic() - table.marker_written_at > _MARKER_SECONDS:
                self.commit_consumed(table)

    def commit_consumed(self, table: RunTable) -> None:
        """Write into the table's marker how far this run has consumed."""
        self._committer.commit_consumed(table.name, table.consumed)
        table.marker_written_at = time.monotonic()

    # -- small things --------------------------------------------------------------------------

    def _range_of_table(
        self, name: str, batch: PositionRange, routes: Mapping[str, str]
    ) -> PositionRange:
        """Return the part of a range that concerns one table."""
        topics = [topic for topic, table in routes.items() if table == name]
        streams = self._streams_of_table(name, topics, batch.stop)
        return PositionRange(
            {stream: part for stream, part in batch.start.items() if stream in streams},
            {stream: part for stream, part in batch.stop.items() if stream in streams},
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
        self._bus.emit(kind(pipeline=self._config.name, **facts))
