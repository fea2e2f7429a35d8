"""The plugin that says what runs when, and what a test may cost (tests/balance.py)."""

from itertools import combinations
from types import SimpleNamespace

import pytest

import balance


def item(name, group=None):
    mark = SimpleNamespace(args=[group]) if group else None
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: mark)


def test_the_longest_come_first_and_a_group_stays_together(monkeypatch):
    known = {"a": 3.0, "b": 5.0, "g1": 2.0, "g2": 4.0}
    monkeypatch.setattr(balance, "durations", lambda: known)
    items = [item("new"), item("a"), item("g1", "g"), item("b"), item("g2", "g")]
    ordered = [each.nodeid for each in balance.longest_first(items)]
    assert ordered == ["g1", "g2", "b", "a", "new"]


def test_pairs_of_values_meet_and_the_rest_is_long():
    axes = (range(3), "ab", "xyz", [True, False])
    every = balance.pairwise(*axes)
    assert len(every) == 3 * 2 * 3 * 2
    short = [each.values for each in every if pytest.mark.long not in each.marks]
    assert 9 <= len(short) <= 12
    for one, two in combinations(range(4), 2):
        met = {(row[one], row[two]) for row in short}
        assert met == {(left, right) for left in axes[one] for right in axes[two]}
    assert [each.marks for each in balance.pairwise(*axes)] == [each.marks for each in every]


def over(measured, known, allowed=()):
    return [line.partition(":")[0] for line in balance.over_budget(measured, known, allowed)]


def test_what_costs_too_much_is_named():
    assert over({"a": 31.0, "b": 29.0}, {}) == ["a"]
    assert over({"a": 31.0}, {}, ["a"]) == []
    assert over({"a": 1.0}, {"a": 31.0}) == ["a"]


def test_a_busy_machine_is_no_reason():
    known = {"a": 10.0, "b": 20.0, "c": 4.0}
    busy = {"a": 30.0, "b": 60.0, "c": 12.0}
    assert over(busy, known) == []
    assert over({**busy, "new": 80.0}, known) == []
    assert over({**busy, "new": 100.0}, known) == ["new"]
    assert over({"a": 1.0, "b": 2.0, "new": 40.0}, known) == ["new"]  # nor is a quick one


def test_each_reason_is_for_a_test_that_there_is():
    root = balance.BUDGET.parent.parent
    for name, reason in balance.allowed().items():
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (root / file).read_text()
        assert len(reason) > 20
