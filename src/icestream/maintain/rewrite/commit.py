"""The commit of a rewrite, between two batches, from exactly the base it looked at."""

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
    """Gives maintenance the moment between two batches."""

    def commit_window(self, table: str) -> AbstractContextManager[Any]:
        """Hold the stream off, for the time of one commit."""
        ...


@dataclass(frozen=True)
class RewriteAttempt:
    """What one attempt commits."""

    replace: ReplacedFiles
    move: (
        RewriteIndexUpdate | None
    )  # what it changes in the key index; None: that finds out by itself
    files: Sequence[StagedFile] = ()  # written for this attempt alone


class StagedRewrite(Protocol):
    """A rewrite that is staged, and made to fit whatever base there is."""

    name: str
    planned: TableState

    def catch_up(self, state: TableState) -> None:
        """Look at what came since, without the stream having to wait; raises GiveWay."""
        ...

    def is_nearly_current(self, state: TableState) -> bool:
        """Whether little enough came since the last look to read it while the stream waits."""
        ...

    def next_attempt(self, state: TableState) -> RewriteAttempt:
        """What to commit from this base; raises GiveWay."""
        ...

    def clean_up(self, landed: RewriteAttempt | None, hopeless: bool) -> None:
        """It is over; `hopeless`: none of the attempts can be in the table, now or later."""
        ...


@dataclass(frozen=True)
class RewriteCommitter:
    """Commits staged rewrites: one attempt per base, in the window between two batches."""

    tables: RewriteCatalog
    indexes: "KeyIndexes | None"
    gate: CommitGate | None

    def commit(self, staged: StagedRewrite, stopped: Callable[[], bool]) -> int:
        """Commit once per base until it is in; returns the attempts.

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
        self._base: int | None = None  # snapshot that the last attempt was made from

    def try_once(self, state: TableState) -> None:
        """Catch up beside the stream, then one compare-and-set while it waits."""
        if self._stopped():
            raise Cancelled
        self._staged.catch_up(self._descendant())
        with self._gate.commit_window(self.name) if self._gate else nullcontext():
            state = self._descendant()
            if not self._staged.is_nearly_current(state):
                raise CommitFailed("much had come")
            attempt = self._staged.next_attempt(state)
            self._base = _current_snapshot(state)
            if self._indexes and attempt.move:
                self._indexes.announce_rewrite(self.name, attempt.move)
            self.open.append(attempt)  # before anything can happen to it
            try:
                self._tables.commit_rewrite(self.name, state.base, attempt.replace)
            except InputsReplaced as failure:
                self.open.remove(attempt)
                self._discard(attempt)
                raise GaveWay(f"somebody else replaced its files: {failure}") from None
            failpoint("rewrite-committed")
            self.landed = attempt

    def judge(self, seen: TableState) -> CommitOutcome:
        """Whether an attempt is in though nobody said so."""
        ids = set(seen.metadata.rewrites(seen.snapshot_ids).values())
        self.landed = next((each for each in self.open if each.replace.rewrite_id in ids), None)
        if self.landed is not None:
            return CommitOutcome.LANDED
        if _current_snapshot(seen) != self._base:
            for attempt in self.open:  # their base is history: what is under way is refused
                self._discard(attempt)
            self.open = []
        return CommitOutcome.AGAIN

    def _descendant(self) -> TableState:
        return _refuse_unless_descendant(self._tables.load(self.name), self._staged.planned)

    def _discard(self, attempt: RewriteAttempt) -> None:
        if self._indexes and attempt.move:
            self._indexes.withdraw_rewrite(self.name, attempt.move.rewrite_id)
        discard(attempt.files)


def _refuse_unless_descendant(state: TableState, planned: TableState) -> TableState:
    """Refuse a table whose history no longer goes through what was planned from."""
    then = planned.ancestors[0]
    if state.uuid == planned.uuid and state.ancestors:
        if any(each.snapshot_id == then.snapshot_id for each in state.ancestors):
            return state
        oldest = state.ancestors[-1]  # what was planned from may be expired by now, but not passed
        if oldest.parent_id is not None and oldest.sequence_number > then.sequence_number:
            return state
    raise GaveWay("the table was moved back or replaced")


def _current_snapshot(state: TableState) -> int | None:
    return state.ancestors[0].snapshot_id if state.ancestors else None
