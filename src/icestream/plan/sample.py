"""Sample: what some records ask of a table, decoded as tasks decode them; writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.config.options.table import TableRule
from icestream.formats import Format
from icestream.schema import NewField, merge_new_fields, with_new_fields

_ROUNDS = 12  # as often as a batch is planned again


@dataclass(frozen=True)
class SampleResult:
    """What the records of a table have, beside the columns that it has or is made with."""

    columns: Schema  # data columns, with what is new
    records: int = 0
    bad: int = 0
    bytes: int = 0  # of their values
    new: tuple[NewField, ...] = ()
    wider: tuple[NewField, ...] = ()
    keys: tuple[str, ...] | None = None  # as the records have them; None: nobody knows


def decode_sample(
    record_format: Format, rule: TableRule, columns: Schema, parts: Sequence[pa.RecordBatch]
) -> SampleResult:
    """Decode, take up what is new, decode again; a table that exists would change in the same way.

    Names and types of a first batch: a later one may have more.
    """
    dropped, declared = frozenset(rule.except_columns), frozenset(rule.columns)
    new: list[NewField] = []
    wider: dict[str, NewField] = {}
    bad = 0
    for _ in range(_ROUNDS):
        decoded = [
            record_format.decode(part, columns, rule.schema_evolution, dropped) for part in parts
        ]
        bad = sum(len(each.errors) - each.errors.null_count for each in decoded)
        more = merge_new_fields([each.new_fields for each in decoded])
        widened = {
            each.name: each
            for some in decoded
            for each in some.widened
            if each.name not in declared
        }
        if not more and not widened:
            break
        new += more
        wider |= widened
        columns = with_new_fields(_widened(columns, widened), more)
    return SampleResult(
        columns=columns,
        records=sum(part.num_rows for part in parts),
        bad=bad,
        bytes=sum(pc.sum(pc.binary_length(part.column("value"))).as_py() or 0 for part in parts),
        new=tuple(new),
        wider=tuple(wider.values()),
        keys=_keys(record_format, parts),
    )


def _widened(columns: Schema, wider: dict[str, NewField]) -> Schema:
    return Schema(
        *(
            field.model_copy(update={"field_type": wider[field.name].type})
            if field.name in wider
            else field
            for field in columns.fields
        )
    )


def _keys(record_format: Format, parts: Sequence[pa.RecordBatch]) -> tuple[str, ...] | None:
    named = (record_format.key_columns(part) for part in parts)
    return next((keys for keys in named if keys), None)
