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


def over(measured, known=(), allowed=(), slower=1.0):
    others = {name: slower * seconds for name, seconds in OTHERS.items()}
    lines = balance.over_budget(measured | others, {**dict(known), **OTHERS}, allowed)
    return [line.partition(":")[0] for line in lines]


def test_what_costs_too_much_is_named():
    assert over({"a": 31.0, "b": 29.0}) == ["a"]
    assert over({"a": 31.0}, allowed=["a"]) == []
    assert over({"a[x-1]": 31.0, "a[y-1]": 31.0, "b[x]": 31.0}, allowed=["a", "b[y]"]) == ["b[x]"]
    assert over({"a": 1.0}, {"a": 31.0}) == ["a"]


def test_a_busy_machine_is_no_reason():
    assert over({"new": 80.0}, slower=3) == []
    assert over({"new": 100.0}, slower=3) == ["new"]
    assert over({"new": 40.0}, slower=0.1) == ["new"]  # nor is a quick one


def test_what_became_slow_is_named_though_it_was_written_down_as_quick():
    known = {"a": 10.0}
    assert over({"a": 70.0}, known) == ["a"]
    assert over({"a": 70.0}, known, ["a"]) == []
    assert over({"a": 39.0}, known) == []
    assert over({"a": 41.0}, known) == ["a"]
    assert over({"a": 70.0}, known, slower=2) == []
    assert over({"a": 59.0}, {"a": 29.0}) == []
    assert over({"a": 31.0}, {"a": 1.0}) == ["a"]


def test_a_few_tests_alone_are_not_judged():
    assert list(balance.over_budget({"first": 100.0}, {}, ())) == []


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
