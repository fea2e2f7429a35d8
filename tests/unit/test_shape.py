"""Shape: every record lands in exactly one of two batches, in the table's own order."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import LongType, NestedField, StringType

from icestream.batch.row_layout import RowLayout, split_good_and_bad
from icestream.formats import DecodedBatch
from icestream.records import RECORDS
from icestream.schema import INCLUDED_COLUMNS, METADATA_COLUMNS, QUARANTINE_SCHEMA
from icestream.tables.arrow import arrow_schema

NOW = datetime(2024, 5, 1, tzinfo=UTC)
DATA = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
TABLE = Schema(
    NestedField(2, "name", StringType()),
    *(NestedField(f.field_id + 10, f.name, f.field_type) for f in METADATA_COLUMNS),
    NestedField(1, "id", LongType()),
    NestedField(30, "old", StringType()),
)


def batch(n: int = 3) -> pa.RecordBatch:
    columns = [["t"] * n, [4] * n, list(range(7, 7 + n)), [0] * n, [b"k"] * n, [b"v"] * n]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RECORDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def decoded(errors: list[str | None]) -> DecodedBatch:
    n = len(errors)
    arrow = schema_to_pyarrow(DATA, include_field_ids=True)
    columns = [pa.array(range(n), pa.int64()), pa.array([f"n{i}" for i in range(n)])]
    arrays = [c.cast(f.type) for c, f in zip(columns, arrow, strict=True)]
    return DecodedBatch(
        pa.RecordBatch.from_arrays(arrays, schema=arrow), pa.array(errors, pa.string())
    )


SHAPE = RowLayout(schema_to_pyarrow(TABLE, include_field_ids=True), "shop", NOW)


def test_good_rows_have_the_tables_columns() -> None:
    out = split_good_and_bad(batch(), decoded([None, "why", None]), SHAPE)
    assert out.good.schema.equals(SHAPE.schema, check_metadata=True)
    assert out.good.to_pylist() == [
        {
            "name": f"n{i}",
            "_src_topic": "t",
            "_src_partition": 4,
            "_src_offset": 7 + i,
            "_src_timestamp": datetime(1970, 1, 1, tzinfo=UTC),
            "_ingested_at": NOW,
            "id": i,
            "old": None,
        }
        for i in (0, 2)
    ]
    out.good.validate(full=True)


def test_bad_rows_have_the_quarantines_columns() -> None:
    out = split_good_and_bad(batch(), decoded([None, "why", None]), SHAPE, stage="transform")
    want = schema_to_pyarrow(QUARANTINE_SCHEMA, include_field_ids=True)
    assert out.bad.schema.equals(want, check_metadata=True)
    assert out.bad.to_pylist() == [
        {
            "topic": "t",
            "partition": 4,
            "offset": 8,
            "timestamp": datetime(1970, 1, 1, tzinfo=UTC),
            "key": b"k",
            "value": b"v",
            "error": "why",
            "stage": "transform",
            "pipeline": "shop",
            "ingested_at": NOW,
        }
    ]


@pytest.mark.parametrize("errors", [[], [None] * 3, ["x"] * 3, [None, "x", None]])
def test_every_record_is_in_one_of_the_two(errors: list[str | None]) -> None:
    out = split_good_and_bad(batch(len(errors)), decoded(errors), SHAPE)
    assert len(out.good) + len(out.bad) == len(errors)
    assert len(out.bad) == sum(e is not None for e in errors)


def test_clean_batches_are_not_copied() -> None:
    rows = decoded([None] * 3)
    out = split_good_and_bad(batch(), rows, SHAPE)
    assert out.good.column("id").buffers()[1].address == rows.columns["id"].buffers()[1].address


# ── `source.include` ────────────────────────────────────────────────────────────────────────────

KEEPING = arrow_schema(
    assign_fresh_schema_ids(Schema(DATA.fields[0], *METADATA_COLUMNS, *INCLUDED_COLUMNS.values()))
)
# As Spark's Kafka source delivers them.
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SENT = [
    [{"key": "trace", "value": b"1"}, {"key": "trace", "value": None}],  # a key may come twice
    None,
    [],
]


def with_headers() -> pa.RecordBatch:
    return batch().append_column("headers", pa.array(SENT, HEADERS))


def test_keys_and_headers_are_kept() -> None:
    records = with_headers()
    at = RECORDS.get_field_index("key")
    records = records.set_column(at, "key", pa.array([b"k0", None, b"\xff\x00"], pa.binary()))
    out = split_good_and_bad(records, decoded([None] * 3), RowLayout(KEEPING, "shop", NOW))
    assert out.good.schema.equals(KEEPING, check_metadata=True)
    assert out.good.column("_src_key").to_pylist() == [b"k0", None, b"\xff\x00"]
    assert out.good.column("_src_headers").to_pylist() == SENT
    assert out.good.column("_src_offset").to_pylist() == [7, 8, 9]
    out.good.validate(full=True)


def test_bad_rows_take_no_headers_along() -> None:
    out = split_good_and_bad(
        with_headers(), decoded(["why", None, "why"]), RowLayout(KEEPING, "shop", NOW)
    )
    assert out.good.column("_src_headers").to_pylist() == [None]
    assert out.good.column("_src_key").to_pylist() == [b"k"]
    want = schema_to_pyarrow(QUARANTINE_SCHEMA, include_field_ids=True)
    assert out.bad.schema.equals(want, check_metadata=True)
    assert out.bad.column("key").to_pylist() == [b"k", b"k"]


def test_headers_that_are_no_longer_asked_for_are_null() -> None:
    """The table has the column from before; `include` was taken out of the file since."""
    out = split_good_and_bad(batch(), decoded([None] * 3), RowLayout(KEEPING, "shop", NOW))
    assert out.good.column("_src_headers").to_pylist() == [None] * 3
    assert out.good.column("_src_key").to_pylist() == [b"k"] * 3
    assert out.good.column("_ingested_at").to_pylist() == [NOW] * 3


def test_headers_without_a_column_for_them_are_left_out() -> None:
    out = split_good_and_bad(with_headers(), decoded([None] * 3), SHAPE)
    assert out.good.schema.equals(SHAPE.schema, check_metadata=True)


def test_without_metadata_columns() -> None:
    shape = RowLayout(schema_to_pyarrow(DATA, include_field_ids=True), "shop", NOW, False)
    out = split_good_and_bad(batch(), decoded([None] * 3), shape)
    assert out.good.schema.names == ["id", "name"]


def test_a_table_without_data_columns() -> None:
    only = Schema(METADATA_COLUMNS[2])
    shape = RowLayout(schema_to_pyarrow(only, include_field_ids=True), "shop", NOW)
    empty = DecodedBatch(
        pa.RecordBatch.from_arrays([], schema=pa.schema([])), decoded(["x", None]).errors
    )
    assert split_good_and_bad(batch(2), empty, shape).good.to_pylist() == [{"_src_offset": 8}]
