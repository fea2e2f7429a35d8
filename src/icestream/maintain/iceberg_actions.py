"""Iceberg's own actions, for tables that are only appended to: compaction and manifests.

They run in the driver's JVM on a session of their own, in one task at a time. What they write they
commit to a draft of the table; to the table itself we do, by one attempt per base, as always.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from icestream.commit.attempt import ActionOperations
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.port import CommitFailed
from icestream.commit.table_state import TableState
from icestream.failpoints import failpoint
from icestream.maintain.action import Action, ActionResult, Ending, FileGroup, GaveWay
from icestream.maintain.filters import partition_filter
from icestream.maintain.gate import GateClosed
from icestream.tables.commits import REWRITE_ID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = "target-file-size-bytes"
_TABLE_TARGET = "write.target-file-size-bytes"
DEFAULT_TARGET = 256 << 20
_NEVER_SPLIT = 1 << 60  # engines read a large file in parallel all the same
_ATTEMPTS = 8  # commits of one rewrite, from ever newer bases
_WAIT = 0.2
# Commits are made of whole groups: few enough to lose little when one is lost, and not one each.
_GROUPS_A_COMMIT, _BYTES_A_COMMIT = 32, 1 << 30

_SETTINGS = {
    # Few rows, and the stream wants the other cores.
    "spark.sql.shuffle.partitions": "1",
    # What an action copies its session from must have it already, or the copy does not.
    "spark.sql.catalog.default_rewrite_catalog": (
        "org.apache.iceberg.spark.SparkRewriteTableCatalog"
    ),
}

Stopped = Callable[[], bool]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _CommittedRewrite:
    """What one commit replaced."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    attempts: int = 1


class IcebergActions:
    """Iceberg's actions on the tables of one catalog; used by one thread."""

    def __init__(
        self,
        spark: "SparkSession",
        tables: IcebergTables,
        turn: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._tables = tables
        self._turn = turn
        self._jvm: Any = spark.sparkContext._jvm
        self._session: Any = spark.newSession()._jsparkSession
        for key, value in _SETTINGS.items():
            self._session.conf().set(key, value)

    def actions(self) -> Any:
        """Iceberg's actions, on a session that is the calling thread's from now on."""
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(self._session)
        return self._jvm.org.apache.iceberg.spark.actions.SparkActions.get(self._session)

    # -- data files ----------------------------------------------------------------------------

    def rewrite(
        self, action: Action, options: Mapping[str, str], stopped: Stopped, progress: Progress
    ) -> ActionResult:
        """Write the small files of these groups anew, a few groups a commit."""
        result = ActionResult(action, Ending.NOTHING, attempts=0)
        total, done = len(action.groups), 0
        for groups in _commits(action.groups):
            progress(done, total)
            failpoint("rewrite-begun")
            try:
                result = _add_to_result(
                    result, self._rewrite_groups(action.table, groups, options, stopped)
                )
            except GateClosed:
                return replace(result, ending=Ending.CANCELLED)
            except GaveWay as reason:
                if not result.files_before:
                    raise
                return replace(result, detail=f"the rest gave way: {reason}")
            done += len(groups)
        progress(done, total)
        return result

    def _rewrite_groups(
        self, name: str, groups: Sequence[FileGroup], options: Mapping[str, str], stopped: Stopped
    ) -> _CommittedRewrite:
        """Rewrite some groups, each in a draft of its own, and commit them in one."""
        state = self._tables.load(name)
        drafts: list[Any] = []
        try:
            for group in groups:
                if stopped():
                    raise GateClosed
                drafts += self._rewrite_to_draft(name, state, group, options)
        except BaseException:
            self._discard(state, drafts)
            raise
        if not drafts:
            return _CommittedRewrite()
        failpoint("rewrite-staged")
        return self._commit_drafts(name, state, drafts)

    def _rewrite_to_draft(
        self, name: str, state: TableState, group: FileGroup, options: Mapping[str, str]
    ) -> list[Any]:
        """Let Iceberg rewrite a group and commit it to a draft; → its snapshot there, if any."""
        metadata = state.metadata
        where = partition_filter(self._jvm, metadata, group)
        if where is None:
            raise GaveWay(f"partition `{group.partition}` cannot be put into a filter")
        base_table = self._jvm.org.apache.iceberg.BaseTable
        draft = base_table(state.base.operations, name).newTransaction().table()
        rewrite = self.actions().rewriteDataFiles(base_table(draft.operations(), name))
        is_sorted = state.base.metadata.sortOrder().isSorted()
        rewrite = rewrite.sort() if is_sorted else rewrite.binPack()
        rewrite = rewrite.filter(where)
        chosen = rewrite_options(options, metadata.properties, group)
        for key, value in chosen.items():
            rewrite = rewrite.option(key, value)
        try:
            rewrite.execute()
        except Py4JJavaError as failure:
            raise _as_gave_way(failure) from None
        made = draft.currentSnapshot()
        same = made is None or made.snapshotId() == metadata.snapshot_id
        return [] if same else [made]

    def _discard(self, state: TableState, drafts: Sequence[Any]) -> None:
        """Remove what was written for a commit that is not made: nobody was offered it."""
        io = state.base.operations.io()
        for made in drafts:
            _remove(made.addedDataFiles(io), io)
            _delete_draft_manifests(made, io)

    def _commit_drafts(
        self, name: str, planned: TableState, drafts: Sequence[Any]
    ) -> _CommittedRewrite:
        """Commit what the drafts replace: once per base, until it is in."""
        io = planned.base.operations.io()
        gone, new = self._jvm.java.util.HashSet(), self._jvm.java.util.HashSet()
        for made in drafts:
            iterables = self._jvm.org.apache.iceberg.relocated.com.google.common.collect.Iterables
            iterables.addAll(gone, made.removedDataFiles(io))
            iterables.addAll(new, made.addedDataFiles(io))
            _delete_draft_manifests(made, io)
        start, mark = planned.ancestors[0], uuid.uuid4().hex

        def build(transaction: Any) -> None:
            update = transaction.newRewrite().validateFromSnapshot(start.snapshot_id)
            # As old as what it replaces: equality deletes that came since are for its rows, too.
            update.rewriteFiles(gone, new, start.sequence_number)
            update.set(REWRITE_ID, mark)
            update.commit()

        refused = ""
        for attempt in range(1, _ATTEMPTS + 1):
            done = replace(_file_counts(drafts), attempts=attempt)
            try:
                with self._turn(name):
                    state = self._tables.load(name)
                    if _is_committed(state, mark):
                        return done
                    self._tables.transact(name, state.base, build)
                failpoint("rewrite-committed")
                return done
            except CommitFailed as failure:
                refused = str(failure)  # or not answered: the next look tells
            except (Py4JJavaError, GateClosed) as failure:
                # It does not fit what is there now, unless an attempt of ours is why.
                if _is_committed(self._tables.load(name), mark):
                    return done
                if attempt == 1:  # nobody was offered the new files
                    _remove(new, io)
                raise _as_gave_way(failure) from None
            time.sleep(_WAIT * attempt)
        if _is_committed(self._tables.load(name), mark):
            return done
        raise GaveWay(f"{_ATTEMPTS} commits were refused: {refused}")

    # -- manifests -----------------------------------------------------------------------------

    def rewrite_manifests(self, action: Action, options: Mapping[str, str]) -> ActionResult:
        """Write manifests anew, fewer and each of few partitions."""
        name = action.table
        offer = ActionOperations(self._tables.load(name).base, lambda: self._turn(name))
        try:
            table = self._jvm.org.apache.iceberg.BaseTable(offer, name)
            rewrite = self.actions().rewriteManifests(table)
            for key, value in options.items():
                rewrite = rewrite.option(key, value)
            try:
                found = rewrite.execute()
            except Py4JJavaError as failure:
                if offer.offered is None:
                    raise _as_gave_way(failure) from None
                made = offer.offered.currentSnapshot().snapshotId()
                if offer.reload().snapshot(made) is None:
                    raise GaveWay(f"the commit was refused: {offer.failure}") from None
                return ActionResult(action, Ending.DONE)
            before, after = list(found.rewrittenManifests()), list(found.addedManifests())
            return ActionResult(
                action,
                Ending.DONE if before else Ending.NOTHING,
                files_before=len(before),
                files_after=len(after),
                bytes_before=sum(each.length() for each in before),
                bytes_after=sum(each.length() for each in after),
            )
        finally:
            offer.release()


def rewrite_options(
    options: Mapping[str, str], properties: Mapping[str, str], group: FileGroup
) -> dict[str, str]:
    """The options of Iceberg's action: the pipeline file's, and what keeps it to its place."""
    target = int(options.get(TARGET, properties.get(_TABLE_TARGET, DEFAULT_TARGET)))
    # Which files, and how many are worth it, was the policy's question. The filter names their
    # partition, in which they are the smallest.
    small = {"min-file-size-bytes": str(min(group.largest + 1, target - 1))}
    return {
        TARGET: str(target),
        # As much as makes one file is one task, so the stream always has the other cores.
        "max-file-group-size-bytes": str(target),
        "max-concurrent-file-group-rewrites": "1",
        "max-file-size-bytes": str(_NEVER_SPLIT),
        **options,
        **(small if group.largest else {}),
        "min-input-files": "2",
        "max-files-to-rewrite": str(len(group.files)),
        "partial-progress.enabled": "false",  # we commit a few groups at a time
    }


def _commits(groups: Sequence[FileGroup]) -> Iterator[list[FileGroup]]:
    """Groups that are committed together; those of one partition one after the other."""
    held: list[FileGroup] = []
    for group in groups:
        size = sum(each.bytes for each in held)
        twice = any((each.spec_id, each.values) == (group.spec_id, group.values) for each in held)
        if held and (
            twice or len(held) >= _GROUPS_A_COMMIT or size + group.bytes > _BYTES_A_COMMIT
        ):
            yield held
            held = []
        held.append(group)
    if held:
        yield held


def _is_committed(state: TableState, mark: str) -> bool:
    """Whether the rewrite is in the table."""
    return mark in state.metadata.rewrites(state.snapshot_ids).values()


def _remove(files: Iterable[Any], io: Any) -> None:
    for file in files:
        io.deleteFile(file.location())


def _delete_draft_manifests(draft: Any, io: Any) -> None:
    """Remove the manifests of a snapshot that no catalog has ever heard of."""
    for manifest in draft.allManifests(io):
        if manifest.snapshotId() == draft.snapshotId():
            io.deleteFile(manifest.path())
    io.deleteFile(draft.manifestListLocation())


def _add_to_result(result: ActionResult, done: _CommittedRewrite) -> ActionResult:
    return replace(
        result,
        ending=Ending.DONE if done.files_before else result.ending,
        files_before=result.files_before + done.files_before,
        files_after=result.files_after + done.files_after,
        bytes_before=result.bytes_before + done.bytes_before,
        bytes_after=result.bytes_after + done.bytes_after,
        attempts=max(result.attempts, done.attempts),
    )


def _file_counts(drafts: Sequence[Any]) -> _CommittedRewrite:
    notes = [made.summary() for made in drafts]

    def number(key: str) -> int:
        return sum(int(each.get(key) or 0) for each in notes)

    return _CommittedRewrite(
        number("deleted-data-files"),
        number("added-data-files"),
        number("removed-files-size"),
        number("added-files-size"),
    )


def _as_gave_way(failure: Exception) -> Exception:
    """Conflicts are to be expected beside other writers; anything else is a failure."""
    cause = failure.java_exception if isinstance(failure, Py4JJavaError) else None
    while cause is not None:
        kind = cause.getClass().getSimpleName()
        if kind in ("ValidationException", "CommitFailedException"):
            return GaveWay(str(cause.getMessage()).splitlines()[0])
        cause = cause.getCause()
    return failure
