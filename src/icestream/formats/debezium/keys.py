"""Reads the keys of Debezium's records: their columns, their values, and changed ones."""

import json
from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.formats import casts, duck
from icestream.formats.debezium.connect import ConnectType, described
from icestream.formats.debezium.pieces import Rows
from icestream.formats.debezium.values import ConnectCaster, ConnectorModes
from icestream.formats.debezium.wrapping import unpacked
from icestream.formats.json import decode_objects, without_bad_openings
from icestream.formats.jsonkeys import places
from icestream.formats.template import match_templates, row_order

Fields = Mapping[str, ConnectType] | None

OLD_KEY = "__debezium.oldkey"  # header of an event whose key was changed


def key_columns(keys: pa.BinaryArray) -> tuple[str, ...] | None:
    """Return the names of the key columns, from the first key that has any; None: none has."""
    distinct = pc.unique(keys.cast(pa.binary()).drop_null()).to_pylist()
    return next((names for names in map(_names, distinct) if names), None)


def _names(key: bytes) -> tuple[str, ...]:
    try:
        fields = json.loads(key)
    except (ValueError, RecursionError):
        return ()
    if isinstance(fields, dict) and fields.keys() == {"schema", "payload"}:
        fields = fields["payload"]
    return tuple(fields) if isinstance(fields, dict) else ()


def decode_keys(
    keys: pa.BinaryArray,
    target: Schema,
    modes: ConnectorModes,
    groups: Rows,
    fields: Callable[[int], Fields],
) -> pa.RecordBatch | None:
    """Decode keys into the table's columns of their names; None: there are no such columns.

    A key is read by its own schema, else by that of its event, which `fields` returns by group. A
    key that is not JSON, or does not fit its column, becomes nulls.
    """
    texts, _ = casts.utf8(keys)
    payloads, schema, schemas = unpacked(texts)
    objects, _ = without_bad_openings(payloads)
    names = _all_names(objects)
    columns = relaxed(Schema(*(field for field in target.fields if field.name in names)))
    if not columns.fields:
        return None
    parts: list[pa.RecordBatch] = []
    part_rows: list[Rows] = []
    for key_schema, group in sorted({*zip(schema.tolist(), groups.tolist(), strict=True)}):
        rows = np.flatnonzero((schema == key_schema) & (groups == group))
        embedded = described(schemas[key_schema]) if key_schema >= 0 else None
        caster = ConnectCaster(embedded.fields if embedded else fields(group), modes, columns)
        parts.append(_decoded(objects.take(pa.array(rows)), columns, caster))
        part_rows.append(rows)
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).take(row_order(part_rows)).combine_chunks().to_batches()[0]


def _all_names(objects: pa.StringArray) -> set[str]:
    """Return every name that any of the objects has; most have the same ones and need no parser."""
    matches, other_rows = match_templates(objects, {}, lambda _: True)
    names = {name for match in matches for name in match.names}
    return names | set(duck.keys(objects.take(pa.array(other_rows)))) if len(other_rows) else names


def _decoded(objects: pa.StringArray, columns: Schema, caster: ConnectCaster) -> pa.RecordBatch:
    decoded = decode_objects(objects, {}, columns, "ignore", frozenset(), caster)
    is_bad = decoded.errors.is_valid().to_numpy(zero_copy_only=False)
    if not is_bad.any():
        return decoded.columns
    return decoded.columns.take(pa.array(np.arange(len(is_bad)), mask=is_bad))


def old_keys(headers: pa.Array) -> tuple[Rows, pa.BinaryArray]:
    """Return the rows whose key was changed, by their headers, and their old keys."""
    lists = headers.cast(pa.large_list(headers.type.value_type))
    entries = lists.flatten()
    names, values = (entries.field(name) for name in ("key", "value"))
    hits = pa.array(places(pc.equal(names, OLD_KEY)))
    rows = pc.list_parent_indices(lists).take(hits).to_numpy()
    return rows.astype(np.int64), values.take(hits)


def relaxed(schema: Schema) -> Schema:
    """Return the columns with none required: deleted rows may lack all but their key."""
    return Schema(*(field.model_copy(update={"required": False}) for field in schema.fields))


def filled(columns: pa.RecordBatch, rows: Rows, keys: pa.RecordBatch | None) -> pa.RecordBatch:
    """Put the values of keys into these rows of the columns, where they are null."""
    if keys is None:
        return columns
    key_values: Mapping[str, pa.Array] = {name: keys.column(name) for name in keys.schema.names}
    arrays = []
    for field, column in zip(columns.schema, columns.columns, strict=True):
        if field.name in key_values and column.null_count:
            indices = np.arange(len(column))
            is_null = column.is_null().to_numpy(zero_copy_only=False)
            indices[rows] = np.where(is_null[rows], len(column) + np.arange(len(rows)), rows)
            column = pa.concat_arrays([column, key_values[field.name]]).take(pa.array(indices))
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=columns.schema)
