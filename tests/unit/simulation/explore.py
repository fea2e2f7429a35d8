"""The seeded scheduler: who goes next, what goes wrong, and what it came to."""

from bisect import bisect
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, count
from random import Random

from icestream.errors import Fenced, Gap, GaveUp, IcestreamError, TableRefused, Unreachable
from icestream.maintain.action import GaveWay

from . import rules
from .compactions import Compaction
from .port import at_once
from .rules import Violation
from .source import Source
from .world import FATES, MEDDLING, World
from .writers import Run

_MOST_RUNS = 3  # alive at a time
_CALM_STEPS = 600
_EXPECTED = (Fenced, Unreachable, GaveUp)  # ends that need no meddling


@dataclass(frozen=True)
class Variant:
    """A protocol: ours, or one that is known to be wrong."""

    world: type = World
    run: type = Run
    compaction: type = Compaction


OURS = Variant()


class Schedule:
    """One world, its runs and its accidents, all from one seed."""

    def __init__(self, seed, variant=OURS, seen=None, trace=None):
        draw = Random(seed)
        random = self.random = draw.random
        self.variant = variant
        self.seen = Counter() if seen is None else seen
        storm = 0.6 * random() ** 2
        weights, upto = [1 - storm], 1 - storm
        for _ in FATES[1:]:
            upto += storm / (len(FATES) - 1)
            weights.append(upto)
        weights[-1] = 2.0
        self.world = variant.world(random, weights, seed % 32 == 0, self.seen, trace)
        self.runs = []
        self.compactions = []
        self.started = 0
        self.meddled = False
        self.meddlers = random() < 0.25
        self.late_topics = []
        self.steps = 15 + int(random() * 45)
        bits = count(1)
        self.pipelines = ["shop", "web"] if random() < 0.15 else ["shop"]
        drops = {name for name in "abz" if random() < 0.25}  # one rule for both pipelines
        for pipeline in self.pipelines:
            self._furnish(pipeline, drops, bits)
        self.comes_late = bool(self.late_topics)

    def _furnish(self, pipeline, drops, bits):
        """A source with its topics and first records."""
        random, pick = self.random, self.random()
        routes = {"a": "a"} if pick < 0.3 else {"a": "a", "b": "b"}
        if pick > 0.6:
            routes["z"] = "z"
        if random() < 0.2:
            routes["more"] = "a"  # a second topic for the same table
        shared = random() < 0.25
        source = Source(routes, drops, shared, not shared and random() < 0.15, bits)
        self.world.sources[pipeline] = source
        for topic in routes:
            if topic == "z" and random() < 0.5:
                self.late_topics.append((source, topic))
                continue
            source.appear(topic, 1 + (random() < 0.4))
            for _ in range(int(random() * 5)):
                source.grow(topic, random)

    # -- the storm, and the calm after it ------------------------------------------------------

    def run(self):
        """Play it to its end; raises Violation."""
        for _ in range(1 + (self.random() < 0.4)):
            self.start()
        random = self.random
        for _ in range(self.steps):
            awake = [run for run in self.runs if run.asleep <= 0]
            for run in self.runs:
                run.asleep -= 1
            if self.compactions and random() < 0.3:
                self.step_of_compaction(self.any(self.compactions))
            elif awake and random() < 0.82:
                self.step(awake[int(random() * len(awake))])
            else:
                self.happen()
        self.calm()

    def calm(self):
        """The catalog behaves, meddlers take it back, and one fresh run per pipeline catches up."""
        world = self.world
        for run in [run for run in self.runs if self.random() < 0.6]:
            self.lose(run)
        self.compactions = [each for each in self.compactions if self.random() < 0.5]
        for _ in range(int(self.random() * (len(world.late) + 1))):
            world.deliver(0)
        world.make_good()
        world.calm = True
        for pipeline in self.pipelines:
            world.say(f"calm: {pipeline} starts afresh")
            if error := self.to_its_end(self.new_run(pipeline)):
                raise Violation(f"{pipeline} cannot go on: {error}") from error
        rules.caught_up(world)
        while world.late:
            world.deliver(0)
        while self.compactions:
            self.step_of_compaction(self.compactions[0])
        for zombie in self.runs:
            world.say(f"  {zombie.run_id} wakes up")
            self.seen[f"zombie {type(self.to_its_end(zombie)).__name__}"] += 1
        rules.caught_up(world)

    def to_its_end(self, run):
        """→ the error that ended it, None for a clean stop."""
        for _ in range(_CALM_STEPS):
            try:
                run.step()
            except StopIteration:
                return None
            except IcestreamError as error:
                return error
        raise Violation(f"{run.run_id} does not come to an end")

    def step(self, run):
        """One step of one run; its end is looked at."""
        try:
            run.step()
        except StopIteration:
            self.end(run, "clean stop")
        except IcestreamError as error:
            self.end(run, f"ended {type(error).__name__}")
            # A table that came late may be behind a run that began before: a restart helps.
            known = run.skipped or self.comes_late if isinstance(error, Gap) else self.meddled
            if not isinstance(error, _EXPECTED) and not (known and isinstance(error, TableRefused)):
                raise Violation(f"{run.run_id} stopped for no reason: {error}") from error

    def end(self, run, how):
        self.seen[how] += 1
        self.world.say(f"  {run.run_id}: {how}")
        self.runs.remove(run)

    # -- accidents -----------------------------------------------------------------------------

    def happen(self):
        """Something besides the runs."""
        _ACCIDENTS[bisect(_UPTO, self.random() * _UPTO[-1])](self)

    def start(self):
        """Another run, also while one is alive; more often when none is."""
        if len(self.runs) < _MOST_RUNS:
            self.seen["start"] += 1
            self.runs.append(self.new_run(self.any(self.pipelines)))
            self.world.say(f"  start of {self.runs[-1].run_id}")

    def restart(self):
        if not self.runs:
            self.start()

    def new_run(self, pipeline):
        self.started += 1
        return self.variant.run(self.world, pipeline, f"{pipeline}-{self.started}")

    def crash(self):
        if self.runs:
            self.lose(self.any(self.runs))

    def lose(self, run):
        """A process ends: all that it knew is gone, its requests are not."""
        self.seen[f"crash in {run.phase}"] += 1
        if run.phase == "land" and run.target.endswith("__quarantine"):
            self.seen["crash between quarantine and rows"] += 1
        self.world.say(f"  {run.run_id} crashes in {run.phase}")
        self.runs.remove(run)

    def suspend(self):
        """A zombie in the making."""
        if self.runs:
            run = self.any(self.runs)
            run.asleep = 5 + int(self.random() * 40)
            self.seen["suspended"] += 1
            self.world.say(f"  {run.run_id} sleeps for {run.asleep} steps")

    def deliver(self):
        if self.world.late:
            self.world.deliver(int(self.random() * len(self.world.late)))

    def compact(self):
        """Maintenance plans a rewrite; its commit comes later."""
        table = self.any_table()
        if table and table.chain and not table.spoilt:
            self.started += 1
            pipeline = self.any(self.pipelines)
            made = self.variant.compaction(self.world, pipeline, table, self.started)
            self.compactions.append(made)
            self.world.say(f"  {made.run_id} of {table.name}")

    def step_of_compaction(self, compaction):
        """One step; giving way, or losing the catalog, is an end like others."""
        try:
            compaction.step()
            return
        except StopIteration:
            how = "landed"
        except (GaveWay, TableRefused, Unreachable):
            how = "refused"
        self.compactions.remove(compaction)
        self.seen[f"compaction {how}"] += 1
        self.world.say(f"  {compaction.run_id}: {how}")

    def compact_now(self):
        """A rewrite that nobody comes between."""
        table = self.any_table()
        if table and table.chain and not table.spoilt:
            self.world.say(f"  {table.name} is compacted")
            self.world.compacted(table.name, table.version)
            self.seen["compaction landed"] += 1

    def expire(self):
        if table := self.any_table():
            self.seen["expiry"] += 1
            keep = 1 + int(self.random() * 3)
            self.world.say(f"  expiry of {table.name} keeps {keep}")
            self.world.expire(table, keep)

    def foreign(self):
        if table := self.any_table():
            self.seen["foreign append"] += 1
            self.world.say(f"  somebody appends to {table.name}")
            self.world.append_foreign(table)

    def schema(self):
        if table := self.any_table():
            self.seen["schema change"] += 1
            self.world.say(f"  somebody adds a column to {table.name}")
            self.world.change_schema(table)

    def grow(self):
        source = self.any(list(self.world.sources.values()))
        for _ in range(1 + int(self.random() * 3)):
            source.grow(self.any(source.appeared), self.random)
        self.seen["records"] += 1

    def widen(self):
        source = self.any(list(self.world.sources.values()))
        if not source.shared:
            source.add_partition(self.any(source.appeared))
            self.seen["partition added"] += 1

    def appear(self):
        if self.late_topics:
            source, topic = self.late_topics.pop()
            source.appear(topic, 1)
            source.grow(topic, self.random)
            self.seen["topic appeared"] += 1
            self.world.say(f"  topic {topic} appears")

    def recreate(self):
        """A topic that a marker knows is deleted and created again, until the end."""
        pipeline = self.any(self.pipelines)
        source = self.world.sources[pipeline]
        topic = self.any(source.appeared)
        table = self.world.tables.get(source.routes[topic])
        mark = table.marks.get(pipeline) if table else None
        if self.meddlers and mark and topic in mark.stream_ids and not source.shared:
            self.meddled = True
            source.recreate(topic)
            self.seen["topic created again"] += 1
            self.world.say(f"  topic {topic} of {pipeline} is created again")

    def skip(self):
        """The log of a source leaves records out."""
        if self.runs:
            run = self.any(self.runs)
            if not run.source.shared:
                run.skips = run.skipped = True
                self.seen["source skips"] += 1
                self.world.say(f"  the source of {run.run_id} will skip")

    def meddle(self):
        """Somebody rolls a table back, or replaces it; two pipelines would be hurt differently."""
        amid = self.meddlers and any(run.batches for run in self.runs)
        table = self.any_table() if amid else None
        if not table or table.spoilt or len(self.pipelines) > 1:
            return
        own = [at for at, each in enumerate(table.chain) if each.marker]
        how = self.any(MEDDLING)
        if not own or (how == "rolled back" and own[-1] == 0):
            return
        self.meddled = True
        self.seen[f"table {how}"] += 1
        self.world.say(f"  {table.name} is {how}")
        self.world.meddle(table, how, int(self.random() * own[-1]))

    def any(self, several):
        return several[int(self.random() * len(several))]

    def any_table(self):
        """Rather one that somebody is busy with."""
        tables = self.world.tables
        if self.runs and self.random() < 0.5:
            return tables.get(self.any(self.runs).target)
        return self.any(list(tables.values())) if tables else None


_WEIGHTS = (
    (10, Schedule.restart),
    (4, Schedule.start),
    (6, Schedule.crash),
    (4, Schedule.suspend),
    (12, Schedule.deliver),
    (10, Schedule.compact),
    (5, Schedule.compact_now),
    (9, Schedule.expire),
    (6, Schedule.foreign),
    (4, Schedule.schema),
    (12, Schedule.grow),
    (2, Schedule.widen),
    (3, Schedule.appear),
    (3, Schedule.recreate),
    (1, Schedule.skip),
    (12, Schedule.meddle),
)
_ACCIDENTS = [what for _, what in _WEIGHTS]
_UPTO = list(accumulate(weight for weight, _ in _WEIGHTS))


def explore(seeds, variant=OURS):
    """Play all seeds; → how often each thing was seen. A violation names its seed and its steps."""
    seen = Counter()
    with at_once():
        for seed in seeds:
            try:
                Schedule(seed, variant, seen).run()
            except Violation as violation:
                steps = "\n".join(replay(seed, variant))
                raise Violation(f"seed {seed}: {violation}\n{steps}") from violation
    return seen


def first_caught(seeds, variant, word=""):
    """The first seed that shows the variant to be wrong in that way; None if none does."""
    with at_once():
        for seed in seeds:
            try:
                Schedule(seed, variant).run()
            except Violation as violation:
                if word in str(violation):
                    return seed, str(violation)
    return None


def replay(seed, variant=OURS):
    """Play one seed again; → its steps, line by line, up to the violation if there is one."""
    trace = []
    with at_once():
        try:
            Schedule(seed, variant, trace=trace).run()
        except Violation as violation:
            trace.append(f"VIOLATION {violation}")
    return trace
