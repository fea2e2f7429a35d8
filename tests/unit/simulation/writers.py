"""The simulated runs: what Pipeline does, around the real TableCommitter and the real protocol.

A run is a generator that yields one request at a time; whatever the rest of the world does happens
between the request and the next step of the run.
"""

from types import SimpleNamespace

from icestream.batch.run_tables import RunTable
from icestream.batch.table_batch import TableBatch
from icestream.commit import protocol
from icestream.commit.protocol import BatchVerdict, Claim
from icestream.commit.refusals import refusal
from icestream.commit.table_commits import TableCommitter
from icestream.commit.table_state import located_marker
from icestream.errors import GaveUp, IcestreamError
from icestream.positions import PositionRange, max_positions, min_positions
from icestream.sources import StartPositions

from .port import Port, together
from .rules import quarantine

_ROUNDS = 6


class _File:
    """A staged file: its name, its rows as bits, and the schema that it was written for."""

    __slots__ = ("bytes", "content_json", "records")
    path = ""

    def __init__(self, name, rows, schema_id):
        self.content_json = (name, rows, schema_id)
        self.records = rows.bit_count()
        self.bytes = 0


class _Report:
    """What staging says of one table; the fields of `task.Report` that are looked at."""

    __slots__ = ("dropped", "files", "landed", "quarantine_files", "quarantined", "wants")
    newest_by_partition: dict = {}  # noqa: RUF012 (never written to)
    oldest = None

    def __init__(self, landed, quarantined, dropped, files, quarantine_files, wants):
        self.landed = landed
        self.quarantined = quarantined
        self.dropped = dropped
        self.files = files
        self.quarantine_files = quarantine_files
        self.wants = wants

    @property
    def read(self):
        return self.landed + self.quarantined + self.dropped


class Run:
    """One run of one pipeline, from its claim to its end."""

    landing_type = TableCommitter

    def __init__(self, world, pipeline, run_id):
        self.world = world
        self.source = world.sources[pipeline]
        self.pipeline = pipeline
        self.run_id = run_id
        self.heard = []
        self.port = Port(self)
        bus = SimpleNamespace(emit=self.heard.append)
        self.landing = self.landing_type(self.port, self.source, bus, Claim(pipeline, 0, run_id))
        self.tables = {}
        self.position = {}
        self.batches = 0
        self.phase = "open"
        self.skips = self.skipped = False  # whether the source leaves something out
        self.target = None  # the table that it is busy with
        self.asleep = 0
        self.life = self.live()
        self.answer = None
        self._ids = 0

    def step(self):
        """Take the answer, work up to the next request and send it."""
        request = self.life.send(self.answer)
        self.answer = self.send(request) if request else None

    def live(self):
        yield from self.open()
        while True:
            batch = self.next_batch()
            if batch:
                yield from self.process(batch)
            elif self.world.calm or self.world.random() < 0.3:
                yield from self.close()
                return
            else:
                self.phase = "idle"
                yield None

    # -- Pipeline.open -------------------------------------------------------------------------

    def open(self):
        source = self.source
        self.phase = "open"
        yield from self.first_tables()
        aside = [quarantine(name) for name, each in self.tables.items() if each.has_quarantine]
        views = {}
        for name in self.claim_order([*self.tables, *aside]):
            views[name] = yield from self.load(name)
        generation = protocol.next_generation(views.values())
        self.landing.claim = Claim(self.pipeline, generation, self.run_id)
        start = StartPositions({})
        if any(view.marker is None for name, view in views.items() if name in self.tables):
            start = source.resolve_start()
        self.phase = "claim"
        for name, view in views.items():
            share = self.share_of_start(name, start)
            views[name] = yield from self.asking(self.landing.claim_table, name, view, share)
        self.position = self.begin(
            [located_marker(views[name]).marker.positions for name in self.tables]
        )

    def first_tables(self):
        """Tables of known topics, and those that an earlier run made."""
        found = {self.source.routes[topic] for topic in self.source.appeared}
        for name in self.source.tables:
            if name not in found and name in self.world.tables:
                view = yield from self.load(name)
                if view.marker:
                    found.add(name)
        for name in sorted(found):
            self.add(name)

    def add(self, name):
        self.world.create(name)
        has_quarantine = quarantine(name) in self.world.tables
        self.tables[name] = RunTable(name, None, None, has_quarantine)

    def claim_order(self, names):
        return sorted(names)

    def begin(self, positions):
        return min_positions(*positions)

    def share_of_start(self, name, start):
        if name not in self.tables:
            return StartPositions({})
        streams = self.source.streams_of(name)
        return StartPositions(
            {stream: at for stream, at in start.positions.items() if stream in streams},
            {stream: one for stream, one in start.stream_ids.items() if stream in streams},
        )

    # -- Pipeline.process ----------------------------------------------------------------------

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

    def process(self, batch):
        self.batches += 1
        self.phase = "plan"
        routes = yield from self.routes(batch)
        for _ in range(_ROUNDS):
            ids = self.source.stream_ids(batch.stop)
            works = []
            for name in sorted(set(routes.values())):
                works.append((yield from self.plan(self.tables[name], batch, routes, ids)))
            due = [work for work in works if work.plan.verdict is BatchVerdict.COMMIT]
            if not due or (yield from self.finish(due)):
                break
            self.phase = "plan"
        else:
            raise GaveUp("planned too often")
        for table in self.tables.values():
            yield from self.move_on(table, batch, routes)

    def routes(self, batch):
        """Topic → table; tables seen for the first time are made and claimed."""
        routes = {}
        for topic in self.source.topics(batch):
            name = routes[topic] = self.source.routes[topic]
            if name not in self.tables:
                self.add(name)
                self.world.seen["table claimed in mid-run"] += 1
                begin = StartPositions(batch.start, self.source.stream_ids(batch.start))
                view = yield from self.load(name)
                share = self.share_of_start(name, begin)
                yield from self.asking(self.landing.claim_table, name, view, share)
        return routes

    def plan(self, table, batch, routes, ids):
        own = self.share(table.name, batch, routes)
        view = yield from self.load(table.name)
        plan = self.judge(view, own, table, ids)
        self.world.seen[f"plan {plan.verdict.value}"] += 1
        if self.world.trace is not None:
            self.world.say(f"    {self.run_id} plans {table.name}: {plan.verdict.value} {own.stop}")
        if plan.verdict not in (BatchVerdict.COMMIT, BatchVerdict.SKIP):
            raise refusal(table.name, plan.verdict.value, view, plan.gaps)
        aside = None
        if table.has_quarantine:
            name = quarantine(table.name)
            aside = yield from self.load(name)
            if not self.landing.owns(aside):
                aside = yield from self.asking(
                    self.landing.claim_table, name, aside, StartPositions({})
                )
        return TableBatch(table, own, view, plan, aside, self.new_id(), ids)

    def judge(self, view, own, table, ids):
        return protocol.plan_batch(view, self.landing.claim, own, table.consumed, ids)

    def finish(self, due):
        """Stage, prepare and land; False: plan again."""
        self.phase = "stage"
        reports = [self.stage(work) for work in due]
        yield None
        again = False
        for work, report in zip(due, reports, strict=True):
            if report.wants:
                self.world.create(quarantine(work.table.name), work.table.name)
                work.table.has_quarantine = again = True
        if again:
            return False
        self.same_streams(due)
        self.phase = "land"
        lands = [
            self.asking(self.landing.commit_batch, work, report, 0.0)
            for work, report in zip(due, reports, strict=True)
        ]
        done = yield from together(lands, self.world.random)
        self.world.seen["settled restage"] += done.count(False)
        return all(done)

    def stage(self, work):
        """Trim by the floors and split good records from bad ones."""
        read, name, stop = self.source.read, work.table.name, work.range.stop
        floors = self.floors(work)
        good = read("good", name, floors, stop)
        bad = read("bad", name, floors, stop)
        dropped = read("dropped", name, floors, stop).bit_count()
        fresh = 0
        if work.quarantine and bad:
            trims = protocol.quarantine_floors(work.quarantine, work.range)
            fresh = bad & read("bad", name, trims, stop)
        return _Report(
            good.bit_count(),
            bad.bit_count(),
            dropped,
            self.files(good, work.state),
            self.files(fresh, work.quarantine),
            bool(bad) and not work.quarantine,
        )

    def floors(self, work):
        return work.plan.floors

    def files(self, rows, view):
        return (_File(next(self.world.objects), rows, view.schema_id),) if rows else ()

    def same_streams(self, due):
        before = {}
        for work in due:
            ids = {**work.state.marker.stream_ids, **work.stream_ids}
            before |= {stream: one for stream, one in ids.items() if stream in work.range.stop}
        if self.source.stream_ids(before) != before:
            raise refusal(due[0].table.name, "incarnation", due[0].state)

    def move_on(self, table, batch, routes):
        own = self.share(table.name, batch, routes)
        table.consumed = max_positions(table.consumed, own.stop)
        if not self.world.calm and self.world.random() < 0.15:  # an hour has passed
            yield from self.advance(table)

    def close(self):
        for table in self.tables.values():
            yield from self.advance(table)

    def advance(self, table):
        self.phase = "advance"
        yield from self.asking(self.landing.commit_consumed, table)

    def share(self, name, batch, routes):
        source = self.source
        streams = {source.stream_of(topic) for topic, table in routes.items() if table == name}
        if source.shared:
            streams = {"ledger"}
        return PositionRange(
            {stream: at for stream, at in batch.start.items() if stream in streams},
            {stream: at for stream, at in batch.stop.items() if stream in streams},
        )

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

    def load(self, name):
        answer = self.send(name) if self.undisturbed(name) else (yield name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def asking(self, call, *arguments):
        """One call of TableCommitter, with others in between."""
        try:
            result = yield from self.port.asking(self.new_id(), call, *arguments)
        except IcestreamError:
            self.count_outcomes()
            raise
        self.count_outcomes()
        return result

    def count_outcomes(self):
        """Of commits that were no plain yes; TableCommitter tells of them."""
        for event in self.heard:
            if hasattr(event, "outcome"):
                self.world.seen[f"settled {event.outcome}"] += 1

    def new_id(self):
        self._ids += 1
        return f"{self.run_id}.{self._ids}"
