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
    """Columns of a table's rows in order, with field ids, and the values of metadata columns."""

    schema: pa.Schema
    pipeline: str
    ingested_at: datetime
    metadata_columns: bool = True


@dataclass(frozen=True)
class GoodAndBadRows:
    """Rows of the table and of its quarantine; every record is in exactly one of them."""

    good: pa.RecordBatch
    bad: pa.RecordBatch


def split_good_and_bad(
    records: pa.RecordBatch, decoded: DecodedBatch, layout: RowLayout, stage: str = "decode"
) -> GoodAndBadRows:
    """Split by the errors of the decoded batch; without bad rows no data is copied."""
    columns = decoded.columns
    if decoded.errors.null_count == len(records):
        return GoodAndBadRows(
            _good(records, columns, layout), _bad(records.slice(0, 0), None, layout, stage)
        )
    is_good = decoded.errors.is_null()
    good_columns = columns.filter(is_good) if columns.num_columns else columns
    is_bad = pc.invert(is_good)
    return GoodAndBadRows(
        _good(records.filter(is_good), good_columns, layout),
        _bad(records.filter(is_bad), decoded.errors.filter(is_bad), layout, stage),
    )


def _good(records: pa.RecordBatch, columns: pa.RecordBatch, layout: RowLayout) -> pa.RecordBatch:
    metadata_names = METADATA_NAMES if layout.metadata_columns else frozenset()
    record_names = set(records.schema.names)
    decoded_names = set(columns.schema.names)
    arrays = []
    for field in layout.schema:
        if field.name in metadata_names and _SOURCES.get(field.name) in record_names:
            column = records.column(_SOURCES[field.name])
        elif field.name in metadata_names and field.name not in _SOURCES:
            column = _repeat(layout.ingested_at, len(records), field.type)
        elif field.name in decoded_names:
            column = columns.column(field.name)
        else:  # the table has this column, the source does not
            column = pa.nulls(len(records), field.type)
        arrays.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema)


def _bad(
    records: pa.RecordBatch, errors: pa.StringArray | None, layout: RowLayout, stage: str
) -> pa.RecordBatch:
    rows = len(records)
    added = {
        "error": pa.nulls(rows, pa.string()) if errors is None else errors,
        "stage": _repeat(stage, rows, pa.string()),
        "pipeline": _repeat(layout.pipeline, rows, pa.string()),
        "ingested_at": _repeat(layout.ingested_at, rows, pa.timestamp("us", "UTC")),
    }
    arrays = [added[f.name] if f.name in added else records.column(f.name) for f in _QUARANTINE]
    cast_arrays = [column.cast(f.type) for column, f in zip(arrays, _QUARANTINE, strict=True)]
    return pa.RecordBatch.from_arrays(cast_arrays, schema=_QUARANTINE)


def quarantine_rows(
    records: pa.RecordBatch, pipeline: str, ingested_at: datetime, stage: str
) -> pa.RecordBatch:
    """Lay out records that have an `error` column as rows of the quarantine."""
    layout = RowLayout(_QUARANTINE, pipeline, ingested_at)
    return _bad(records, records.column("error"), layout, stage)


def _repeat(value: object, rows: int, arrow_type: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, arrow_type), rows)
