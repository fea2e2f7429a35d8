"""What people are told: the right error, its exit code, what was seen, and what to do next."""

import pickle
from typing import get_args

import pytest

from icestream import errors
from icestream.commit.protocol import BatchVerdict, CommitOutcome, GapRange, MarkerStatus
from icestream.commit.refusals import loss_refusal, refusal
from icestream.commit.table_state import TableState
from icestream.tables.marker import Loss, LossKind, Marker

MARKER = Marker("shop", 4, "run", "commit-9", None, 1, "u", 1)
VIEW = TableState("u", MARKER, (), 1, 0)
KINDS = {
    BatchVerdict.FENCED: (errors.Fenced, 3),
    BatchVerdict.GAP: (errors.Gap, 1),
    BatchVerdict.INCARNATION: (errors.Incarnation, 1),
    CommitOutcome.REWOUND: (errors.Rewound, 1),
    MarkerStatus.REPLACED: (errors.Replaced, 1),
}


@pytest.mark.parametrize("verdict", KINDS, ids=lambda verdict: verdict.value)
def test_each_verdict_has_its_error(verdict):
    kind, code = KINDS[verdict]
    made = refusal("shop.orders", verdict, VIEW, [GapRange("orders", 2, 10, 15)])
    assert type(made) is kind
    assert made.exit_code == code
    assert "`shop.orders`" in made.what
    assert made.hint
    if verdict is BatchVerdict.GAP:
        assert made.where == "missing: orders/2: 10 to 15"
    else:
        assert made.where == "marker commit-9, generation 4"


@pytest.mark.parametrize("verdict", KINDS, ids=lambda verdict: verdict.value)
def test_a_table_without_a_marker(verdict):
    for view in (None, TableState("u", None, (), 1, 0)):
        made = refusal("t", verdict, view)
        assert type(made) is KINDS[verdict][0]
        assert "None" not in f"{made.what}{made.where or ''}"


def test_everything_that_stops_a_table_has_a_text():
    go_on = {"commit", "skip", "landed", "again", "restage"}
    stops = {each.value for kind in (BatchVerdict, CommitOutcome) for each in kind} - go_on
    assert stops == {verdict.value for verdict in KINDS}


def test_what_has_no_text_is_a_bug_of_ours():
    assert isinstance(refusal("t", CommitOutcome.LANDED), errors.InternalError)


def test_errors_cross_processes_whole():
    made = refusal("t", BatchVerdict.GAP, VIEW, [GapRange("orders", 0, 1, 2)])
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.what, again.where, again.hint) == (
        errors.Gap, made.what, made.where, made.hint,
    )  # fmt: skip


# ── losses ──────────────────────────────────────────────────────────────────────────────────────

LOSSES = {
    "retention": (errors.Gap, "the topic's retention removed records before we read them"),
    "truncated": (
        errors.Truncated,
        "the topic's log ends before our position: the brokers lost records that we have",
    ),
    "recreated": (
        errors.Incarnation,
        "its topic was deleted and created again: its offsets mean other records now",
    ),
    "deleted": (errors.Incarnation, "its topic was deleted"),
}


def lost(kind, partition=0, start=5):
    stop = start + 4 if kind in ("retention", "truncated") else None
    return Loss(kind, "orders", partition, start, stop)


def test_every_kind_of_loss_has_a_text():
    assert set(get_args(LossKind)) == set(LOSSES)


@pytest.mark.parametrize("kind", LOSSES)
def test_each_loss_has_its_error(kind):
    error, what = LOSSES[kind]
    made = loss_refusal("shop.orders", [lost(kind), lost(kind, 7, 0)])
    assert type(made) is error
    assert made.exit_code == 1
    assert made.what == f"table `shop.orders`: {what}"
    ranges = {
        "retention": "orders/0: 5 to 9 (4 records); orders/7: 0 to 4 (4 records)",
        "truncated": "orders/0: 5 to 9 (4 records); orders/7: 0 to 4 (4 records)",
    }
    assert made.where == "missing: " + ranges.get(
        kind, "orders/0: 5 to the end; orders/7: 0 to the end"
    )
    assert "`icestream run --accept-loss`" in made.hint


@pytest.mark.parametrize(
    "kinds, speaks",
    [
        (("retention", "truncated"), "truncated"),
        (("truncated", "recreated", "retention"), "recreated"),
        (("retention", "recreated", "deleted", "truncated"), "deleted"),
    ],
)
def test_the_gravest_loss_speaks(kinds, speaks):
    made = loss_refusal("t", [lost(kind, number) for number, kind in enumerate(kinds)])
    error, what = LOSSES[speaks]
    assert (type(made), made.what) == (error, f"table `t`: {what}")
    assert made.where == f"missing: {lost(speaks, kinds.index(speaks))}"


@pytest.mark.parametrize("count, more", [(1, 0), (20, 0), (21, 1), (2000, 1980)])
def test_long_lists_of_losses_are_cut(count, more):
    made = loss_refusal("t", [lost("retention", number) for number in range(count)])
    shown = made.where.split("; ")
    assert len(shown) == min(count, 20) + bool(more)
    assert shown[min(count, 20) - 1].endswith(f"orders/{min(count, 20) - 1}: 5 to 9 (4 records)")
    assert (shown[-1] == f"and {more} more") == bool(more)


def test_no_loss_is_a_bug_of_ours():
    assert isinstance(loss_refusal("t", []), errors.InternalError)
