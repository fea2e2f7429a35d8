"""Orphans: files that no snapshot names. Iceberg's action finds them, names tell which may go.

A file that is staged and not yet committed looks like an orphan, however old it is: its run may
have stood still. So what our names say decides, and age only where they say nothing.
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
from icestream.maintain.action import Action, ActionResult, Ending
from icestream.tables.marker import Marker
from icestream.tables.metadata import Metadata
from icestream.tables.storage import filesystem

# As the SQL procedure has it, for files whose names say nothing: somebody may be committing them.
YOUNGEST_STRANGER = timedelta(days=1)
_STAGED = re.compile(
    r"(?P<pipeline>[a-z0-9_-]+?)-(?:(?P<generation>\d{5,})-)?(?P<commit>[0-9a-f]{32})-.+\.parquet"
)
_REWRITTEN = re.compile(r"icestream-rewrite-[0-9a-f]{32}-.+")  # by maintenance, of any pipeline
_MARKER = re.compile(r"icestream\.(?P<pipeline>[a-z0-9_-]+)\.marker")


@dataclass(frozen=True)
class OrphanFile:
    """A file that no snapshot named when the table was looked at."""

    path: str
    age_seconds: float
    bytes: int = 0


@dataclass(frozen=True)
class _PipelineCommits:
    """What a table says of one pipeline."""

    marker: Marker
    commits: frozenset[str | None]  # that are in, as far as snapshots are retained


def removable(
    found: Iterable[OrphanFile], metadata: Metadata, older_than: timedelta
) -> list[OrphanFile]:
    """Those that may go, by the table as it was *before* it was listed.

    What was committed after that look is in the list of orphans, too: only commits that were in
    by then count as settled.
    """
    writers = _writers(metadata)
    return [
        each
        for each in found
        if not _is_ours_by_place(each.path, metadata.location)
        and _may_go(each, writers, older_than.total_seconds())
    ]


def _may_go(orphan: OrphanFile, writers: Mapping[str, _PipelineCommits], older_than: float) -> bool:
    name = orphan.path.rpartition("/")[2]
    staged = _STAGED.fullmatch(name)
    if staged is None or _REWRITTEN.fullmatch(name):
        return orphan.age_seconds >= max(older_than, YOUNGEST_STRANGER.total_seconds())
    if orphan.age_seconds < older_than:
        return False
    writer = writers.get(staged["pipeline"])
    if writer is None:
        return False  # of a pipeline that has not claimed the table, or not yet
    if staged["commit"] in writer.commits:
        return True  # an attempt whose files the commit did not take
    # A run of an older generation can commit nothing any more; of this one, a batch may be on
    # its way, and has been for as long as it likes.
    generation = staged["generation"]
    return generation is not None and int(generation) < writer.marker.generation


def _is_ours_by_place(path: str, location: str) -> bool:
    """Whether it is in a folder like `_icestream/`, which is not Iceberg's."""
    inside = _without_scheme(path).removeprefix(_without_scheme(location)).strip("/")
    return any(part.startswith(("_", ".")) and "=" not in part for part in inside.split("/"))


def _without_scheme(path: str) -> str:
    """Without the scheme, which one side may have left out."""
    return re.sub(r"^[a-z0-9]+:/*", "/", path).rstrip("/")


def _writers(metadata: Metadata) -> dict[str, _PipelineCommits]:
    found = {}
    ancestors = list(metadata.ancestors())
    for key, value in metadata.properties.items():
        if match := _MARKER.fullmatch(key):
            name, marker = match["pipeline"], Marker.from_json(value)
            commits = {each.commit_id for each in ancestors if each.pipeline == name}
            found[name] = _PipelineCommits(marker, frozenset({*commits, marker.commit_id}))
    return found


class _DryRunDelete:
    """Java's Consumer that does nothing with a file: a dry run."""

    def accept(self, path: str) -> None:
        pass

    class Java:
        implements = ("java.util.function.Consumer",)


@dataclass(frozen=True)
class OrphanScan:
    """What was found beside a table, and what of it may go."""

    base: CommitBase = field(repr=False)
    found: list[OrphanFile]
    removable: list[OrphanFile]


def scan_orphans(
    jvm: Any, actions: Any, tables: IcebergTables, name: str, older_than: timedelta
) -> OrphanScan:
    """Find what no snapshot names, and which of it may not be committed any more."""
    state = tables.load(name)
    found = find_orphans(jvm, actions, state.base, name, older_than)
    return OrphanScan(state.base, found, removable(found, state.metadata, older_than))


def remove_orphans(
    jvm: Any, actions: Any, tables: IcebergTables, action: Action, older_than: timedelta
) -> ActionResult:
    """Remove what is listed; what may still be committed stays."""
    look = scan_orphans(jvm, actions, tables, action.table, older_than)
    base, found, goes = look.base, look.found, look.removable
    failpoint("orphans-found")
    if goes:
        # In the driver, in bulk where the storage can: one file that resists stops no other.
        jvm.org.apache.iceberg.CatalogUtil.deleteFiles(
            base.operations.io(), _java_list(jvm, [each.path for each in goes]), "orphan", True
        )
    kept = len(found) - len(goes)
    return ActionResult(
        action,
        Ending.DONE if goes else Ending.NOTHING,
        files_before=len(found),
        files_after=kept,
        bytes_before=sum(each.bytes for each in found),
        bytes_after=sum(each.bytes for each in found) - sum(each.bytes for each in goes),
        detail=f"{kept} are kept: they may still be committed, or are too young" if kept else "",
    )


def find_orphans(
    jvm: Any, actions: Any, base: CommitBase, name: str, older_than: timedelta
) -> list[OrphanFile]:
    """What no snapshot of this metadata names, by Iceberg's action in a dry run."""
    now = time.time()
    iceberg = jvm.org.apache.iceberg
    still = iceberg.StaticTableOperations(base.metadata, base.operations.io())
    look = actions.deleteOrphanFiles(iceberg.BaseTable(still, name)).deleteWith(_DryRunDelete())
    look = look.olderThan(int((now - older_than.total_seconds()) * 1000) + 1)
    found = list(look.execute().orphanFileLocations())
    return [orphan for path in found if (orphan := _stat(path, now)) is not None]


def _stat(path: str, now: float) -> OrphanFile | None:
    """The file as it is now; None: it is gone already."""
    system, inside = filesystem(path)
    info = system.get_file_info(inside)
    if not info.is_file:
        return None
    return OrphanFile(path, now - info.mtime.timestamp(), info.size)


def _java_list(jvm: Any, paths: Iterable[str]) -> Any:
    made = jvm.java.util.ArrayList()
    for path in paths:
        made.add(path)
    return made
