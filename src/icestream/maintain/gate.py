"""Turns: a batch of the stream and a commit of maintenance take turns, the stream first.

One gate per pipeline and not per table: a batch plans all its tables before it stages any, and
lands them together, so the moment between two batches is the same for all of them.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONGEST_WAIT = 5.0  # seconds that a batch waits for a commit of maintenance
_LOOK_EVERY = 0.2


class GateClosed(Exception):
    """Maintenance was asked to stop while it waited for its turn."""


class MaintenanceGate:
    """The gate. Between two batches one waiting commit may pass, however busy the stream is."""

    def __init__(
        self, longest_wait: float = LONGEST_WAIT, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self._longest_wait = longest_wait
        self._stopped = stopped
        self._changed = threading.Condition()
        self._batches = 0  # at work: 1 or 0
        self._waiting = 0
        self._taken = False
        self._passed = 0
        self._queued = False  # a batch waits for the commit that passes
        self._closed = False  # it has passed, so the batch is next

    @contextmanager
    def batch(self) -> Iterator[None]:
        """The stream, from planning to landing; waits for one commit at most, and not for long.

        A commit that is still not through then loses by compare-and-set, which harms nobody.
        """
        with self._changed:
            deadline = time.monotonic() + self._longest_wait
            before = self._passed
            self._queued = True
            while (self._taken or self._waiting) and self._passed == before:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            self._queued = self._closed = False
            self._batches += 1
        try:
            yield
        finally:
            with self._changed:
                self._batches -= 1
                self._changed.notify_all()

    @contextmanager
    def commit_window(self, table: str) -> Iterator[None]:
        """Maintenance, for the short time of one commit; raises NoTurn when it is to stop."""
        with self._changed:
            self._waiting += 1
            try:
                while self._batches or self._taken or self._closed:
                    if self._stopped():
                        raise GateClosed
                    self._changed.wait(_LOOK_EVERY)
                self._taken = True
            finally:
                self._waiting -= 1
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._passed += 1
                self._closed = self._queued
                self._changed.notify_all()
