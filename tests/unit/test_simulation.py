"""Any interleaving, any fate: every snapshot holds exactly the records below its marker.

The world and its rules are in simulation/. To look at one schedule, step by step:

    from unit.simulation.explore import replay      # with PYTHONPATH=tests
    print(*replay(17), sep="\\n")
"""

from contextlib import suppress
from itertools import count

import pytest

from icestream.errors import Fenced, Rewound
from unit.simulation.explore import explore, first_caught, replay
from unit.simulation.port import at_once
from unit.simulation.source import Source
from unit.simulation.variants import KNOWN_BAD
from unit.simulation.world import FATES, MEDDLING, World
from unit.simulation.writers import Run

FEW, CHUNK, CHUNKS = 1_500, 5_000, 20
SHORT = 4  # chunks that `make test` has time for

# A simulator that never comes to a branch proves nothing about it.
REACHED = [
    *FATES,
    "409 stale",
    "load failed",
    *(f"late commit {how}" for how in ("landed", "refused")),
    *(f"compaction {how}" for how in ("landed", "refused")),
    *(f"late rewrite {how}" for how in ("landed", "refused")),
    *(f"plan {verdict}" for verdict in ("commit", "skip", "gap", "incarnation")),
    *(f"plan {verdict}" for verdict in ("fenced", "rewound", "replaced")),
    *(f"settled {outcome}" for outcome in ("landed", "again", "restage")),
    *(f"settled {outcome}" for outcome in ("fenced", "rewound", "replaced")),
    *(f"crash in {phase}" for phase in ("open", "claim", "plan", "stage", "land", "advance")),
    "crash between quarantine and rows",
    *(f"ended {kind}" for kind in ("Fenced", "Unreachable", "GaveUp", "Gap", "Incarnation")),
    *(f"ended {kind}" for kind in ("Rewound", "Replaced")),
    *(f"table {how}" for how in MEDDLING),
    *(f"zombie {kind}" for kind in ("Fenced", "NoneType")),
    "clean stop",
    "start",
    "suspended",
    "expiry",
    "foreign append",
    "schema change",
    "records",
    "partition added",
    "topic appeared",
    "table claimed in mid-run",
    "topic created again",
    "source skips",
]


def test_every_record_once_in_a_few_schedules():
    seen = explore(range(FEW))
    assert not [what for what in REACHED if not seen[what]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "chunk",
    [pytest.param(n, marks=[pytest.mark.long] if n > SHORT else []) for n in range(1, CHUNKS + 1)],
)
def test_every_record_once_in_many_schedules(chunk):
    seen = explore(range(chunk * CHUNK, (chunk + 1) * CHUNK))
    assert not [what for what in REACHED if not seen[what]]


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_a_wrong_protocol_is_caught(name):
    variant, word = KNOWN_BAD[name]
    caught = first_caught(range(FEW), variant, word)
    assert caught
    seed, what = caught
    assert replay(seed, variant)[-1] == f"VIOLATION {what}"


def test_a_schedule_can_be_replayed():
    first = replay(17)
    assert first == replay(17)
    assert any("commit to" in line for line in first)


# ── found by the simulation, and kept step by step ──────────────────────────────────────────────


class Script:
    """A world in which nothing goes wrong by itself, and one run of a single table."""

    def __init__(self):
        self.pick = 0.99  # every record is bad, every request gives others their turn
        self.world = World(lambda: self.pick, [2.0] * len(FATES))
        self.source = Source({"a": "a"}, set(), shared=False, latest=False, bits=count(1))
        self.world.sources["shop"] = self.source
        self.source.appear("a", 1)
        self.run = Run(self.world, "shop", "first")

    def grow(self, kind):
        self.source.grow("a", lambda: {"good": 0.0, "hole": 0.7, "bad": 0.9}[kind])

    def go_on(self, run, until):
        with at_once():
            while not until():
                run.step()

    def to_its_end(self):
        self.pick = 0.1  # nobody comes between, and an idle run stops
        with suppress(StopIteration):
            self.go_on(self.run, lambda: False)


def test_a_quiet_table_that_was_rolled_back_is_not_advanced():
    """The empty append would make the older snapshot ours: its lost records never come again."""
    script = Script()
    script.grow("good")
    script.go_on(script.run, lambda: script.run.phase == "idle")
    script.grow("hole")
    script.go_on(script.run, lambda: script.run.tables._tables["a"].consumed == {"a": {0: 2}})
    script.world.meddle(script.world.tables["a"], "rolled back", 0)
    with pytest.raises(Rewound):
        script.to_its_end()


def test_a_quarantine_that_was_rolled_back_is_not_written_to():
    script = Script()
    script.grow("bad")
    script.go_on(script.run, lambda: script.run.phase == "idle")
    script.world.meddle(script.world.tables["a__quarantine"], "rolled back", 0)
    script.grow("bad")
    with pytest.raises(Rewound):
        script.go_on(script.run, lambda: script.run.batches == 2 and script.run.phase == "idle")


def test_a_quarantine_that_a_newer_run_takes_right_after_us_is_not_written_to():
    """Between our claim and our look at it; the commit would go by the newer run's marker."""
    script = Script()
    script.grow("bad")
    marks = script.world.tables
    script.go_on(script.run, lambda: "a__quarantine" in marks and marks["a__quarantine"].marks)
    newer = Run(script.world, "shop", "second")
    script.go_on(newer, lambda: marks["a__quarantine"].marks["shop"].generation == 2)
    with pytest.raises(Fenced):
        script.to_its_end()
