"""One table of a run, what its mode does in a batch, and its part of a batch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from icestream.batch.report import TaskReport
from icestream.batch.table_task import UpsertTaskInput
from icestream.commit.protocol import BatchPlan
from icestream.commit.table_state import TableState
from icestream.config.options.table import TableRule
from icestream.index.reader import IndexReader
from icestream.positions import PositionRange, Positions
from icestream.tables.design import TableDesign
from icestream.write.target import StagedFile


class TableMode(Protocol):
    """What `mode:` makes of a table's records; one object per table and run."""

    @property
    def shuffle_by_partition(self) -> bool:
        """Whether rows of a partition come together before they are written."""
        ...

    def plan(self, batch: "TableBatch") -> "TableBatch":
        """Add to a planned batch what this mode needs before tasks begin."""
        ...

    def task_input(self, batch: "TableBatch", file_prefix: str) -> UpsertTaskInput | None:
        """What tasks must know; None: every record is a row."""
        ...

    def handle_requests(self, batch: "TableBatch", report: TaskReport) -> bool:
        """Do what the tasks asked for. True: the batch is planned again."""
        ...

    def stage_deletes(self, batch: "TableBatch", report: TaskReport) -> Sequence[StagedFile]:
        """Stage delete files, on the driver and right before the commit."""
        ...

    def after_commit(self, report: TaskReport) -> None:
        """Learn from a batch what the next one needs."""
        ...

    def abandon(self, batch: "TableBatch") -> None:
        """Forget what was staged for a batch that is planned again."""
        ...


@dataclass
class RunTable:
    """One table of this run."""

    name: str
    rule: TableRule
    design: TableDesign
    has_quarantine: bool
    mode: TableMode
    consumed: Positions = field(default_factory=dict)  # by this run, with rows or without
    marker_written_at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class TableBatch:
    """One table's part of one batch, planned and not yet staged."""

    table: RunTable
    range: PositionRange
    state: TableState
    plan: BatchPlan
    quarantine: TableState | None
    commit_id: str
    stream_ids: Mapping[str, str]
    keys: tuple[str, ...] = ()  # of a mirror
    index: IndexReader | None = None  # of a mirror, at the snapshot of `state`

    @property
    def name(self) -> str:
        """The table's name."""
        return self.table.name
