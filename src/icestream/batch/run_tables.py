"""The tables of a run: found, created, claimed, and how far each has come."""

import time
from dataclasses import dataclass, field

from icestream.batch.shuffle import FileSpread
from icestream.config.options.table import TableRule
from icestream.positions import Positions
from icestream.tables.design import TableDesign


@dataclass
class RunTable:
    """One table of this run."""

    name: str
    rule: TableRule
    design: TableDesign
    has_quarantine: bool
    consumed: Positions = field(default_factory=dict)  # seen go by, with rows or without
    marker_written_at: float = field(default_factory=time.monotonic)
    file_spread: FileSpread = field(default_factory=FileSpread)
