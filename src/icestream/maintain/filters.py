"""Filters: the partition of a file group as an expression that Iceberg's planning understands."""

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from icestream.maintain.action import FileGroup
from icestream.tables.metadata import Metadata

_TRANSFORM = re.compile(r"(?P<name>\w+)(?:\[(?P<argument>\d+)\])?")


def partition_filter(jvm: Any, metadata: Metadata, group: FileGroup) -> Any | None:
    """Files of a group's partition and, where the layout has changed, perhaps a few others.

    None: it does not say its partition, or by a transform that is unknown here.
    """
    spec = metadata.specs.get(group.spec_id)
    if spec is None or len(spec["fields"]) != len(group.values):
        return None
    expressions = jvm.org.apache.iceberg.expressions.Expressions
    return _partition(expressions, _schema(jvm, metadata), spec["fields"], group.values)


def _schema(jvm: Any, metadata: Metadata) -> Any:
    return jvm.org.apache.iceberg.SchemaParser.fromJson(json.dumps(metadata.schema))


def _partition(
    expressions: Any, schema: Any, fields: Sequence[Mapping[str, Any]], values: Sequence[object]
) -> Any | None:
    found = expressions.alwaysTrue()
    for field, value in zip(fields, values, strict=True):
        told = _TRANSFORM.fullmatch(field["transform"])
        column = schema.findColumnName(field["source-id"])
        if told is None or column is None:
            return None
        if told["name"] == "void":
            continue
        term = _term(expressions, column, told["name"], told["argument"])
        if term is None:
            return None
        found = getattr(expressions, "and")(found, _equal(expressions, term, value))
    return found


def _term(expressions: Any, column: str, transform: str, argument: str | None) -> Any | None:
    if transform == "identity":
        return expressions.ref(column)
    if transform in ("bucket", "truncate"):
        return getattr(expressions, transform)(column, int(argument or 0))
    if transform in ("year", "month", "day", "hour"):
        return getattr(expressions, transform)(column)
    return None


def _equal(expressions: Any, term: Any, value: object) -> Any:
    if value is None:
        return expressions.isNull(term)
    if isinstance(value, float) and value != value:
        return expressions.isNaN(term)
    return expressions.equal(term, str(value) if isinstance(value, uuid.UUID) else value)
