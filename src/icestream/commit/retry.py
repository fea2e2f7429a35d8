"""The one retry loop of commits: once per base, until it is in or may not be.

The stream's commits and those of rewrites go through it. Where Iceberg's own actions drive
(expiry, manifests), they call our TableOperations instead: commit/attempt.py.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from icestream.commit.port import CommitCatalog, CommitFailed
from icestream.commit.protocol import CommitOutcome
from icestream.commit.table_state import TableState
from icestream.errors import Unreachable

ATTEMPTS = 10  # commits of one batch to one table, from ever newer bases


class Attempts(Protocol):
    """What is tried, at one table."""

    name: str

    def try_once(self, state: TableState) -> None:
        """Try from this base; raises CommitFailed, whatever the reason was."""
        ...

    def judge(self, seen: TableState) -> CommitOutcome:
        """After a failure: what the table says. AGAIN: it may be tried from what was seen."""
        ...


@dataclass(frozen=True)
class CommitResult:
    """How a commit ended, and how many attempts it took."""

    outcome: CommitOutcome
    attempts: int
    reason: str | None = None


def commit_with_retries(
    tables: CommitCatalog,
    attempts: Attempts,
    planned: TableState,
    wait: Callable[[int], bool],
) -> CommitResult:
    """Commit once per base until it is in, or until the table says that it may not be.

    `wait(attempt)` waits before another attempt and answers False when there were enough;
    AGAIN as the final outcome means that nothing landed and attempts are used up.
    """
    state, attempt, reason = planned, 0, None
    while True:
        attempt += 1
        try:
            attempts.try_once(state)
            return CommitResult(CommitOutcome.LANDED, attempt, reason)
        except CommitFailed as failure:
            reason = str(failure)
        seen = _reload(tables, attempts.name, wait, attempt)
        if seen is None:
            return CommitResult(CommitOutcome.AGAIN, attempt, reason)
        outcome = attempts.judge(seen)
        if outcome is not CommitOutcome.AGAIN or not wait(attempt):
            return CommitResult(outcome, attempt, reason)
        state = seen


def _reload(
    tables: CommitCatalog, name: str, wait: Callable[[int], bool], attempt: int
) -> TableState | None:
    """Read the table after a failure, also when the catalog needs a while to answer again."""
    while True:
        try:
            return tables.load(name)
        except Unreachable:
            if not wait(attempt):
                return None
            attempt += 1


def backoff(attempt: int) -> bool:
    """Wait a little longer each time, never in step with other writers."""
    if attempt >= ATTEMPTS:
        return False
    time.sleep(random.uniform(0.5, 1.0) * min(5.0, 0.05 * 2**attempt))  # noqa: S311
    return True
