"""Raw: key and value as they are; a column declared as string must hold UTF-8."""

from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, NestedField, StringType

from icestream.errors import ConfigError
from icestream.formats import DecodedBatch, Format, reasons
from icestream.formats.casts import utf8
from icestream.schema import Rule
from icestream.tables.arrow import arrow_schema


@dataclass(frozen=True)
class RawFormat(Format):
    """Columns `key` and `value`, binary unless declared as string. A null value is a good row."""

    def default_schema(self) -> Schema:
        """Return key and value as binary: the columns if none are declared."""
        return Schema(NestedField(1, "key", BinaryType()), NestedField(2, "value", BinaryType()))

    def decode(
        self,
        records: pa.RecordBatch,
        target: Schema,
        rule: Rule = "evolve",
        dropped: frozenset[str] = frozenset(),
    ) -> DecodedBatch:
        """Pass the bytes on; a row is bad only if a column declared as string is not UTF-8."""
        schema = arrow_schema(target)
        errors: dict[int, str] = {}
        columns = []
        for field, arrow_field in zip(target.fields, schema, strict=True):
            if field.name not in ("key", "value"):
                raise ConfigError(
                    f"format `raw` has no column `{field.name}`", hint="it has `key` and `value`"
                )
            values = records.column(field.name)
            if isinstance(field.field_type, StringType):
                values, bad = utf8(values)
                errors = {row: f"`{field.name}`: {reason}" for row, reason in bad.items()} | errors
            elif not isinstance(field.field_type, BinaryType):
                raise ConfigError(
                    f"column `{field.name}` cannot be {field.field_type} with format `raw`",
                    hint="declare it as binary or string",
                )
            columns.append(values.cast(arrow_field.type))
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        return DecodedBatch(batch, reasons(errors, len(records)))
