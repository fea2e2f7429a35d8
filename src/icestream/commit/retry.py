"""The retry loop of a commit: once per base, until it is in or may not be."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icestream.commit.port import CommitCatalog, CommitFailed
from icestream.commit.protocol import CommitOutcome, outcome_of_commit
from icestream.commit.table_state import TableState
from icestream.errors import Unreachable
from icestream.tables.marker import Marker


@dataclass(frozen=True)
class CommitResult:
    """How a commit ended, and how many attempts it took."""

    outcome: CommitOutcome
    attempts: int
    reason: str | None = None


def commit_with_retries(
    tables: CommitCatalog,
    name: str,
    planned: TableState,
    make: Callable[[TableState], Marker],
    work: Any,
    pause: Callable[[int], bool],
    look: Callable[[TableState], CommitOutcome] | None = None,
    pinned: bool = False,
) -> CommitResult:
    """Commit `work` once per base until it is in, or until the table says that it may not be.

    `make` gives the marker for the base that is tried, always with the same commit id.
    `pause(attempt)` waits before another attempt and answers False when there were enough;
    AGAIN as the final outcome means that nothing landed and attempts are used up.
    """
    view, attempt, reason = planned, 0, None
    while True:
        attempt += 1
        marker = make(view)
        before = view.marker.positions if view.marker else {}
        try:
            tables.commit(name, view.base, marker, before, work)
            return CommitResult(CommitOutcome.LANDED, attempt, reason)
        except CommitFailed as failure:
            reason = str(failure)
        seen = _reload(tables, name, pause, attempt)
        if seen is None:
            return CommitResult(CommitOutcome.AGAIN, attempt, reason)
        outcome = look(seen) if look else outcome_of_commit(seen, marker, planned, pinned)
        if outcome is not CommitOutcome.AGAIN or not pause(attempt):
            return CommitResult(outcome, attempt, reason)
        view = seen


def _reload(
    tables: CommitCatalog, name: str, pause: Callable[[int], bool], attempt: int
) -> TableState | None:
    """Read the table after a failure, also when the catalog needs a while to answer again."""
    while True:
        try:
            return tables.load(name)
        except Unreachable:
            if not pause(attempt):
                return None
            attempt += 1


_ATTEMPTS = 10  # commits of one batch to one table, from ever newer bases


def backoff(attempt: int) -> bool:
    """Wait a little longer each time, never in step with other writers."""
    if attempt >= _ATTEMPTS:
        return False
    time.sleep(random.uniform(0.5, 1.0) * min(5.0, 0.05 * 2**attempt))  # noqa: S311
    return True
