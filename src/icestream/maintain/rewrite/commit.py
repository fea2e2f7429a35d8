"""The commit of a rewrite: in the window between two batches, one attempt from each base."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from icestream.commit import retry
from icestream.commit.port import CommitFailed, InputsReplaced, ReplacedFiles, RewriteCatalog
from icestream.commit.protocol import CommitOutcome
from icestream.commit.table_state import TableState
from icestream.failpoints import failpoint
from icestream.index.rewrite_update import RewriteIndexUpdate
from icestream.maintain.action import GaveWay
from icestream.maintain.gate import GateClosed
from icestream.maintain.rewrite.task_runner import Cancelled
from icestream.write.staged import discard
from icestream.write.target import StagedFile

if TYPE_CHECKING:
    from icestream.upsert.indexes import KeyIndexes


class CommitGate(Protocol):
    """Gives maintenance the time between two batches; `MaintenanceGate` is one."""

    def commit_window(self, table: str) -> AbstractContextManager[Any]:
        """Context manager: no batch begins while the block commits to the table."""
        ...


@dataclass(frozen=True)
class RewriteAttempt:
    """What one attempt commits."""

    replace: ReplacedFiles
    index_update: RewriteIndexUpdate | None  # None: the key index will follow by reading the table
    files: Sequence[StagedFile] = ()  # delete files written for this attempt alone


class StagedRewrite(Protocol):
    """A rewrite whose files are staged, and which makes an attempt to commit from any base."""

    name: str
    planned: TableState

    def catch_up(self, state: TableState) -> None:
        """Read what was committed since, while the run goes on; raises GaveWay."""
        ...

    def is_nearly_current(self, state: TableState) -> bool:
        """Whether so little was committed since `catch_up` that the run can wait for the rest."""
        ...

    def next_attempt(self, state: TableState) -> RewriteAttempt:
        """Return what to commit from this base; raises GaveWay."""
        ...

    def clean_up(self, landed: RewriteAttempt | None, hopeless: bool) -> None:
        """Remove what no attempt can have committed; RewriteCommitter calls it once, at the end.

        `hopeless`: no attempt is in the table, or can still get there.
        """
        ...


@dataclass(frozen=True)
class RewriteCommitter:
    """Commits staged rewrites: one attempt per base, in the window between two batches."""

    tables: RewriteCatalog
    indexes: "KeyIndexes | None"
    gate: CommitGate | None

    def commit(self, staged: StagedRewrite, stopped: Callable[[], bool]) -> int:
        """Try once per base until the rewrite is in the table. Returns the number of attempts.

        Raises GaveWay, Cancelled or GateClosed.
        """
        attempts = _RewriteAttempts(self.tables, self.indexes, self.gate, staged, stopped)
        hopeless = False
        try:
            result = retry.commit_with_retries(self.tables, attempts, staged.planned, retry.backoff)
            if result.outcome is CommitOutcome.LANDED:
                return result.attempts
            raise GaveWay(f"{result.attempts} attempts, the last one: {result.reason}")
        except (GaveWay, Cancelled, GateClosed):
            hopeless = not attempts.open
            raise
        finally:
            staged.clean_up(attempts.landed, hopeless)


class _RewriteAttempts:
    """The attempts of one rewrite, for `commit_with_retries`."""

    def __init__(
        self,
        tables: RewriteCatalog,
        indexes: "KeyIndexes | None",
        gate: CommitGate | None,
        staged: StagedRewrite,
        stopped: Callable[[], bool],
    ) -> None:
        self.name = staged.name
        self.open: list[RewriteAttempt] = []  # that may be in the table, or come to be
        self.landed: RewriteAttempt | None = None
        self._tables = tables
        self._indexes = indexes
        self._gate = gate
        self._staged = staged
        self._stopped = stopped
        self._base_id: int | None = None  # snapshot that the last attempt was made from

    def try_once(self, state: TableState) -> None:
        """Catch up while the run goes on, then commit by one compare-and-set while it waits."""
        if self._stopped():
            raise Cancelled
        self._staged.catch_up(self._descendant())
        with self._gate.commit_window(self.name) if self._gate else nullcontext():
            state = self._descendant()
            if not self._staged.is_nearly_current(state):
                raise CommitFailed("much had come")
            attempt = self._staged.next_attempt(state)
            self._base_id = _current_snapshot(state)
            # Before the commit: the next batch may find the rewrite in the table at once.
            if self._indexes and attempt.index_update:
                self._indexes.announce_rewrite(self.name, attempt.index_update)
            self.open.append(attempt)  # from now on it may be in the table
            try:
                self._tables.commit_rewrite(self.name, state.base, attempt.replace)
            except InputsReplaced as failure:
                self.open.remove(attempt)
                self._discard(attempt)
                raise GaveWay(f"somebody else replaced its files: {failure}") from None
            failpoint("rewrite-committed")
            self.landed = attempt

    def judge(self, state: TableState) -> CommitOutcome:
        """Whether an attempt was committed although its answer was lost."""
        ids = set(state.metadata.rewrites(state.snapshot_ids).values())
        self.landed = next((each for each in self.open if each.replace.rewrite_id in ids), None)
        if self.landed is not None:
            return CommitOutcome.LANDED
        if _current_snapshot(state) != self._base_id:
            for attempt in self.open:  # their base is no longer current: the catalog refuses them
                self._discard(attempt)
            self.open = []
        return CommitOutcome.AGAIN

    def _descendant(self) -> TableState:
        return _refuse_unless_descendant(self._tables.load(self.name), self._staged.planned)

    def _discard(self, attempt: RewriteAttempt) -> None:
        if self._indexes and attempt.index_update:
            self._indexes.withdraw_rewrite(self.name, attempt.index_update.rewrite_id)
        discard(attempt.files)


def _refuse_unless_descendant(state: TableState, planned: TableState) -> TableState:
    """Return `state`; raises GaveWay if the planned snapshot is not among its ancestors."""
    base = planned.ancestors[0]
    if state.uuid == planned.uuid and state.ancestors:
        if base.snapshot_id in state.snapshot_ids:
            return state
        oldest = state.ancestors[-1]  # the planned snapshot may have been expired since
        if oldest.parent_id is not None and oldest.sequence_number > base.sequence_number:
            return state
    raise GaveWay("the table was moved back or replaced")


def _current_snapshot(state: TableState) -> int | None:
    return state.ancestors[0].snapshot_id if state.ancestors else None
