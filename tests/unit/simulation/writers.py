"""The simulated runs: the real Pipeline, on a simulated source, catalog and Spark job.

A run gives way to the scheduler at each request to the catalog and between its steps; whatever the
rest of the world does happens then.
"""

from types import SimpleNamespace

from icestream.batch.commit_batch import BatchCommitter
from icestream.batch.report import RecordStats, StagedChanges, TaskReport, TaskRequests
from icestream.batch.run_tables import RunTables
from icestream.batch.spark_job import StagedBatch
from icestream.batch.table_modes import AppendMode
from icestream.commit import protocol
from icestream.commit.protocol import Claim
from icestream.commit.table_commits import TableCommitter
from icestream.config.route import Route
from icestream.pipeline import Pipeline
from icestream.positions import PositionRange
from icestream.tables.design import TableDesign
from icestream.tables.marker import Counts

from .port import Port, Task, Together, ask
from .rules import quarantine
from .world import Request

_RULE = SimpleNamespace()  # of every table; nobody looks into it


class _File:
    """A staged file: its name, its rows as bits, and the schema that it was written for."""

    __slots__ = ("bytes", "content_json", "path", "records")

    def __init__(self, name, rows, schema_id):
        self.content_json = (name, rows, schema_id)
        self.records = rows.bit_count()
        self.bytes = 0
        self.path = ""


class _Pipeline(Pipeline):
    """The real one; what Spark would log of its batches is told by the run."""

    batch = None

    def _batch_range(self, batch_id):
        return self.batch


class Router:
    """Rules with placeholders: tables of the topics that are there, and those of earlier runs."""

    def __init__(self, source):
        self.source = source

    def route(self, topic):
        return Route(self.source.routes[topic], _RULE)

    def forgotten(self, topic):
        return False

    def fixed(self):
        return []

    def owner(self, name):
        return _RULE if name in self.source.tables else None

    def reaches(self, namespace):
        return True


class Tables(RunTables):
    """The real ones; they say what they are at."""

    def __init__(self, run, *arguments):
        super().__init__(*arguments)
        self.run = run
        self._router = Router(run.source)

    def claim(self, run_id, accept_loss):
        self.run.phase = "open"
        return super().claim(run_id, accept_loss)

    def _start_of_table(self, name, start):
        self.run.phase = "claim" if self.run.phase == "open" else self.run.phase
        return super()._start_of_table(name, start)

    def routes(self, batch):
        before = set(self._tables)
        routes = super().routes(batch)
        self.run.world.seen["table claimed in mid-run"] += len(set(self._tables) - before)
        return routes

    def plan(self, batch, routes):
        self.run.phase = "plan"
        return super().plan(batch, routes)

    def _judge(self, table, state, table_range, ids):
        plan = self.judge(table, state, table_range, ids)
        world = self.run.world
        world.seen[f"plan {plan.verdict.value}"] += 1
        if world.trace is not None:
            name, verdict = self.run.run_id, plan.verdict.value
            world.say(f"    {name} plans {table.name}: {verdict} {table_range.stop}")
        return plan

    def judge(self, table, state, table_range, ids):
        return super()._judge(table, state, table_range, ids)

    def note_consumed(self, batch, routes):
        hour, random = 3601, self.run.world.random
        for table in self:
            if not self.run.world.calm and random() < 0.15:
                table.marker_written_at -= hour
        super().note_consumed(batch, routes)

    def commit_consumed(self, table):
        self.run.phase = "advance"
        super().commit_consumed(table)


class Job:
    """Stages what the source has: trims by the floors, splits good records from bad ones."""

    def __init__(self, run):
        self.run = run
        self.source = run.source

    def run_batch(self, due):
        self.run.phase = "stage"
        reports = {part.name: self.stage(part) for part in due}
        ask(None)
        self.run.phase = "land"
        return StagedBatch(reports, 0.0)

    def stage(self, part):
        read, name, stop = self.source.read, part.name, part.range.stop
        floors = self.floors(part)
        good = read("good", name, floors, stop)
        bad = read("bad", name, floors, stop)
        dropped = read("dropped", name, floors, stop).bit_count()
        fresh = 0
        if part.quarantine and bad:
            trims = protocol.quarantine_floors(part.quarantine, part.range)
            fresh = bad & read("bad", name, trims, stop)
        counts = Counts(good.bit_count(), bad.bit_count(), dropped)
        return TaskReport(
            counts,
            RecordStats(records=counts.read),
            StagedChanges(
                files=self.files(good, part.state),
                quarantine_files=self.files(fresh, part.quarantine),
            ),
            TaskRequests(needs_quarantine=bool(bad) and not part.quarantine),
        )

    def floors(self, part):
        return part.plan.floors

    def files(self, rows, state):
        return (_File(next(self.run.world.objects), rows, state.schema_id),) if rows else ()


class Run:
    """One run of one pipeline, from its claim to its end."""

    committer_type = TableCommitter
    batch_committer_type = BatchCommitter
    tables_type = Tables
    job_type = Job

    def __init__(self, world, pipeline, run_id):
        self.world = world
        self.source = world.sources[pipeline]
        self.pipeline = pipeline
        self.run_id = run_id
        self.position = {}
        self.batches = 0
        self.phase = "open"
        self.skips = self.skipped = False  # whether the source leaves something out
        self.target = None  # the table that it is busy with
        self.asleep = 0
        self._ids = 0
        port = Port(self)
        bus = SimpleNamespace(emit=self.hear)
        config = SimpleNamespace(name=pipeline, tables=(), source=SimpleNamespace(start=None))
        committer = self.committer_type(port, self.source, bus, Claim(pipeline, 0, run_id))
        self.tables = self.tables_type(
            self,
            config,
            self.source,
            port,
            port,
            committer,
            lambda name, rule: TableDesign(name),
            lambda name, rule: AppendMode(),
            bus,
        )
        job = self.job_type(self)
        self.real = _Pipeline(
            name=pipeline,
            run_id=run_id,
            source=self.source,
            tables=self.tables,
            changes=port,
            job=SimpleNamespace(run=lambda frame, batch, due, routes, claim: job.run_batch(due)),
            committer=committer,
            indexes=None,
            bus=bus,
            commit_threads=Together(self),
        )
        self.real._batch_committer = self.batch_committer_type(committer, self.source, bus)
        self.task = Task(self, self.live)
        self.answer = ()

    def step(self):
        """Take the answer, work up to the next request and send it."""
        request = self.task.switch(*self.answer)
        if self.task.dead:
            raise StopIteration
        self.answer = (self.send(request),) if request else (None,)

    def live(self):
        claimed = self.real.claim()
        self.position = claimed.start
        while True:
            batch = self.next_batch()
            if batch:
                self.batches += 1
                self.real.batch = batch
                self.real.process(None, self.batches)
            elif self.world.calm or self.world.random() < 0.3:
                self.real.commit_consumed()
                return
            else:
                self.phase = "idle"
                ask(None)

    def next_batch(self):
        """What Spark would plan: a few records further in some partitions, or nothing."""
        random, start = self.world.random, self.position
        ends = self.source.ends()
        if self.skips:  # the log of the source says so, for whatever reason
            self.skips = False
            start = {
                stream: {number: min(at + 1, ends[stream][number]) for number, at in each.items()}
                for stream, each in start.items()
            }
        stop, moved = {}, False
        for stream, partitions in ends.items():
            known, into = start.get(stream, {}), {}
            for number, end in partitions.items():
                at = known.get(number, 0)
                into[number] = min(end, at + (20 if self.world.calm else int(random() * 4)))
                moved = moved or into[number] > at
            stop[stream] = into
        if not moved:
            return None
        self.position = stop
        return PositionRange(start, stop)

    # -- asking the world ----------------------------------------------------------------------

    def undisturbed(self, request):
        """Whether nobody comes between a request and its answer: never sure for a commit."""
        return self.world.calm or (isinstance(request, str) and self.world.random() < 0.5)

    def send(self, request):
        """→ the answer: a view for a name, None for a commit, or an error."""
        if isinstance(request, str):
            self.target = request
            if self.world.trace is not None:
                self.world.say(f"    {self.run_id} looks at {request} ({self.phase})")
            return self.world.load(self.pipeline, request)
        self.target = request.name
        return self.world.commit(request)

    def request(self, name, base, marker, before, work):
        return Request(self, name, base, marker, before, work)

    def keeps_bad_records_of(self, name):
        """The table that a quarantine belongs to."""
        table = name.removesuffix(quarantine(""))
        return table if table != name else None

    def hear(self, event):
        """Count what became of commits that were no plain yes."""
        if hasattr(event, "outcome"):
            self.world.seen[f"settled {event.outcome}"] += 1

    def new_id(self):
        self._ids += 1
        return f"{self.run_id}.{self._ids}"
