"""A table of a run, the interface of its mode, and its part of a batch."""

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
    """What `mode:` makes of a table's records: append or upsert. One object per table and run."""

    @property
    def shuffle_by_partition(self) -> bool:
        """Whether rows are shuffled by table partition before they are written."""
        ...

    def plan(self, batch: "TableBatch") -> "TableBatch":
        """Add what this mode needs before tasks begin, as keys and key index of a mirror."""
        ...

    def task_input(self, batch: "TableBatch", file_prefix: str) -> UpsertTaskInput | None:
        """Return what tasks must know to apply changes; None: every record is a row."""
        ...

    def handle_requests(self, batch: "TableBatch", report: TaskReport) -> bool:
        """Do what tasks asked for, as far as it is the mode's. True: plan the batch again."""
        ...

    def stage_deletes(self, batch: "TableBatch", report: TaskReport) -> Sequence[StagedFile]:
        """Stage position-delete files, on the driver, right before the commit."""
        ...

    def after_commit(self, report: TaskReport) -> None:
        """Remember of a batch what helps to plan the next one."""
        ...

    def abandon(self, batch: "TableBatch") -> None:
        """Forget what was staged for a batch that is planned again."""
        ...


@dataclass
class RunTable:
    """A table of this run: how it is configured, and how far the run has consumed for it."""

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
