"""The rewrite of data files of one partition, with deletes that come meanwhile."""

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

_FEW = 32  # delete files that may be read while the run waits


@dataclass(frozen=True)
class RewritePlan:
    """What is rewritten, by the table's state at the plan."""

    name: str
    state: TableState
    live: LiveFiles
    inputs: tuple[FileEntry, ...]  # in the order in which they were written
    partition: PartitionKey
    target: StageTarget
    origin: str  # id of this rewrite, in names of files and index runs
    index_staging: IndexStaging | None = None  # None: the key index follows by reading the table
    sorts: bool = False  # then it is unknown where a row of the inputs is in the outputs

    @property
    def task(self) -> RewriteTask:
        """The task that stages this rewrite."""
        deletes = about(self.live.deletes.values(), (file.path for file in self.inputs))
        return RewriteTask(
            self.target,
            self.partition,
            tuple(SequencedFile(file.path, file.sequence) for file in self.inputs),
            tuple(SequencedFile(file.path, file.sequence) for file in deletes),
            self.origin,
            self.index_staging,
            self.sorts,
        )


class DataFileRewrite:
    """A staged rewrite of data files, for RewriteCommitter."""

    def __init__(self, plan: RewritePlan, files: SnapshotFileLister, staged: RewriteReport) -> None:
        self.name, self.planned = plan.name, plan.state
        self.staged = staged
        self._plan = plan
        self._files = files
        paths = [file.path for file in plan.inputs]
        inputs = [
            RewriteInput(path, staged.rows[path], staged.deleted_positions(path)) for path in paths
        ]
        outputs = [RewriteOutput(file.path, file.records) for file in staged.files]
        self._carry_over = DeleteCarryOver(
            RowMapping(inputs, outputs), paths, plan.live, partial(read_positions, open_file)
        )
        self._index_staging = plan.index_staging
        self._runs = staged.runs
        self._all_runs = set(staged.runs)
        self._filtered_rows = 0  # that were taken out of the runs

    def catch_up(self, state: TableState) -> None:
        """Read the deletes that came, and take their rows out of the runs for the key index."""
        live = self._files.delete_files(state.metadata)
        self._carry_over.read_new_deletes(live)
        # Now, and not while the run waits: what `dangling` reads, it reads only once.
        self._carry_over.dangling(live, carries=False)
        self._filter_runs(self._carry_over.deleted_in_outputs())

    def is_nearly_current(self, state: TableState) -> bool:
        """Whether only few delete files were added since `catch_up`."""
        return self._carry_over.unread_count(self._files.delete_files(state.metadata)) <= _FEW

    def next_attempt(self, state: TableState) -> RewriteAttempt:
        """Remove the inputs, add the outputs, with deletes of rows that were deleted meanwhile."""
        live = self._files.delete_files(state.metadata)
        self._carry_over.read_new_deletes(live)
        if missing := changed_or_missing(self.staged.files):
            raise GaveWay(f"{len(missing)} of its new files are gone: {missing[0]}")
        deleted = self._carry_over.deleted_in_outputs()
        if deleted and self._plan.sorts:
            raise GaveWay("rows of its files were deleted while they were sorted")
        dangling = self._carry_over.dangling(live, carries=bool(deleted))
        attempt = f"{self._plan.origin}-{uuid.uuid4().hex[:12]}"
        partition, target = self._plan.partition, self._plan.target
        carried = write_deletes(deleted, lambda _: partition, target, attempt)
        kept = []
        if dangling.pruned:
            (old,) = dangling.removed
            pruned = write_deletes(dangling.pruned, lambda _: partition, target, f"{attempt}-kept")
            # With the sequence number that it had, it applies to the same data files.
            kept = [(file, old.sequence) for file in pruned]
        self._filter_runs(deleted)
        added = tuple(file.content_json for file in self.staged.files)
        replace = ReplacedFiles(
            rewrite_id=uuid.uuid4().hex,
            removed=[removed_file_json(file, partition, "data") for file in self._plan.inputs],
            added=added,
            removed_deletes=[
                removed_file_json(file, partition, "position-deletes") for file in dangling.removed
            ],
            added_deletes=[file.content_json for file in carried],
            kept_deletes=[(file.content_json, sequence) for file, sequence in kept],
        )
        index_update = None
        if self._index_staging:
            index_update = RewriteIndexUpdate(
                rewrite_id=replace.rewrite_id,
                origin=self._plan.origin,
                runs=tuple(self._runs),
                removed=tuple(file.path for file in self._plan.inputs),
                added=tuple(file.path for file in self.staged.files),
                contents=added,
            )
        return RewriteAttempt(replace, index_update, [*carried, *(file for file, _ in kept)])

    def clean_up(self, landed: RewriteAttempt | None, hopeless: bool) -> None:
        """Remove runs and files that no committed attempt names."""
        if (landed is not None or hopeless) and self._plan.index_staging:
            update = landed.index_update if landed else None
            unused = self._all_runs - set(update.runs if update else ())
            remove_runs(self._plan.index_staging, sorted(unused))
        if hopeless:
            discard(self.staged.files)

    def _filter_runs(self, deleted: Mapping[str, RowPositions]) -> None:
        """Take deleted rows out of the runs, which may name live rows only."""
        count = sum(len(positions) for positions in deleted.values())
        if self._index_staging is None or count == self._filtered_rows:
            return
        sizes = {file.path: file.records for file in self.staged.files}
        try:
            self._runs = tuple(drop_rows(self._index_staging, self._runs, sizes, deleted))
        except IndexDamaged:  # the index was built anew meanwhile: it follows by reading the table
            self._index_staging = None
        self._all_runs |= set(self._runs)
        self._filtered_rows = count
