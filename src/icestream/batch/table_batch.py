"""One table's part of a batch, as it is planned on the driver."""

from collections.abc import Mapping
from dataclasses import dataclass

from icestream.batch.run_tables import RunTable
from icestream.commit.protocol import BatchPlan
from icestream.commit.table_state import TableState
from icestream.index.reader import IndexReader
from icestream.positions import PositionRange


@dataclass(frozen=True)
class TableBatch:
    """One table's share of one batch, planned and not yet staged."""

    table: RunTable
    range: PositionRange
    state: TableState
    plan: BatchPlan
    quarantine: TableState | None
    commit_id: str
    stream_ids: Mapping[str, str]
    keys: tuple[str, ...] = ()  # of a mirror
    index: IndexReader | None = None  # of a mirror, at the view's snapshot
