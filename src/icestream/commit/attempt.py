"""Commits of Iceberg's own actions, each offered once: the table tells what became of it.

An action of Iceberg would try its commit again by itself and clean up after a refusal, which can
delete live files when an answer was lost (docs/design/exactly-once.md). Given these operations it
does neither: no failure that comes out of Python is one that it retries or cleans up after.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError

from icestream.failpoints import failpoint


@dataclass(frozen=True)
class CommitBase:
    """The metadata that a commit compares against, and the operations that loaded it."""

    operations: Any
    metadata: Any
    document: Mapping[str, Any]  # of the same metadata, in Iceberg's JSON, what we look at
    other_facts: str = ""  # tells whether anything but the snapshots has changed


class OneAttemptOperations:
    """Iceberg's TableOperations in Python: the base never moves and commit is tried once."""

    def __init__(self, base: CommitBase) -> None:
        self._real = base.operations
        self._base = base.metadata
        self.failure: str | None = None

    def current(self) -> Any:
        """The base, whatever has happened since."""
        return self._base

    def refresh(self) -> Any:
        """The base again: Iceberg must not move the attempt to a newer one."""
        return self._base

    def commit(self, base: Any, metadata: Any) -> None:
        """Try once; the reason of a failure is kept in `failure`."""
        try:
            failpoint("before-request")
            self._real.commit(base, metadata)
            failpoint("request-sent")
        except Exception as failure:
            # A Java exception must not pass through: Iceberg would take some for "clean up".
            self.failure = first_line(failure)
            raise RuntimeError(self.failure) from None

    def release(self) -> None:
        """Java collects proxies late, and each would keep a table's whole metadata till then."""
        self._real = self._base = None

    def requireStrictCleanup(self) -> bool:  # noqa: N802 (Iceberg's name)
        """Iceberg may clean up only after failures that it marks so; none leaves `commit`."""
        return True

    def io(self) -> Any:
        """The table's own FileIO."""
        return self._real.io()

    def encryption(self) -> Any:
        """The table's own encryption."""
        return self._real.encryption()

    def metadataFileLocation(self, name: str) -> str:  # noqa: N802
        """Where a metadata file of this name lies."""
        return str(self._real.metadataFileLocation(name))

    def locationProvider(self) -> Any:  # noqa: N802
        """The table's own."""
        return self._real.locationProvider()

    def temp(self, metadata: Any) -> Any:
        """Operations on metadata that is not committed yet."""
        return self._real.temp(metadata)

    def newSnapshotId(self) -> int:  # noqa: N802
        """An id that no snapshot has."""
        return int(self._real.newSnapshotId())

    class Java:
        """Tells py4j which interface this object implements."""

        implements = ("org.apache.iceberg.TableOperations",)


def first_line(failure: BaseException) -> str:
    """What failed, in one line; of a Java exception without its stack trace."""
    if isinstance(failure, Py4JJavaError):
        return str(failure.java_exception.toString()).splitlines()[0]
    return f"{type(failure).__name__}: {failure}".splitlines()[0]


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
            self.failure = first_line(failure)
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
