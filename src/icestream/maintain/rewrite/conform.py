"""Fitting: rows of a data file in the columns that the table has now, found by field id."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.errors import SchemaRefused
from icestream.tables.arrow import FIELD_ID


def fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give rows the table's columns; those that the file does not have yet are null."""
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    there = _by_id(list(rows.schema))
    try:
        columns = [_column(rows, there, field) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaRefused(f"rows do not fit the table's columns: {error}") from error


def _column(rows: pa.RecordBatch, there: dict[bytes, int], field: pa.Field) -> pa.Array:
    at = there.get(_id(field))
    if at is None:
        return pa.nulls(rows.num_rows, field.type)
    return _fit(rows.column(at), rows.schema.field(at).type, field.type)


def _fit(column: pa.Array, old: pa.DataType, new: pa.DataType) -> pa.Array:
    """One column in another type; parts of structs are found by their ids at every level."""
    if old.equals(new, check_metadata=True):
        return column
    if pa.types.is_struct(new):
        there = _by_id([old.field(at) for at in range(old.num_fields)])
        parts = []
        for field in new:
            at = there.get(_id(field))
            if at is None:
                parts.append(pa.nulls(len(column), field.type))
            else:
                part = pc.struct_field(column, [at])
                parts.append(_fit(part, old.field(at).type, field.type))
        return pa.StructArray.from_arrays(parts, fields=list(new), mask=column.is_null())
    if pa.types.is_large_list(new):
        values = _fit(pc.list_flatten(column), old.value_type, new.value_type)
        return pa.LargeListArray.from_arrays(
            _offsets(pc.list_value_length(column)),
            values,
            type=new,
            mask=column.is_null(),
        )
    if pa.types.is_map(new):
        column = column.take(pa.array(np.arange(len(column))))  # its parts know nothing of slices
        return pa.MapArray.from_arrays(
            column.offsets,
            _fit(column.keys, old.key_type, new.key_type),
            _fit(column.items, old.item_type, new.item_type),
            type=new,
            mask=column.is_null(),
        )
    stored = column.storage if isinstance(column, pa.ExtensionArray) else column
    if isinstance(new, pa.ExtensionType):
        return pa.ExtensionArray.from_storage(new, stored.cast(new.storage_type))
    return stored.cast(new)


def _offsets(lengths: pa.Array) -> pa.Array:
    sizes = lengths.fill_null(0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int64())


def _by_id(fields: list[pa.Field]) -> dict[bytes, int]:
    found = {_id(field): at for at, field in enumerate(fields)}
    if b"" in found:
        name = fields[found[b""]].name
        raise SchemaRefused(f"a data file has no field id for `{name}`")
    return found


def _id(field: pa.Field) -> bytes:
    found: bytes = (field.metadata or {}).get(FIELD_ID, b"")
    return found
