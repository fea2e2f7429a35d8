"""The marker chain: which histories hold, and what is said of those that do not."""

import json
from dataclasses import replace

import pytest

from icestream.tables.commits import summary
from icestream.tables.marker import Counts, Loss, Marker, property_name
from icestream.tables.metadata import Metadata
from icestream.verify.chain import check_chain
from icestream.verify.report import TableFindings

UUID = "11111111-2222-3333-4444-555555555555"


class History:
    """A table's metadata, written commit by commit as a run does."""

    def __init__(self):
        self.marker = None
        self.snapshots = []

    def own(self, positions, records=0, generation=1, **facts):
        old = self.marker
        at = len(self.snapshots) + 1
        self.marker = Marker(
            pipeline="p",
            generation=generation,
            run_id="r",
            commit_id=f"c{at}",
            previous_commit_id=old.commit_id if old else None,
            sequence=old.sequence + 1 if old else 1,
            table_uuid=UUID,
            snapshot_sequence=at,
            positions=positions,
            counts=(old.counts if old else Counts()) + Counts(landed=records),
            **facts,
        )
        notes = summary(self.marker, old.positions if old else {}, records)
        self._snapshot("append", records, 0, notes)
        return self

    def foreign(self, operation="append", added=0, deleted=0, **notes):
        self._snapshot(operation, added, deleted, notes)
        return self

    def _snapshot(self, operation, added, deleted, notes):
        at = len(self.snapshots) + 1
        counts = {"added-records": str(added), "deleted-records": str(deleted)}
        self.snapshots.append(
            {
                "snapshot-id": 100 + at,
                "parent-snapshot-id": 99 + at if at > 1 else None,
                "sequence-number": at,
                "summary": {"operation": operation, **counts, **notes},
            }
        )

    def document(self, keep=None, marker=...):
        stored = self.marker if marker is ... else marker
        kept = self.snapshots if keep is None else self.snapshots[-keep:]
        return {
            "table-uuid": UUID,
            "properties": {property_name("p"): stored.to_json()} if stored else {},
            "snapshots": kept,
            "current-snapshot-id": self.snapshots[-1]["snapshot-id"] if self.snapshots else None,
            "current-schema-id": 0,
            "last-sequence-number": len(self.snapshots),
        }


@pytest.fixture
def history():
    """A claim at 5, two batches, a second run's claim, a compaction, and another batch."""
    made = History()
    made.own({"t": {0: 5, 1: 0}}).own({"t": {0: 9, 1: 0}}, 4).own({"t": {0: 9, 1: 3}}, 3)
    made.own({"t": {0: 9, 1: 3}}, generation=2)
    made.foreign("replace", 7, 7).own({"t": {0: 12, 1: 3}}, 2, generation=2)
    return made


def kinds(document, pipeline="p"):
    findings = TableFindings("s.t")
    check_chain(Metadata(document), pipeline, findings)
    return [finding.kind for finding in findings.report().findings]


def test_a_whole_chain_says_where_every_snapshot_stands(history):
    findings = TableFindings("s.t")
    chain = check_chain(Metadata(history.document()), "p", findings)
    report = findings.report()
    assert (report.findings, report.notes) == ((), ())
    assert report.checks[0].status == "ok"
    assert report.checks[0].detail == "5 commits of ours, 1 rewrites"
    assert chain.complete
    assert chain.start == {"t": {0: 5, 1: 0}}
    assert chain.limits == {
        101: {"t": {0: 5, 1: 0}},
        102: {"t": {0: 9, 1: 0}},
        103: {"t": {0: 9, 1: 3}},
        104: {"t": {0: 9, 1: 3}},
        105: {"t": {0: 9, 1: 3}},
        106: {"t": {0: 12, 1: 3}},
    }
    assert chain.landed == {101: 0, 102: 4, 103: 7, 104: 7, 105: 7, 106: 9}


@pytest.mark.parametrize("keep", range(1, 6))
def test_expiry_explains_a_chain_that_begins_late(history, keep):
    findings = TableFindings("s.t")
    chain = check_chain(Metadata(history.document(keep=keep)), "p", findings)
    assert findings.report().findings == ()
    assert not chain.complete
    assert chain.limits[106] == {"t": {0: 12, 1: 3}}
    assert chain.landed[106] == 9
    if keep > 1:
        # Position 9 is not mentioned any more from here on: 12 is what came next.
        assert chain.limits[105]["t"][0] == (9 if keep == 5 else 12)
        assert chain.landed[105] == 7


def test_nothing_but_a_rewrite_is_left_after_expiry(history):
    history.foreign("replace", 9, 9)
    assert kinds(history.document(keep=1)) == []


def test_a_table_that_nobody_claimed_is_no_violation():
    findings = TableFindings("s.t")
    check_chain(Metadata(History().document()), "p", findings)
    report = findings.report()
    assert report.findings == ()
    assert "no run of this pipeline has claimed" in report.notes[0]


def test_foreign_snapshots_are_named_and_counted(history):
    history.foreign("append", 10, 0, **{"engine-name": "spark"}).foreign("overwrite", 3, 5)
    findings = TableFindings("s.t")
    chain = check_chain(Metadata(history.document()), "p", findings)
    report = findings.report()
    assert report.findings == ()
    assert report.notes == (
        "snapshot 108 is not ours: overwrite by somebody else, records added: 3, deleted: 5",
        "snapshot 107 is not ours: append by spark, records added: 10, deleted: 0",
    )
    foreign = chain.foreign_until(108)
    assert (foreign.added, foreign.deleted, foreign.exact) == (13, 5, True)
    assert chain.foreign_until(106).added == 0
    assert (
        not check_chain(Metadata(history.document(keep=3)), "p", findings).foreign_until(108).exact
    )


def test_another_pipelines_commits_are_foreign(history):
    chain = check_chain(Metadata(history.document()), "q", TableFindings("s.t"))
    assert (len(chain.own_commits), len(chain.foreign), chain.marker) == (0, 5, None)


# ── what is wrong ───────────────────────────────────────────────────────────────────────────────


def test_no_property(history):
    assert kinds(history.document(marker=None)) == ["marker-missing"]


@pytest.mark.parametrize("text", ["nonsense", "[1]", '{"version": 9}', '{"version": 1}'])
def test_a_property_that_is_no_marker(history, text):
    document = history.document()
    document["properties"] = {property_name("p"): text}
    assert kinds(document) == ["marker-unreadable"]


def test_an_older_marker(history):
    old = history.marker
    history.own({"t": {0: 20, 1: 3}}, 8, generation=2)
    assert kinds(history.document(marker=old)) == ["marker-old"]


def test_a_rollback(history):
    document = history.document()
    document["current-snapshot-id"] = 103
    assert kinds(document) == ["rolled-back"]


def test_a_marker_of_nowhere(history):
    assert kinds(history.document(marker=replace(history.marker, commit_id="x"))) == [
        "marker-foreign"
    ]


def test_another_table_under_the_name(history):
    assert kinds(history.document(marker=replace(history.marker, table_uuid="x"))) == [
        "table-replaced"
    ]


def test_no_own_snapshot_that_expiry_does_not_explain(history):
    document = history.document()
    document["snapshots"], document["current-snapshot-id"] = [], None
    assert kinds(document) == ["history-missing"]


@pytest.mark.parametrize(
    "key, value, kind",
    [
        ("icestream.previous-commit-id", "x", "chain-broken"),
        ("icestream.sequence", "7", "sequence-broken"),
        ("icestream.generation", "9", "generation-fell"),
        ("icestream.offsets", '{"t":{"0":2}}', "positions-back"),
        ("added-records", "5", "records-differ"),
    ],
)
def test_a_link_that_does_not_fit(history, key, value, kind):
    history.snapshots[1]["summary"][key] = value
    findings = TableFindings("s.t")
    check_chain(Metadata(history.document()), "p", findings)
    found = [each for each in findings.report().findings if each.kind == kind]
    assert found
    if kind == "positions-back":
        assert (found[0].stream, found[0].partition, found[0].start, found[0].stop) == (
            "t",
            0,
            2,
            5,
        )
    if kind in ("chain-broken", "positions-back", "records-differ"):
        assert len(findings.report().findings) == 1
        assert found[0].snapshot_id == 102


def test_a_first_commit_that_has_a_predecessor(history):
    history.snapshots[0]["summary"]["icestream.previous-commit-id"] = "x"
    assert kinds(history.document()) == ["chain-broken"]


def test_a_snapshot_cut_out_of_the_middle(history):
    del history.snapshots[1]
    history.snapshots[1]["parent-snapshot-id"] = 101
    found = kinds(history.document())
    assert "chain-broken" in found
    assert "sequence-broken" in found


@pytest.mark.parametrize(
    "facts",
    [
        {"sequence": 99},
        {"generation": 9},
        {"previous_commit_id": "x"},
        {"snapshot_sequence": 1},
        {"counts": Counts(landed=8)},
        {"positions": {"t": {0: 11, 1: 3}}},
        {"positions": {"t": {0: 12}}},
        {"positions": {"t": {0: 12, 1: 3, 2: 0}}},
    ],
)
def test_a_property_that_tells_another_story(history, facts):
    assert kinds(history.document(marker=replace(history.marker, **facts))) == ["marker-differs"]


# ── accepted losses ─────────────────────────────────────────────────────────────────────────────


def test_positions_may_go_back_where_a_topic_was_created_again(history):
    losses = (Loss("recreated", "t", 0, 12, None),)
    history.own({"t": {0: 0, 1: 0}}, generation=3, losses=losses)
    history.own({"t": {0: 4, 1: 0}}, 4, generation=3, losses=losses)
    findings = TableFindings("s.t")
    chain = check_chain(Metadata(history.document()), "p", findings)
    assert findings.report().findings == ()
    assert chain.reused == {"t"}


def test_a_deleted_topic_leaves_the_marker(history):
    losses = (Loss("deleted", "t", 0, 12, None),)
    history.own({}, generation=3, losses=losses)
    assert kinds(history.document()) == []


def test_the_summary_is_plain_json(history):
    assert json.loads(history.snapshots[2]["summary"]["icestream.offsets"]) == {"t": {"1": 3}}
