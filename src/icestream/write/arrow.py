"""The Arrow side of an Iceberg schema: types, field ids and the way to a nested column."""

from functools import singledispatch
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as t
from pyiceberg.schema import Schema

from icestream.errors import SchemaRefused

# pyiceberg.io.pyarrow has the same mapping, but importing it costs every Python worker 2 seconds.
_PLAIN: dict[type[t.IcebergType], pa.DataType] = {
    t.BooleanType: pa.bool_(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DoubleType: pa.float64(),
    t.DateType: pa.date32(),
    t.TimeType: pa.time64("us"),
    t.TimestampType: pa.timestamp("us"),
    t.TimestamptzType: pa.timestamp("us", tz="UTC"),
    t.TimestampNanoType: pa.timestamp("ns"),
    t.TimestamptzNanoType: pa.timestamp("ns", tz="UTC"),
    t.StringType: pa.large_string(),
    t.BinaryType: pa.large_binary(),
    t.UUIDType: pa.uuid(),
}


def stored(schema: Schema) -> Schema:
    """Leave out columns of type `unknown`, which the specification keeps out of data files."""
    return Schema(*(f for f in schema.fields if not isinstance(f.field_type, t.UnknownType)))


def arrow_schema(schema: Schema) -> pa.Schema:
    """Map to Arrow as PyIceberg does, with a field id at every level."""
    return pa.schema([_field(field) for field in schema.fields])


def _field(field: t.NestedField) -> pa.Field:
    return pa.field(
        field.name,
        _arrow(field.field_type),
        nullable=field.optional,
        metadata={"PARQUET:field_id": str(field.field_id)},
    )


@singledispatch
def _arrow(kind: t.IcebergType) -> pa.DataType:
    try:
        return _PLAIN[type(kind)]
    except KeyError:
        raise SchemaRefused(f"columns of type {kind} cannot be written") from None


@_arrow.register
def _(kind: t.DecimalType) -> pa.DataType:
    return pa.decimal128(kind.precision, kind.scale)


@_arrow.register
def _(kind: t.FixedType) -> pa.DataType:
    return pa.binary(len(kind))


@_arrow.register
def _(kind: t.StructType) -> pa.DataType:
    return pa.struct([_field(field) for field in kind.fields])


@_arrow.register
def _(kind: t.ListType) -> pa.DataType:
    return pa.large_list(_field(kind.element_field))


@_arrow.register
def _(kind: t.MapType) -> pa.DataType:
    return pa.map_(_field(kind.key_field), _field(kind.value_field))


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give a batch exactly the table's columns, types and field ids; free if it has them."""
    try:
        if batch.schema.names != schema.names:
            batch = batch.select(schema.names)
        if not batch.schema.equals(schema):
            batch = batch.cast(schema)
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    except (KeyError, ValueError, TypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaRefused(f"rows do not fit the table's columns: {error}") from error


def path_to(schema: Schema, field_id: int) -> list[int]:
    """Positions that lead through structs to a column; empty if there is none."""
    return _path(schema.fields, field_id) or []


def _path(fields: tuple[t.NestedField, ...], field_id: int) -> list[int] | None:
    for position, field in enumerate(fields):
        if field.field_id == field_id:
            return [position]
        if isinstance(field.field_type, t.StructType):
            below = _path(field.field_type.fields, field_id)
            if below is not None:
                return [position, *below]
    return None


def column_at(rows: Any, path: list[int]) -> Any:
    """Take a column of a batch or table, through structs: null where a parent is null."""
    column = rows.column(path[0])
    return pc.struct_field(column, path[1:]) if len(path) > 1 else column


def plain(column: pa.Array) -> pa.Array:
    """Take the storage of an extension array (uuid), which Arrow's kernels understand."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column
