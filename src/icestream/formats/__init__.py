"""Formats: bytes → typed Arrow columns and a reason per bad row. The contract and the registry."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from icestream.plugins import plugin
from icestream.schema import NewField, Rule

FORMATS = {
    "debezium": "icestream.formats.debezium:DebeziumFormat",
    "json": "icestream.formats.json:JsonFormat",
    "raw": "icestream.formats.raw:RawFormat",
}


# What a row does to a mirror.
UPSERT, DELETE, TRUNCATE, IGNORE = range(4)


@dataclass(frozen=True)
class RowChanges:
    """What each decoded row does to a mirror, row by row beside `columns`.

    A row that is deleted has its key in `columns` and what else is known of it. One that
    truncates has nulls, and so has one to ignore: a tombstone, a heartbeat, neither row nor bad.
    """

    op: pa.Int8Array
    sequence: pa.BinaryArray
    """Compares as the log positions of the source do; null: none, the offset alone decides."""
    missing: Mapping[str, pa.BooleanArray] = field(default_factory=dict)
    """By column, where there are any: rows whose event did not carry its value."""
    old_key: pa.RecordBatch | None = None
    """The key before it was changed, beside the row that has the new one; else nulls."""

    def filter(self, kept: pa.BooleanArray) -> "RowChanges":
        """Only those of some rows."""
        return RowChanges(
            self.op.filter(kept),
            self.sequence.filter(kept),
            {name: flags.filter(kept) for name, flags in self.missing.items()},
            self.old_key.filter(kept) if self.old_key is not None else None,
        )


@dataclass(frozen=True)
class DecodedBatch:
    """A decoded batch, row by row beside the records that it came from.

    `columns` has the columns and Arrow types of `target`; a bad row may hold anything there.
    `errors` is null for a good row, else the reason: short, without a dump of the payload.
    `new_fields` is not empty when the table should gain fields first. Then nothing else of the
    result may be used: the driver evolves the table and the batch is decoded again.
    `widened` are columns that the source has made wider, with the type that they should have. Rows
    that need it are bad until the table follows.
    """

    columns: pa.RecordBatch
    errors: pa.StringArray
    new_fields: tuple[NewField, ...] = ()
    changes: RowChanges | None = None
    widened: tuple[NewField, ...] = ()


class Format(ABC):
    """A small picklable object, made on the driver and called by tasks on executors.

    A frozen dataclass, whose fields are options of `format:` by the same names.
    """

    log_columns: ClassVar[Mapping[str, IcebergType]] = {}
    """Of a change feed in an append table, which is a log of changes: what says what each was."""

    def default_schema(self) -> Schema | None:
        """Give the columns that are known without looking at data; None: the data tells."""
        return None

    def known_columns(self, mode: str) -> dict[str, IcebergType]:
        """Columns that are known before any data is seen, for a table of this mode."""
        schema = self.default_schema()
        columns = {field.name: field.field_type for field in (schema.fields if schema else ())}
        return columns | (dict(self.log_columns) if mode == "append" else {})

    def key_columns(self, records: pa.RecordBatch) -> tuple[str, ...] | None:
        """Give the names of the key columns, as the records say them; None: they do not."""
        return None

    def envelope_field(self, path: str) -> NestedField | None:
        """Give the column that `decode` fills with a part of the event beside the row, if any."""
        return None

    @abstractmethod
    def decode(
        self,
        records: pa.RecordBatch,
        target: Schema,
        rule: Rule = "evolve",
        dropped: frozenset[str] = frozenset(),
    ) -> DecodedBatch:
        """Decode a batch into the data columns of `target` (no metadata columns).

        `rule` says what an unknown field is: new, an error, or nothing. `dropped` are top-level
        names that are known and not wanted. Never raises because of what a record holds: an
        exception means a bug or a broken environment, and fails the task.
        """


def reasons(errors: Mapping[int, str], rows: int) -> pa.StringArray:
    """Lay out row → reason as the `errors` of a batch of so many rows."""
    if not errors:
        return pa.nulls(rows, pa.string())
    place = np.full(rows, -1)
    place[list(errors)] = range(len(errors))
    return pa.array(list(errors.values()), pa.string()).take(pa.array(place, mask=place < 0))


def format_for(options: Any) -> Format:
    """The format that `format:` describes."""
    kind = plugin("format", FORMATS, options.type)
    named = (each.name for each in fields(kind))
    made: Format = kind(**{n: getattr(options, n) for n in named if hasattr(options, n)})
    return made
