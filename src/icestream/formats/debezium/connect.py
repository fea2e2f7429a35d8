"""Reads Kafka Connect's schemas, as events carry them: what a value means, and its column."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import Any, Literal, TypeAlias

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from icestream.schema import NewField, Rule, is_wider, judge

# How the text of a value is read, where its JSON type alone does not tell.
Sense: TypeAlias = Literal[
    "plain", "text", "bytes", "decimal", "variable", "days", "time", "timestamp", "local", "zoned"
]
Unit: TypeAlias = Literal["ms", "us", "ns"]

MAX_PRECISION = 38
_COMMENT = "__debezium.source.column.comment"


@dataclass(frozen=True)
class ConnectType:
    """What a value means: the column that it makes, and how its text is to be read."""

    type: IcebergType
    sense: Sense = "plain"
    unit: Unit = "us"  # of times and timestamps that are numbers
    scale: int = 0  # of decimals
    inner: Mapping[str, "ConnectType"] = field(default_factory=dict)  # by step of Iceberg's paths
    doc: str | None = None  # the comment of its column


@dataclass(frozen=True)
class ConnectSchema:
    """A record's embedded schema: its name, and what its fields mean."""

    name: str
    fields: Mapping[str, ConnectType]

    @property
    def row(self) -> Mapping[str, ConnectType]:
        """The fields of an envelope's row, from `after` or `before`; empty: no envelope."""
        image = self.fields.get("after") or self.fields.get("before")
        return image.inner if image else {}


@lru_cache(maxsize=256)
def described(text: str) -> ConnectSchema | None:
    """Read an embedded schema; None: it is not one of Kafka Connect, or not of a struct."""
    try:
        schema = json.loads(text)
        record = _meaning(schema)
        name = schema.get("name")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    if not isinstance(record.type, StructType):
        return None
    return ConnectSchema(name if isinstance(name, str) else "", record.inner)


def new_fields(
    fields: Mapping[str, ConnectType], target: Schema, rule: Rule, dropped: frozenset[str]
) -> tuple[tuple[NewField, ...], bool]:
    """Return the fields that a table lacks, and whether one has a name that is refused."""
    verdicts = judge(target, fields, rule, dropped)
    accepted = [(name, fields[name]) for name, reason in verdicts.items() if reason is None]
    new = [NewField((), name, meaning.type, meaning.doc) for name, meaning in accepted]
    for column in target.fields:
        if column.name in fields:
            new += _nested(column.field_type, fields[column.name].type, (column.name,))
    return tuple(new), any(reason is not None for reason in verdicts.values())


def widened(fields: Mapping[str, ConnectType], target: Schema) -> tuple[NewField, ...]:
    """Return the columns that the source made wider and Iceberg can widen, with the new type."""
    return tuple(
        NewField((), column.name, fields[column.name].type)
        for column in target.fields
        if column.name in fields and is_wider(fields[column.name].type, column.field_type)
    )


def _nested(old: IcebergType, new: IcebergType, path: tuple[str, ...]) -> Iterator[NewField]:
    """Yield the fields that a struct somewhere within a column lacks."""
    match old, new:
        case ListType(), ListType():
            yield from _nested(old.element_type, new.element_type, (*path, "element"))
        case MapType(), MapType():
            yield from _nested(old.value_type, new.value_type, (*path, "value"))
        case StructType(), StructType():
            known = {field.name: field.field_type for field in old.fields}
            lower = {name.lower() for name in known}
            for new_field in new.fields:
                name = new_field.name
                if name in known:
                    yield from _nested(known[name], new_field.field_type, (*path, name))
                elif name.lower() not in lower:
                    yield NewField(path, name, new_field.field_type)


def _meaning(schema: Any) -> ConnectType:
    name, schema_type = schema.get("name"), schema["type"]
    if name in ("org.apache.kafka.connect.data.Decimal", "io.debezium.data.VariableScaleDecimal"):
        return _decimal(schema)
    if isinstance(name, str) and name in _NAMED:
        return _NAMED[name]
    if schema_type == "struct":
        inner = {member["field"]: _commented(member) for member in schema["fields"]}
        if not inner:  # a struct without fields: kept as JSON text
            return ConnectType(StringType())
        return _numbered(ConnectType(_struct(inner), inner=inner))
    if schema_type == "array":
        element = _meaning(schema["items"])
        list_type = ListType(0, element.type, element_required=False)
        return _numbered(ConnectType(list_type, inner={"element": element}))
    if schema_type == "map":
        if schema["keys"]["type"] != "string":
            return ConnectType(StringType())  # an array of pairs: kept as JSON text
        value = _meaning(schema["values"])
        map_type = MapType(0, StringType(), 0, value.type, value_required=False)
        return _numbered(
            ConnectType(map_type, inner={"key": ConnectType(StringType()), "value": value})
        )
    return _PLAIN[schema_type]


def _commented(schema: Any) -> ConnectType:
    """Return a field's meaning with the comment that its column has in the source.

    With the connector's `include.schema.comments` and `column.propagate.source.type` the comment is
    a parameter of the schema; else the schema's own `doc` is taken.
    """
    meaning = _meaning(schema)
    doc = (schema.get("parameters") or {}).get(_COMMENT) or schema.get("doc")
    return replace(meaning, doc=doc) if doc and isinstance(doc, str) else meaning


def _decimal(schema: Any) -> ConnectType:
    """Return a decimal's meaning; a precision or scale that Iceberg cannot have makes a string."""
    if schema["type"] == "struct":
        return ConnectType(StringType(), "variable")
    parameters = schema.get("parameters") or {}
    scale = int(parameters["scale"])
    precision = int(parameters.get("connect.decimal.precision", MAX_PRECISION))
    is_possible = 0 <= scale <= precision <= MAX_PRECISION
    return ConnectType(
        DecimalType(precision, scale) if is_possible else StringType(), "decimal", scale=scale
    )


def _struct(inner: Mapping[str, ConnectType]) -> StructType:
    return StructType(*(NestedField(0, name, meaning.type) for name, meaning in inner.items()))


def _numbered(meaning: ConnectType) -> ConnectType:
    """Give every nested field an id of its own, a placeholder: the table assigns another one."""
    return ConnectType(_with_ids(meaning.type, count(1)), inner=meaning.inner)


def _with_ids(kind: IcebergType, ids: "count[int]") -> IcebergType:
    match kind:
        case ListType():
            return ListType(next(ids), _with_ids(kind.element_type, ids), element_required=False)
        case MapType():
            key, value = next(ids), next(ids)
            value_type = _with_ids(kind.value_type, ids)
            return MapType(key, kind.key_type, value, value_type, value_required=False)
        case StructType():
            fields = [(next(ids), f.name, f.field_type) for f in kind.fields]
            return StructType(*(NestedField(i, n, _with_ids(t, ids)) for i, n, t in fields))
    return kind


_PLAIN = {
    "int8": ConnectType(IntegerType()),
    "int16": ConnectType(IntegerType()),
    "int32": ConnectType(IntegerType()),
    "int64": ConnectType(LongType()),
    "float": ConnectType(FloatType()),
    "float32": ConnectType(FloatType()),
    "double": ConnectType(DoubleType()),
    "float64": ConnectType(DoubleType()),
    "boolean": ConnectType(BooleanType()),
    "string": ConnectType(StringType(), "text"),
    "bytes": ConnectType(BinaryType(), "bytes"),
}
_CONNECT, _TIME = "org.apache.kafka.connect.data.", "io.debezium.time."
# A time of day is text: Spark cannot open a table that has a column of type `time`.
_NAMED = {
    _CONNECT + "Date": ConnectType(DateType(), "days"),
    _CONNECT + "Time": ConnectType(StringType(), "time", "ms"),
    _CONNECT + "Timestamp": ConnectType(TimestampType(), "timestamp", "ms"),
    _TIME + "Date": ConnectType(DateType(), "days"),
    _TIME + "Time": ConnectType(StringType(), "time", "ms"),
    _TIME + "MicroTime": ConnectType(StringType(), "time", "us"),
    _TIME + "NanoTime": ConnectType(StringType(), "time", "ns"),
    _TIME + "Timestamp": ConnectType(TimestampType(), "timestamp", "ms"),
    _TIME + "MicroTimestamp": ConnectType(TimestampType(), "timestamp", "us"),
    _TIME + "NanoTimestamp": ConnectType(TimestampType(), "timestamp", "ns"),
    _TIME + "IsoDate": ConnectType(DateType(), "local"),
    _TIME + "IsoTime": ConnectType(StringType(), "local"),
    _TIME + "IsoTimestamp": ConnectType(TimestampType(), "local"),
    _TIME + "ZonedTimestamp": ConnectType(TimestamptzType(), "zoned"),
    _TIME + "ZonedTime": ConnectType(StringType(), "zoned"),
}
