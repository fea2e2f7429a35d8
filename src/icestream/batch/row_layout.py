"""Split a decoded batch into rows of the table and rows of its quarantine; pure Arrow."""

from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats import DecodedBatch
from icestream.schema import METADATA_NAMES, QUARANTINE_SCHEMA
from icestream.tables.arrow import arrow_schema

_QUARANTINE = arrow_schema(QUARANTINE_SCHEMA)
_SOURCES = {
    "_src_topic": "topic",
    "_src_partition": "partition",
    "_src_offset": "offset",
    "_src_timestamp": "timestamp",
    "_src_key": "key",
    "_src_headers": "headers",
}


@dataclass(frozen=True)
class RowLayout:
    """How rows of one table look: its columns in order with field ids, and what we add to them."""

    schema: pa.Schema
    pipeline: str
    ingested_at: datetime
    metadata_columns: bool = True


@dataclass(frozen=True)
class GoodAndBadRows:
    """Every record is in exactly one of the two."""

    good: pa.RecordBatch
    bad: pa.RecordBatch


def split_good_and_bad(
    records: pa.RecordBatch, decoded: DecodedBatch, shape: RowLayout, stage: str = "decode"
) -> GoodAndBadRows:
    """Put each row where it belongs; without bad rows no data is copied."""
    columns = decoded.columns
    if decoded.errors.null_count == len(records):
        return GoodAndBadRows(
            _good(records, columns, shape), _bad(records.slice(0, 0), None, shape, stage)
        )
    fine = decoded.errors.is_null()
    kept = columns.filter(fine) if columns.num_columns else columns
    broken = pc.invert(fine)
    return GoodAndBadRows(
        _good(records.filter(fine), kept, shape),
        _bad(records.filter(broken), decoded.errors.filter(broken), shape, stage),
    )


def _good(records: pa.RecordBatch, columns: pa.RecordBatch, shape: RowLayout) -> pa.RecordBatch:
    ours = METADATA_NAMES if shape.metadata_columns else frozenset()
    delivered = set(records.schema.names)
    have = set(columns.schema.names)
    out = []
    for field in shape.schema:
        if field.name in ours and _SOURCES.get(field.name) in delivered:
            column = records.column(_SOURCES[field.name])
        elif field.name in ours and field.name not in _SOURCES:
            column = _repeat(shape.ingested_at, len(records), field.type)
        elif field.name in have:
            column = columns.column(field.name)
        else:  # a column of the table that this source does not have
            column = pa.nulls(len(records), field.type)
        out.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(out, schema=shape.schema)


def _bad(
    records: pa.RecordBatch, errors: pa.StringArray | None, shape: RowLayout, stage: str
) -> pa.RecordBatch:
    rows = len(records)
    known = {
        "error": pa.nulls(rows, pa.string()) if errors is None else errors,
        "stage": _repeat(stage, rows, pa.string()),
        "pipeline": _repeat(shape.pipeline, rows, pa.string()),
        "ingested_at": _repeat(shape.ingested_at, rows, pa.timestamp("us", "UTC")),
    }
    out = [known[f.name] if f.name in known else records.column(f.name) for f in _QUARANTINE]
    cast = [column.cast(f.type) for column, f in zip(out, _QUARANTINE, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=_QUARANTINE)


def quarantine_rows(
    records: pa.RecordBatch, pipeline: str, at: datetime, stage: str
) -> pa.RecordBatch:
    """Records that have an `error` already, as quarantine has them."""
    shape = RowLayout(_QUARANTINE, pipeline, at)
    return _bad(records, records.column("error"), shape, stage)


def _repeat(value: object, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), rows)
