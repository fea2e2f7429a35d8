"""Rewrites data files and delete files of a table, beside the run that writes to it.

    plan ▸ stage (one task) ▸ carry over deletes that came meanwhile ▸ commit between two batches

The run never waits for the staging, and a rewrite never loses to deletes that the run commits
meanwhile: docs/design/rewrite.md says why.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from icestream.commit.java_catalog import IcebergTables
from icestream.errors import IcestreamError, TableRefused
from icestream.failpoints import failpoint
from icestream.index.rewrite_update import IndexStaging
from icestream.maintain.action import (
    Action,
    ActionKind,
    ActionResult,
    ActionTotals,
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
from icestream.tables.partition_values import PartitionKey
from icestream.write.target import StageTarget, stage_target

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from icestream.upsert.indexes import KeyIndexes

TARGET_BYTES = 256 << 20
_TARGET = "write.target-file-size-bytes"
# Of one commit: a task must end soon, and holds the index entries of its rows, 40 bytes each.
_MOST_RECORDS, _MOST_BYTES = 2_000_000, 2 * TARGET_BYTES
_PREFIX = "icestream-rewrite"  # of file names; a uuid follows, and orphans.py knows it


class Rewriter:
    """Runs the rewrites of one catalog, one at a time.

    `tables` must not be the run's own: two threads would share what it caches of a table.
    `indexes` are those of the run in this process; without them an index follows by reading files.
    """

    def __init__(
        self,
        tables: IcebergTables,
        open_catalog: "Callable[[], Catalog]",
        spark: Any,
        indexes: "KeyIndexes | None" = None,
        gate: CommitGate | None = None,
        target_bytes: int | None = None,
    ) -> None:
        self._tables = tables
        self._open_catalog = open_catalog
        self._task_runner = task_runner_for(spark)
        self._indexes = indexes
        self._committer = RewriteCommitter(tables, indexes, gate)
        self._target_bytes = target_bytes
        self._files: dict[str, SnapshotFileLister] = {}

    def rewrite(
        self,
        action: Action,
        stopped: Stopped = lambda: False,
        progress: Progress = lambda done, total: None,
    ) -> ActionResult:
        """Run a rewrite action; `progress` gets bytes, or groups of delete files."""
        if action.kind is ActionKind.REWRITE_DATA_FILES:
            return self._data_files(action, stopped, progress)
        return self._position_deletes(action, stopped, progress)

    def release_idle(self) -> None:
        """End the idle process that runs tasks, and free its memory."""
        self._task_runner.release_idle()

    def close(self) -> None:
        """Release the task runner, when maintenance ends."""
        self._task_runner.close()

    # -- data files ----------------------------------------------------------------------------

    def _data_files(self, action: Action, stopped: Stopped, progress: Progress) -> ActionResult:
        sizes = [group.bytes for group in action.groups]
        return _run_parts(
            action,
            action.groups,
            lambda group: self._rewrite_group(action.table, group, stopped),
            lambda count: progress(sum(sizes[:count]), sum(sizes)),
        )

    def _rewrite_group(self, name: str, group: FileGroup, stopped: Stopped) -> ActionTotals:
        """Rewrite a group, in as many commits as its size asks for."""
        live, totals = self._live_files(name), ActionTotals()
        files = [live.data[path] for path in group.files if path in live.data]
        if len({file.table_partition for file in files}) > 1:
            raise GaveWay("its data files are of several partitions")
        for part in self._parts(sorted(files, key=lambda file: file.write_order)):
            failpoint("rewrite-begun")
            totals += self._rewrite_part(name, part, stopped)
        return totals

    def _rewrite_part(self, name: str, part: Sequence[FileEntry], stopped: Stopped) -> ActionTotals:
        plan = self._plan(name, part)
        if plan is None:
            return ActionTotals()
        what = f"icestream: rewrite {len(plan.inputs)} files of {name}"
        staged = self._task_runner.run(plan.task, what, stopped)
        failpoint("rewrite-staged")
        rewrite = DataFileRewrite(plan, self._file_lister(name), staged)
        attempts = self._committer.commit(rewrite, stopped)
        return ActionTotals(
            files_before=len(plan.inputs),
            files_after=len(staged.files),
            bytes_before=sum(file.size for file in plan.inputs),
            bytes_after=sum(file.bytes for file in staged.files),
            attempts=attempts,
        )

    def _plan(self, name: str, part: Sequence[FileEntry]) -> RewritePlan | None:
        """Plan the rewrite of those files that are still live; None: nothing is left to do."""
        state = self._tables.load(name)
        live = self._file_lister(name).all_files(state.metadata)
        inputs = tuple(live.data[file.path] for file in part if file.path in live.data)
        if not inputs:
            return None
        if _has_initial_default(state.metadata.schema):
            # Rows of older files read as this value: what is rewritten would have nulls instead.
            raise GaveWay("a column has an initial default")
        plan = RewritePlan(
            name=name,
            state=state,
            live=live,
            inputs=inputs,
            partition=_partition_of(state.metadata, inputs[0]),
            target=self._target(state.metadata, inputs[0].spec_id),
            origin=uuid.uuid4().hex,
            index_staging=self._index_staging(name, state.metadata),
            # Rows of a mirror stay where they are: the key index and deletes know them by position.
            sorts=_is_sorted(state.metadata) and KEYS_PROPERTY not in state.metadata.properties,
        )
        # A single file without deleted rows would come out as it is.
        return plan if len(inputs) > 1 or plan.task.deletes else None

    def _parts(self, files: Sequence[FileEntry]) -> Iterator[list[FileEntry]]:
        """Cut files into parts of one commit each, by records and bytes."""
        most_bytes = max(_MOST_BYTES, 2 * (self._target_bytes or 0))
        part: list[FileEntry] = []
        for file in files:
            records, size = sum(each.records for each in part), sum(each.size for each in part)
            if part and (records + file.records > _MOST_RECORDS or size + file.size > most_bytes):
                yield part
                part = []
            part.append(file)
        if part:
            yield part

    def _target(self, metadata: Metadata, spec_id: int) -> StageTarget:
        """Return the target of a batch, but with the partition spec of the inputs."""
        target = stage_target(metadata, _PREFIX)
        spec = metadata.specs[spec_id]
        size = self._target_bytes or int(target.properties.get(_TARGET, TARGET_BYTES))
        properties = {**target.properties, _TARGET: str(size)}
        return replace(target, spec_json=json.dumps(spec), properties=properties)

    def _index_staging(self, name: str, metadata: Metadata) -> IndexStaging | None:
        staging = self._indexes.index_staging(name) if self._indexes else None
        ids = {field["id"] for field in metadata.schema["fields"]}
        return staging if staging and ids.issuperset(staging.keys) else None

    # -- position deletes ----------------------------------------------------------------------

    def _position_deletes(
        self, action: Action, stopped: Stopped, progress: Progress
    ) -> ActionResult:
        wanted = [path for group in action.groups for path in group.files]
        try:
            live = self._live_files(action.table)
        except GaveWay as reason:
            return ActionResult(action, Ending.GAVE_WAY, detail=str(reason))
        groups = [group for group in delete_file_groups(live, wanted) if is_worth_merging(group)]
        return _run_parts(
            action,
            groups,
            lambda group: self._merge_deletes(action.table, group, stopped),
            lambda count: progress(count, len(groups)),
        )

    def _merge_deletes(self, name: str, group: DeleteFileGroup, stopped: Stopped) -> ActionTotals:
        if stopped():
            raise Cancelled
        state = self._tables.load(name)
        partition = _partition_of(state.metadata, group.deletes[0])
        target = stage_target(state.metadata, _PREFIX)
        files = write_merged_deletes(group, partition, target, uuid.uuid4().hex)
        failpoint("rewrite-staged")
        rewrite = DeleteFileRewrite(name, state, group, partition, files)
        attempts = self._committer.commit(rewrite, stopped)
        return ActionTotals(
            files_before=len(group.deletes),
            files_after=len(files),
            bytes_before=sum(file.size for file in group.deletes),
            bytes_after=sum(file.bytes for file in files),
            attempts=attempts,
        )

    # -- for both ------------------------------------------------------------------------------

    def _live_files(self, name: str) -> LiveFiles:
        return self._file_lister(name).all_files(self._tables.load(name).metadata)

    def _file_lister(self, name: str) -> SnapshotFileLister:
        if name not in self._files:
            self._files[name] = _FileLister(self._open_catalog().load_table(name).io)
        return self._files[name]


class _FileLister(SnapshotFileLister):
    """Lists files; a table that has others than a rewrite can read is given way to."""

    def _listed(self, metadata: Metadata, data: bool) -> LiveFiles:
        try:
            return super()._listed(metadata, data)
        except TableRefused as refusal:
            raise GaveWay(str(refusal)) from None


def _partition_of(metadata: Metadata, file: FileEntry) -> PartitionKey:
    try:
        return partition_key_of(metadata, file)
    except TableRefused as refusal:
        raise GaveWay(str(refusal)) from None


def _has_initial_default(schema: Any) -> bool:
    """Whether a field, at any depth, has a value for files that were written before it."""
    if isinstance(schema, dict):
        default = schema.get("initial-default")
        return default is not None or any(map(_has_initial_default, schema.values()))
    return isinstance(schema, list) and any(map(_has_initial_default, schema))


def _is_sorted(metadata: Metadata) -> bool:
    """Whether the sort order has a key; a dropped one stays in it as `void`."""
    return any(field["transform"] != "void" for field in metadata.sort_order["fields"])


def _run_parts(
    action: Action,
    parts: Sequence[Any],
    rewrite: Callable[[Any], ActionTotals],
    on_progress: Callable[[int], None],
) -> ActionResult:
    """Rewrite one part after the other; one that gives way does not stop the others."""
    totals, reasons = ActionTotals(), []
    for index, part in enumerate(parts):
        on_progress(index)
        try:
            totals += rewrite(part)
        except GaveWay as reason:
            reasons.append(str(reason))
        except (Cancelled, GateClosed):
            return ActionResult(action, Ending.CANCELLED, totals, detail="; ".join(reasons))
        except IcestreamError as failure:
            detail = "; ".join([*reasons, str(failure)])
            return ActionResult(action, Ending.FAILED, totals, detail=detail)
    on_progress(len(parts))
    why = "; ".join(dict.fromkeys(reasons))
    if totals.attempts:
        detail = f"{len(reasons)} of {len(parts)} gave way: {why}" if why else ""
        return ActionResult(action, Ending.DONE, totals, detail=detail)
    return ActionResult(action, Ending.GAVE_WAY if reasons else Ending.NOTHING, detail=why)
