"""The protocol, verdict by verdict; tests/unit/simulation runs it among faults."""

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.commit import retry, table_commits
from icestream.commit.port import CommitFailed
from icestream.commit.protocol import (
    BatchPlan,
    BatchVerdict,
    Claim,
    CommitOutcome,
    GapRange,
    MarkerStatus,
    claim_outcome,
    claimed_by_another,
    marker_after_batch,
    marker_after_losses,
    marker_of_claim,
    marker_status,
    next_generation,
    outcome_of_commit,
    plan_batch,
    quarantine_floors,
)
from icestream.commit.retry import commit_with_retries
from icestream.commit.steps import StepAttempts
from icestream.commit.table_state import AncestorSnapshot, TableState
from icestream.errors import Fenced, GaveUp, Replaced, Unreachable
from icestream.events import CommitRetried, EventBus, LossAccepted
from icestream.positions import PositionRange, max_positions, min_positions
from icestream.sources import LossReport, StartPositions
from icestream.tables.marker import Counts, Loss, Marker
from icestream.tables.metadata import Metadata

CLAIM = Claim("shop", generation=2, run_id="me")
ACCEPTED = Loss("retention", "earlier", 0, 3, 7)  # by an earlier run


def marker(**facts):
    known = {
        "pipeline": "shop",
        "generation": 2,
        "run_id": "me",
        "commit_id": "own",
        "previous_commit_id": "older",
        "sequence": 4,
        "table_uuid": "u",
        "snapshot_sequence": 5,
        "positions": {"orders": {0: 100, 1: 50}},
        "stream_ids": {"orders": "id-1"},
        "counts": Counts(10, 2, 1),
        "watermark_ms": 1000,
        "details": {"ledger": "list-1"},
        "losses": (ACCEPTED,),
    }
    return Marker(**{**known, **facts})


def snapshots(*commit_ids, last=5, root=True):
    """A lineage, newest first: sequence numbers go down; `root` ends at a first snapshot."""
    count = len(commit_ids)
    return tuple(
        AncestorSnapshot(
            snapshot_id=1000 + last - back,
            parent_id=None if root and back == count - 1 else 1000 + last - back - 1,
            sequence_number=last - back,
            commit_id=commit_id,
        )
        for back, commit_id in enumerate(commit_ids)
    )


def view(mark="ours", ancestors=None, **facts):
    known = {
        "uuid": "u",
        "marker": marker() if mark == "ours" else mark,
        "ancestors": snapshots("own", "older", None) if ancestors is None else ancestors,
        "last_sequence": 5,
        "schema_id": 0,
    }
    return TableState(**{**known, **facts})


# ── standing ────────────────────────────────────────────────────────────────────────────────────

STANDINGS = {
    "nothing there yet": (view(None, ()), MarkerStatus.NEW),
    "only foreign snapshots": (view(None, snapshots(None, None)), MarkerStatus.NEW),
    "our newest ancestor": (view(), MarkerStatus.OURS),
    "foreign commits on top": (
        view(ancestors=snapshots(None, None, "own", last=7)),
        MarkerStatus.OURS,
    ),
    "marker removed, own snapshots left": (view(None), MarkerStatus.REWOUND),
    "rolled back": (view(ancestors=snapshots("older", None, last=4)), MarkerStatus.REWOUND),
    "rolled back, then written by others": (
        view(ancestors=snapshots(None, "older", None, last=7)),
        MarkerStatus.REWOUND,
    ),
    "another table": (view(uuid="v"), MarkerStatus.REPLACED),
    "property without snapshots": (view(ancestors=()), MarkerStatus.REPLACED),
    "history dropped, no own ancestor": (
        view(ancestors=snapshots(None, last=9)),
        MarkerStatus.REPLACED,
    ),
    "expired behind us": (
        view(ancestors=snapshots(None, None, last=9, root=False)),
        MarkerStatus.OURS,
    ),
    "expired just behind us": (
        view(ancestors=snapshots(None, last=6, root=False)),
        MarkerStatus.OURS,
    ),
    "cut off before our commit": (
        view(ancestors=snapshots(None, None, last=5, root=False)),
        MarkerStatus.REPLACED,
    ),
}


@pytest.mark.parametrize("case", STANDINGS)
def test_standing(case):
    seen, expected = STANDINGS[case]
    assert marker_status(seen) is expected


# ── claims ──────────────────────────────────────────────────────────────────────────────────────

CLAIMS = {
    "a new table": (view(None, ()), CommitOutcome.AGAIN),
    "an older generation": (view(marker(generation=1, run_id="old")), CommitOutcome.AGAIN),
    "ours already": (view(), CommitOutcome.LANDED),
    "ours, rolled back since: planning will tell": (
        view(ancestors=snapshots("older", last=4)),
        CommitOutcome.LANDED,
    ),
    "same generation, another run": (view(marker(run_id="other")), CommitOutcome.FENCED),
    "newer generation": (view(marker(generation=3, run_id="other")), CommitOutcome.FENCED),
    "rolled back": (
        view(marker(generation=1, run_id="old"), snapshots("older", last=4)),
        CommitOutcome.REWOUND,
    ),
    "another table": (view(marker(generation=1, run_id="old"), uuid="v"), CommitOutcome.REPLACED),
    "marker removed": (view(None), CommitOutcome.REWOUND),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_may_claim(case):
    seen, expected = CLAIMS[case]
    assert claim_outcome(seen, CLAIM) is expected


def test_a_run_that_begins_again_gives_way_to_whoever_came_meanwhile():
    mine = view(marker(run_id="before", generation=3), ())
    theirs = view(marker(run_id="other", generation=4), ())
    assert claimed_by_another({"a": mine, "b": view(None, ())}, ["before"]) is None
    assert claimed_by_another({"a": mine, "b": theirs}, ["before"]) == "b"
    assert claimed_by_another({"a": mine, "b": theirs}, ["before", "other"]) is None
    older = view(marker(run_id="long ago", generation=2), ())
    assert claimed_by_another({"a": mine, "b": older}, ["before"]) is None, (
        "a quarantine, not seen since"
    )


def test_generations_count_up_over_all_tables():
    assert next_generation([]) == 1
    assert next_generation([view(None, ())]) == 1
    several = [view(marker(generation=at)) for at in (3, 7, 5)]
    assert next_generation([*several, view(None, ())]) == 8


def test_the_first_claim_begins_at_the_start():
    first = marker_of_claim(
        view(None, (), last_sequence=8), CLAIM, "c", {"orders": {0: 9}}, {"orders": "i"}, {"d": "x"}
    )
    assert first == Marker(
        pipeline="shop",
        generation=2,
        run_id="me",
        commit_id="c",
        previous_commit_id=None,
        sequence=1,
        table_uuid="u",
        snapshot_sequence=9,
        positions={"orders": {0: 9}},
        stream_ids={"orders": "i"},
        details={"d": "x"},
    )


def test_a_later_claim_keeps_all_but_the_owner():
    old = marker(generation=1, run_id="old")
    again = marker_of_claim(
        view(old), CLAIM, "c", {"orders": {0: 0}}, {"orders": "new"}, {"ledger": "no"}
    )
    assert again == replace(
        old,
        generation=2,
        run_id="me",
        commit_id="c",
        previous_commit_id="own",
        sequence=5,
        snapshot_sequence=6,
    )


# ── plan ────────────────────────────────────────────────────────────────────────────────────────


def batch(start, stop):
    """A range of topic `orders`, partitions 0, 1, …"""
    return PositionRange({"orders": dict(enumerate(start))}, {"orders": dict(enumerate(stop))})


PLANS = {
    "exactly behind the marker": (batch((100, 50), (120, 60)), BatchVerdict.COMMIT, (100, 50)),
    "all of it is in": (batch((0, 0), (100, 50)), BatchVerdict.SKIP, (100, 50)),
    "less than is in": (batch((0, 0), (70, 20)), BatchVerdict.SKIP, (100, 50)),
    "nothing": (batch((100, 50), (100, 50)), BatchVerdict.SKIP, (100, 50)),
    "partial overlap": (batch((90, 40), (110, 55)), BatchVerdict.COMMIT, (100, 50)),
    "one partition is new, one is in": (batch((90, 50), (95, 60)), BatchVerdict.COMMIT, (100, 50)),
    "a gap in one partition": (batch((100, 51), (120, 60)), BatchVerdict.GAP, (100, 51)),
    "a gap although nothing is new": (batch((100, 51), (100, 51)), BatchVerdict.GAP, (100, 51)),
    "a partition nobody knew": (
        batch((100, 50, 7), (100, 50, 9)),
        BatchVerdict.COMMIT,
        (100, 50, 7),
    ),
    "a partition nobody knew, empty": (batch((100, 50, 7), (100, 50, 7)), BatchVerdict.SKIP, None),
}


@pytest.mark.parametrize("case", PLANS)
def test_plan(case):
    rows, verdict, floors = PLANS[case]
    made = plan_batch(view(), CLAIM, rows, {}, {"orders": "id-1"})
    assert made.verdict is verdict
    if floors is not None:
        assert made.floors == {"orders": dict(enumerate(floors))}


def test_a_gap_names_what_is_missing_in_every_partition():
    made = plan_batch(view(), CLAIM, batch((130, 51), (140, 60)), {}, {})
    assert made.gaps == (GapRange("orders", 0, 100, 130), GapRange("orders", 1, 50, 51))
    assert str(made.gaps[0]) == "orders/0: 100 to 130"


def test_a_stream_that_begins_with_this_batch_begins_at_zero():
    made = plan_batch(view(), CLAIM, PositionRange({}, {"other": {0: 3}}), {}, {})
    assert (made.verdict, made.floors) == (BatchVerdict.COMMIT, {"other": {0: 0}})


def test_progress_ahead_of_the_marker_is_no_gap():
    """Ranges without rows went by; the marker in the table follows later."""
    rows = batch((300, 50), (310, 50))
    assert plan_batch(view(), CLAIM, rows, {}, {}).verdict is BatchVerdict.GAP
    made = plan_batch(view(), CLAIM, rows, {"orders": {0: 300}}, {})
    assert made.verdict is BatchVerdict.COMMIT
    assert made.floors == {"orders": {0: 300, 1: 50}}


def test_progress_behind_the_marker_changes_nothing():
    made = plan_batch(view(), CLAIM, batch((90, 40), (110, 50)), {"orders": {0: 95, 1: 10}}, {})
    assert made.floors == {"orders": {0: 100, 1: 50}}


def test_progress_that_is_too_short_is_a_gap_from_there():
    made = plan_batch(view(), CLAIM, batch((300, 50), (310, 50)), {"orders": {0: 250}}, {})
    assert made.gaps == (GapRange("orders", 0, 250, 300),)


@pytest.mark.parametrize(
    "seen, verdict",
    [
        (view(None, ()), BatchVerdict.REPLACED),  # we claimed it: it cannot be new
        (view(None), BatchVerdict.REWOUND),
        (view(ancestors=snapshots("older", last=4)), BatchVerdict.REWOUND),
        (view(uuid="v"), BatchVerdict.REPLACED),
        (view(ancestors=()), BatchVerdict.REPLACED),
        (view(marker(generation=3, run_id="other")), BatchVerdict.FENCED),
        (view(marker(run_id="other")), BatchVerdict.FENCED),
        (view(marker(generation=1)), BatchVerdict.FENCED),
    ],
)
def test_a_table_that_is_not_ours_any_more(seen, verdict):
    made = plan_batch(seen, CLAIM, batch((0, 0), (999, 999)), {}, {})
    assert (made.verdict, made.floors) == (verdict, {})


@pytest.mark.parametrize(
    "ids, verdict",
    [
        ({"orders": "id-1"}, BatchVerdict.COMMIT),
        ({"orders": "id-2"}, BatchVerdict.INCARNATION),
        ({}, BatchVerdict.COMMIT),  # a source without identities
        ({"other": "id-9"}, BatchVerdict.COMMIT),
    ],
)
def test_a_stream_created_again(ids, verdict):
    assert plan_batch(view(), CLAIM, batch((100, 50), (120, 60)), {}, ids).verdict is verdict


def test_an_incarnation_of_a_stream_outside_the_batch_waits():
    rows = PositionRange({"other": {0: 0}}, {"other": {0: 5}})
    assert plan_batch(view(), CLAIM, rows, {}, {"orders": "id-2"}).verdict is BatchVerdict.COMMIT


def test_a_stream_created_again_is_no_gap():
    """Its positions begin anew: INCARNATION says so, GAP would mislead."""
    made = plan_batch(view(), CLAIM, batch((500, 500), (600, 600)), {}, {"orders": "id-2"})
    assert made.verdict is BatchVerdict.INCARNATION


# ── quarantine floors, markers after a batch ────────────────────────────────────────────────────


def test_a_quarantine_table_only_trims():
    rows = PositionRange(
        {"orders": {0: 90, 1: 80}}, {"orders": {0: 120, 1: 90, 2: 3}, "other": {0: 4}}
    )
    floors = {"orders": {0: 100, 1: 80, 2: 0}, "other": {0: 0}}
    assert quarantine_floors(view(), rows) == floors
    nothing = {"orders": {0: 90, 1: 80, 2: 0}, "other": {0: 0}}
    assert quarantine_floors(None, rows) == nothing
    assert quarantine_floors(view(None, ()), rows) == nothing


def test_the_marker_after_a_batch():
    rows = PositionRange({"orders": {0: 90}}, {"orders": {0: 120, 2: 8}, "other": {0: 1}})
    after = marker_after_batch(
        view(last_sequence=9),
        rows,
        "c",
        Counts(5, 1, 0),
        900,
        {"more": "x"},
        {"orders": "id-1", "other": "id-2", "absent": "id-3"},
    )
    assert after == replace(
        marker(),
        commit_id="c",
        previous_commit_id="own",
        sequence=5,
        snapshot_sequence=10,
        positions={"orders": {0: 120, 1: 50, 2: 8}, "other": {0: 1}},
        stream_ids={"orders": "id-1", "other": "id-2"},
        counts=Counts(15, 3, 1),
        watermark_ms=1000,  # never back
        details={"ledger": "list-1", "more": "x"},
    )


def test_positions_never_move_back():
    after = marker_after_batch(view(), batch((0, 0), (60, 60)), "c", Counts(), None, {}, {})
    assert after.positions == {"orders": {0: 100, 1: 60}}
    assert after.watermark_ms == 1000


def test_a_known_stream_keeps_its_identity():
    """Re-created between plan and commit: writing the new id down would hide it for ever."""
    after = marker_after_batch(
        view(), batch((100, 50), (120, 60)), "c", Counts(), None, {}, {"orders": "id-2"}
    )
    assert after.stream_ids == {"orders": "id-1"}


# ── accepted losses ─────────────────────────────────────────────────────────────────────────────

SEVERAL = {
    "positions": {"orders": {0: 100, 1: 50}, "users": {0: 7}},
    "stream_ids": {"orders": "id-1", "users": "id-2"},
}
# name → (losses, resume, stream ids, positions then, stream ids then)
FORGIVEN = {
    "retention": (
        [Loss("retention", "orders", 1, 50, 60)],
        {"orders": {0: 100, 1: 60}},
        {"orders": "id-1"},
        {"orders": {0: 100, 1: 60}, "users": {0: 7}},
        {"orders": "id-1", "users": "id-2"},
    ),
    "truncated: the only time that a position moves back": (
        [Loss("truncated", "orders", 0, 80, 100)],
        {"orders": {0: 80, 1: 50}},
        {"orders": "id-1"},
        {"orders": {0: 80, 1: 50}, "users": {0: 7}},
        {"orders": "id-1", "users": "id-2"},
    ),
    "recreated: another id, and other partitions": (
        [Loss("recreated", "orders", n, at, None) for n, at in ((0, 100), (1, 50))],
        {"orders": {0: 0}},
        {"orders": "id-9"},
        {"orders": {0: 0}, "users": {0: 7}},
        {"orders": "id-9", "users": "id-2"},
    ),
    "recreated, and the new id is not known": (
        [Loss("recreated", "orders", n, at, None) for n, at in ((0, 100), (1, 50))],
        {"orders": {0: 0}},
        {},
        {"orders": {0: 0}, "users": {0: 7}},
        {"users": "id-2"},
    ),
    "deleted: forgotten": (
        [Loss("deleted", "orders", n, at, None) for n, at in ((0, 100), (1, 50))],
        {},
        {},
        {"users": {0: 7}},
        {"users": "id-2"},
    ),
    "two streams at once": (
        [Loss("deleted", "users", 0, 7, None), Loss("retention", "orders", 1, 50, 60)],
        {"orders": {0: 100, 1: 60}},
        {"orders": "id-1"},
        {"orders": {0: 100, 1: 60}},
        {"orders": "id-1"},
    ),
}


@pytest.mark.parametrize("case", FORGIVEN)
def test_the_marker_after_accepted_losses(case):
    lost, resume, ids, positions, stream_ids = FORGIVEN[case]
    old = marker(**SEVERAL)
    after = marker_after_losses(view(old, last_sequence=9), "c", iter(lost), resume, ids)
    assert after == replace(
        old,
        commit_id="c",
        previous_commit_id="own",
        sequence=5,
        snapshot_sequence=10,
        positions=positions,
        stream_ids=stream_ids,
        losses=(ACCEPTED, *lost),
    )
    assert Marker.from_json(after.to_json()) == after


def test_a_batch_goes_on_behind_an_accepted_loss():
    """Without the loss in the marker the same batch is refused."""
    rows = batch((100, 60), (120, 70))
    ids = {"orders": "id-1"}
    assert plan_batch(view(), CLAIM, rows, {}, ids).verdict is BatchVerdict.GAP
    lost = [Loss("retention", "orders", 1, 50, 60)]
    after = marker_after_losses(view(), "own", lost, {"orders": {0: 100, 1: 60}}, ids)
    assert plan_batch(view(after), CLAIM, rows, {}, ids) == BatchPlan(
        BatchVerdict.COMMIT, {"orders": {0: 100, 1: 60}}
    )


def test_a_new_topic_of_the_name_begins_where_an_accepted_loss_says():
    rows = PositionRange({"orders": {0: 0}}, {"orders": {0: 5}})
    ids = {"orders": "id-9"}
    assert plan_batch(view(), CLAIM, rows, {}, ids).verdict is BatchVerdict.INCARNATION
    lost = [Loss("recreated", "orders", 0, 100, None), Loss("recreated", "orders", 1, 50, None)]
    after = marker_after_losses(view(), "own", lost, {"orders": {0: 0}}, ids)
    assert plan_batch(view(after), CLAIM, rows, {}, ids) == BatchPlan(
        BatchVerdict.COMMIT, {"orders": {0: 0}}
    )
    gone = marker_after_losses(view(), "own", [Loss("deleted", "orders", 0, 100, None)], {}, {})
    assert plan_batch(view(gone), CLAIM, rows, {}, ids) == BatchPlan(
        BatchVerdict.COMMIT, {"orders": {0: 0}}
    )


POSITIONS = st.dictionaries(
    st.sampled_from("ab"), st.dictionaries(st.integers(0, 2), st.integers(0, 9), max_size=3)
)


@settings(max_examples=50)
@given(st.lists(POSITIONS, max_size=4))
def test_nearest_and_furthest_per_partition(several):
    for combine, choose in ((min_positions, min), (max_positions, max)):
        made = combine(*several)
        for stream in {stream for one in several for stream in one}:
            numbers = {number for one in several for number in one.get(stream, {})}
            assert made[stream] == {
                number: choose(
                    one[stream][number] for one in several if number in one.get(stream, {})
                )
                for number in numbers
            }
        assert set(made) == {stream for one in several for stream in one}


def test_combining_leaves_its_arguments_alone():
    one = MappingProxyType({"a": MappingProxyType({0: 1})})
    assert max_positions(one, {"a": {0: 5}}) == {"a": {0: 5}}
    assert one == {"a": {0: 1}}


# ── resolve: what a fresh look says after a commit without a plain yes ──────────────────────────

TRIED = replace(marker(), commit_id="mine", previous_commit_id="own", sequence=5)
NEWER = marker(generation=3, run_id="other", commit_id="theirs")
RESOLVED = {
    "landed": (view(TRIED, snapshots("mine", "own", last=6)), CommitOutcome.LANDED),
    "landed, then foreign commits": (
        view(TRIED, snapshots(None, "mine", "own", last=7)),
        CommitOutcome.LANDED,
    ),
    "landed, then claimed by a newer run": (
        view(NEWER, snapshots("theirs", "mine", "own", last=7)),
        CommitOutcome.LANDED,
    ),
    "landed and expired": (view(TRIED, snapshots(None, last=9, root=False)), CommitOutcome.LANDED),
    "landed, then the property was removed": (
        view(None, snapshots("mine", "own", last=6)),
        CommitOutcome.LANDED,
    ),
    "nothing happened": (view(), CommitOutcome.AGAIN),
    "only others wrote": (view(ancestors=snapshots(None, "own", last=6)), CommitOutcome.AGAIN),
    "only others wrote, ours expired": (
        view(ancestors=snapshots(None, last=9, root=False)),
        CommitOutcome.AGAIN,
    ),
    "the schema changed": (view(schema_id=1), CommitOutcome.RESTAGE),
    "our marker moved otherwise": (
        view(marker(commit_id="another"), snapshots("another", "own", last=6)),
        CommitOutcome.RESTAGE,
    ),
    "claimed by a newer run": (
        view(NEWER, snapshots("theirs", "own", last=6)),
        CommitOutcome.FENCED,
    ),
    "claimed by a run of the same generation": (
        view(marker(run_id="other", commit_id="x"), snapshots("x", last=6)),
        CommitOutcome.FENCED,
    ),
    "rolled back": (view(ancestors=snapshots("older", last=4)), CommitOutcome.REWOUND),
    "marker removed": (view(None), CommitOutcome.REWOUND),
    "history dropped": (view(ancestors=()), CommitOutcome.REPLACED),
    "dropped and created again, marker copied": (view(uuid="v"), CommitOutcome.REPLACED),
    "dropped and created again, our commit id in it": (
        view(None, snapshots("mine"), uuid="v"),
        CommitOutcome.REWOUND,
    ),
}


@pytest.mark.parametrize("case", RESOLVED)
def test_resolve(case):
    seen, expected = RESOLVED[case]
    assert outcome_of_commit(seen, TRIED, planned=view()) is expected


# ── a catalog to settle against ─────────────────────────────────────────────────────────────────


@dataclass
class Table:
    """One table: what its current metadata says, and the rows of its live snapshots."""

    uuid: str = "u"
    version: int = 0
    schema_id: int = 0
    last_sequence: int = 0
    marker: str | None = None
    lineage: tuple[AncestorSnapshot, ...] = ()
    rows: Counter = field(default_factory=Counter)
    applied: list = field(default_factory=list)  # the markers of all our commits

    def append(self, commit_id=None, rows=()):
        self.version += 1
        self.last_sequence += 1
        parent = self.lineage[0].snapshot_id if self.lineage else None
        new = AncestorSnapshot(self.last_sequence, parent, self.last_sequence, commit_id)
        self.lineage = (new, *self.lineage)
        self.rows.update(rows)


class Catalog:
    """The port, with compare-and-set; `fates` decide what becomes of each attempt."""

    def __init__(self, *names):
        self.tables = {name: Table() for name in names or ("t",)}
        self.fates = []
        self.down = 0  # so many looks find nobody
        self.attempts = []
        self.delayed = []

    def load(self, name):
        if self.down:
            self.down -= 1
            raise Unreachable("catalog does not answer")
        table = self.tables[name]
        return TableState(
            uuid=table.uuid,
            marker=Marker.from_json(table.marker) if table.marker else None,
            ancestors=table.lineage,
            last_sequence=table.last_sequence,
            schema_id=table.schema_id,
            base=SimpleNamespace(version=table.version),
            metadata=Metadata({"location": "nowhere"}),
        )

    def commit(self, name, base, marker, before, work):
        self.attempts.append((base, marker, before, work))
        for late in self.delayed:
            self.apply(*late)
        self.delayed = []
        fate = self.fates.pop(0) if self.fates else "ok"
        table = self.tables[name]
        if fate == "delayed":
            self.delayed.append((name, base, marker, work))
            raise CommitFailed("timeout")
        if fate == "error":
            raise CommitFailed("500")
        if callable(fate):
            fate(self, table)
        if not self.apply(name, base, marker, work):
            raise CommitFailed("409")
        if fate == "lost":
            raise CommitFailed("connection reset")
        if isinstance(fate, tuple):  # lost, and then something else happened
            fate[1](self, table)
            raise CommitFailed("connection reset")

    def apply(self, name, base, marker, work):
        table = self.tables[name]
        if not self.may(table, base):
            return False
        # Iceberg numbers the snapshot itself; the marker has to have foreseen the number.
        assert marker.snapshot_sequence == table.last_sequence + 1
        table.append(marker.commit_id, getattr(work, "files", work))
        table.marker = marker.to_json()
        table.applied.append(marker)
        return True

    def may(self, table, base):
        return base.version == table.version


def foreign(_, table):
    table.append(rows=["foreign"])


def newer(_, table):
    theirs = replace(
        Marker.from_json(table.marker),
        generation=9,
        run_id="other",
        commit_id="theirs",
        snapshot_sequence=table.last_sequence + 1,
    )
    table.append("theirs")
    table.marker = theirs.to_json()


def new_schema(_, table):
    table.version += 1
    table.schema_id += 1


def roll_back(_, table):
    table.version += 1
    table.lineage = table.lineage[1:]


def roll_back_far(_, table):
    table.version += 1
    table.lineage = table.lineage[-1:]


def replace_table(_, table):
    table.version += 1
    table.uuid = "another"


def go_down(catalog, table):
    catalog.down = 3
    foreign(catalog, table)


def patient(limit):
    """A pause that never waits and counts."""
    return lambda attempt: attempt < limit


class Step:
    """A commit step from a function that makes the marker."""

    def __init__(self, make, files, judge=None):
        self.marker = make
        self.files = files
        self.judge = judge or outcome_of_commit


def settle(catalog, planned, make, files, wait, judge=None):
    attempts = StepAttempts(catalog, "t", planned, Step(make, files, judge))
    return commit_with_retries(catalog, attempts, planned, wait)


def begun():
    """A catalog with one claimed table: view, and the marker of the next batch."""
    catalog = Catalog()
    foreign(catalog, catalog.tables["t"])
    for claim in (replace(CLAIM, generation=1, run_id="old"), CLAIM):
        seen = catalog.load("t")
        name, start = f"claim {claim.generation}", {"orders": {0: 0}}
        make = partial(
            marker_of_claim, claim=claim, commit_id=name, start=start, stream_ids={}, details={}
        )
        assert settle(catalog, seen, make, (), patient(1)).outcome is CommitOutcome.LANDED
    planned = catalog.load("t")
    rows = PositionRange({"orders": {0: 0}}, {"orders": {0: 3}})
    tried = partial(
        marker_after_batch,
        batch=rows,
        commit_id="mine",
        counts=Counts(3),
        watermark_ms=None,
        details={},
        stream_ids={},
    )
    catalog.attempts.clear()
    return catalog, planned, tried


SETTLED = {
    "yes": (["ok"], CommitOutcome.LANDED, 1, 1),
    "landed, answer lost": (["lost"], CommitOutcome.LANDED, 1, 1),
    "not applied, then yes": (["error", "ok"], CommitOutcome.LANDED, 2, 1),
    "not applied, then lost": (["error", "error", "lost"], CommitOutcome.LANDED, 3, 1),
    "a foreign writer was faster, twice": ([foreign, foreign, "ok"], CommitOutcome.LANDED, 3, 1),
    "lost, and a foreign writer on top": ([("lost", foreign)], CommitOutcome.LANDED, 1, 1),
    "lost, and claimed since": ([("lost", newer)], CommitOutcome.LANDED, 1, 1),
    "lost, and the schema changed since": ([("lost", new_schema)], CommitOutcome.LANDED, 1, 1),
    "applied only when we try again": (["delayed", "ok"], CommitOutcome.LANDED, 2, 1),
    "fenced": ([newer], CommitOutcome.FENCED, 1, 0),
    "fenced after a failure": (["error", newer], CommitOutcome.FENCED, 2, 0),
    "the schema changed": ([new_schema], CommitOutcome.RESTAGE, 1, 0),
    "rolled back": ([roll_back], CommitOutcome.REWOUND, 1, 0),
    "rolled back behind all of ours": ([roll_back_far], CommitOutcome.REPLACED, 1, 0),
    "replaced": ([replace_table], CommitOutcome.REPLACED, 1, 0),
    "catalog away for a while": ([go_down, "ok"], CommitOutcome.LANDED, 2, 1),
    "landed, catalog away for a while": ([("lost", go_down)], CommitOutcome.LANDED, 1, 1),
    "attempts used up": (["error"] * 9, CommitOutcome.AGAIN, 6, 0),
}


@pytest.mark.parametrize("case", SETTLED)
def test_settle(case):
    fates, outcome, attempts, times = SETTLED[case]
    catalog, planned, tried = begun()
    catalog.fates = list(fates)
    settled = settle(catalog, planned, tried, ("a", "b", "c"), patient(6))
    assert (settled.outcome, settled.attempts) == (outcome, attempts)
    table = catalog.tables["t"]
    assert [table.rows[row] for row in "abc"] == [times] * 3
    assert sum(each.commit_id == "mine" for each in table.lineage) == times
    # Over all attempts: the same commit, the same rows, the same idea of what moved.
    assert {mark.commit_id for _, mark, _, _ in catalog.attempts} == {"mine"}
    assert {work for *_, work in catalog.attempts} == {("a", "b", "c")}
    assert all(before == planned.marker.positions for _, _, before, _ in catalog.attempts)


def test_a_commit_that_needed_more_than_one_attempt_says_why():
    """Otherwise nobody hears of a catalog that fails every second time."""
    for fates in (["lost"], ["error", "ok"], [foreign, "ok"]):
        catalog, planned, tried = begun()
        catalog.fates = fates
        assert settle(catalog, planned, tried, (), patient(6)).reason
    catalog, planned, tried = begun()
    assert settle(catalog, planned, tried, (), patient(6)).reason is None


def test_the_snapshot_sequence_follows_the_base():
    """Expiry is told from replacement by it: a stale number would stop a healthy table."""
    catalog, planned, tried = begun()
    catalog.fates = [foreign, foreign]
    settle(catalog, planned, tried, ("a",), patient(6))
    landed = catalog.load("t")
    assert landed.marker.snapshot_sequence == landed.ancestors[0].sequence_number
    first = tried(planned)
    assert landed.marker.snapshot_sequence == first.snapshot_sequence + 2
    assert replace(landed.marker, snapshot_sequence=first.snapshot_sequence) == first


def test_a_catalog_that_stays_away_ends_in_again():
    catalog, planned, tried = begun()
    catalog.fates, catalog.down = ["error"], 99
    settled = settle(catalog, planned, tried, (), patient(4))
    assert (settled.outcome, settled.attempts, settled.reason) == (CommitOutcome.AGAIN, 1, "500")
    assert len(catalog.attempts) == 1  # never a second attempt without a look


def test_a_dropped_table_says_so():
    catalog, planned, tried = begun()
    catalog.fates = ["error"]
    catalog.load = lambda name: (_ for _ in ()).throw(Replaced("does not exist"))
    with pytest.raises(Replaced):
        settle(catalog, planned, tried, (), patient(4))


def test_the_look_can_be_replaced():
    catalog, planned, tried = begun()
    catalog.fates = ["error"]
    settled = settle(catalog, planned, tried, (), patient(4), judge=lambda *_: CommitOutcome.FENCED)
    assert (settled.outcome, len(catalog.attempts)) == (CommitOutcome.FENCED, 1)


# ── claims, as a run makes them ─────────────────────────────────────────────────────────────────


class NoKeeping:
    """A source whose positions say it all."""

    def store_details(self, stop, location, commit_id, old):
        return {}


@pytest.fixture
def at_once(monkeypatch):
    """Retries without waiting."""
    monkeypatch.setattr(retry, "backoff", patient(8))


def take(catalog, name, seen, claim):
    """What a start does for each table."""
    start = StartPositions({"orders": {0: 0}})
    return table_commits.TableCommitter(catalog, NoKeeping(), EventBus(), claim).claim_table(
        name, seen, start
    )


def test_a_claim_refused_by_a_foreign_commit_is_tried_again(at_once):
    catalog, _, _ = begun()
    catalog.fates = [foreign, "lost"]
    after = Claim("shop", 3, "next")
    taken = take(catalog, "t", catalog.load("t"), after)
    assert (taken.marker.generation, taken.marker.run_id) == (3, "next")
    assert taken.marker.sequence == 3


def test_a_claim_never_takes_back_what_the_run_before_it_still_committed(at_once):
    """The old run lands a batch between our look and our claim: its rows are in the table."""
    catalog, planned, tried = begun()
    after = Claim("shop", 3, "next")
    seen = catalog.load("t")
    assert settle(catalog, planned, tried, ("a", "b", "c"), patient(1)).attempts == 1
    with suppress(Fenced, GaveUp):  # refusing is fine: the next start sees what is there now
        take(catalog, "t", seen, after)
    now = catalog.load("t")
    assert now.marker.positions == {"orders": {0: 3}}  # else the three would come again
    assert now.marker.counts == Counts(3)
    if now.marker.generation == 3:
        assert now.marker.previous_commit_id == "mine"


# ── losses, as a run writes them down ───────────────────────────────────────────────────────────

LOST = LossReport(
    (Loss("retention", "orders", 0, 0, 5), Loss("deleted", "gone", 1, 2, None)),
    {"orders": {0: 5}},
    {"orders": "id-1"},
)


@pytest.mark.parametrize("case", ["yes", "landed, answer lost", "a foreign writer was faster"])
def test_losses_are_written_down_once_and_told(at_once, case):
    fates = {"yes": [], "landed, answer lost": ["lost"], "a foreign writer was faster": [foreign]}
    catalog, planned, _ = begun()
    catalog.fates = fates[case]
    bus, heard = EventBus(), []
    bus.join(heard.append)
    after = table_commits.TableCommitter(catalog, NoKeeping(), bus, CLAIM).accept_losses(
        "t", planned, LOST
    )
    assert after == catalog.load("t")
    assert after.marker.losses == LOST.lost
    assert after.marker.positions == {"orders": {0: 5}}
    assert after.marker.stream_ids == {"orders": "id-1"}
    assert after.marker.sequence == planned.marker.sequence + 1
    assert heard[-1] == LossAccepted(
        "shop", "t", ("orders/0: 0 to 5 (5 records)", "gone/1: 2 to the end")
    )
    assert [type(each) for each in heard[:-1]] == ([] if case == "yes" else [CommitRetried])
    taken = take(catalog, "t", after, Claim("shop", 3, "next"))  # the next start still knows
    assert taken.marker.losses == LOST.lost


def test_who_lost_the_table_accepts_nothing_for_it(at_once):
    catalog, planned, _ = begun()
    catalog.fates = [newer]
    bus, heard = EventBus(), []
    bus.join(heard.append)
    with pytest.raises(Fenced):
        table_commits.TableCommitter(catalog, NoKeeping(), bus, CLAIM).accept_losses(
            "t", planned, LOST
        )
    assert catalog.load("t").marker.losses == ()
    assert not any(isinstance(each, LossAccepted) for each in heard)
