"""Samples of a source's records, decoded as a run's tasks decode them; writes nothing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.config.options.table import TableRule
from icestream.formats import DecodedBatch, Format
from icestream.schema import NewField, merge_new_fields, with_new_fields

_ROUNDS = 12  # as often as a run plans a batch again, at most


@dataclass(frozen=True)
class SampleResult:
    """Sampled records of one table, and the columns that they add to it or widen."""

    columns: Schema  # data columns, new and widened ones included
    decoded: tuple[DecodedBatch, ...] = ()  # by these columns, one for each sampled part
    records: int = 0
    bad: int = 0
    bytes: int = 0  # of their values
    new: tuple[NewField, ...] = ()
    wider: tuple[NewField, ...] = ()
    keys: tuple[str, ...] | None = None  # as the records name them; None: they do not


def split_by_topic(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split record batches into the records of each topic, with its name."""
    for batch in batches:
        for topic in pc.unique(batch.column("topic")).to_pylist():
            yield topic, batch.filter(pc.equal(batch.column("topic"), topic))


def decode_sample(
    record_format: Format, rule: TableRule, columns: Schema, parts: Sequence[pa.RecordBatch]
) -> SampleResult:
    """Decode, add what is new to the columns, decode again: as a run changes a table.

    The columns are those of a first batch with these records: a later one may have more.
    """
    dropped, declared = frozenset(rule.except_columns), frozenset(rule.columns)
    new: list[NewField] = []
    wider: dict[str, NewField] = {}
    for _ in range(_ROUNDS):
        decoded = tuple(
            record_format.decode(part, columns, rule.schema_evolution, dropped) for part in parts
        )
        more = merge_new_fields([batch.new_fields for batch in decoded])
        # A declared type was chosen by hand, and a run does not widen it.
        widened = {
            field.name: field
            for batch in decoded
            for field in batch.widened
            if field.name not in declared
        }
        if not more and not widened:
            break
        new += more
        wider |= widened
        columns = with_new_fields(_widened(columns, widened), more)
    return SampleResult(
        columns=columns,
        decoded=decoded,
        records=sum(part.num_rows for part in parts),
        bad=sum(len(batch.errors) - batch.errors.null_count for batch in decoded),
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
    """The key columns that the first records with a key name; None: none of them does."""
    named = (record_format.key_columns(part) for part in parts)
    return next((keys for keys in named if keys), None)
