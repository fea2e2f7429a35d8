"""Judge: what each decoded record does to the mirror, by its format or by the table's rule."""

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
    """What the pipeline file says about the changes of one table."""

    keys: tuple[str, ...]
    sequence_by: tuple[str, ...] = ()  # instead of the source's own log position
    delete_if: str | None = None  # an SQL condition over the columns
    soft: bool = False
    truncate: str = "apply"  # apply · stop · ignore


def apply_change_rules(
    records: pa.RecordBatch, decoded: DecodedBatch, terms: ChangeRules, hidden: Sequence[str] = ()
) -> DecodedBatch:
    """Add what the format did not say; a key that is not whole makes a record bad.

    `hidden` columns are there for the order alone, and go.
    """
    columns = decoded.columns
    _refuse_unknown(terms.keys, columns, "keys")
    changes = decoded.changes or _all_upserts(columns, terms)
    if terms.sequence_by:
        told = encode_sequence([sequence_column(columns, name) for name in terms.sequence_by])
        changes = replace(changes, sequence=told.cast(pa.binary()))
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
    """What must be decoded to know the order, and is no column of the table.

    Debezium's envelope has it beside the row: `source.lsn` is decoded as `__source_lsn`.
    """
    names = {field.name for field in schema.fields}
    named = [record_format.envelope_field(path) for path in sequence_by if path not in names]
    return tuple(field for field in named if field is not None and field.name not in names)


def _hidden(path: str) -> str:
    return f"__{path.replace('.', '_')}"


def sequence_column(columns: pa.RecordBatch, path: str) -> pa.Array:
    """A column, a field within one (`meta.version`), or one of the envelope (`source.lsn`)."""
    there = columns.schema.names
    if path not in there and _hidden(path) in there:
        path = _hidden(path)
    first, *rest = [path] if path in there else path.split(".")
    if first not in there or not _has_path(columns.schema.field(first).type, rest):
        _refuse_unknown([path], columns, "sequence_by")
    column = columns.column(first)
    return pc.struct_field(column, rest) if rest else column


def _has_path(kind: pa.DataType, names: Sequence[str]) -> bool:
    """Whether there are such fields within a column, each in the one before it."""
    for name in names:
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            return False
        kind = kind.field(name).type
    return True


def _all_upserts(columns: pa.RecordBatch, terms: ChangeRules) -> RowChanges:
    """The changes of a feed that is nothing but rows."""
    count = len(columns)
    ops = pa.array(np.full(count, UPSERT, dtype=np.int8))
    if terms.delete_if:
        ops = pc.if_else(_matches(columns, terms.delete_if), pa.scalar(DELETE, pa.int8()), ops)
    return RowChanges(ops, pa.nulls(count, pa.binary()))


def _matches(columns: pa.RecordBatch, condition: str) -> pa.BooleanArray:
    con = duck.connection()
    con.register("t", pa.Table.from_batches([columns]))
    try:
        found = con.execute(f"SELECT ({condition})::BOOLEAN AS x FROM t").to_arrow_table()
        return duck.one_chunk(found.column("x")).fill_null(False)
    except duckdb.Error as failure:
        raise ConfigError(
            f"`apply_as_deletes`: {str(failure).splitlines()[0]}",
            where=condition,
            hint="write an SQL condition over the table's columns, such as op = 'D'",
        ) from None
    finally:
        con.unregister("t")


def _refuse_unknown(names: Sequence[str], columns: pa.RecordBatch, option: str) -> None:
    there = columns.schema.names
    for name in names:
        if name not in there:
            raise SchemaRefused(
                f"`{option}` names `{name}`, which no record has",
                where=f"columns are {', '.join(there[:20])}",
                hint="correct the name, or declare it under `columns:`",
            )


def _reject_null_keys(
    errors: pa.StringArray, columns: pa.RecordBatch, keys: Sequence[str], ops: NDArray[np.int8]
) -> pa.StringArray:
    about_a_row = pa.array((ops == UPSERT) | (ops == DELETE))
    for name in keys:
        column = columns.column(name)
        if column.null_count:
            lacks = pc.and_(pc.and_(column.is_null(), about_a_row), errors.is_null())
            errors = pc.if_else(lacks, pa.scalar(f"key column `{name}` is null"), errors)
    return errors


def _apply_truncate_rule(
    records: pa.RecordBatch, ops: NDArray[np.int8], terms: ChangeRules
) -> NDArray[np.int8]:
    hit = ops == TRUNCATE
    if terms.truncate == "stop":
        first = records.slice(int(np.argmax(hit)), 1).to_pylist()[0]
        raise BadRecord(
            "the source table was truncated, and `truncate: stop` is set",
            where=f"topic {first['topic']}, partition {first['partition']}, "
            f"offset {first['offset']}",
            hint="go on with `truncate: apply`, or keep the rows by `truncate: ignore`",
        )
    return np.where(hit, np.int8(IGNORE), ops) if terms.truncate == "ignore" else ops


def _as_soft_deletes(
    columns: pa.RecordBatch, changes: RowChanges, ops: NDArray[np.int8], keys: Sequence[str]
) -> tuple[pa.RecordBatch, RowChanges]:
    """A deleted row stays as it was, but for what says so: a change without any other value."""
    gone = pa.array(ops == DELETE)
    missing = dict(changes.missing)
    for name in columns.schema.names:
        if name not in keys:
            missing[name] = pc.or_(missing[name], gone) if name in missing else gone
    ops = np.where(ops == DELETE, np.int8(UPSERT), ops)
    columns = columns.append_column(IS_DELETED, gone)
    return columns, replace(changes, op=pa.array(ops, pa.int8()), missing=missing)
