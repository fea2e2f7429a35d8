"""Orphan files: no snapshot names them. Iceberg finds them; which are removed, file names tell.

A staged file looks like an orphan until its commit, however old it is: its run may have been
paused. So our file names decide, and age only for files with other names.
"""

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from icestream.commit.attempt import CommitBase
from icestream.commit.java_catalog import IcebergTables
from icestream.failpoints import failpoint
from icestream.maintain.action import Action, ActionResult, ActionTotals, Ending
from icestream.tables.marker import Marker
from icestream.tables.metadata import Metadata
from icestream.tables.storage import filesystem

# As in Iceberg's SQL procedure, for files with other names: a writer may be committing them.
YOUNGEST_FOREIGN = timedelta(days=1)
_STAGED = re.compile(
    r"(?P<pipeline>[a-z0-9_-]+?)-(?:(?P<generation>\d{5,})-)?(?P<commit>[0-9a-f]{32})-.+\.parquet"
)
_REWRITTEN = re.compile(r"icestream-rewrite-[0-9a-f]{32}-.+")  # by maintenance, of any pipeline
_MARKER = re.compile(r"icestream\.(?P<pipeline>[a-z0-9_-]+)\.marker")


@dataclass(frozen=True)
class OrphanFile:
    """A file that no snapshot named when the table was loaded."""

    path: str
    age_seconds: float
    bytes: int = 0


@dataclass(frozen=True)
class _PipelineCommits:
    """The commits of one pipeline to a table."""

    marker: Marker
    commit_ids: frozenset[str | None]  # as far as snapshots are retained


def removable(
    orphans: Iterable[OrphanFile], metadata: Metadata, older_than: timedelta
) -> list[OrphanFile]:
    """Choose the orphans that may be removed, by metadata from *before* storage was listed.

    What was committed since then is among the orphans, too: only commits in this metadata count
    as decided.
    """
    writers = _writers(metadata)
    return [
        orphan
        for orphan in orphans
        if not _is_in_own_folder(orphan.path, metadata.location)
        and _may_remove(orphan, writers, older_than.total_seconds())
    ]


def _may_remove(
    orphan: OrphanFile, writers: Mapping[str, _PipelineCommits], older_than: float
) -> bool:
    name = orphan.path.rpartition("/")[2]
    staged = _STAGED.fullmatch(name)
    if staged is None or _REWRITTEN.fullmatch(name):
        return orphan.age_seconds >= max(older_than, YOUNGEST_FOREIGN.total_seconds())
    if orphan.age_seconds < older_than:
        return False
    writer = writers.get(staged["pipeline"])
    if writer is None:
        return False  # its pipeline has not claimed the table, or not yet
    if staged["commit"] in writer.commit_ids:
        return True  # of a task attempt whose files the commit did not take
    # A run of an older generation is fenced. One of the current generation may still commit the
    # batch, however long ago it was staged.
    generation = staged["generation"]
    return generation is not None and int(generation) < writer.marker.generation


def _is_in_own_folder(path: str, location: str) -> bool:
    """Whether a file is in a folder like `_icestream/`, which is not Iceberg's."""
    inside = _without_scheme(path).removeprefix(_without_scheme(location)).strip("/")
    return any(part.startswith(("_", ".")) and "=" not in part for part in inside.split("/"))


def _without_scheme(path: str) -> str:
    """Remove the scheme, which one of two paths may lack."""
    return re.sub(r"^[a-z0-9]+:/*", "/", path).rstrip("/")


def _writers(metadata: Metadata) -> dict[str, _PipelineCommits]:
    writers = {}
    ancestors = list(metadata.ancestors())
    for key, value in metadata.properties.items():
        if match := _MARKER.fullmatch(key):
            name, marker = match["pipeline"], Marker.from_json(value)
            commit_ids = {each.commit_id for each in ancestors if each.pipeline == name}
            writers[name] = _PipelineCommits(marker, frozenset({*commit_ids, marker.commit_id}))
    return writers


class _DryRunDelete:
    """Java's Consumer that deletes nothing, for a dry run of Iceberg's action."""

    def accept(self, path: str) -> None:
        pass

    class Java:
        implements = ("java.util.function.Consumer",)


@dataclass(frozen=True)
class OrphanScan:
    """The orphan files of a table, and those of them that may be removed."""

    base: CommitBase = field(repr=False)
    found: list[OrphanFile]
    removable: list[OrphanFile]


def scan_orphans(
    jvm: Any, actions: Any, tables: IcebergTables, name: str, older_than: timedelta
) -> OrphanScan:
    """Find the orphan files of a table, and those that no writer can still commit."""
    state = tables.load(name)
    orphans = find_orphans(jvm, actions, state.base, name, older_than)
    return OrphanScan(state.base, orphans, removable(orphans, state.metadata, older_than))


def remove_orphans(
    jvm: Any, actions: Any, tables: IcebergTables, action: Action, older_than: timedelta
) -> ActionResult:
    """Remove the orphan files of a table; what may still be committed stays."""
    scan = scan_orphans(jvm, actions, tables, action.table, older_than)
    failpoint("orphans-found")
    if scan.removable:
        # In the driver, in bulk where the storage can: one file that resists stops no other.
        paths = _java_list(jvm, [file.path for file in scan.removable])
        io = scan.base.operations.io()
        jvm.org.apache.iceberg.CatalogUtil.deleteFiles(io, paths, "orphan", True)
    kept = len(scan.found) - len(scan.removable)
    found_bytes = sum(file.bytes for file in scan.found)
    kept_bytes = found_bytes - sum(file.bytes for file in scan.removable)
    return ActionResult(
        action,
        Ending.DONE if scan.removable else Ending.NOTHING,
        ActionTotals(len(scan.found), kept, found_bytes, kept_bytes),
        detail=f"{kept} are kept: they may still be committed, or are too young" if kept else "",
    )


def find_orphans(
    jvm: Any, actions: Any, base: CommitBase, name: str, older_than: timedelta
) -> list[OrphanFile]:
    """Find the files that no snapshot of this metadata names, by a dry run of Iceberg's action."""
    now = time.time()
    iceberg = jvm.org.apache.iceberg
    operations = iceberg.StaticTableOperations(base.metadata, base.operations.io())
    table = iceberg.BaseTable(operations, name)
    dry_run = actions.deleteOrphanFiles(table).deleteWith(_DryRunDelete())
    dry_run = dry_run.olderThan(int((now - older_than.total_seconds()) * 1000) + 1)
    paths = list(dry_run.execute().orphanFileLocations())
    return [orphan for path in paths if (orphan := _stat(path, now)) is not None]


def _stat(path: str, now: float) -> OrphanFile | None:
    """Return the age and size of a file; None: it was deleted meanwhile."""
    storage, storage_path = filesystem(path)
    info = storage.get_file_info(storage_path)
    if not info.is_file:
        return None
    return OrphanFile(path, now - info.mtime.timestamp(), info.size)


def _java_list(jvm: Any, paths: Iterable[str]) -> Any:
    result = jvm.java.util.ArrayList()
    for path in paths:
        result.add(path)
    return result
