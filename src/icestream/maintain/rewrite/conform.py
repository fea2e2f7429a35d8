"""Conforms rows of a data file to the table's current columns, found by field id."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.errors import SchemaRefused
from icestream.tables.arrow import FIELD_ID


def fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows with the table's columns; those that the file lacks are null."""
    if rows.schema.equals(schema, check_metadata=True):
        return rows
    indices = _indices_by_id(list(rows.schema))
    try:
        columns = [_column(rows, indices, field) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaRefused(f"rows do not fit the table's columns: {error}") from error


def _column(rows: pa.RecordBatch, indices: dict[bytes, int], field: pa.Field) -> pa.Array:
    index = indices.get(_field_id(field))
    if index is None:
        return pa.nulls(rows.num_rows, field.type)
    return _fit(rows.column(index), rows.schema.field(index).type, field.type)


def _fit(column: pa.Array, old: pa.DataType, new: pa.DataType) -> pa.Array:
    """Cast a column to another type; fields of structs are found by id at every level."""
    if old.equals(new, check_metadata=True):
        return column
    if pa.types.is_struct(new):
        indices = _indices_by_id([old.field(index) for index in range(old.num_fields)])
        children = []
        for field in new:
            index = indices.get(_field_id(field))
            if index is None:
                children.append(pa.nulls(len(column), field.type))
            else:
                child = pc.struct_field(column, [index])
                children.append(_fit(child, old.field(index).type, field.type))
        return pa.StructArray.from_arrays(children, fields=list(new), mask=column.is_null())
    if pa.types.is_large_list(new):
        values = _fit(pc.list_flatten(column), old.value_type, new.value_type)
        return pa.LargeListArray.from_arrays(
            _offsets(pc.list_value_length(column)),
            values,
            type=new,
            mask=column.is_null(),
        )
    if pa.types.is_map(new):
        # A copy: the keys and items of a slice are those of the whole array.
        column = column.take(pa.array(np.arange(len(column))))
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


def _indices_by_id(fields: list[pa.Field]) -> dict[bytes, int]:
    indices = {_field_id(field): index for index, field in enumerate(fields)}
    if b"" in indices:
        name = fields[indices[b""]].name
        raise SchemaRefused(f"a data file has no field id for `{name}`")
    return indices


def _field_id(field: pa.Field) -> bytes:
    field_id: bytes = (field.metadata or {}).get(FIELD_ID, b"")
    return field_id
