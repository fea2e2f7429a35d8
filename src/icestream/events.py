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
    """All tables are claimed and the query is about to start."""

    run_id: str
    generation: int
    tables: tuple[str, ...]


@dataclass(frozen=True)
class RunStopped(Event):
    """The run ended by itself, or because it was asked to stop."""

    run_id: str
    reason: str


@dataclass(frozen=True)
class RunFailed(Event):
    """The run ended with an error."""

    run_id: str
    error: str
    error_kind: str


@dataclass(frozen=True)
class RunRestarting(Event):
    """The run failed, and is started again after a wait."""

    run_id: str
    attempt: int  # in a row without a commit
    wait_seconds: float
    error: str
    stuck_on: str | None  # the range of the batch that was under way


@dataclass(frozen=True)
class TableCreated(Event):
    """A table was created."""

    table: str


@dataclass(frozen=True)
class SchemaEvolved(Event):
    """Columns were added to a table, or widened."""

    table: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class IndexFollowed(Event):
    """The key index of a mirror was built, or followed what other writers did to the table."""

    table: str
    how: str


@dataclass(frozen=True)
class KeyMissing(Event):
    """The records of an upsert table have no key, so every record becomes a row."""

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
    """The rows of a batch were committed to a table."""

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
    latency_seconds: float | None  # commit time minus the oldest record's timestamp
    lag_records: int
    lag_seconds: float  # since the newest committed record of partitions where more are waiting
    partitions: tuple["PartitionState", ...] = ()

    def facts(self) -> dict[str, Any]:
        """The fields by name; without `asdict`, which is slow for thousands of partitions."""
        return {**vars(self), "partitions": [vars(partition) for partition in self.partitions]}


@dataclass(frozen=True)
class LossAccepted(Event):
    """Records that the source no longer has were given up, as `--accept-loss` asks."""

    table: str
    ranges: tuple[str, ...]


@dataclass(frozen=True)
class BatchPlanned(Event):
    """A batch is planned: what is done with each table."""

    batch: int
    tables: Mapping[str, str]  # table → verdict


@dataclass(frozen=True)
class TopicUnrouted(Event):
    """Records of this topic go to no table: no rule of `tables:` matches it."""

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
    """An action of maintenance on a table has begun."""

    table: str
    action: str
    reason: str


@dataclass(frozen=True)
class MaintenanceProgress(Event):
    """How far an action of maintenance is; the unit depends on the action."""

    table: str
    action: str
    done: int
    total: int


@dataclass(frozen=True)
class MaintenanceFinished(Event):
    """An action of maintenance has ended; files are data files, deletes, manifests or snapshots."""

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
    """The health of tables could not be read; the run goes on, and it is tried again."""

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
        """Call every listener with an event."""
        for listener in self._listeners:
            listener(event)
