"""Actions: what maintenance may do to a table, what it was to do, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    """The actions, by the names that they have in `maintenance:`."""

    REWRITE_DATA_FILES = "rewrite_data_files"
    REWRITE_POSITION_DELETE_FILES = "rewrite_position_delete_files"
    REWRITE_MANIFESTS = "rewrite_manifests"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REMOVE_ORPHAN_FILES = "remove_orphan_files"


class Ending(StrEnum):
    """How an action ended."""

    DONE = "done"
    NOTHING = "nothing to do"
    GAVE_WAY = "gave way"  # to the stream or another writer; it will be tried again
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class FileGroup:
    """Data files of one partition, to be written anew together."""

    partition: str  # for people: `day=2026-11-14`, or empty
    spec_id: int
    files: tuple[str, ...]
    bytes: int
    records: int
    values: tuple[object, ...] = ()  # the partition, as manifests have it: one value a field
    largest: int = 0  # bytes of the largest file that is here for being small


@dataclass(frozen=True)
class Action:
    """One thing to do to one table, and why."""

    table: str
    kind: ActionKind
    reason: str  # for people: `128 small files in day=2026-11-14, oldest 9 min`
    groups: tuple[FileGroup, ...] = ()  # of a rewrite of data files, the first one first


@dataclass(frozen=True)
class ActionResult:
    """What an action did."""

    action: Action
    ending: Ending
    files_before: int = 0  # of the kind that it is about: data files, deletes, manifests, snapshots
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    seconds: float = 0.0
    attempts: int = 1
    detail: str = ""  # why it gave way or failed


# Asked between the steps of an action: whether it is to end.
Stopped = Callable[[], bool]
# Told how much is done, and of how much.
Progress = Callable[[int, int], None]


class GaveWay(Exception):
    """The action cannot be done as the table is now, and why; nothing has changed."""
