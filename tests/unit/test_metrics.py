"""Metrics of a data file: modes by property, bounds that are never wrong, PyIceberg's schema."""

import io
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from icestream.tables.arrow import arrow_schema
from icestream.write.metrics import (
    NanCounter,
    file_metrics,
    high_bytes,
    high_text,
    leaves,
    low_text,
)
from icestream.write.modes import FULL, modes
from icestream.write.sort import SortOrder

UNSORTED = SortOrder.parse('{"order-id": 0, "fields": []}')
NESTED = Schema(
    t.NestedField(1, "n", t.LongType(), required=True),
    t.NestedField(2, "s", t.StructType(t.NestedField(3, "f", t.FloatType(), required=False))),
    t.NestedField(4, "l", t.ListType(5, t.DoubleType(), element_required=False)),
    t.NestedField(6, "m", t.MapType(7, t.StringType(), 8, t.IntegerType(), value_required=False)),
    t.NestedField(9, "w", t.StringType(), required=False),
)
ALL = Schema(
    *(
        t.NestedField(position, f"c{position}", kind, required=False)
        for position, kind in enumerate(
            [
                t.BooleanType(),
                t.IntegerType(),
                t.LongType(),
                t.FloatType(),
                t.DoubleType(),
                t.DecimalType(9, 2),
                t.DateType(),
                t.TimeType(),
                t.TimestampType(),
                t.TimestamptzType(),
                t.TimestampNanoType(),
                t.TimestamptzNanoType(),
                t.StringType(),
                t.BinaryType(),
                t.FixedType(7),
                t.UUIDType(),
            ],
            100,
        )
    ),
    *NESTED.fields,
)


def measure(schema, groups, properties=None):
    """Metrics of a file with these row groups, as plain dicts by field id."""
    plan, sink, arrow = (
        leaves(schema, UNSORTED, properties or {}),
        io.BytesIO(),
        arrow_schema(schema),
    )
    nans = NanCounter(schema, plan)
    writer = pq.ParquetWriter(sink, arrow, store_decimal_as_integer=True)
    for rows in groups:
        table = pa.Table.from_pylist(rows, arrow)
        nans.add(table)
        writer.write_table(table)
    writer.close()
    metrics = file_metrics(writer.writer.metadata, plan, nans.counts)
    return {
        name: dict(zip(value["keys"], value["values"], strict=True))
        if isinstance(value, dict)
        else value
        for name, value in json.loads(json.dumps(metrics)).items()
    }


def single(kind, *groups, **properties):
    schema = Schema(t.NestedField(1, "c", kind, required=False))
    named = {f"write.metadata.metrics.{name}": value for name, value in properties.items()}
    found = measure(schema, [[{"c": value} for value in group] for group in groups], named)
    return found["lower-bounds"].get(1), found["upper-bounds"].get(1)


def test_the_arrow_schema_is_pyicebergs():
    ours, theirs = arrow_schema(ALL), schema_to_pyarrow(ALL, include_field_ids=True)
    assert ours.equals(theirs, check_metadata=True)


def test_leaves_stand_in_the_order_of_parquet():
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, arrow_schema(ALL)) as writer:
        writer.write_table(arrow_schema(ALL).empty_table())
    names = [column.path for column in pq.ParquetFile(sink).schema]
    assert [leaf.parquet_path for leaf in leaves(ALL, UNSORTED, {})] == names


def test_repeated_columns_have_sizes_only():
    rows = [
        {"n": 1, "s": {"f": float("nan")}, "l": [1.0, float("nan")], "m": [("a", 1)], "w": "x"},
        {"n": 2, "s": None, "l": None, "m": None, "w": None},
    ]
    found = measure(NESTED, [rows, rows[:1]])
    assert found["record-count"] == 3
    assert set(found["column-sizes"]) == {1, 3, 5, 7, 8, 9}
    assert found["value-counts"] == {1: 3, 3: 3, 9: 3}
    assert found["null-value-counts"] == {1: 0, 3: 1, 9: 1}
    assert found["nan-value-counts"] == {3: 2}
    assert found["lower-bounds"] == {1: "0100000000000000", 9: "78"}
    assert found["upper-bounds"] == {1: "0200000000000000", 9: "78"}
    assert len(found["split-offsets"]) == 2
    assert found["split-offsets"][0] == 4


def test_bounds_span_row_groups_and_leave_out_nan():
    assert single(t.DoubleType(), [1.0, float("nan")], [float("nan")], [None], [-2.0]) == (
        "00000000000000C0",
        "000000000000F03F",
    )
    assert single(t.DoubleType(), [float("nan"), None]) == (None, None)
    assert single(t.IntegerType(), [7, -1], [300]) == ("FFFFFFFF", "2C010000")
    assert single(t.BooleanType(), [True, False]) == ("00", "01")


def test_decimals_are_short_and_big_endian():
    assert single(t.DecimalType(9, 2), [Decimal("-1.28"), Decimal("1.28")]) == ("80", "0080")
    assert single(t.DecimalType(38, 0), [Decimal(-129), Decimal(10**30)]) == (
        "FF7F",
        (10**30).to_bytes(13, "big").hex().upper(),
    )
    assert single(t.DecimalType(18, 0), [Decimal(0)]) == ("00", "00")


def test_text_is_cut_to_sixteen_characters():
    low, high = single(t.StringType(), ["a" * 20, "é" * 20])
    assert bytes.fromhex(low).decode() == "a" * 16
    assert bytes.fromhex(high).decode() == "é" * 15 + "ê"
    assert single(t.StringType(), ["abc"], ["abcd"], default="truncate(2)") == ("6162", "6163")
    assert single(t.StringType(), ["x" * 30], default="full") == ("78" * 30, "78" * 30)
    assert single(t.BinaryType(), [b"\xff" * 20]) == ("FF" * 16, None)
    assert single(t.FixedType(20), [b"\xff" * 20]) == ("FF" * 20, "FF" * 20)


def test_bounds_that_arrow_drops_are_not_made_up():
    """Arrow keeps no bounds over 4 KiB: half-known bounds would hide rows from readers."""
    for words in (["", "z" * 5000], ["a" * 5000, "z"], ["m", "z" * 5000]):
        assert single(t.StringType(), words) == (None, None)
        assert single(t.StringType(), ["b"], words) == (None, None)
    assert single(t.StringType(), [None, None], ["b"]) == ("62", "62")


def test_modes_none_and_counts():
    rows = [[{"n": 1, "s": {"f": 1.0}, "l": [], "m": [], "w": "x"}]]
    prefix = "write.metadata.metrics."
    found = measure(NESTED, rows, {prefix + "default": "none", prefix + "column.s.f": "counts"})
    assert set(found["column-sizes"]) == set(found["value-counts"]) == {3}
    assert found["nan-value-counts"] == {3: 0}
    assert found["lower-bounds"] == {}


def wide(count):
    return Schema(
        t.NestedField(1, "s", t.StructType(t.NestedField(2, "deep", t.LongType()))),
        *(t.NestedField(10 + n, f"c{n}", t.LongType()) for n in range(count)),
    )


def test_only_the_first_hundred_columns_are_measured():
    assert all(mode == 16 for mode in modes(wide(99), UNSORTED, {}).values())
    chosen = modes(wide(100), UNSORTED, {})
    assert chosen[2] is None  # those of a struct come after the table's own
    assert sum(mode is not None for mode in chosen.values()) == 100
    limit = {"write.metadata.metrics.max-inferred-column-defaults": "3"}
    assert [i for i, m in modes(wide(9), UNSORTED, limit).items() if m] == [10, 11, 12]
    every = {"write.metadata.metrics.default": "full"}
    assert set(modes(wide(300), UNSORTED, every).values()) == {FULL}


def test_sorted_columns_are_promoted_and_may_be_overridden():
    field = {"source-id": 2, "direction": "asc", "null-order": "nulls-first"}
    order = SortOrder.parse(
        json.dumps({"order-id": 1, "fields": [{**field, "transform": "identity"}]})
    )
    hashed = SortOrder.parse(
        json.dumps({"order-id": 1, "fields": [{**field, "transform": "bucket[4]"}]})
    )
    none = {"write.metadata.metrics.default": "none"}
    assert modes(wide(1), order, none) == {10: None, 2: 16}
    assert modes(wide(1), hashed, none) == {10: None, 2: None}
    assert modes(wide(200), order, {})[2] == 16
    override = none | {"write.metadata.metrics.column.s.deep": "counts"}
    assert modes(wide(1), order, override)[2] == 0


@pytest.mark.parametrize("mode", ["truncate(0)", "truncate(x)", "some", ""])
def test_modes_that_make_no_sense_fall_back(mode):
    assert modes(wide(0), UNSORTED, {"write.metadata.metrics.default": mode}) == {2: 16}


@given(st.text(), st.integers(1, 5))
def test_text_bounds_hold(text, length):
    value = text.encode()
    low, high = low_text(value, length), high_text(value, length)
    assert low <= value
    assert len(low.decode()) <= length
    if high is None:
        assert text[:length] == "\U0010ffff" * length
    else:
        assert high >= value
        assert len(high.decode()) <= length


def test_text_bounds_step_over_surrogates():
    assert high_text("\ud7ff!".encode(), 1) == "\ue000".encode()
    assert high_text("a\U0010ffff!".encode(), 2) == b"b"
    assert high_text("\U0010ffff!".encode(), 1) is None


@given(st.binary(), st.integers(1, 5))
def test_binary_bounds_hold(value, length):
    high = high_bytes(value, length)
    if high is None:
        assert value[:length] == b"\xff" * length
    else:
        assert high >= value
        assert len(high) <= length
