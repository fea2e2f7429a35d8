"""Formats: bytes → typed Arrow columns and a reason per bad row. The contract and the registry."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema

from icestream.plugins import plugin
from icestream.schema import NewField, Rule

FORMATS = {
    "json": "icestream.formats.json:JsonFormat",
    "raw": "icestream.formats.raw:RawFormat",
}


@dataclass(frozen=True)
class Decoded:
    """A decoded batch, row by row beside the records that it came from.

    `columns` has the columns and Arrow types of `target`; a bad row may hold anything there.
    `errors` is null for a good row, else the reason: short, without a dump of the payload.
    `new_fields` is not empty when the table should gain fields first. Then nothing else of the
    result may be used: the driver evolves the table and the batch is decoded again.
    """

    columns: pa.RecordBatch
    errors: pa.StringArray
    new_fields: tuple[NewField, ...] = ()


class Format(Protocol):
    """A small picklable object, made on the driver and called by tasks on executors."""

    def default_schema(self) -> Schema | None:
        """Give the columns that are known without looking at data, or None."""
        ...

    def decode(
        self,
        records: pa.RecordBatch,
        target: Schema,
        rule: Rule = "evolve",
        dropped: frozenset[str] = frozenset(),
    ) -> Decoded:
        """Decode a batch into the data columns of `target` (no metadata columns).

        `rule` says what an unknown field is: new, an error, or nothing. `dropped` are top-level
        names that are known and not wanted. Never raises because of what a record holds: an
        exception means a bug or a broken environment, and fails the task.
        """
        ...


def reasons(errors: Mapping[int, str], rows: int) -> pa.StringArray:
    """Lay out row → reason as the `errors` of a batch of so many rows."""
    if not errors:
        return pa.nulls(rows, pa.string())
    place = np.full(rows, -1)
    place[list(errors)] = range(len(errors))
    return pa.array(list(errors.values()), pa.string()).take(pa.array(place, mask=place < 0))


def format_for(options: Any) -> Format:
    """The format that `format:` describes."""
    made: Format = plugin("format", FORMATS, options.type)()
    return made
