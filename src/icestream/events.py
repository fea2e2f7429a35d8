"""Events: the facts of a run, emitted once and read by logs, progress, history and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened in a pipeline; the class name is its kind."""

    pipeline: str

    @property
    def kind(self) -> str:
        """`TableCommitted` → `table_committed`."""
        name = type(self).__name__
        return "".join(
            "_" + c.lower() if c.isupper() and i else c.lower() for i, c in enumerate(name)
        )

    def facts(self) -> dict[str, Any]:
        """The fields by name, for logs and history."""
        return asdict(self)


@dataclass(frozen=True)
class RunStarted(Event):
    """All tables are claimed and the stream is about to begin."""

    run_id: str
    generation: int
    tables: tuple[str, ...]


@dataclass(frozen=True)
class RunStopped(Event):
    """The stream ended, of itself or because it was asked to."""

    run_id: str
    reason: str


@dataclass(frozen=True)
class RunFailed(Event):
    """The stream ended with an error."""

    run_id: str
    error: str
    error_kind: str


@dataclass(frozen=True)
class RunRestarting(Event):
    """The stream broke, and is begun again after a wait."""

    run_id: str
    attempt: int  # in a row without a commit
    wait_seconds: float
    error: str
    stuck_on: str | None  # the range of the batch that was under way


@dataclass(frozen=True)
class TableCreated(Event):
    """A table did not exist and does now."""

    table: str


@dataclass(frozen=True)
class SchemaEvolved(Event):
    """Columns were added to a table."""

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class IndexFollowed(Event):
    """The key index of a mirror was built, or brought to where others have moved the table."""

    table: str
    how: str


@dataclass(frozen=True)
class KeyMissing(Event):
    """The records of an upsert table have no key: all of them are rows."""

    table: str


@dataclass(frozen=True)
class PartitionState:
    """How far a table has come in one partition of its source."""

    stream: str
    partition: int
    position: int
    lag_records: int | None
    freshness_seconds: float | None  # of its newest record in the commit; None: it had none


@dataclass(frozen=True)
class TableCommitted(Event):
    """A batch's rows are in the table."""

    table: str
    commit_id: str
    sequence: int
    landed: int
    quarantined: int
    dropped: int
    files: int
    bytes: int
    stage_seconds: float
    commit_seconds: float
    attempts: int
    freshness_seconds: float | None  # commit time minus the newest record's timestamp
    latency_seconds: float | None  # commit time minus the oldest one's: the longest way of any
    lag_records: int
    lag_seconds: float  # since the newest record that is in, where more are waiting
    partitions: tuple["PartitionState", ...] = ()

    def facts(self) -> dict[str, Any]:
        """The fields by name; there may be thousands of partitions."""
        return {**vars(self), "partitions": [vars(each) for each in self.partitions]}


@dataclass(frozen=True)
class LossAccepted(Event):
    """Records that the source no longer has were given up, as `--accept-loss` asks."""

    table: str
    ranges: tuple[str, ...]


@dataclass(frozen=True)
class BatchPlanned(Event):
    """A batch is under way."""

    batch: int
    tables: Mapping[str, str]  # table → verdict


@dataclass(frozen=True)
class TopicUnrouted(Event):
    """Records of this topic go nowhere: no rule of `tables:` matches it."""

    topic: str


@dataclass(frozen=True)
class CommitRetried(Event):
    """A commit needed more than one attempt, or its answer was lost."""

    table: str
    attempts: int
    outcome: str
    reason: str | None


@dataclass(frozen=True)
class MaintenanceStarted(Event):
    """Maintenance has begun to do something to a table."""

    table: str
    action: str
    reason: str


@dataclass(frozen=True)
class MaintenanceProgress(Event):
    """How far it is; the unit is the action's own."""

    table: str
    action: str
    done: int
    total: int


@dataclass(frozen=True)
class MaintenanceFinished(Event):
    """It ended, and how; files are of the kind that the action is about."""

    table: str
    action: str
    reason: str
    ending: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    attempts: int
    detail: str  # why it gave way or failed


@dataclass(frozen=True)
class MaintenanceFailed(Event):
    """The tables could not be looked at; the stream goes on, and so do later looks."""

    error: str


Listener = Callable[[Event], None]


class EventBus:
    """Hands each event to every listener, in the order in which they joined."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def join(self, listener: Listener) -> None:
        """Add a listener."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Tell everyone."""
        for listener in self._listeners:
            listener(event)
