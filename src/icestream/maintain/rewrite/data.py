"""Data files: those of one partition written anew, and what died meanwhile carried over."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from icestream.commit.port import ReplacedFiles
from icestream.commit.table_state import TableState
from icestream.errors import IndexDamaged
from icestream.index.rewrite_update import IndexStaging, RewriteIndexUpdate, drop_rows, remove_runs
from icestream.maintain.action import GaveWay
from icestream.maintain.rewrite.carry_over import DeleteCarryOver
from icestream.maintain.rewrite.commit import RewriteAttempt
from icestream.maintain.rewrite.row_mapping import (
    RewriteInput,
    RewriteOutput,
    RowMapping,
)
from icestream.maintain.rewrite.stage import RewriteReport, RewriteTask
from icestream.tables.live_files import (
    FileEntry,
    LiveFiles,
    SnapshotFileLister,
    about,
    removed_file_json,
)
from icestream.tables.partition_values import PartitionKey
from icestream.tables.position_deletes import RowPositions, SequencedFile, read_positions
from icestream.tables.storage import open_file
from icestream.write.position_deletes import write_deletes
from icestream.write.staged import changed_or_missing, discard
from icestream.write.target import StageTarget

_FEW = 32  # delete files that may be read while the stream waits


@dataclass(frozen=True)
class RewritePlan:
    """What is rewritten, as it was seen."""

    name: str
    state: TableState
    listed: LiveFiles
    inputs: tuple[FileEntry, ...]  # in the order in which they were written
    place: PartitionKey
    target: StageTarget
    origin: str
    shelf: IndexStaging | None = None  # of the key index; None: it will find out by itself
    sorts: bool = False  # then nobody knows where a row of the inputs is in the outputs

    @property
    def task(self) -> RewriteTask:
        """What a job is to do."""
        deletes = about(self.listed.deletes.values(), (file.path for file in self.inputs))
        return RewriteTask(
            self.target,
            self.place,
            tuple(SequencedFile(file.path, file.sequence) for file in self.inputs),
            tuple(SequencedFile(file.path, file.sequence) for file in deletes),
            self.origin,
            self.shelf,
            self.sorts,
        )


class DataFileRewrite:
    """New data files on their way into the table."""

    def __init__(self, plan: RewritePlan, files: SnapshotFileLister, staged: RewriteReport) -> None:
        self.name, self.planned = plan.name, plan.state
        self.staged = staged
        self._plan = plan
        self._files = files
        paths = [file.path for file in plan.inputs]
        sources = [
            RewriteInput(path, staged.rows[path], staged.deleted_positions(path)) for path in paths
        ]
        outputs = [RewriteOutput(file.path, file.records) for file in staged.files]
        self._carry = DeleteCarryOver(
            RowMapping(sources, outputs), paths, plan.listed, partial(read_positions, open_file)
        )
        self._shelf = plan.shelf
        self._runs = staged.runs
        self._all_runs = set(staged.runs)
        self._filtered = 0  # rows that the runs are without

    def catch_up(self, state: TableState) -> None:
        """Read the deletes that came, and take their rows out of what the index will be told."""
        now = self._files.delete_files(state.metadata)
        self._carry.read_new_deletes(now)
        self._carry.dangling(now, carries=False)  # what it reads for that, it reads once
        self._filter_runs(self._carry.deleted_in_outputs())

    def is_nearly_current(self, state: TableState) -> bool:
        """Whether only few delete files have come since."""
        return self._carry.unread_count(self._files.delete_files(state.metadata)) <= _FEW

    def next_attempt(self, state: TableState) -> RewriteAttempt:
        """Remove the inputs, add the outputs with deletes for what died since they were read."""
        now = self._files.delete_files(state.metadata)
        self._carry.read_new_deletes(now)
        if gone := changed_or_missing(self.staged.files):
            raise GaveWay(f"{len(gone)} of its new files are gone: {gone[0]}")
        dead = self._carry.deleted_in_outputs()
        if dead and self._plan.sorts:
            raise GaveWay("rows of its files were deleted while they were sorted")
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
        self._filter_runs(dead)
        place, added = self._plan.place, tuple(file.content_json for file in self.staged.files)
        replace = ReplacedFiles(
            rewrite_id=uuid.uuid4().hex,
            removed=[removed_file_json(file, place, "data") for file in self._plan.inputs],
            added=added,
            removed_deletes=[
                removed_file_json(f, place, "position-deletes") for f in dangling.removed
            ],
            added_deletes=[file.content_json for file in carried],
            kept_deletes=[(file.content_json, sequence) for file, sequence in kept],
        )
        move = None
        if self._shelf:
            move = RewriteIndexUpdate(
                rewrite_id=replace.rewrite_id,
                origin=self._plan.origin,
                runs=tuple(self._runs),
                removed=tuple(file.path for file in self._plan.inputs),
                added=tuple(file.path for file in self.staged.files),
                contents=added,
            )
        return RewriteAttempt(replace, move, [*carried, *(file for file, _ in kept)])

    def clean_up(self, landed: RewriteAttempt | None, hopeless: bool) -> None:
        """Remove what nobody will ever name."""
        if landed is not None or hopeless:
            mine = landed.move.runs if landed and landed.move else ()
            if self._plan.shelf:
                remove_runs(self._plan.shelf, sorted(self._all_runs - set(mine)))
        if hopeless:
            discard(self.staged.files)

    def _filter_runs(self, dead: Mapping[str, RowPositions]) -> None:
        """Keep what the index will be told free of rows that have died."""
        count = sum(len(positions) for positions in dead.values())
        if self._shelf is None or count == self._filtered:
            return
        sizes = {file.path: file.records for file in self.staged.files}
        try:
            self._runs = tuple(drop_rows(self._shelf, self._runs, sizes, dead))
        except IndexDamaged:  # it was built anew meanwhile, and will follow the table by itself
            self._shelf = None
        self._all_runs |= set(self._runs)
        self._filtered = count
