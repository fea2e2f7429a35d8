"""Sets of origins, and what is said of rows that do not fit their marker."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from icestream.tables.commits import Snapshot
from icestream.tables.marker import Counts, Loss, Marker
from icestream.verify.chain import MarkerChain
from icestream.verify.offsets import OffsetBitmaps, contiguous_ranges, span
from icestream.verify.report import MOST, TableFindings
from icestream.verify.rows import RowCheckRules, check_quarantine, check_snapshot

KAFKA = RowCheckRules(offsets=True, gapless=False)
GAPLESS = RowCheckRules(offsets=True, gapless=True)
FILES = RowCheckRules(offsets=False, gapless=False)


def batch(*rows):
    topics, partitions, offsets = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.record_batch(
        {
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )


def offsets(*batches):
    found = OffsetBitmaps()
    for each in batches:
        found.add_rows(each)
    return found


def rows(*numbers, topic="t", partition=0):
    return batch(*((topic, partition, n) for n in numbers))


# ── sets ────────────────────────────────────────────────────────────────────────────────────────


ORIGIN = st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(0, 40) | st.just(2**40))


@given(st.lists(st.lists(ORIGIN, max_size=30), max_size=4), st.booleans())
def test_sets_count_as_plain_python_does(batches, encoded):
    found = OffsetBitmaps()
    for each in batches:
        one = batch(*each)
        if encoded:
            one = one.set_column(0, "topic", one.column(0).dictionary_encode())
        part = OffsetBitmaps()
        part.add_rows(one)
        found.merge(part)
    every = [origin for each in batches for origin in each]
    assert found.rows == len(every)
    assert {(t, p, o) for (t, p), s in found.sets.items() for o in s} == set(every)
    assert sum(found.extra.values()) == len(every) - len(set(every))
    again = {origin for origin in every if every.count(origin) > 1}
    assert {(t, p, o) for (t, p), s in found.doubled.items() for o in s} == again
    assert found.within(["a"]) == len([origin for origin in every if origin[0] == "a"])


def test_rows_without_an_origin_are_not_ours():
    found = offsets(batch(("t", 0, 1), (None, 0, 2), ("t", None, 3), ("t", 0, None)))
    assert (found.rows, found.unknown) == (4, 3)
    assert set(found.sets["t", 0]) == {1}


def test_a_merge_leaves_the_parts_alone():
    first, second = offsets(rows(1, 2)), offsets(rows(3))
    for _ in range(2):
        whole = OffsetBitmaps()
        whole.merge(first)
        whole.merge(second)
        assert not whole.doubled
    assert set(first.sets["t", 0]) == {1, 2}


@given(st.sets(st.integers(0, 300) | st.integers(2**33, 2**33 + 50)), st.integers(1, 8))
def test_runs_tell_every_member(members, most):
    found = list(contiguous_ranges(BitMap64(members), most))
    assert sum(count for _, _, count in found) == len(members)
    assert len(found) <= most
    assert all(any(start <= m < stop for start, stop, _ in found) for m in members)
    for start, stop, count in found[: most - 1]:
        assert count == stop - start
        assert stop not in members


def test_spans_may_be_empty():
    assert not span(3, 3)
    assert not span(5, 3)
    assert list(span(3, 5)) == [3, 4]


# ── rows ────────────────────────────────────────────────────────────────────────────────────────


def link(number, operation="append", parent=None, **counts):
    summary = {key.replace("_", "-"): str(value) for key, value in counts.items()}
    return Snapshot(number, parent, number, 0, summary, operation)


def chain(positions, landed, start=None, foreign=(), counts=None, parent=None, losses=()):
    """One own snapshot, 1, and what others did after it."""
    counts = counts or Counts(landed=landed)
    marker = Marker("p", 1, "r", "c", None, 1, "u", 1, positions, counts=counts, losses=losses)
    lineage = (*foreign, link(1, parent=parent))
    return MarkerChain(
        marker=marker,
        ancestors=lineage,
        own_commits=lineage[-1:],
        foreign=tuple(foreign),
        rewrites=0,
        complete=start is not None,
        start=start or {},
        limits={each.snapshot_id: positions for each in lineage},
        landed={each.snapshot_id: landed for each in lineage},
    )


def judged(found, expected, terms=KAFKA, snapshot=1):
    findings = TableFindings("s.t")
    check_snapshot(snapshot, found, expected, terms, findings)
    return findings.report()


def test_rows_as_they_should_be():
    report = judged(offsets(rows(2, 3), rows(5)), chain({"t": {0: 6}}, 3, {"t": {0: 2}}))
    assert (report.findings, report.notes) == ((), ())


def test_a_hole_is_no_loss_without_the_source():
    assert judged(offsets(rows(0, 1, 9)), chain({"t": {0: 10}}, 3)).findings == ()


def test_doubled_rows():
    report = judged(offsets(rows(0, 1, 2, 3), rows(2, 3), rows(3)), chain({"t": {0: 4}}, 4))
    first, second = report.findings
    assert (first.kind, first.stream, first.start, first.stop) == ("duplicated", "t", 2, 4)
    assert second.kind == "rows-surplus"
    assert (report.duplicated, report.lost, report.phantom) == (3, 0, 0)


def test_a_missing_row_is_lost_and_its_place_told():
    report = judged(offsets(rows(0, 1, 3)), chain({"t": {0: 4}}, 4, {"t": {0: 0}}))
    (finding,) = report.findings
    assert (finding.kind, finding.expected) == ("rows-missing", "4 rows")
    assert finding.seen == "3 rows; without a row: t/0 2 to 3"
    assert report.lost == 1


def test_rows_above_the_marker_and_before_the_start():
    found = offsets(rows(1, 4, 5, 9), rows(3, partition=1))
    report = judged(found, chain({"t": {0: 5}}, 5, {"t": {0: 2}}))
    assert [(f.kind, f.partition, f.start, f.stop, f.records) for f in report.findings] == [
        ("above-marker", 0, 5, 6, 1),
        ("above-marker", 0, 9, 10, 1),
        ("before-start", 0, 1, 2, 1),
        ("above-marker", 1, 3, 4, 1),
    ]
    assert report.phantom == 4


def test_what_others_wrote_is_no_alarm_but_one_row_less_is():
    others = (link(3, "delete", 2, deleted_records=2), link(2, parent=1, added_records=5))
    expected = chain({"t": {0: 4}}, 4, {"t": {0: 0}}, others)
    strange = batch(*[(None, None, None)] * 5)
    report = judged(offsets(rows(0, 1), strange), expected, snapshot=3)
    assert report.findings == ()
    assert "others removed or rewrote 2 rows" in report.notes[0]
    report = judged(offsets(rows(0), strange), expected, snapshot=3)
    assert [(f.kind, f.records) for f in report.findings] == [("rows-missing", 1)]
    assert judged(offsets(rows(0, 1, 2, 3)), expected).findings == ()  # before they came


def test_after_expiry_rows_without_an_origin_do_not_count():
    expected = chain({"t": {0: 4}}, 4, parent=77)
    strange = batch(*[(None, None, None)] * 5)
    assert judged(offsets(rows(0, 1, 2, 3), strange), expected).findings == ()
    assert judged(offsets(rows(0, 1, 2), strange), expected).lost == 1


def test_offsets_of_files_are_not_compared_with_the_ledger():
    found = offsets(rows(0, 700, topic="a.jsonl"))
    assert judged(found, chain({"files": {0: 1}}, 2), FILES).findings == ()
    found = offsets(rows(0, 700, 700, topic="a.jsonl"))
    assert judged(found, chain({"files": {0: 1}}, 3), FILES).duplicated == 1


def test_no_more_than_twenty_are_told_and_all_are_counted():
    found = offsets(rows(*range(0, 200, 2), *range(0, 200, 2)))
    report = judged(found, chain({"t": {0: 200}}, 200))
    assert len(report.findings) == MOST
    assert report.duplicated == 100


# ── with the quarantine ─────────────────────────────────────────────────────────────────────────


def both(found, aside, expected, terms=KAFKA):
    findings = TableFindings("s.t")
    check_quarantine(found, aside, expected, terms, findings)
    return findings.report()


def counted(positions, landed, quarantined, dropped=0, start=None):
    counts = Counts(landed, quarantined, dropped)
    return chain(positions, landed, start or {"t": {0: 0}}, counts=counts)


def test_together_they_hold_what_was_read():
    expected = counted({"t": {0: 5}}, 3, 2)
    report = both(offsets(rows(0, 1, 4)), offsets(rows(2, 3)), expected, GAPLESS)
    assert report.findings == ()
    assert report.checks[0].detail == "3 landed + 2 set aside + 0 dropped = 5 read"


def test_a_quarantine_that_is_ahead_is_right_after_a_crash():
    expected = counted({"t": {0: 5}}, 4, 1)
    report = both(offsets(rows(0, 1, 2, 3)), offsets(rows(4, 7, 9)), expected, GAPLESS)
    assert report.findings == ()


@pytest.mark.parametrize("terms", [KAFKA, GAPLESS, FILES])
def test_a_record_set_aside_that_is_gone(terms):
    expected = counted({"t": {0: 5}}, 3, 2)
    report = both(offsets(rows(0, 1, 4)), offsets(rows(2)), expected, terms)
    assert report.findings[0].kind == "quarantine-missing"
    assert report.lost == 1
    assert both(offsets(rows(0, 1, 4)), None, expected, terms).lost == 2


def test_a_record_in_both():
    expected = counted({"t": {0: 5}}, 4, 1)
    report = both(offsets(rows(0, 1, 2, 3)), offsets(rows(3)), expected)
    assert [(f.kind, f.start, f.records) for f in report.findings] == [("both", 3, 1)]
    assert report.duplicated == 1


def test_positions_say_how_much_was_read():
    fewer = counted({"t": {0: 5}}, 3, 0)
    assert both(offsets(rows(0, 1, 4)), None, fewer).findings == ()  # holes of a topic
    report = both(offsets(rows(0, 1, 4)), None, fewer, GAPLESS)
    assert [(f.kind, f.start, f.stop) for f in report.findings] == [
        ("read-differs", None, None),
        ("missing", 2, 4),
    ]
    more = counted({"t": {0: 5}}, 5, 0, dropped=1)
    report = both(offsets(rows(0, 1, 2, 3, 4)), None, more)
    assert [f.kind for f in report.findings] == ["read-differs"]


@pytest.mark.parametrize("kind", ["recreated", "truncated", "deleted"])
def test_after_an_accepted_loss_offsets_are_not_judged(kind):
    losses = (Loss(kind, "t", 0, 3, None),)
    expected = chain({"t": {0: 2}} if kind != "deleted" else {}, 6, losses=losses)
    found = offsets(rows(0, 1, 2, 3), rows(0, 1))
    assert judged(found, expected).findings == ()
    report = both(found, offsets(rows(5)), expected)
    assert (report.findings, report.checks[0].status) == ((), "unchecked")
    assert judged(offsets(rows(0, 1, 2, 3), rows(0)), expected).lost == 1  # rows still count


def test_records_that_retention_took_leave_the_rest_to_be_judged():
    expected = chain({"t": {0: 9}}, 2, {"t": {0: 0}}, losses=(Loss("retention", "t", 0, 2, 7),))
    assert judged(offsets(rows(0, 1, 8)), expected).findings != ()
    assert judged(offsets(rows(0, 8)), expected).findings == ()
