"""Formats turn bytes into typed Arrow columns and a reason per bad row: contract and registry."""

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


# What a decoded row does to a mirror: the values of `RowChanges.op`.
UPSERT, DELETE, TRUNCATE, IGNORE = range(4)


@dataclass(frozen=True)
class RowChanges:
    """What each decoded row does to a mirror, row by row beside `columns`.

    A deleted row has its key in `columns` and whatever else the event says of it. A truncate and
    an ignored record (a tombstone, a heartbeat: neither a row nor bad) have nulls there.
    """

    op: pa.Int8Array
    sequence: pa.BinaryArray
    """Source sequence: bytes that compare as the source's log does; null: the offset decides."""
    missing: Mapping[str, pa.BooleanArray] = field(default_factory=dict)
    """By column: the rows whose event did not carry its value; columns without any are left out."""
    old_key: pa.RecordBatch | None = None
    """The old key beside a row whose key was changed; nulls beside the others."""

    def filter(self, kept: pa.BooleanArray) -> "RowChanges":
        """Return the changes of the rows for which the mask is true."""
        return RowChanges(
            self.op.filter(kept),
            self.sequence.filter(kept),
            {name: flags.filter(kept) for name, flags in self.missing.items()},
            self.old_key.filter(kept) if self.old_key is not None else None,
        )


@dataclass(frozen=True)
class DecodedBatch:
    """A decoded batch: row n belongs to record n.

    `columns` has the columns and Arrow types of `target`; a bad row may hold anything there.
    `errors` is null for a good row, else the reason: short, without a dump of the payload.
    `new_fields`, if any, must be added to the table first. Then nothing else of the result may be
    used: the driver evolves the table and the batch is decoded again.
    `widened` are columns that the source has made wider, with the type that they should have. Rows
    that need that type are bad until the table has it.
    """

    columns: pa.RecordBatch
    errors: pa.StringArray
    new_fields: tuple[NewField, ...] = ()
    changes: RowChanges | None = None
    widened: tuple[NewField, ...] = ()


class Format(ABC):
    """Decodes records: a small picklable object, made on the driver, called by tasks on executors.

    A frozen dataclass, whose fields are options of `format:` by the same names.
    """

    log_columns: ClassVar[Mapping[str, IcebergType]] = {}
    """More columns for a log of changes, an append table: what each event did, such as `__op`."""

    def default_schema(self) -> Schema | None:
        """Return the columns that every record has; None: the data tells."""
        return None

    def known_columns(self, mode: str) -> dict[str, IcebergType]:
        """Return the columns of a table of this mode that are known before any data is read."""
        schema = self.default_schema()
        columns = {field.name: field.field_type for field in (schema.fields if schema else ())}
        return columns | (dict(self.log_columns) if mode == "append" else {})

    def key_columns(self, records: pa.RecordBatch) -> tuple[str, ...] | None:
        """Return the key columns that the records themselves name; None: they name none."""
        return None

    def envelope_field(self, path: str) -> NestedField | None:
        """Return the column that `decode` fills with a field of the envelope; None: no such one."""
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

        `rule` says what an unknown field is: new, an error, or left out. `dropped` are top-level
        names that are known and not wanted. Never raises because of what a record holds: an
        exception means a bug or a broken environment, and fails the task.
        """


def reasons(errors: Mapping[int, str], rows: int) -> pa.StringArray:
    """Make `DecodedBatch.errors` of the reasons by row: one entry for each of so many rows."""
    if not errors:
        return pa.nulls(rows, pa.string())
    indices = np.full(rows, -1)
    indices[list(errors)] = range(len(errors))
    return pa.array(list(errors.values()), pa.string()).take(pa.array(indices, mask=indices < 0))


def format_for(options: Any) -> Format:
    """Make the format that the option `format:` describes."""
    format_class = plugin("format", FORMATS, options.type)
    names = (each.name for each in fields(format_class))
    result: Format = format_class(
        **{name: getattr(options, name) for name in names if hasattr(options, name)}
    )
    return result
