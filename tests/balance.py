"""A pytest plugin: which tests run, in which order, and what one may cost.

Tests go to the worker processes one by one, the longest first by the times in durations.json, so
that the processes end together. What shares an expensive fixture of its module is marked with
`xdist_group` and stays together.
"""

import json
import os
import re
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

DURATIONS = Path(__file__).with_name("durations.json")
BUDGET = Path(__file__).with_name("budget.toml")
BUDGET_SECONDS = 30.0
ENOUGH = 10  # tests whose times are known say how busy the machine is
RECORDED_SECONDS = 0.2  # unit tests that take less are not written down
NEW_SECONDS = 60.0  # what a test may take that has no time yet: it must not come last
_GROUP = re.compile(r"@[^\]@]*$")  # which xdist adds to the id of a test


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("icestream")
    group.addoption("--long", action="store_true", help="also what is marked `long`")
    group.addoption("--record", action="store_true", help="write tests/durations.json anew")


def pytest_configure(config: pytest.Config) -> None:
    more = 4 if config.getoption("--long") else 1
    examples = more * settings.default.max_examples
    # A busy machine takes its time for an example, and is no reason to fail.
    settings.register_profile("icestream", deadline=None, max_examples=examples)
    settings.load_profile("icestream")
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
        return sum(known.get(item.nodeid, NEW_SECONDS) for item in group)

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
        self._near: list[str] = []
        self._judged = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[_GROUP.sub("", report.nodeid)] += report.duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._record and exitstatus == pytest.ExitCode.OK:
            self._write()
        # The budget is that of `make test`; where lines are counted, times mean nothing.
        if not self._long and "COVERAGE_RUN" not in os.environ:
            known, reasons = durations(), allowed()
            self._judged = slowness(self._seconds, known) is not None
            self._over, self._near = over_budget(self._seconds, known, reasons)
        if self._over and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self._seconds.values())
        terminalreporter.write_line(f"sum of the times of all tests: {total:,.0f} s")
        if not self._judged and max(self._seconds.values(), default=0) > BUDGET_SECONDS:
            terminalreporter.write_line(f"budget: not judged by fewer than {ENOUGH} known tests")
        for line in self._near:
            terminalreporter.write_line(f"near the budget: {line}")
        for line in self._over:
            terminalreporter.write_line(f"OVER BUDGET {line}", red=True)

    def _write(self) -> None:
        """What was measured, and what is known of tests that were not among it."""
        measured = {_file(name) for name in self._seconds} if self._long else set()
        found = {n: s for n, s in durations().items() if _file(n) not in measured} | self._seconds
        kept = {
            name: round(s, 1)
            for name, s in sorted(found.items())
            if s >= RECORDED_SECONDS or not name.startswith("tests/unit/")
        }
        DURATIONS.write_text(json.dumps(kept, indent=0) + "\n")


def over_budget(
    measured: Mapping[str, float], known: Mapping[str, float], allowed: Collection[str]
) -> tuple[list[str], list[str]]:
    """Tests over the budget that nobody has given a reason for: those that fail a run, and others.

    A run fails for what is written down as too long, and for what takes more than twice the budget
    and four times its time in this run. The rest is only named: a busy machine is no reason to
    fail. Times are divided by how much slower than in durations.json the tests of this run were. A
    few tests alone say nothing: the first of them pays for the start of Spark.
    """
    over, near = [], []
    slower = slowness(measured, known)
    for name, seconds in measured.items() if slower else ():
        taken, recorded = seconds / slower, known.get(name, 0.0)
        if max(taken, recorded) <= BUDGET_SECONDS or {name, name.partition("[")[0]} & set(allowed):
            continue
        too_long = recorded > BUDGET_SECONDS or taken > max(2 * BUDGET_SECONDS, 4 * recorded)
        (over if too_long else near).append(
            f"{name}: {max(taken, recorded):.0f} s on a quiet machine ({seconds:.0f} s here), more "
            f"than {BUDGET_SECONDS:.0f}: make it shorter, or mark it `long`, or give the reason in "
            "tests/budget.toml"
        )
    return over, near


def slowness(measured: Mapping[str, float], known: Mapping[str, float]) -> float | None:
    """How much slower than written down the tests of this run were; None: too few say so."""
    ratios = [seconds / known[name] for name, seconds in measured.items() if known.get(name, 0) > 1]
    return max(1.0, statistics.median(ratios)) if len(ratios) >= ENOUGH else None


def _file(name: str) -> str:
    return name.partition("::")[0]


def allowed() -> dict[str, str]:
    """Tests that may take longer, each with the reason."""
    return tomllib.loads(BUDGET.read_text())
