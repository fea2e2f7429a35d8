"""Moves: where each row of some data files is after they were written anew. Pure.

Rows keep their order, so nothing is remembered of a single row: a place among the live rows of all
inputs is the place among the rows of all outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from icestream.errors import InternalError
from icestream.tables.position_deletes import RowPositions


@dataclass(frozen=True)
class RewriteInput:
    """A data file whose live rows were written anew."""

    path: str
    rows: int
    dead: RowPositions = field(repr=False)  # sorted: deleted before it was read

    @property
    def live(self) -> int:
        """How many rows were read."""
        return self.rows - len(self.dead)


@dataclass(frozen=True)
class RewriteOutput:
    """A new data file."""

    path: str
    rows: int


@dataclass(frozen=True)
class RowMapping:
    """Inputs in the order in which they were read, outputs in that in which they were written."""

    sources: Sequence[RewriteInput]
    outputs: Sequence[RewriteOutput]

    def __post_init__(self) -> None:
        read, written = sum(each.live for each in self.sources), sum(o.rows for o in self.outputs)
        if read != written:
            raise InternalError(
                f"{read} rows were read to be written anew, and {written} are written",
                hint="nothing was committed; please report this",
            )

    def map_positions(self, dead: Mapping[str, RowPositions]) -> dict[str, RowPositions]:
        """Where rows of inputs are now, sorted; what was dead already, or no input, is nowhere."""
        places = [
            self._output_positions(self._by_path[path], np.unique(positions))
            for path, positions in dead.items()
            if path in self._by_path
        ]
        every = np.sort(np.concatenate(places)) if places else np.zeros(0, dtype=np.int64)
        cuts = np.searchsorted(every, self._output_starts)
        return {
            output.path: every[cuts[at] : cuts[at + 1]] - self._output_starts[at]
            for at, output in enumerate(self.outputs)
            if cuts[at + 1] > cuts[at]
        }

    def _output_positions(self, number: int, positions: RowPositions) -> RowPositions:
        """Places among all rows that were written."""
        source = self.sources[number]
        inside = positions[(positions >= 0) & (positions < source.rows)]
        below = np.searchsorted(source.dead, inside)
        live = np.searchsorted(source.dead, inside, side="right") == below
        found: RowPositions = self._input_starts[number] + (inside - below)[live]
        return found

    @cached_property
    def _by_path(self) -> dict[str, int]:
        return {source.path: number for number, source in enumerate(self.sources)}

    @cached_property
    def _input_starts(self) -> RowPositions:
        return np.cumsum([0, *(source.live for source in self.sources)])

    @cached_property
    def _output_starts(self) -> RowPositions:
        return np.cumsum([0, *(output.rows for output in self.outputs)])
