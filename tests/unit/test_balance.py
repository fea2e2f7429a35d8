"""The plugin that says what runs when, and what a test may cost (tests/balance.py)."""

from types import SimpleNamespace

import balance


def item(name, group=None):
    mark = SimpleNamespace(args=[group]) if group else None
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: mark)


def test_the_longest_come_first_and_a_group_stays_together(monkeypatch):
    known = {"a": 3.0, "b": 5.0, "g1": 2.0, "g2": 4.0}
    monkeypatch.setattr(balance, "durations", lambda: known)
    items = [item("new"), item("a"), item("g1", "g"), item("b"), item("g2", "g")]
    ordered = [each.nodeid for each in balance.longest_first(items)]
    assert ordered == ["new", "g1", "g2", "b", "a"]


OTHERS = {f"other {n}": 5.0 for n in range(balance.ENOUGH)}


def judged(measured, known=(), allowed=(), slower=1.0):
    """→ the tests that fail a run, and those that are only named."""
    others = {name: slower * seconds for name, seconds in OTHERS.items()}
    found = balance.over_budget(measured | others, {**dict(known), **OTHERS}, allowed)
    over, near = ([line.partition(":")[0] for line in lines] for lines in found)
    return over, near


def test_what_costs_too_much_is_named():
    assert judged({"a": 31.0, "b": 29.0}) == ([], ["a"])
    assert judged({"a": 61.0}) == (["a"], [])
    assert judged({"a": 61.0}, allowed=["a"]) == ([], [])
    assert judged({"a": 1.0}, {"a": 31.0}) == (["a"], [])


def test_a_reason_may_be_for_a_test_with_all_its_parameters():
    times = {"a[x-1]": 61.0, "a[y-1]": 61.0, "b[x]": 61.0}
    assert judged(times, allowed=["a", "b[y]"]) == (["b[x]"], [])


def test_a_busy_machine_is_no_reason():
    assert judged({"new": 80.0}, slower=3) == ([], [])
    assert judged({"new": 100.0}, slower=3) == ([], ["new"])
    assert judged({"new": 190.0}, slower=3) == (["new"], [])
    assert judged({"new": 40.0}, slower=0.1) == ([], ["new"])  # nor is a quick one


def test_what_became_slow_is_named_though_it_was_written_down_as_quick():
    assert judged({"a": 59.0}, {"a": 10.0}) == ([], ["a"])
    assert judged({"a": 61.0}, {"a": 10.0}) == (["a"], [])
    assert judged({"a": 61.0}, {"a": 10.0}, ["a"]) == ([], [])
    assert judged({"a": 61.0}, {"a": 10.0}, slower=3) == ([], [])
    assert judged({"a": 110.0}, {"a": 29.0}) == ([], ["a"])  # beside others as long as itself
    assert judged({"a": 120.0}, {"a": 29.0}) == (["a"], [])


def test_a_few_tests_alone_are_not_judged():
    assert balance.over_budget({"first": 100.0}, {}, ()) == ([], [])


def test_times_of_files_that_were_not_run_stay(monkeypatch, tmp_path):
    monkeypatch.setattr(balance, "DURATIONS", tmp_path / "durations.json")
    balance.DURATIONS.write_text('{"a.py::gone": 3.0, "b.py::kept": 4.0}')
    clock = balance.Clock(SimpleNamespace(getoption=lambda _: True))
    for name, seconds in [("a.py::one[x@y]@group", 2.0), ("a.py::one[x@y]", 1.0)]:
        clock.pytest_runtest_logreport(SimpleNamespace(nodeid=name, duration=seconds))
    session = SimpleNamespace(exitstatus=None)
    clock.pytest_sessionfinish(session, 1)  # a run with a failure measures nothing
    assert balance.durations() == {"a.py::gone": 3.0, "b.py::kept": 4.0}
    clock.pytest_sessionfinish(session, 0)
    assert balance.durations() == {"a.py::one[x@y]": 3.0, "b.py::kept": 4.0}


def test_each_reason_is_for_a_test_that_there_is():
    root = balance.BUDGET.parent.parent
    for name, reason in balance.allowed().items():
        file, _, test = name.partition("::")
        assert f"def {test.partition('[')[0]}(" in (root / file).read_text()
        assert len(reason) > 20
