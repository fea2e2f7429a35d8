"""Metrics modes: what Iceberg keeps of each column, by `write.metadata.metrics.*`."""

import re
from collections.abc import Iterable, Mapping

from pyiceberg import transforms as tr
from pyiceberg import types as t
from pyiceberg.schema import Schema

from icestream.write.sort import SortOrder

Mode = int | None
"""None: nothing; 0: sizes and counts; n: bounds too, of at most n characters or bytes."""

FULL = 2**31 - 1
_DEFAULT: Mode = 16
_PREFIX = "write.metadata.metrics."
_COLUMN = _PREFIX + "column."


def modes(schema: Schema, order: SortOrder, properties: Mapping[str, str]) -> dict[int, Mode]:
    """Return the mode of every primitive column, as Iceberg's MetricsConfig.forTable does."""
    ids = list(_primitives(schema.as_struct()))
    default = _parse(properties.get(_PREFIX + "default"), _DEFAULT)
    chosen: dict[int, Mode] = dict.fromkeys(ids, default)
    if _PREFIX + "default" not in properties:
        limit = int(properties.get(_PREFIX + "max-inferred-column-defaults", 100))
        limit = limit if limit >= 0 else 100
        if len(ids) > limit:
            default = None
            first_ids = set(ids[:limit])
            chosen = {field_id: _DEFAULT if field_id in first_ids else None for field_id in ids}
    for field in order.fields:  # a sorted column is worth its bounds
        if field.source_id in chosen and not isinstance(field.transform, tr.BucketTransform):
            chosen[field.source_id] = default or _DEFAULT
    for field_id in ids:
        column = f"{_COLUMN}{schema.find_column_name(field_id)}"
        if column in properties:
            chosen[field_id] = _parse(properties[column], default)
    return chosen


def _parse(text: str | None, fallback: Mode) -> Mode:
    if text is None:
        return fallback
    word = text.strip().lower()
    words: dict[str, Mode] = {"none": None, "counts": 0, "full": FULL}
    if word in words:
        return words[word]
    match = re.fullmatch(r"truncate\(([0-9]+)\)", word)
    return int(match[1]) if match and int(match[1]) > 0 else fallback


def _primitives(iceberg_type: t.IcebergType) -> Iterable[int]:
    """Yield the ids of primitive columns, those of a struct before those further down."""
    fields: tuple[t.NestedField, ...] = ()
    if isinstance(iceberg_type, t.StructType):
        fields = iceberg_type.fields
    elif isinstance(iceberg_type, t.ListType):
        fields = (iceberg_type.element_field,)
    elif isinstance(iceberg_type, t.MapType):
        fields = (iceberg_type.key_field, iceberg_type.value_field)
    yield from (f.field_id for f in fields if f.field_type.is_primitive)
    for field in fields:
        yield from _primitives(field.field_type)
