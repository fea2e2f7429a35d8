"""Keys: which columns they are, what they are in a record's key, and what they were before."""

import json
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.formats import casts, duck
from icestream.formats.debezium.connect import ConnectType, described
from icestream.formats.debezium.values import ConnectCaster, ConnectorModes
from icestream.formats.debezium.wrapping import unpacked
from icestream.formats.json import decode_objects, without_bad_openings
from icestream.formats.jsonkeys import places
from icestream.formats.template import match_templates, row_order

Rows = npt.NDArray[np.int64]
Fields = Mapping[str, ConnectType] | None

OLD_KEY = "__debezium.oldkey"


def key_columns(keys: pa.BinaryArray) -> tuple[str, ...] | None:
    """Give the names of the key columns, from the first key that has any; None: none has."""
    given = pc.unique(keys.cast(pa.binary()).drop_null()).to_pylist()
    return next((names for names in map(_names, given) if names), None)


def _names(key: bytes) -> tuple[str, ...]:
    try:
        found = json.loads(key)
    except (ValueError, RecursionError):
        return ()
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    return tuple(found) if isinstance(found, dict) else ()


def decode_keys(
    keys: pa.BinaryArray,
    target: Schema,
    modes: ConnectorModes,
    groups: Rows,
    fields: Callable[[int], Fields],
) -> pa.RecordBatch | None:
    """Decode keys into those columns of the table that they have; None: none of them is one.

    A key is read by its own schema, else by that of its event, which `fields` knows by group. One
    that is not JSON, or does not fit its column, gives nulls.
    """
    texts, _ = casts.utf8(keys)
    payloads, schema, schemas = unpacked(texts)
    objects, _ = without_bad_openings(payloads)
    names = _all_names(objects)
    columns = relaxed(Schema(*(each for each in target.fields if each.name in names)))
    if not columns.fields:
        return None
    parts: list[pa.RecordBatch] = []
    order: list[Rows] = []
    for own, group in sorted({*zip(schema.tolist(), groups.tolist(), strict=True)}):
        rows = np.flatnonzero((schema == own) & (groups == group))
        known = described(schemas[own]) if own >= 0 else None
        reading = ConnectCaster(known.fields if known else fields(group), modes, columns)
        parts.append(_decoded(objects.take(pa.array(rows)), columns, reading))
        order.append(rows)
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts).take(row_order(order)).combine_chunks().to_batches()[0]


def _all_names(objects: pa.StringArray) -> set[str]:
    """Every key that any of the objects has; most have the same ones, and need no parser."""
    taken, rest = match_templates(objects, {}, lambda _: True)
    found = {name for each in taken for name in each.names}
    return found | set(duck.keys(objects.take(pa.array(rest)))) if len(rest) else found


def _decoded(objects: pa.StringArray, columns: Schema, reading: ConnectCaster) -> pa.RecordBatch:
    decoded = decode_objects(objects, {}, columns, "ignore", frozenset(), reading)
    broken = decoded.errors.is_valid().to_numpy(zero_copy_only=False)
    if not broken.any():
        return decoded.columns
    return decoded.columns.take(pa.array(np.arange(len(broken)), mask=broken))


def old_keys(headers: pa.Array) -> tuple[Rows, pa.BinaryArray]:
    """Find the rows whose key was another one before, and those old keys."""
    lists = headers.cast(pa.large_list(headers.type.value_type))
    flat = lists.flatten()
    names, values = (flat.field(name) for name in ("key", "value"))
    hits = pa.array(places(pc.equal(names, OLD_KEY)))
    owner = pc.list_parent_indices(lists).take(hits).to_numpy()
    return owner.astype(np.int64), values.take(hits)


def relaxed(schema: Schema) -> Schema:
    """The same columns, none of them required: deleted rows lack what they like."""
    return Schema(*(each.model_copy(update={"required": False}) for each in schema.fields))


def filled(columns: pa.RecordBatch, rows: Rows, keys: pa.RecordBatch | None) -> pa.RecordBatch:
    """Put the values of keys into these rows, where they have none."""
    if keys is None:
        return columns
    known: Mapping[str, pa.Array] = {name: keys.column(name) for name in keys.schema.names}
    out = []
    for each, column in zip(columns.schema, columns.columns, strict=True):
        if each.name in known and column.null_count:
            place = np.arange(len(column))
            own = column.is_null().to_numpy(zero_copy_only=False)
            place[rows] = np.where(own[rows], len(column) + np.arange(len(rows)), rows)
            column = pa.concat_arrays([column, known[each.name]]).take(pa.array(place))
        out.append(column)
    return pa.RecordBatch.from_arrays(out, schema=columns.schema)
