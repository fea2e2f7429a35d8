"""Iceberg's TableOperations in Python: a commit is tried once, and the table tells its outcome.

Iceberg would repeat a commit by itself and clean up after a refusal, which can delete live files
when an answer was lost (docs/design/exactly-once.md). With these operations it does neither: no
failure that comes out of Python is one that it retries or cleans up after.
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
    document: Mapping[str, Any]  # the same metadata as Iceberg's JSON, which Python reads
    other_facts: str = ""  # compared to see whether anything but the snapshots has changed


class OneAttemptOperations:
    """TableOperations for our own commits: the base never moves and commit is tried once."""

    def __init__(self, base: CommitBase) -> None:
        self._real = base.operations
        self._base = base.metadata
        self.failure: str | None = None

    def current(self) -> Any:
        """The base, whatever has happened since."""
        return self._base

    def refresh(self) -> Any:
        """The base again: Iceberg must not move the attempt to newer metadata."""
        return self._base

    def commit(self, base: Any, metadata: Any) -> None:
        """Try once; the reason of a failure stays in `failure`."""
        try:
            failpoint("before-request")
            self._real.commit(base, metadata)
            failpoint("request-sent")
        except Exception as failure:
            # A Java exception must not pass through: Iceberg would take some for "clean up".
            self.failure = first_line(failure)
            raise RuntimeError(self.failure) from None

    def release(self) -> None:
        """Free the metadata: Java collects proxies late, and each would keep it till then."""
        self._real = self._base = None

    def requireStrictCleanup(self) -> bool:  # noqa: N802 (Iceberg's name)
        """True: Iceberg cleans up only after a `CleanableFailure`, and none leaves `commit`."""
        return True

    def io(self) -> Any:
        """The table's own FileIO."""
        return self._real.io()

    def encryption(self) -> Any:
        """The table's own encryption."""
        return self._real.encryption()

    def metadataFileLocation(self, name: str) -> str:  # noqa: N802
        """The path for a metadata file of this name."""
        return str(self._real.metadataFileLocation(name))

    def locationProvider(self) -> Any:  # noqa: N802
        """The table's own location provider."""
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
    """Describe a failure in one line; a Java exception without its stack trace."""
    if isinstance(failure, Py4JJavaError):
        return str(failure.java_exception.toString()).splitlines()[0]
    return f"{type(failure).__name__}: {failure}".splitlines()[0]


class ActionOperations(OneAttemptOperations):
    """TableOperations for Iceberg's own actions: a fresh base for the commit, tried once.

    The commit window is taken when the action refreshes in order to commit, and ends with the
    attempt.
    """

    def __init__(
        self,
        base: CommitBase,
        commit_window: Callable[[], AbstractContextManager[None]] = nullcontext,
        before: str = "",
        after: str = "",
    ) -> None:
        super().__init__(base)
        self._commit_window = commit_window
        self._failpoints = before, after
        self._window = ExitStack()
        self._has_window = False
        self.planned = base.metadata
        self.offered: Any = None  # the metadata that was to become the table's
        self.base: Any = None  # what it was to replace

    def refresh(self) -> Any:
        """Load the newest metadata, in the commit window unless the commit was tried already."""
        if self.offered is None and not self._has_window:
            self._window.enter_context(self._commit_window())
            self._has_window = True
        self._base = self._real.refresh()
        return self._base

    def commit(self, base: Any, metadata: Any) -> None:
        """Try once, and end the commit window."""
        self.base, self.offered = base, metadata
        try:
            self._pass_failpoint(0)
            self._real.commit(base, metadata)
            self._pass_failpoint(1)
        except Exception as failure:
            self.failure = first_line(failure)
            raise RuntimeError(self.failure) from None
        finally:
            self._window.close()

    def reload(self) -> Any:
        """Load the table's metadata as it is now, without the commit window."""
        return self._real.refresh()

    def release(self) -> None:
        """End the commit window, however far the action came, and free the metadata."""
        self._window.close()
        super().release()
        self.planned = self.offered = self.base = None

    def _pass_failpoint(self, index: int) -> None:
        if self._failpoints[index]:
            failpoint(self._failpoints[index])
