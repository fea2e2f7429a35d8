"""What people are told: the right error, its exit code, what was seen, and what to do next."""

import pickle

import pytest

from icestream import errors
from icestream.commit.marker import Marker
from icestream.commit.protocol import Missing, Outcome, TableView, Verdict
from icestream.refusals import refusal

MARKER = Marker("shop", 4, "run", "commit-9", None, 1, "u", 1)
VIEW = TableView("u", MARKER, (), 1, 0)
KINDS = {
    "fenced": (errors.Fenced, 3),
    "gap": (errors.Gap, 1),
    "incarnation": (errors.Incarnation, 1),
    "rewound": (errors.Rewound, 1),
    "replaced": (errors.Replaced, 1),
}


@pytest.mark.parametrize("verdict", KINDS)
def test_each_verdict_has_its_error(verdict):
    kind, code = KINDS[verdict]
    made = refusal("shop.orders", verdict, VIEW, [Missing("orders", 2, 10, 15)])
    assert type(made) is kind
    assert made.exit_code == code
    assert "`shop.orders`" in made.what
    assert made.hint
    if verdict == "gap":
        assert made.where == "missing: orders/2: 10 to 15"
    else:
        assert made.where == "marker commit-9, generation 4"


@pytest.mark.parametrize("verdict", KINDS)
def test_a_table_without_a_marker(verdict):
    for view in (None, TableView("u", None, (), 1, 0)):
        made = refusal("t", verdict, view)
        assert type(made) is KINDS[verdict][0]
        assert "None" not in f"{made.what}{made.where or ''}"


def test_everything_that_stops_a_table_has_a_text():
    go_on = {"commit", "skip", "landed", "again", "restage"}
    stops = {each.value for kind in (Verdict, Outcome) for each in kind} - go_on
    assert stops == set(KINDS)


def test_what_has_no_text_is_a_bug_of_ours():
    assert isinstance(refusal("t", "landed"), errors.InternalError)


def test_errors_cross_processes_whole():
    made = refusal("t", "gap", VIEW, [Missing("orders", 0, 1, 2)])
    again = pickle.loads(pickle.dumps(made))
    assert (type(again), again.what, again.where, again.hint) == (
        errors.Gap, made.what, made.where, made.hint,
    )  # fmt: skip
