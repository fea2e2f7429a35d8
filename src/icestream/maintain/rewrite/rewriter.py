"""The rewriter: data files and deletes of a mirror written anew, beside the stream that changes it.

    plan ▸ stage (one task) ▸ carry over what died meanwhile ▸ commit, in a turn of its own

The stream never waits for the staging, and a rewrite never loses to the deletes that the stream
makes meanwhile: docs/design/rewrite.md is the why.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from icestream.commit.java_catalog import IcebergTables
from icestream.errors import IcestreamError, TableRefused
from icestream.failpoints import failpoint
from icestream.index.rewrite_update import IndexStaging
from icestream.maintain.action import (
    Action,
    ActionKind,
    ActionResult,
    Ending,
    FileGroup,
    GaveWay,
    Progress,
    Stopped,
)
from icestream.maintain.gate import GateClosed
from icestream.maintain.rewrite.commit import CommitGate, RewriteCommitter
from icestream.maintain.rewrite.data import DataFileRewrite, RewritePlan
from icestream.maintain.rewrite.merge import (
    DeleteFileGroup,
    DeleteFileRewrite,
    delete_file_groups,
    is_worth_merging,
    write_merged_deletes,
)
from icestream.maintain.rewrite.task_runner import Cancelled, task_runner_for
from icestream.tables.design import KEYS_PROPERTY
from icestream.tables.live_files import (
    FileEntry,
    LiveFiles,
    SnapshotFileLister,
    partition_key_of,
)
from icestream.tables.metadata import Metadata
from icestream.write.target import StageTarget, stage_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from icestream.upsert.indexes import KeyIndexes

TARGET_BYTES = 256 << 20
_TARGET = "write.target-file-size-bytes"
# Of one commit: a task must end soon, and holds the index entries of its rows, 40 bytes each.
_MOST_RECORDS, _MOST_BYTES = 2_000_000, 2 * TARGET_BYTES
_PREFIX = "icestream-rewrite"  # of file names; a uuid follows, and orphans.py knows it


@dataclass(frozen=True)
class _RewriteTotals:
    """What came of a commit, or of several."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    attempts: int = 0  # 0: there was nothing to do

    def __add__(self, other: "_RewriteTotals") -> "_RewriteTotals":
        return _RewriteTotals(
            self.files_before + other.files_before,
            self.files_after + other.files_after,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.attempts + other.attempts,
        )


class Rewriter:
    """Rewrites of indexes, one at a time.

    `tables` should not be the stream's own: two threads would share what it knows of a table.
    `indexes` are those of the run in this process; without them its index follows by itself.
    """

    def __init__(
        self,
        tables: IcebergTables,
        open_catalog: "Callable[[], Catalog]",
        spark: Any,
        indexes: "KeyIndexes | None" = None,
        turns: CommitGate | None = None,
        target_bytes: int | None = None,
    ) -> None:
        self._tables = tables
        self._open_catalog = open_catalog
        self._job = task_runner_for(spark)
        self._indexes = indexes
        self._desk = RewriteCommitter(tables, indexes, turns)
        self._target_bytes = target_bytes
        self._files: dict[str, SnapshotFileLister] = {}

    def rewrite(
        self,
        action: Action,
        stopped: Stopped = lambda: False,
        progress: Progress = lambda done, total: None,
    ) -> ActionResult:
        """Do what an action says; `progress` hears of bytes, or of groups of delete files."""
        began = time.monotonic()
        kinds = {
            ActionKind.REWRITE_DATA_FILES: self._data_files,
            ActionKind.REWRITE_POSITION_DELETE_FILES: self._position_deletes,
        }
        done, ending, why = kinds[action.kind](action, stopped, progress)
        return ActionResult(
            action=action,
            ending=ending,
            files_before=done.files_before,
            files_after=done.files_after,
            bytes_before=done.bytes_before,
            bytes_after=done.bytes_after,
            seconds=round(time.monotonic() - began, 3),
            attempts=max(1, done.attempts),
            detail=why,
        )

    def release_idle(self) -> None:
        """There is nothing to do for a while."""
        self._job.release_idle()

    def close(self) -> None:
        """Let go of what runs tasks."""
        self._job.close()

    # -- data files ----------------------------------------------------------------------------

    def _data_files(
        self, action: Action, stopped: Stopped, progress: Progress
    ) -> tuple[_RewriteTotals, Ending, str]:
        sizes = [group.bytes for group in action.groups]
        return _run_parts(
            action.groups,
            lambda group: self._group(action.table, group, stopped),
            lambda at: progress(sum(sizes[:at]), sum(sizes)),
        )

    def _group(self, name: str, group: FileGroup, stopped: Stopped) -> _RewriteTotals:
        """One group, in as many commits as its size asks for."""
        listed, done = self._listed(name), _RewriteTotals()
        there = [listed.data[path] for path in group.files if path in listed.data]
        if len({file.table_partition for file in there}) > 1:
            raise GaveWay("its data files are of several partitions")
        ordered = sorted(there, key=lambda file: (file.sequence, file.path))
        for part in self._parts(ordered):
            failpoint("rewrite-begun")
            done += self._part(name, part, stopped)
        return done

    def _part(self, name: str, part: Sequence[FileEntry], stopped: Stopped) -> _RewriteTotals:
        plan = self._planned(name, part)
        if plan is None:
            return _RewriteTotals()
        what = f"icestream: rewrite {len(plan.inputs)} files of {name}"
        staged = self._job.run(plan.task, what, stopped)
        failpoint("rewrite-staged")
        offer = DataFileRewrite(plan, self._file_lister(name), staged)
        attempts = self._desk.commit(offer, stopped)
        return _RewriteTotals(
            files_before=len(plan.inputs),
            files_after=len(staged.files),
            bytes_before=sum(file.size for file in plan.inputs),
            bytes_after=sum(file.bytes for file in staged.files),
            attempts=attempts,
        )

    def _planned(self, name: str, part: Sequence[FileEntry]) -> RewritePlan | None:
        """What there is to do, of what is still live; None: nothing any more."""
        state = self._tables.load(name)
        listed = self._file_lister(name).all_files(state.metadata)
        inputs = tuple(listed.data[file.path] for file in part if file.path in listed.data)
        if not inputs:
            return None
        plan = RewritePlan(
            name=name,
            state=state,
            listed=listed,
            inputs=inputs,
            place=partition_key_of(state.metadata, inputs[0]),
            target=self._target(state.metadata, inputs[0].spec_id),
            origin=uuid.uuid4().hex,
            shelf=self._index_staging(name, state.metadata),
            # Rows of a mirror stay where they are: the key index and deletes know them by position.
            sorts=bool(state.metadata.sort_order["fields"])
            and KEYS_PROPERTY not in state.metadata.properties,
        )
        # One file by itself, with nothing deleted in it, would come out as it is.
        return plan if len(inputs) > 1 or plan.task.deletes else None

    def _parts(self, files: Sequence[FileEntry]) -> Iterator[list[FileEntry]]:
        """Files that are rewritten in one commit: a task of seconds, and entries in memory."""
        most = max(_MOST_BYTES, 2 * (self._target_bytes or 0))
        held: list[FileEntry] = []
        for file in files:
            records, size = sum(each.records for each in held), sum(each.size for each in held)
            if held and (records + file.records > _MOST_RECORDS or size + file.size > most):
                yield held
                held = []
            held.append(file)
        if held:
            yield held

    def _target(self, metadata: Metadata, spec_id: int) -> StageTarget:
        """As for any batch, but under the partition spec of the inputs."""
        target = stage_target(metadata, _PREFIX)
        spec = metadata.specs[spec_id]
        size = self._target_bytes or int(target.properties.get(_TARGET, TARGET_BYTES))
        properties = {**target.properties, _TARGET: str(size)}
        return replace(target, spec_json=json.dumps(spec), properties=properties)

    def _index_staging(self, name: str, metadata: Metadata) -> IndexStaging | None:
        shelf = self._indexes.index_staging(name) if self._indexes else None
        ids = {field["id"] for field in metadata.schema["fields"]}
        return shelf if shelf and ids.issuperset(shelf.keys) else None

    # -- position deletes ----------------------------------------------------------------------

    def _position_deletes(
        self, action: Action, stopped: Stopped, progress: Progress
    ) -> tuple[_RewriteTotals, Ending, str]:
        wanted = [path for group in action.groups for path in group.files]
        try:
            listed = self._listed(action.table)
        except TableRefused as reason:
            return _RewriteTotals(), Ending.GAVE_WAY, str(reason)
        due = [share for share in delete_file_groups(listed, wanted) if is_worth_merging(share)]
        return _run_parts(
            due,
            lambda share: self._merge_deletes(action.table, share, stopped),
            lambda at: progress(at, len(due)),
        )

    def _merge_deletes(self, name: str, share: DeleteFileGroup, stopped: Stopped) -> _RewriteTotals:
        if stopped():
            raise Cancelled
        state = self._tables.load(name)
        place, target = (
            partition_key_of(state.metadata, share.deletes[0]),
            stage_target(state.metadata, _PREFIX),
        )
        files = write_merged_deletes(share, place, target, uuid.uuid4().hex)
        failpoint("rewrite-staged")
        attempts = self._desk.commit(DeleteFileRewrite(name, state, share, place, files), stopped)
        return _RewriteTotals(
            files_before=len(share.deletes),
            files_after=len(files),
            bytes_before=sum(file.size for file in share.deletes),
            bytes_after=sum(file.bytes for file in files),
            attempts=attempts,
        )

    # -- for both ------------------------------------------------------------------------------

    def _listed(self, name: str) -> LiveFiles:
        return self._file_lister(name).all_files(self._tables.load(name).metadata)

    def _file_lister(self, name: str) -> SnapshotFileLister:
        if name not in self._files:
            self._files[name] = SnapshotFileLister(self._open_catalog().load_table(name).io)
        return self._files[name]


def _run_parts(
    parts: Sequence[Any], do: Callable[[Any], _RewriteTotals], told: Callable[[int], None]
) -> tuple[_RewriteTotals, Ending, str]:
    """One part after the other; one that gives way stops none of the others."""
    done, reasons = _RewriteTotals(), []
    for at, part in enumerate(parts):
        told(at)
        try:
            done += do(part)
        except (GaveWay, TableRefused) as reason:
            reasons.append(str(reason))
        except (Cancelled, GateClosed):
            return done, Ending.CANCELLED, "; ".join(reasons)
        except IcestreamError as failure:
            return done, Ending.FAILED, "; ".join([*reasons, str(failure)])
    told(len(parts))
    why = "; ".join(dict.fromkeys(reasons))
    if done.attempts:
        return done, Ending.DONE, f"{len(reasons)} of {len(parts)} gave way: {why}" if why else ""
    return done, Ending.GAVE_WAY if reasons else Ending.NOTHING, why
