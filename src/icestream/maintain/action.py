"""An action of maintenance on a table: what is to be done, and its result."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from enum import StrEnum
from operator import add
from typing import Any


class ActionKind(StrEnum):
    """The kinds of actions, by their names in `maintenance:`."""

    REWRITE_DATA_FILES = "rewrite_data_files"
    REWRITE_POSITION_DELETE_FILES = "rewrite_position_delete_files"
    REWRITE_MANIFESTS = "rewrite_manifests"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REMOVE_ORPHAN_FILES = "remove_orphan_files"


class Ending(StrEnum):
    """How an action ended."""

    DONE = "done"
    NOTHING = "nothing to do"
    GAVE_WAY = "gave way"  # to the run or another writer; the next look decides again
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class FileGroup:
    """Files of one table partition that are to be rewritten together."""

    partition: str  # for people: `day=2026-11-14`, or empty
    spec_id: int
    files: tuple[str, ...]
    bytes: int
    records: int
    values: tuple[object, ...] = ()  # the partition values, as manifests have them
    largest: int = 0  # bytes of the largest file that is here for being small


@dataclass(frozen=True)
class Action:
    """One action on one table, and the reason for it."""

    table: str
    kind: ActionKind
    reason: str  # for people: `128 small files in day=2026-11-14, oldest 9 min`
    groups: tuple[FileGroup, ...] = ()  # of a rewrite, in the order of their urgency

    def facts(self) -> dict[str, Any]:
        """As plain data for JSON; keys are stable."""
        return {
            "action": self.kind.value,
            "reason": self.reason,
            "groups": len(self.groups),
            "files": sum(len(group.files) for group in self.groups),
            "bytes": sum(group.bytes for group in self.groups),
        }


@dataclass(frozen=True)
class ActionTotals:
    """What an action replaced by what: data files, delete files, manifests or snapshots."""

    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    attempts: int = 0  # of its commits; 0: it had nothing to commit

    def __add__(self, other: "ActionTotals") -> "ActionTotals":
        return ActionTotals(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class ActionResult:
    """How an action ended."""

    action: Action
    ending: Ending
    totals: ActionTotals = ActionTotals()
    seconds: float = 0.0
    detail: str = ""  # why it gave way or failed

    def facts(self) -> dict[str, Any]:
        """The fields of the event `MaintenanceFinished`; keys are stable."""
        return {
            "table": self.action.table,
            "action": self.action.kind.value,
            "reason": self.action.reason,
            "ending": self.ending.value,
            "files_before": self.totals.files_before,
            "files_after": self.totals.files_after,
            "bytes_before": self.totals.bytes_before,
            "bytes_after": self.totals.bytes_after,
            "seconds": self.seconds,
            "attempts": max(1, self.totals.attempts),
            "detail": self.detail,
        }


# Called between the steps of an action: whether it has to end.
Stopped = Callable[[], bool]
# Called with how much is done, and of how much.
Progress = Callable[[int, int], None]


class GaveWay(Exception):
    """Raised when an action cannot be done as the table is now, with the reason."""
