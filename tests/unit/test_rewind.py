"""`rewind`: where a table goes back to, and with which marker; pure."""

from dataclasses import replace

import pytest

from icestream.commit.protocol import (
    Claim,
    CommitOutcome,
    MarkerStatus,
    claim_outcome,
    marker_status,
    outcome_of_commit,
)
from icestream.commit.table_state import table_state
from icestream.errors import TableRefused
from icestream.rewind import RewindTarget
from icestream.rewind.history import marker_after_rewind, table_history
from icestream.rewind.plan import counts_at, plan_quarantine, plan_table
from icestream.tables.commits import summary
from icestream.tables.marker import Counts, Loss, Marker, property_name
from icestream.tables.metadata import Metadata
from icestream.verify.chain import check_chain
from icestream.verify.report import TableFindings

UUID = "11111111-2222-3333-4444-555555555555"


class Tale:
    """Metadata of a table as its commits tell it: snapshot 101 of second 1, 102 of second 2, …"""

    def __init__(self, prefix="c"):
        self.prefix = prefix
        self.marker = None
        self.snapshots = []
        self.current = None

    def own(self, positions, records=0, generation=1, commit=None, **facts):
        old, at = self.marker, len(self.snapshots) + 1
        counts = (old.counts if old else Counts()) + Counts(landed=records)
        self.marker = Marker(
            pipeline="p",
            generation=generation,
            run_id="r",
            commit_id=commit or f"{self.prefix}{at}",
            previous_commit_id=old.commit_id if old else None,
            sequence=old.sequence + 1 if old else 1,
            table_uuid=UUID,
            snapshot_sequence=at,
            positions=positions,
            **{"counts": counts, "losses": old.losses if old else (), **facts},
        )
        before = old.positions if old else {}
        return self._add("append", records, 0, summary(self.marker, before, records))

    def foreign(self, operation="append", added=0, deleted=0, **notes):
        return self._add(operation, added, deleted, notes)

    def gone_back(self, plan, counts=None, generation=9):
        """As `move` leaves it: a snapshot on top of the older one."""
        past = self.past()
        counts = counts or plan.marker.counts
        ids = ("rewinder", f"w{len(self.snapshots) + 1}")
        self.marker = marker_after_rewind(past, plan.marker, counts, generation, ids)
        self.current = plan.to_snapshot
        return self._add("append", 0, 0, summary(self.marker, plan.marker.positions, 0))

    def _add(self, operation, added, deleted, notes):
        at = len(self.snapshots) + 1
        counts = {"added-records": str(added), "deleted-records": str(deleted)}
        self.snapshots.append(
            {
                "snapshot-id": 100 + at,
                "parent-snapshot-id": self.current,
                "sequence-number": at,
                "timestamp-ms": 1000 * at,
                "summary": {"operation": operation, **counts, **notes},
            }
        )
        self.current = 100 + at
        return self

    def document(self, expired=()):
        return {
            "table-uuid": UUID,
            "location": "file:/nowhere",
            "properties": {property_name("p"): self.marker.to_json()} if self.marker else {},
            "snapshots": [s for s in self.snapshots if s["snapshot-id"] not in expired],
            "current-snapshot-id": self.current,
            "current-schema-id": 0,
            "last-sequence-number": len(self.snapshots),
        }

    def past(self, expired=()):
        return table_history(Metadata(self.document(expired)), "s.t", "p")


def at(first, second=0):
    return {"t": {0: first, 1: second}}


def to(snapshot_id):
    return RewindTarget(snapshot_id=snapshot_id)


def violations(document):
    findings = TableFindings("s.t")
    check_chain(Metadata(document), "p", findings)
    return [finding.kind for finding in findings.report().findings]


@pytest.fixture
def tale():
    """A claim at 5, two batches, another run's claim, a compaction, and a third batch."""
    made = Tale()
    made.own(at(5)).own(at(9), 4, watermark_ms=70).own(at(9, 3), 3, watermark_ms=80)
    made.own(at(9, 3), generation=2, watermark_ms=80)
    made.foreign("replace", 7, 7)
    return made.own(at(12, 3), 2, generation=2, stream_ids={"t": "id", "u": "x"}, watermark_ms=90)


# ── where to, and with which marker ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "snapshot_id, commit, sequence, positions, landed, watermark, left",
    [
        (101, "c1", 1, at(5), 0, None, 5),
        (102, "c2", 2, at(9), 4, 70, 4),
        (103, "c3", 3, at(9, 3), 7, 80, 3),
        (104, "c4", 4, at(9, 3), 7, 80, 2),
        (105, "c4", 4, at(9, 3), 7, 80, 1),  # the rewrite stays, it is on the way
    ],
)
def test_the_marker_of_every_snapshot(
    tale, snapshot_id, commit, sequence, positions, landed, watermark, left
):
    plan = plan_table(tale.past(), to(snapshot_id))
    then = plan.marker
    assert plan.changes
    assert (plan.from_snapshot, plan.to_snapshot, plan.to_commit) == (106, snapshot_id, commit)
    assert (then.commit_id, then.sequence, then.positions) == (commit, sequence, positions)
    assert (then.counts.landed, then.watermark_ms) == (landed, watermark)
    assert then.stream_ids == {"t": "id"}
    assert (plan.rows_before, plan.rows_after, plan.snapshots_left) == (9, landed, left)
    tale.gone_back(plan)
    view = table_state(Metadata(tale.document()), "p")
    assert marker_status(view) is MarkerStatus.OURS
    assert view.marker.previous_commit_id == commit
    assert view.marker.sequence == sequence + 1
    assert violations(tale.document()) == []
    tale.own(at(14, 3), 5, generation=10)
    assert violations(tale.document()) == []
    for oldest in range(102, tale.current + 1):  # whatever expires later
        assert violations(tale.document(range(101, oldest))) == []


def test_what_is_read_again_is_told_by_partition(tale):
    tale.own({"t": {0: 12, 1: 3, 2: 4}}, 4, generation=2)
    moves = plan_table(tale.past(), to(102)).positions
    assert [(m.stream, m.partition, m.before, m.after) for m in moves] == [
        ("t", 0, 12, 9), ("t", 1, 3, 0), ("t", 2, 4, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "time_ms, snapshot_id", [(1000, 101), (2999, 102), (5500, 105), (99_000, 106)]
)
def test_a_time_means_the_snapshot_of_that_time(tale, time_ms, snapshot_id):
    plan = plan_table(tale.past(), RewindTarget(time_ms=time_ms))
    assert plan.to_snapshot == snapshot_id
    assert plan.changes == (snapshot_id < 106)
    assert plan.notes == ()


def test_before_its_first_claim_a_table_goes_back_to_it():
    made = Tale().foreign("append", 10).own(at(5)).own(at(9), 4)
    plan = plan_table(made.past(), RewindTarget(time_ms=1500))
    assert (plan.to_snapshot, plan.rows_after) == (102, 0)
    assert plan.marker.positions == at(5)
    assert "back to its beginning" in plan.notes[0]


def test_claims_and_rewrites_alone_are_nothing_to_do(tale):
    tale.own(at(12, 3), generation=3, stream_ids={"t": "id"}).foreign("replace", 9, 9)
    plan = plan_table(tale.past(), to(106))
    assert not plan.changes
    assert plan_table(tale.past(), to(105)).changes


def test_again_and_back_again(tale):
    """After a rewind the same target is nothing to do, and what was left can be taken up again."""
    past = tale.past()
    tale.gone_back(plan_table(past, to(102)))
    assert not plan_table(tale.past(), to(102)).changes
    assert not plan_table(tale.past(), RewindTarget(time_ms=2500)).changes
    tale.own(at(11), 2, generation=10)
    forth = plan_table(tale.past(), to(106))
    assert (forth.marker.positions, forth.rows_before, forth.rows_after) == (at(12, 3), 6, 9)
    assert forth.snapshots_left == 2
    tale.gone_back(forth, generation=11)
    assert violations(tale.document()) == []
    assert tale.marker.counts.landed == 9


def test_a_rollback_by_hand_is_followed(tale):
    tale.current = 103
    assert marker_status(table_state(Metadata(tale.document()), "p")) is MarkerStatus.REWOUND
    plan = plan_table(tale.past(), RewindTarget(time_ms=99_000))
    assert (plan.changes, plan.to_snapshot, plan.marker.positions) == (True, 103, at(9, 3))
    assert "rolled it back by hand" in plan.notes[0]
    tale.gone_back(plan)
    assert marker_status(table_state(Metadata(tale.document()), "p")) is MarkerStatus.OURS
    assert violations(tale.document()) == []


def test_a_run_that_is_at_work_is_fenced(tale):
    planned = table_state(Metadata(tale.document()), "p")
    claim = Claim("p", 2, "r")
    tried = replace(planned.marker, commit_id="late", previous_commit_id="c6", sequence=7)
    tale.gone_back(plan_table(tale.past(), to(102)), generation=3)
    seen = table_state(Metadata(tale.document()), "p")
    assert outcome_of_commit(seen, tried, planned) is CommitOutcome.FENCED
    # Even one whose commit had landed, and was left behind before it looked.
    landed = replace(planned.marker, commit_id="c6")
    assert outcome_of_commit(seen, landed, planned) is CommitOutcome.FENCED
    assert claim_outcome(seen, claim) is CommitOutcome.FENCED
    assert claim_outcome(seen, Claim("p", 4, "next")) is CommitOutcome.AGAIN


# ── what cannot be known ────────────────────────────────────────────────────────────────────────


def test_expiry_hides_positions_that_have_moved_since(tale):
    past = tale.past(expired={101, 102})
    # Partition 0 stood at 9 then, but only its 12 is left.
    with pytest.raises(TableRefused, match="position of t/0 at that time has expired") as refused:
        plan_table(past, to(103))
    assert refused.value.hint == "the oldest that can be reached is 106"
    with pytest.raises(TableRefused, match="have expired") as refused:
        plan_table(past, RewindTarget(time_ms=2500))
    assert "103" in refused.value.where


def test_what_has_not_moved_since_is_known_after_expiry(tale):
    tale.own(at(20, 3), 5, generation=2)
    past = tale.past(expired=range(101, 106))
    plan = plan_table(past, to(106))
    assert (plan.marker.positions, plan.rows_after) == (at(12, 3), 9)
    tale.own(at(20, 8), 5, generation=2)
    with pytest.raises(TableRefused, match="position of t/1") as refused:
        plan_table(tale.past(expired=range(101, 106)), to(106))
    assert refused.value.hint == "the oldest that can be reached is 108"


def test_no_commit_is_left(tale):
    tale.foreign("replace", 9, 9).foreign("append", 1)
    past = tale.past(expired=range(101, 107))
    with pytest.raises(TableRefused, match="have expired"):
        plan_table(past, RewindTarget(time_ms=7500))
    with pytest.raises(TableRefused, match="no commit of this pipeline") as refused:
        plan_table(past, to(107))
    assert refused.value.hint == "no snapshot of it can be reached"


@pytest.mark.parametrize(
    "expired", [{101}, {101, 102}, {103}, {104, 105}, range(101, 105), range(101, 106)], ids=str
)
def test_a_forgotten_parent_changes_nothing(tale, expired):
    """PyIceberg's expiry makes a snapshot forget its parent; Java's leaves an id of nothing."""

    def planned(document, target):
        try:
            return plan_table(table_history(Metadata(document), "s.t", "p"), target)
        except TableRefused as refused:
            return str(refused), refused.where, refused.hint

    cut = tale.document(expired)
    there = {each["snapshot-id"] for each in cut["snapshots"]}
    forgotten = [
        each if each["parent-snapshot-id"] in there else {**each, "parent-snapshot-id": None}
        for each in cut["snapshots"]
    ]
    assert forgotten != cut["snapshots"]
    for target in [
        *map(to, range(101, 107)),
        *(RewindTarget(time_ms=1000 * n) for n in range(1, 8)),
    ]:
        assert planned({**cut, "snapshots": forgotten}, target) == planned(cut, target)


def test_no_such_snapshot_and_no_marker(tale):
    with pytest.raises(TableRefused, match="has no snapshot 7"):
        plan_table(tale.past(), to(7))
    tale.marker = None
    with pytest.raises(TableRefused, match="no marker of pipeline `p`"):
        tale.past()
    replaced = Tale().own(at(1)).document() | {"table-uuid": "another"}
    with pytest.raises(TableRefused, match="not the one that this pipeline wrote to"):
        table_history(Metadata(replaced), "s.t", "p")


def test_rows_of_others_are_named_and_those_of_pipelines_kept(tale):
    tale.foreign("append", 10).foreign("overwrite", 3, 5).own(at(13, 3), 1, generation=2)
    plan = plan_table(tale.past(), to(106))
    assert plan.notes == (
        "2 snapshots of others are left behind and NOT made again: 13 rows added, 5 deleted",
    )
    assert plan_table(tale.past(), to(108)).notes == ()
    assert plan_table(tale.past(), to(108)).marker.positions == at(12, 3)
    other = {"icestream.pipeline": "q", "icestream.commit-id": "q1", "icestream.offsets": "{}"}
    tale.foreign("append", 2, 0, **other)
    with pytest.raises(TableRefused, match="pipeline `q` has written to it since"):
        plan_table(tale.past(), to(108))
    assert not plan_table(tale.past(), to(110)).changes


# ── accepted losses ─────────────────────────────────────────────────────────────────────────────


def test_a_loss_by_retention_counts_from_its_acceptance_on(tale):
    loss = Loss("retention", "t", 0, 12, 20)
    tale.own(at(20, 3), generation=3, losses=(loss,)).own(at(25, 3), 5, generation=3)
    assert plan_table(tale.past(), to(107)).marker.losses == (loss,)
    assert plan_table(tale.past(), to(106)).marker.losses == ()


@pytest.mark.parametrize("kind", ["recreated", "truncated"])
def test_nobody_goes_back_before_other_records_had_the_offsets(tale, kind):
    loss = Loss(kind, "t", 0, 12, None)
    tale.own(at(0, 3), generation=3, losses=(loss,)).own(at(4, 3), 4, generation=3)
    plan = plan_table(tale.past(), to(107))
    assert (plan.marker.positions, plan.marker.losses) == (at(0, 3), (loss,))
    with pytest.raises(TableRefused, match="created again or truncated") as refused:
        plan_table(tale.past(), to(106))
    assert refused.value.hint == "the oldest that can be reached is 107"


def test_a_deleted_topic_does_not_come_back():
    both = {"t": {0: 5}, "u": {0: 7}}
    made = Tale().own({"t": {0: 0}, "u": {0: 0}}).own(both, 12)
    made.own({"t": {0: 5}}, generation=2, losses=(Loss("deleted", "u", 0, 7, None),))
    made.own({"t": {0: 9}}, 4, generation=2)
    assert plan_table(made.past(), to(103)).marker.positions == {"t": {0: 5}}
    assert plan_table(made.past(), to(102)).marker.positions == {"t": {0: 5}}
    with pytest.raises(TableRefused, match="`u` was deleted"):
        plan_table(made.past(), to(101))


# ── the list of a folder's files ────────────────────────────────────────────────────────────────


def test_the_list_of_files_is_that_of_the_commit_that_moved():
    made = Tale().own({"files": {0: 0}}, details={"ledger": "positions-c1.jsonl"})
    made.own({"files": {0: 2}}, 4, details={"ledger": "positions-c2.jsonl"})
    made.own({"files": {0: 2}}, generation=2, details={"ledger": "positions-c2.jsonl"})
    made.own({"files": {0: 3}}, 4, generation=2, details={"ledger": "positions-c4.jsonl"})
    names = [plan_table(made.past(), to(n)).marker.details["ledger"] for n in (101, 102, 103, 104)]
    assert names == [f"positions-c{n}.jsonl" for n in (1, 2, 2, 4)]
    aside = Tale().own({}).own({"files": {0: 2}}, 1, details={"ledger": "positions-c2.jsonl"})
    assert plan_table(aside.past(), to(101)).marker.details == {}


# ── quarantine, and counts of bad records ───────────────────────────────────────────────────────


def pair():
    """A table of three batches with 1, 0 and 2 bad records, and its quarantine."""
    table = Tale().own({"t": {0: 0}}).own({"t": {0: 10}}, 9, counts=Counts(9, 1))
    table.own({"t": {0: 20}}, 10, counts=Counts(19, 1))
    table.own({"t": {0: 30}}, 8, counts=Counts(27, 3))
    aside = Tale("q").own({}).own({"t": {0: 10}}, 1, commit="c2")
    aside.own({"t": {0: 10}}, generation=1).own({"t": {0: 30}}, 2, commit="c4")
    return table, aside


def nobody_counts(snapshot_id, limit):
    raise AssertionError("the commits tell")


@pytest.mark.parametrize(
    "table_to, aside_to, moves, bad",
    [(101, 101, True, 0), (102, 103, True, 1), (103, 103, True, 1)],
)
def test_a_quarantine_goes_with_its_table(table_to, aside_to, moves, bad):
    table, aside = pair()
    plan = plan_table(table.past(), to(table_to))
    along, quarantined = plan_quarantine(aside.past(), table.past(), plan, nobody_counts)
    assert (along.changes, along.to_snapshot, quarantined) == (moves, aside_to, bad)
    counts = counts_at(table.past(), plan, quarantined, by_offsets=True)
    table.gone_back(plan, counts)
    # The table went and the quarantine did not: the same plan again, for the quarantine alone.
    plan = plan_table(table.past(), to(table_to))
    again, quarantined = plan_quarantine(aside.past(), table.past(), plan, nobody_counts)
    assert (plan.changes, again.to_snapshot, quarantined) == (False, aside_to, bad)
    aside.gone_back(again)
    plan, after = plan_table(table.past(), to(table_to)), aside.past()
    assert not plan_quarantine(after, table.past(), plan, nobody_counts)[0].changes
    assert violations(aside.document()) == []


def test_a_quarantine_that_a_crash_left_ahead():
    """It took 0 to 20 at once; then the run died, and the table came in two commits."""
    table = Tale().own({"t": {0: 0}}).own({"t": {0: 10}}, 8, counts=Counts(8, 2))
    table.own({"t": {0: 20}}, 9, counts=Counts(17, 3))
    aside = Tale("q").own({}).own({"t": {0: 20}}, 3, commit="x")
    plan = plan_table(table.past(), to(102))
    two_below = {101: 0, 102: 2}
    along, bad = plan_quarantine(aside.past(), table.past(), plan, lambda at, limit: two_below[at])
    assert (along.changes, along.to_snapshot, bad) == (False, 102, 2)  # it has what lies below 10
    along, bad = plan_quarantine(aside.past(), table.past(), plan, lambda at, limit: 0)
    assert (along.changes, along.to_snapshot, bad) == (True, 101, 0)  # all of it lies above
    along, bad = plan_quarantine(aside.past(), table.past(), plan, None)
    assert (along.changes, bad) == (False, 0)  # nobody can tell: ahead is safe


def test_a_quarantine_of_a_batch_that_was_planned_again():
    """The table's commit of the same range bears another id."""
    table = Tale().own({"t": {0: 0}}).own({"t": {0: 10}}, 8, counts=Counts(8, 2))
    table.own({"t": {0: 20}}, 9, counts=Counts(17, 3))
    aside = Tale("q").own({}).own({"t": {0: 10}}, 2, commit="x").own({"t": {0: 20}}, 1, commit="c3")
    for below in (nobody_counts, None):
        plan = plan_table(table.past(), to(102))
        along, bad = plan_quarantine(aside.past(), table.past(), plan, below)
        assert (along.changes, along.to_snapshot, bad) == (True, 102, 2)


def test_a_quarantine_whose_past_has_expired_stays():
    table, aside = pair()
    plan = plan_table(table.past(), to(103))
    past = aside.past(expired={101, 102, 103})
    along, bad = plan_quarantine(past, table.past(), plan, lambda at, limit: 1)
    assert (along.changes, along.to_snapshot, bad) == (False, 104, 1)
    assert "it stays" in along.notes[0]
    assert plan_quarantine(past, table.past(), plan, None)[1] == 1
    past = aside.foreign("replace", 3, 3).past(expired=range(101, 105))
    along, bad = plan_quarantine(past, table.past(), plan, lambda at, limit: 1)
    assert (along.changes, along.to_snapshot, bad) == (False, 105, 1)


def test_a_quarantine_takes_up_again_what_it_had_left_with_its_table():
    """Forth to where both were before: what came since was cut differently."""
    table, aside = pair()
    first = plan_table(table.past(), to(101))
    along, _ = plan_quarantine(aside.past(), table.past(), first, nobody_counts)
    aside.gone_back(along)
    table.gone_back(first, Counts())
    table.own({"t": {0: 30}}, 27, counts=Counts(27, 3), generation=10)
    aside.own({"t": {0: 30}}, 3, commit=table.marker.commit_id, generation=10)
    forth = plan_table(table.past(), to(103))
    along, bad = plan_quarantine(aside.past(), table.past(), forth, nobody_counts)
    assert (along.changes, along.to_snapshot, bad) == (True, 102, 1)
    assert along.marker.positions == {"t": {0: 10}}
    aside.gone_back(along, generation=11)
    assert violations(aside.document()) == []


def test_a_quarantine_keeps_what_is_older_than_its_tables_history():
    table, aside = pair()
    table.own({"t": {0: 35}}, 5, counts=Counts(32, 3)).own({"t": {0: 40}}, 4, counts=Counts(36, 4))
    aside.own({"t": {0: 40}}, 1, commit="c6")
    past = table.past(expired=range(101, 105))
    plan = plan_table(past, to(105))
    along, bad = plan_quarantine(aside.past(), past, plan, nobody_counts)
    assert (along.to_snapshot, along.rows_after, bad) == (104, 3, 3)


def test_dropped_records_are_no_more_than_fit(tale):
    tale.own(at(40, 3), 20, generation=2, counts=Counts(29, 0, 8))
    plan = plan_table(tale.past(), to(106))
    assert counts_at(tale.past(), plan, None, by_offsets=True) == Counts(9, 0, 1)
    assert counts_at(tale.past(), plan, None, by_offsets=False) == Counts(9, 0, 8)
    plan = plan_table(tale.past(), to(107))
    assert counts_at(tale.past(), plan, None, by_offsets=True) == Counts(29, 0, 8)
