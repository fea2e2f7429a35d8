"""Landing: the commit of a rewrite, between two batches, from exactly the base it looked at."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from icestream.commit.java_catalog import IcebergTables, Outdated, Replace, rewrite_ids
from icestream.commit.protocol import CommitFailed, TableView
from icestream.errors import Unreachable
from icestream.failpoints import failpoint
from icestream.index.rewrite_update import Move
from icestream.maintain.gate import NoTurn
from icestream.maintain.rewrite.task_runner import Cancelled
from icestream.tables.live_files import GiveWay
from icestream.write.discard import discard
from icestream.write.target import StagedFile

if TYPE_CHECKING:
    from icestream.batch.mirrors import Mirrors

ATTEMPTS = 10


class TurnTaker(Protocol):
    """Gives maintenance the moment between two batches."""

    def turn(self, table: str) -> AbstractContextManager[Any]:
        """Hold the stream off, for the time of one commit."""
        ...


@dataclass(frozen=True)
class Try:
    """What one attempt commits."""

    replace: Replace
    move: Move | None  # what it changes in the key index; None: that finds out by itself
    files: Sequence[StagedFile] = ()  # written for this attempt alone


class Offer(Protocol):
    """A rewrite that is staged, and made to fit whatever base there is."""

    name: str
    planned: TableView

    def catch_up(self, view: TableView) -> None:
        """Look at what came since, without the stream having to wait; raises GiveWay."""
        ...

    def is_near(self, view: TableView) -> bool:
        """Whether little enough came since the last look to read it while the stream waits."""
        ...

    def fit(self, view: TableView) -> Try:
        """What to commit from this base; raises GiveWay."""
        ...

    def let_go(self, landed: Try | None, hopeless: bool) -> None:
        """It is over; `hopeless`: none of the attempts can be in the table, now or later."""
        ...


@dataclass(frozen=True)
class Desk:
    """What commits go through."""

    tables: IcebergTables
    mirrors: "Mirrors | None"
    turns: TurnTaker | None

    def land(self, offer: Offer, stopped: Callable[[], bool]) -> int:
        """Commit once per base until it is in; → attempts. Raises GiveWay, Cancelled, NoTurn."""
        tries: list[Try] = []  # that may be in the table, or come to be
        landed: Try | None = None
        hopeless, reason = False, None
        try:
            for attempt in range(1, ATTEMPTS + 1):
                if stopped():
                    raise Cancelled
                offer.catch_up(_descendant(self.tables.load(offer.name), offer.planned))
                before = len(tries)
                view, reason = self._attempt(offer, tries)
                if len(tries) == before:
                    continue  # too much came before its turn
                if reason is None:
                    landed = tries[-1]
                    return attempt
                seen = self._look_again(offer.name, attempt)
                landed = _found(seen, tries)
                if landed is not None:
                    return attempt
                if seen is not None and _at(seen) != _at(view):
                    for each in tries:  # their base is history: whatever is under way is refused
                        self._forget(offer.name, each)
                    tries = []
                _pause(attempt)
            raise GiveWay(f"{ATTEMPTS} attempts, the last one: {reason or 'much had come'}")
        except (GiveWay, Cancelled, NoTurn):
            hopeless = not tries
            raise
        finally:
            offer.let_go(landed, hopeless)

    def _attempt(self, offer: Offer, tries: list[Try]) -> tuple[TableView, str | None]:
        """One attempt in a turn, added to `tries`; → its base, and why it failed if it did."""
        name = offer.name
        with self.turns.turn(name) if self.turns else nullcontext():
            view = _descendant(self.tables.load(name), offer.planned)
            if not offer.is_near(view):
                return view, None
            made = offer.fit(view)
            if self.mirrors and made.move:
                self.mirrors.moving(name, made.move)
            tries.append(made)  # before anything can happen to it
            try:
                self.tables.replace(name, view.base, made.replace)
            except Outdated as failure:
                tries.remove(made)
                self._forget(name, made)
                raise GiveWay(f"somebody else replaced its files: {failure}") from None
            except CommitFailed as failure:
                return view, str(failure)
            failpoint("rewrite-committed")
            return view, None

    def _forget(self, name: str, made: Try) -> None:
        if self.mirrors and made.move:
            self.mirrors.staying(name, made.move.rewrite_id)
        discard(made.files)

    def _look_again(self, name: str, attempt: int) -> TableView | None:
        while True:
            try:
                return self.tables.load(name)
            except Unreachable:
                if attempt >= ATTEMPTS:
                    return None
                _pause(attempt)
                attempt += 1


def _descendant(view: TableView, planned: TableView) -> TableView:
    """Refuse a table whose history no longer goes through what was planned from."""
    then = planned.lineage[0]
    if view.uuid == planned.uuid and view.lineage:
        if any(each.snapshot_id == then.snapshot_id for each in view.lineage):
            return view
        oldest = view.lineage[-1]  # what was planned from may be expired by now, but not passed
        if oldest.parent_id is not None and oldest.sequence_number > then.sequence_number:
            return view
    raise GiveWay("the table was moved back or replaced")


def _found(view: TableView | None, tries: Sequence[Try]) -> Try | None:
    """The attempt that is in the table though nobody said so."""
    if view is None:
        return None
    ids = set(rewrite_ids(view.base.document, view.lineage).values())
    return next((each for each in tries if each.replace.rewrite_id in ids), None)


def _at(view: TableView) -> int | None:
    return view.lineage[0].snapshot_id if view.lineage else None


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0.5, 1.0) * min(2.0, 0.05 * 2**attempt))  # noqa: S311
