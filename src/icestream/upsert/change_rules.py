"""Change rules: what each decoded record does to the mirror, by its format or the table's rule."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from icestream.errors import BadRecord, ConfigError, SchemaRefused
from icestream.formats import (
    DELETE,
    IGNORE,
    TRUNCATE,
    UPSERT,
    DecodedBatch,
    Format,
    RowChanges,
    duck,
)
from icestream.formats.sequence import encode_sequence
from icestream.upsert.changes import SEQUENCE

IS_DELETED = "_is_deleted"


@dataclass(frozen=True)
class ChangeRules:
    """What the pipeline file says about the changes of one mirror."""

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...] = ()  # instead of the source's own log position
    delete_if: str | None = None  # an SQL condition over the columns
    soft: bool = False  # a delete only sets `_is_deleted`
    truncate: str = "apply"  # apply · stop · ignore


def apply_change_rules(
    records: pa.RecordBatch, decoded: DecodedBatch, terms: ChangeRules, hidden: Sequence[str] = ()
) -> DecodedBatch:
    """Complete the changes of a decoded batch by the rules; a null in a key makes a record bad.

    `hidden` columns were decoded for `sequence_by` alone, and are dropped.
    """
    columns = decoded.columns
    _refuse_unknown(terms.keys, columns, "keys")
    changes = decoded.changes or _all_upserts(columns, terms)
    if terms.sequence_by:
        sequence = encode_sequence([sequence_column(columns, name) for name in terms.sequence_by])
        changes = replace(changes, sequence=sequence.cast(pa.binary()))
    if hidden:
        columns = columns.drop_columns(list(hidden))
    ops: NDArray[np.int8] = changes.op.to_numpy()
    errors = _reject_null_keys(decoded.errors, columns, terms.keys, ops)
    if (ops == TRUNCATE).any():
        ops = _apply_truncate_rule(records, ops, terms)
        changes = replace(changes, op=pa.array(ops, pa.int8()))
    if terms.soft:
        columns, changes = _as_soft_deletes(columns, changes, ops, terms.keys)
    columns = columns.append_column(SEQUENCE, changes.sequence.cast(pa.large_binary()))
    return replace(decoded, columns=columns, errors=errors, changes=changes)


def order_only_fields(
    sequence_by: Sequence[str], schema: Schema, record_format: Format
) -> tuple[NestedField, ...]:
    """Return the fields that `sequence_by` needs and that are no columns of the table.

    Debezium's envelope has them beside the row: `source.lsn` is decoded as `__source_lsn`.
    """
    names = {field.name for field in schema.fields}
    fields = [record_format.envelope_field(path) for path in sequence_by if path not in names]
    return tuple(field for field in fields if field is not None and field.name not in names)


def _hidden(path: str) -> str:
    return f"__{path.replace('.', '_')}"


def sequence_column(columns: pa.RecordBatch, path: str) -> pa.Array:
    """Find a column, a field within one (`meta.version`), or one of the envelope (`source.lsn`)."""
    names = columns.schema.names
    if path not in names and _hidden(path) in names:
        path = _hidden(path)
    name, *fields = [path] if path in names else path.split(".")
    if name not in names or not _has_path(columns.schema.field(name).type, fields):
        _refuse_unknown([path], columns, "sequence_by")
    column = columns.column(name)
    return pc.struct_field(column, fields) if fields else column


def _has_path(arrow_type: pa.DataType, names: Sequence[str]) -> bool:
    """Tell whether a column has such fields, each within the one before it."""
    for name in names:
        if not pa.types.is_struct(arrow_type) or arrow_type.get_field_index(name) < 0:
            return False
        arrow_type = arrow_type.field(name).type
    return True


def _all_upserts(columns: pa.RecordBatch, terms: ChangeRules) -> RowChanges:
    """Return the changes of a format that knows only rows: upserts, but for `delete_if`."""
    count = len(columns)
    ops = pa.array(np.full(count, UPSERT, dtype=np.int8))
    if terms.delete_if:
        ops = pc.if_else(_matches(columns, terms.delete_if), pa.scalar(DELETE, pa.int8()), ops)
    return RowChanges(ops, pa.nulls(count, pa.binary()))


def _matches(columns: pa.RecordBatch, condition: str) -> pa.BooleanArray:
    con = duck.connection()
    con.register("t", pa.Table.from_batches([columns]))
    try:
        result = con.execute(f"SELECT ({condition})::BOOLEAN AS x FROM t").to_arrow_table()
        return duck.one_chunk(result.column("x")).fill_null(False)
    except duckdb.Error as failure:
        raise ConfigError(
            f"`apply_as_deletes`: {str(failure).splitlines()[0]}",
            where=condition,
            hint="write an SQL condition over the table's columns, such as op = 'D'",
        ) from None
    finally:
        con.unregister("t")


def _refuse_unknown(names: Sequence[str], columns: pa.RecordBatch, option: str) -> None:
    known = columns.schema.names
    for name in names:
        if name not in known:
            raise SchemaRefused(
                f"`{option}` names `{name}`, which no record has",
                where=f"columns are {', '.join(known[:20])}",
                hint="correct the name, or declare it under `columns:`",
            )


def _reject_null_keys(
    errors: pa.StringArray, columns: pa.RecordBatch, keys: Sequence[str], ops: NDArray[np.int8]
) -> pa.StringArray:
    has_row = pa.array((ops == UPSERT) | (ops == DELETE))
    for name in keys:
        column = columns.column(name)
        if column.null_count:
            is_bad = pc.and_(pc.and_(column.is_null(), has_row), errors.is_null())
            errors = pc.if_else(is_bad, pa.scalar(f"key column `{name}` is null"), errors)
    return errors


def _apply_truncate_rule(
    records: pa.RecordBatch, ops: NDArray[np.int8], terms: ChangeRules
) -> NDArray[np.int8]:
    is_truncate = ops == TRUNCATE
    if terms.truncate == "stop":
        first = records.slice(int(np.argmax(is_truncate)), 1).to_pylist()[0]
        raise BadRecord(
            "the source table was truncated, and `truncate: stop` is set",
            where=f"topic {first['topic']}, partition {first['partition']}, "
            f"offset {first['offset']}",
            hint="go on with `truncate: apply`, or keep the rows by `truncate: ignore`",
        )
    return np.where(is_truncate, np.int8(IGNORE), ops) if terms.truncate == "ignore" else ops


def _as_soft_deletes(
    columns: pa.RecordBatch, changes: RowChanges, ops: NDArray[np.int8], keys: Sequence[str]
) -> tuple[pa.RecordBatch, RowChanges]:
    """Turn deletes into upserts that set `_is_deleted` and carry no other value."""
    # All other columns count as missing, so the row keeps the values that it has.
    is_delete = pa.array(ops == DELETE)
    missing = dict(changes.missing)
    for name in columns.schema.names:
        if name not in keys:
            missing[name] = pc.or_(missing[name], is_delete) if name in missing else is_delete
    ops = np.where(ops == DELETE, np.int8(UPSERT), ops)
    columns = columns.append_column(IS_DELETED, is_delete)
    return columns, replace(changes, op=pa.array(ops, pa.int8()), missing=missing)
