"""Maps an Iceberg schema to Arrow: the types in which rows travel and are written."""

from functools import singledispatch

import pyarrow as pa
from pyiceberg import types as t
from pyiceberg.schema import Schema

from icestream.errors import SchemaRefused

# Field ids of a position delete's columns, `file_path` and `pos`: reserved by the specification.
PATH_ID, POSITION_ID = 2147483546, 2147483545
FIELD_ID = b"PARQUET:field_id"  # in the metadata of an Arrow field

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


def arrow_schema(schema: Schema) -> pa.Schema:
    """Map a schema to Arrow as PyIceberg does, with a field id at every level."""
    return pa.schema([_field(field) for field in schema.fields])


def _field(field: t.NestedField) -> pa.Field:
    return pa.field(
        field.name,
        _arrow(field.field_type),
        nullable=field.optional,
        metadata={FIELD_ID: str(field.field_id)},
    )


@singledispatch
def _arrow(iceberg_type: t.IcebergType) -> pa.DataType:
    try:
        return _PLAIN[type(iceberg_type)]
    except KeyError:
        raise SchemaRefused(f"columns of type {iceberg_type} cannot be written") from None


@_arrow.register
def _(iceberg_type: t.DecimalType) -> pa.DataType:
    return pa.decimal128(iceberg_type.precision, iceberg_type.scale)


@_arrow.register
def _(iceberg_type: t.FixedType) -> pa.DataType:
    return pa.binary(len(iceberg_type))


@_arrow.register
def _(iceberg_type: t.StructType) -> pa.DataType:
    return pa.struct([_field(field) for field in iceberg_type.fields])


@_arrow.register
def _(iceberg_type: t.ListType) -> pa.DataType:
    return pa.large_list(_field(iceberg_type.element_field))


@_arrow.register
def _(iceberg_type: t.MapType) -> pa.DataType:
    return pa.map_(_field(iceberg_type.key_field), _field(iceberg_type.value_field))
