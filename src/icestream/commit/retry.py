"""The one retry loop of commits: one attempt per base, until it is committed or must not be.

Commits of runs and of rewrites go through it. Iceberg's own actions (expiry, manifests) call our
TableOperations instead: commit/attempt.py.
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
    """The attempts of one commit to one table."""

    name: str

    def try_once(self, state: TableState) -> None:
        """Try to commit from this base; raises CommitFailed, whatever the reason was."""
        ...

    def judge(self, state: TableState) -> CommitOutcome:
        """After a failure: what the table says. AGAIN: another attempt may start from `state`."""
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
    """Try once per base until the commit is in the table, or the table says that it must not be.

    `wait(attempt)` waits before another attempt and returns False when there were enough. AGAIN
    as the final outcome: attempts are used up, and as far as we know nothing was committed.
    """
    state, attempt, reason = planned, 0, None
    while True:
        attempt += 1
        try:
            attempts.try_once(state)
            return CommitResult(CommitOutcome.LANDED, attempt, reason)
        except CommitFailed as failure:
            reason = str(failure)
        reloaded = _reload(tables, attempts.name, wait, attempt)
        if reloaded is None:
            return CommitResult(CommitOutcome.AGAIN, attempt, reason)
        outcome = attempts.judge(reloaded)
        if outcome is not CommitOutcome.AGAIN or not wait(attempt):
            return CommitResult(outcome, attempt, reason)
        state = reloaded


def _reload(
    tables: CommitCatalog, name: str, wait: Callable[[int], bool], attempt: int
) -> TableState | None:
    """Load the table after a failed attempt, also if the catalog needs a while to answer."""
    while True:
        try:
            return tables.load(name)
        except Unreachable:
            if not wait(attempt):
                return None
            attempt += 1


def backoff(attempt: int) -> bool:
    """Wait longer each time, by a random share, so that writers get out of step."""
    if attempt >= ATTEMPTS:
        return False
    time.sleep(random.uniform(0.5, 1.0) * min(5.0, 0.05 * 2**attempt))  # noqa: S311
    return True
