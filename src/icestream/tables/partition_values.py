"""Partition values in the two forms that Iceberg writes: JSON by type, and text in a path."""

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID
from zlib import crc32

import numpy as np
import pyarrow as pa
from pyiceberg import transforms as tr
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform

from icestream.tables.arrow import arrow_schema

LONGEST_NAME = 200  # bytes of one folder name; file systems stop at 255


def json_values(column: pa.Array, iceberg_type: t.IcebergType) -> list[Any]:
    """Turn an Arrow column into the values that Iceberg's SingleValueParser reads for its type."""
    write = _WRITERS.get(type(iceberg_type))
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    values: list[Any] = column.to_pylist()
    return [v if v is None or write is None else write(v) for v in values]


def _iso(value: int, unit: str) -> str:
    return str(np.int64(value).astype(f"datetime64[{unit}]"))


def _moment(unit: str, suffix: str = "") -> Callable[[int], str]:
    """Return a function that writes ISO 8601 as Java reads it."""

    # By numpy, which knows every year: datetime knows 1 to 9999.
    def write(value: int) -> str:
        text = _iso(value, unit)
        is_beyond_9999 = text[0] != "-" and text.index("-") > 4
        return ("+" if is_beyond_9999 else "") + text + suffix

    return write


_WRITERS: dict[type[t.IcebergType], Callable[[Any], Any]] = {
    t.DateType: _moment("D"),
    t.TimeType: lambda value: _iso(value, "us").partition("T")[2],
    t.TimestampType: _moment("us"),
    t.TimestamptzType: _moment("us", "+00:00"),
    t.TimestampNanoType: _moment("ns"),
    t.TimestamptzNanoType: _moment("ns", "+00:00"),
    t.DecimalType: lambda value: format(value, "f"),
    t.BinaryType: lambda value: value.hex().upper(),
    t.FixedType: lambda value: value.hex().upper(),
    t.UUIDType: lambda value: str(UUID(bytes=value)),
}


def partition_folder(
    name: str, transform: tr.Transform[Any, Any], iceberg_type: t.IcebergType, value: Any
) -> str:
    """Return the folder name of a partition value as Iceberg has it; nobody parses it."""
    value_text = quote_plus(_text(transform, iceberg_type, value), safe="")
    text = f"{quote_plus(name, safe='')}={value_text}"
    if len(text) <= LONGEST_NAME:
        return text
    return f"{text[: LONGEST_NAME - 9]}~{crc32(text.encode()):08x}"


def _text(transform: tr.Transform[Any, Any], iceberg_type: t.IcebergType, value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(transform, tr.YearTransform):
        return f"{1970 + value:04d}"
    if isinstance(transform, tr.MonthTransform):
        return f"{1970 + value // 12:04d}-{value % 12 + 1:02d}"
    if isinstance(transform, tr.HourTransform):
        return _iso(value, "h").replace("T", "-")
    if isinstance(iceberg_type, t.BinaryType | t.FixedType):
        return base64.b64encode(bytes.fromhex(value)).decode()
    return "NaN" if value != value else str(value)


@dataclass(frozen=True)
class PartitionKey:
    """The partition of a data file: its values, and the id of their partition spec."""

    spec_id: int
    partition: tuple[Any, ...]  # values as in Iceberg's JSON

    @staticmethod
    def of(content_json: str) -> "PartitionKey":
        """Read the partition of a staged file."""
        file = json.loads(content_json)
        return PartitionKey(file["spec-id"], tuple(file["partition"]))


def partition_key(spec_id: int, partition: Any, types: Sequence[t.IcebergType]) -> PartitionKey:
    """Return a partition, given its values by index as PyIceberg reads them from a manifest."""
    values = [_json(partition[index], type_) for index, type_ in enumerate(types)]
    return PartitionKey(spec_id, tuple(values))


def partition_types(spec: PartitionSpec, schema: Schema) -> list[t.IcebergType]:
    """Return the types of the values of a partition spec."""
    return [
        t.UnknownType()
        if isinstance(field.transform, VoidTransform)
        else field.transform.result_type(schema.find_type(field.source_id))
        for field in spec.fields
    ]


def _json(value: Any, iceberg_type: t.IcebergType) -> Any:
    """Turn a partition value, as PyIceberg reads it from a manifest, into Iceberg's JSON."""
    if value is None or isinstance(iceberg_type, t.UnknownType):
        return None
    arrow_type = arrow_schema(Schema(t.NestedField(1, "x", iceberg_type))).field(0).type
    is_extension = isinstance(arrow_type, pa.ExtensionType)
    storage = arrow_type.storage_type if is_extension else arrow_type
    if isinstance(value, int) and pa.types.is_temporal(storage):
        width = pa.int32() if pa.types.is_date32(storage) else pa.int64()
        column = pa.array([value], width).cast(storage)
    elif isinstance(iceberg_type, t.UUIDType):
        column = pa.array([value.bytes], storage)
    else:
        column = pa.array([value], storage)
    if is_extension:
        column = pa.ExtensionArray.from_storage(arrow_type, column)
    return json_values(column, iceberg_type)[0]
