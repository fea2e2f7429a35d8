"""The gate between batches of a run and commits of maintenance: they exclude each other.

One gate per pipeline and not per table: a batch plans all its tables before it stages any, and
commits them together, so the moment between two batches is the same for all of them.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONGEST_WAIT = 5.0  # seconds that a batch waits for a commit of maintenance
_POLL_SECONDS = 0.2


class GateClosed(Exception):
    """Raised when maintenance is asked to stop while it waits for its commit window."""


class MaintenanceGate:
    """Lets one waiting commit of maintenance pass between two batches, however busy the run is."""

    def __init__(
        self, longest_wait: float = LONGEST_WAIT, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._longest_wait = longest_wait
        self._stopped = stopped
        self._changed = threading.Condition()
        self._batches = 0  # under way: 1 or 0
        self._commits_waiting = 0
        self._commit_open = False
        self._commits_passed = 0
        self._is_batch_waiting = False  # for the commit that passes
        self._is_batch_next = False  # the commit has passed: no other one before the batch

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Context manager of a batch, from its plan to its commits.

        Waits for one commit of maintenance at most, and not for long. A commit that has not ended
        by then loses by compare-and-set, and is tried again.
        """
        with self._changed:
            deadline = time.monotonic() + self._longest_wait
            before = self._commits_passed
            self._is_batch_waiting = True
            while self._commits_passed == before and (self._commit_open or self._commits_waiting):
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0 or not self._changed.wait(seconds_left):
                    break
            self._is_batch_waiting = self._is_batch_next = False
            self._batches += 1
        try:
            yield
        finally:
            with self._changed:
                self._batches -= 1
                self._changed.notify_all()

    @contextmanager
    def commit_window(self, table: str) -> Iterator[None]:
        """Context manager of one commit of maintenance; raises GateClosed if asked to stop."""
        with self._changed:
            self._commits_waiting += 1
            try:
                while self._batches or self._commit_open or self._is_batch_next:
                    if self._stopped():
                        raise GateClosed
                    self._changed.wait(_POLL_SECONDS)
                self._commit_open = True
            finally:
                self._commits_waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._commit_open = False
                self._commits_passed += 1
                self._is_batch_next = self._is_batch_waiting
                self._changed.notify_all()
