"""Commits of Iceberg's own actions, each offered once: the table tells what became of it.

An action of Iceberg would try its commit again by itself and clean up after a refusal, which can
delete live files when an answer was lost (docs/design/exactly-once.md). Given these operations it
does neither: no failure that comes out of Python is one that it retries or cleans up after.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from icestream.commit.java_catalog import CommitBase, OneAttemptOperations, _first_line
from icestream.failpoints import failpoint


class ActionOperations(OneAttemptOperations):
    """Iceberg's TableOperations in Python: a fresh base for the commit, which is tried once.

    The turn is taken when the action looks at the table to commit, and ends with the attempt.
    """

    def __init__(
        self,
        base: CommitBase,
        turn: Callable[[], AbstractContextManager[None]] = nullcontext,
        before: str = "",
        after: str = "",
    ) -> None:
        super().__init__(base)
        self._turn = turn
        self._points = before, after  # failpoints
        self._held = ExitStack()
        self._holds = False
        self.planned = base.metadata
        self.offered: Any = None  # the metadata that was to become the table's
        self.base: Any = None  # what it was to replace

    def refresh(self) -> Any:
        """The newest metadata; once something is offered, this is only to look at it."""
        if self.offered is None and not self._holds:
            self._held.enter_context(self._turn())
            self._holds = True
        self._base = self._real.refresh()
        return self._base

    def commit(self, base: Any, metadata: Any) -> None:
        """Try once."""
        self.base, self.offered = base, metadata
        try:
            self._pass_failpoint(0)
            self._real.commit(base, metadata)
            self._pass_failpoint(1)
        except Exception as failure:
            self.failure = _first_line(failure)
            raise RuntimeError(self.failure) from None
        finally:
            self._held.close()

    def reload(self) -> Any:
        """The table's metadata now."""
        return self._real.refresh()

    def release(self) -> None:
        """End the turn, however far it came, and free the metadata."""
        self._held.close()
        super().release()
        self.planned = self.offered = self.base = None

    def _pass_failpoint(self, which: int) -> None:
        if self._points[which]:
            failpoint(self._points[which])
