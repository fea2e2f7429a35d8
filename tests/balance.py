"""A pytest plugin: which tests run, in which order, and what one may cost.

Tests go to the worker processes one by one, the longest first by the times in durations.json, so
that the processes end together. What shares an expensive fixture of its module is marked with
`xdist_group` and stays together.
"""

import json
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import settings

DURATIONS = Path(__file__).with_name("durations.json")
BUDGET = Path(__file__).with_name("budget.toml")
BUDGET_SECONDS = 30.0
RECORDED_SECONDS = 0.2  # what takes less is not written down


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("icestream")
    group.addoption("--long", action="store_true", help="also what is marked `long`")
    group.addoption("--record", action="store_true", help="write tests/durations.json anew")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--long"):
        settings.register_profile("long", max_examples=4 * settings.default.max_examples)
        settings.load_profile("long")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Clock(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
    if getattr(config.option, "loadgroup", False):  # a worker process of `--dist loadgroup`
        items[:] = longest_first(items)


def longest_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Groups by the sum of their times; within a group the order stays."""
    known = durations()
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        groups[mark.args[0] if mark else item.nodeid].append(item)

    def seconds(group: list[pytest.Item]) -> float:
        return sum(known.get(item.nodeid, 0.0) for item in group)

    ordered = sorted(groups.items(), key=lambda pair: (-seconds(pair[1]), pair[0]))
    return [item for _, group in ordered for item in group]


def durations() -> dict[str, float]:
    """Seconds of tests on a quiet machine, by their ids."""
    return json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}


class Clock:
    """Measures the tests of this run, in the process that hands them out."""

    def __init__(self, config: pytest.Config) -> None:
        self._long = config.getoption("--long")
        self._record = config.getoption("--record")
        self._seconds: dict[str, float] = defaultdict(float)
        self._over: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("@")[0]] += report.duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._record:
            self._write()
        if not self._long:  # the budget is that of `make test`
            self._over = list(over_budget(self._seconds, durations(), allowed()))
        if self._over and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self._seconds.values())
        terminalreporter.write_line(f"{total:,.0f} s of tests in all processes together")
        for line in self._over:
            terminalreporter.write_line(f"OVER BUDGET {line}", red=True)

    def _write(self) -> None:
        found = durations() | dict(self._seconds)
        kept = {name: round(s, 1) for name, s in sorted(found.items()) if s >= RECORDED_SECONDS}
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")


def over_budget(
    measured: dict[str, float], known: dict[str, float], allowed: Iterable[str]
) -> Iterable[str]:
    """Tests over the budget that nobody has given a reason for.

    A busy machine is no reason: what has a time in durations.json is judged by that, and a new
    test by this run, divided by how much slower than written down the others were in it.
    """
    ratios = [seconds / known[name] for name, seconds in measured.items() if known.get(name, 0) > 1]
    slower = max(1.0, statistics.median(ratios)) if ratios else 1.0
    for name, seconds in measured.items():
        taken = known.get(name, seconds / slower)
        if taken > BUDGET_SECONDS and name not in allowed:
            yield (
                f"{name}: {taken:.0f} s, more than {BUDGET_SECONDS:.0f}: make it shorter, or move "
                "it to `make test-long`, or give the reason in tests/budget.toml"
            )


def allowed() -> dict[str, str]:
    """Tests that may take longer, each with the reason."""
    return tomllib.loads(BUDGET.read_text())


def pairwise(*axes: Iterable[Any], seed: int = 1) -> list[Any]:
    """All combinations as parameters: each pair of values in some test, the others marked `long`.

    A fault hides in one value or in two that meet, hardly ever in three.
    """
    whole = list(product(*axes))
    shuffled = Random(seed).sample(whole, len(whole))
    missing = {pair for row in whole for pair in _pairs(row)}
    chosen = set()
    while missing:
        best = max(shuffled, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        chosen.add(best)
    return [
        pytest.param(*row, marks=() if row in chosen else pytest.mark.long)  # type: ignore[arg-type]
        for row in whole
    ]


def _pairs(row: tuple[Any, ...]) -> set[tuple[Any, ...]]:
    return set(combinations(enumerate(row), 2))
