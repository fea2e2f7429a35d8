"""Maps row positions in the inputs of a rewrite to positions in its outputs. Pure.

Rows keep their order, so nothing is remembered of a single row: its number among the live rows of
all inputs is its number among the rows of all outputs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from icestream.errors import InternalError
from icestream.tables.position_deletes import RowPositions


@dataclass(frozen=True)
class RewriteInput:
    """A data file whose live rows were rewritten."""

    path: str
    rows: int
    deleted: RowPositions = field(repr=False)  # sorted, as of when it was read

    @property
    def live(self) -> int:
        """The number of rows that were read."""
        return self.rows - len(self.deleted)


@dataclass(frozen=True)
class RewriteOutput:
    """A new data file."""

    path: str
    rows: int


@dataclass(frozen=True)
class RowMapping:
    """Inputs in the order in which they were read, outputs in that in which they were written."""

    inputs: Sequence[RewriteInput]
    outputs: Sequence[RewriteOutput]

    def __post_init__(self) -> None:
        read = sum(source.live for source in self.inputs)
        written = sum(output.rows for output in self.outputs)
        if read != written:
            raise InternalError(
                f"{read} rows were read to be written anew, and {written} are written",
                hint="nothing was committed; please report this",
            )

    def map_positions(self, positions: Mapping[str, RowPositions]) -> dict[str, RowPositions]:
        """Map rows of inputs to sorted positions in outputs; deleted rows are left out."""
        numbers = [
            self._row_numbers(self._indices[path], np.unique(of_input))
            for path, of_input in positions.items()
            if path in self._indices
        ]
        ordered = np.sort(np.concatenate(numbers)) if numbers else np.zeros(0, dtype=np.int64)
        bounds = np.searchsorted(ordered, self._output_starts)
        return {
            output.path: ordered[bounds[i] : bounds[i + 1]] - self._output_starts[i]
            for i, output in enumerate(self.outputs)
            if bounds[i + 1] > bounds[i]
        }

    def _row_numbers(self, index: int, positions: RowPositions) -> RowPositions:
        """Return the numbers of an input's live rows among all rows that were written."""
        source = self.inputs[index]
        positions = positions[(positions >= 0) & (positions < source.rows)]
        deleted_below = np.searchsorted(source.deleted, positions)
        is_live = np.searchsorted(source.deleted, positions, side="right") == deleted_below
        numbers: RowPositions = self._input_starts[index] + (positions - deleted_below)[is_live]
        return numbers

    @cached_property
    def _indices(self) -> dict[str, int]:
        return {source.path: index for index, source in enumerate(self.inputs)}

    @cached_property
    def _input_starts(self) -> RowPositions:
        return np.cumsum([0, *(source.live for source in self.inputs)])

    @cached_property
    def _output_starts(self) -> RowPositions:
        return np.cumsum([0, *(output.rows for output in self.outputs)])
