"""The commit of a rewrite, between two batches, from exactly the base it looked at."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from icestream.commit.java_catalog import IcebergTables
from icestream.commit.port import CommitFailed, InputsReplaced, ReplacedFiles
from icestream.commit.table_state import TableState
from icestream.errors import Unreachable
from icestream.failpoints import failpoint
from icestream.index.rewrite_update import RewriteIndexUpdate
from icestream.maintain.action import GaveWay
from icestream.maintain.gate import GateClosed
from icestream.maintain.rewrite.task_runner import Cancelled
from icestream.tables.commits import rewrites_among
from icestream.write.staged import discard
from icestream.write.target import StagedFile

if TYPE_CHECKING:
    from icestream.batch.mirrors import Mirrors

ATTEMPTS = 10


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

    def catch_up(self, view: TableState) -> None:
        """Look at what came since, without the stream having to wait; raises GiveWay."""
        ...

    def is_nearly_current(self, view: TableState) -> bool:
        """Whether little enough came since the last look to read it while the stream waits."""
        ...

    def next_attempt(self, view: TableState) -> RewriteAttempt:
        """What to commit from this base; raises GiveWay."""
        ...

    def clean_up(self, landed: RewriteAttempt | None, hopeless: bool) -> None:
        """It is over; `hopeless`: none of the attempts can be in the table, now or later."""
        ...


@dataclass(frozen=True)
class RewriteCommitter:
    """What commits go through."""

    tables: IcebergTables
    mirrors: "Mirrors | None"
    turns: CommitGate | None

    def commit(self, offer: StagedRewrite, stopped: Callable[[], bool]) -> int:
        """Commit once per base until it is in; → attempts. Raises GiveWay, Cancelled, NoTurn."""
        tries: list[RewriteAttempt] = []  # that may be in the table, or come to be
        landed: RewriteAttempt | None = None
        hopeless, reason = False, None
        try:
            for attempt in range(1, ATTEMPTS + 1):
                if stopped():
                    raise Cancelled
                offer.catch_up(
                    _refuse_unless_descendant(self.tables.load(offer.name), offer.planned)
                )
                before = len(tries)
                view, reason = self._attempt(offer, tries)
                if len(tries) == before:
                    continue  # too much came before its turn
                if reason is None:
                    landed = tries[-1]
                    return attempt
                seen = self._reload(offer.name, attempt)
                landed = _landed_attempt(seen, tries)
                if landed is not None:
                    return attempt
                if seen is not None and _current_snapshot(seen) != _current_snapshot(view):
                    for each in tries:  # their base is history: whatever is under way is refused
                        self._discard_attempt(offer.name, each)
                    tries = []
                _backoff(attempt)
            raise GaveWay(f"{ATTEMPTS} attempts, the last one: {reason or 'much had come'}")
        except (GaveWay, Cancelled, GateClosed):
            hopeless = not tries
            raise
        finally:
            offer.clean_up(landed, hopeless)

    def _attempt(
        self, offer: StagedRewrite, tries: list[RewriteAttempt]
    ) -> tuple[TableState, str | None]:
        """One attempt in a turn, added to `tries`; → its base, and why it failed if it did."""
        name = offer.name
        with self.turns.commit_window(name) if self.turns else nullcontext():
            view = _refuse_unless_descendant(self.tables.load(name), offer.planned)
            if not offer.is_nearly_current(view):
                return view, None
            made = offer.next_attempt(view)
            if self.mirrors and made.move:
                self.mirrors.announce_rewrite(name, made.move)
            tries.append(made)  # before anything can happen to it
            try:
                self.tables.commit_rewrite(name, view.base, made.replace)
            except InputsReplaced as failure:
                tries.remove(made)
                self._discard_attempt(name, made)
                raise GaveWay(f"somebody else replaced its files: {failure}") from None
            except CommitFailed as failure:
                return view, str(failure)
            failpoint("rewrite-committed")
            return view, None

    def _discard_attempt(self, name: str, made: RewriteAttempt) -> None:
        if self.mirrors and made.move:
            self.mirrors.withdraw_rewrite(name, made.move.rewrite_id)
        discard(made.files)

    def _reload(self, name: str, attempt: int) -> TableState | None:
        while True:
            try:
                return self.tables.load(name)
            except Unreachable:
                if attempt >= ATTEMPTS:
                    return None
                _backoff(attempt)
                attempt += 1


def _refuse_unless_descendant(view: TableState, planned: TableState) -> TableState:
    """Refuse a table whose history no longer goes through what was planned from."""
    then = planned.ancestors[0]
    if view.uuid == planned.uuid and view.ancestors:
        if any(each.snapshot_id == then.snapshot_id for each in view.ancestors):
            return view
        oldest = view.ancestors[-1]  # what was planned from may be expired by now, but not passed
        if oldest.parent_id is not None and oldest.sequence_number > then.sequence_number:
            return view
    raise GaveWay("the table was moved back or replaced")


def _landed_attempt(
    view: TableState | None, tries: Sequence[RewriteAttempt]
) -> RewriteAttempt | None:
    """The attempt that is in the table though nobody said so."""
    if view is None:
        return None
    ids = set(rewrites_among(view.base.document, view.snapshot_ids).values())
    return next((each for each in tries if each.replace.rewrite_id in ids), None)


def _current_snapshot(view: TableState) -> int | None:
    return view.ancestors[0].snapshot_id if view.ancestors else None


def _backoff(attempt: int) -> None:
    time.sleep(random.uniform(0.5, 1.0) * min(2.0, 0.05 * 2**attempt))  # noqa: S311
