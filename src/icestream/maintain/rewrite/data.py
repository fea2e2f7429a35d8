"""Data files: those of one partition written anew, and what died meanwhile carried over."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from icestream.commit.java_catalog import Replace
from icestream.commit.protocol import TableView
from icestream.errors import IndexDamaged
from icestream.index.rewrite_update import Move, Shelf, unstage, without
from icestream.maintain.rewrite.carry_over import Carry
from icestream.maintain.rewrite.commit import Try
from icestream.maintain.rewrite.row_mapping import Moves, Output, Positions, Source
from icestream.maintain.rewrite.stage import Numbered, RewriteTask, Rewritten, read_positions
from icestream.tables.live_files import File, Files, GiveWay, Listed, content_of
from icestream.write.discard import discard
from icestream.write.position_deletes import Place, write_deletes
from icestream.write.staged import missing
from icestream.write.target import StageTarget

_FEW = 32  # delete files that may be read while the stream waits


@dataclass(frozen=True)
class Plan:
    """What is rewritten, as it was seen."""

    name: str
    view: TableView
    listed: Listed
    inputs: tuple[File, ...]  # in the order in which they were written
    place: Place
    target: StageTarget
    origin: str
    shelf: Shelf | None = None  # of the key index; None: it will find out by itself

    @property
    def task(self) -> RewriteTask:
        """What a job is to do."""
        wanted = sorted(file.path.encode() for file in self.inputs)
        deletes = (each for each in self.listed.deletes.values() if each.may_concern(wanted))
        return RewriteTask(
            self.target,
            self.place,
            tuple(Numbered(file.path, file.sequence) for file in self.inputs),
            tuple(Numbered(file.path, file.sequence) for file in deletes),
            self.origin,
            self.shelf,
        )


class NewData:
    """New data files on their way into the table."""

    def __init__(self, plan: Plan, files: Files, staged: Rewritten) -> None:
        self.name, self.planned = plan.name, plan.view
        self.staged = staged
        self._plan = plan
        self._files = files
        paths = [file.path for file in plan.inputs]
        sources = [Source(path, staged.rows[path], staged.deleted(path)) for path in paths]
        outputs = [Output(file.path, file.records) for file in staged.files]
        self._carry = Carry(Moves(sources, outputs), paths, plan.listed, read_positions)
        self._shelf = plan.shelf
        self._runs = staged.runs
        self._all_runs = set(staged.runs)
        self._filtered = 0  # rows that the runs are without

    def catch_up(self, view: TableView) -> None:
        """Read the deletes that came, and take their rows out of what the index will be told."""
        now = self._files.deletes(view.base.document)
        self._carry.look(now)
        self._carry.dangling(now, carries=False)  # what it reads for that, it reads once
        self._filter(self._carry.dead())

    def is_near(self, view: TableView) -> bool:
        """Whether only few delete files have come since."""
        return self._carry.behind(self._files.deletes(view.base.document)) <= _FEW

    def fit(self, view: TableView) -> Try:
        """Remove the inputs, add the outputs with deletes for what died since they were read."""
        now = self._files.deletes(view.base.document)
        self._carry.look(now)
        if gone := missing(self.staged.files):
            raise GiveWay(f"{len(gone)} of its new files are gone: {gone[0]}")
        dead = self._carry.dead()
        dangling = self._carry.dangling(now, carries=bool(dead))
        attempt = f"{self._plan.origin}-{uuid.uuid4().hex[:12]}"
        carried = write_deletes(dead, lambda _: self._plan.place, self._plan.target, attempt)
        kept = []
        if dangling.pruned:
            (old,) = dangling.removed
            pruned = write_deletes(
                dangling.pruned, lambda _: self._plan.place, self._plan.target, f"{attempt}-kept"
            )
            kept = [(file, old.sequence) for file in pruned]
        self._filter(dead)
        place, added = self._plan.place, tuple(file.content_json for file in self.staged.files)
        replace = Replace(
            rewrite_id=uuid.uuid4().hex,
            removed=[content_of(file, place, "data") for file in self._plan.inputs],
            added=added,
            removed_deletes=[content_of(f, place, "position-deletes") for f in dangling.removed],
            added_deletes=[file.content_json for file in carried],
            kept_deletes=[(file.content_json, sequence) for file, sequence in kept],
        )
        move = None
        if self._shelf:
            move = Move(
                rewrite_id=replace.rewrite_id,
                origin=self._plan.origin,
                runs=tuple(self._runs),
                removed=tuple(file.path for file in self._plan.inputs),
                added=tuple(file.path for file in self.staged.files),
                contents=added,
            )
        return Try(replace, move, [*carried, *(file for file, _ in kept)])

    def let_go(self, landed: Try | None, hopeless: bool) -> None:
        """Remove what nobody will ever name."""
        if landed is not None or hopeless:
            mine = landed.move.runs if landed and landed.move else ()
            if self._plan.shelf:
                unstage(self._plan.shelf, sorted(self._all_runs - set(mine)))
        if hopeless:
            discard(self.staged.files)

    def _filter(self, dead: Mapping[str, Positions]) -> None:
        """Keep what the index will be told free of rows that have died."""
        count = sum(len(positions) for positions in dead.values())
        if self._shelf is None or count == self._filtered:
            return
        sizes = {file.path: file.records for file in self.staged.files}
        try:
            self._runs = tuple(without(self._shelf, self._runs, sizes, dead))
        except IndexDamaged:  # it was built anew meanwhile, and will follow the table by itself
            self._shelf = None
        self._all_runs |= set(self._runs)
        self._filtered = count
