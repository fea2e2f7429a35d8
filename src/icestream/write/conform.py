"""Brings Arrow batches to exactly a table's columns, and finds nested columns by field id."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as t
from pyiceberg.schema import Schema

from icestream.errors import SchemaRefused


def stored_columns(schema: Schema) -> Schema:
    """Return a schema without columns of type `unknown`, which data files may not have."""
    return Schema(*(f for f in schema.fields if not isinstance(f.field_type, t.UnknownType)))


def conform_to(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Give a batch exactly the table's columns, types and field ids; copies nothing if it has them.

    Raises SchemaRefused if a column is missing or cannot be cast.
    """
    try:
        if batch.schema.names != schema.names:
            batch = batch.select(schema.names)
        if not batch.schema.equals(schema):
            batch = batch.cast(schema)
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    except (KeyError, ValueError, TypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaRefused(f"rows do not fit the table's columns: {error}") from error


def path_to(schema: Schema, field_id: int) -> list[int]:
    """Return the field indices that lead through structs to a column; empty if there is none."""
    return _path(schema.fields, field_id) or []


def _path(fields: tuple[t.NestedField, ...], field_id: int) -> list[int] | None:
    for index, field in enumerate(fields):
        if field.field_id == field_id:
            return [index]
        if isinstance(field.field_type, t.StructType):
            inner_path = _path(field.field_type.fields, field_id)
            if inner_path is not None:
                return [index, *inner_path]
    return None


def column_at(rows: Any, path: list[int]) -> Any:
    """Return a column of a batch or table, through structs: null where a parent is null."""
    column = rows.column(path[0])
    return pc.struct_field(column, path[1:]) if len(path) > 1 else column


def plain(column: pa.Array) -> pa.Array:
    """Return the storage of an extension array (uuid), which Arrow's kernels understand."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column
