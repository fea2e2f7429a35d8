"""Partition transforms over Arrow columns agree with PyIceberg's scalar ones, value by value."""

import json
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform

from icestream.errors import TableRefused
from icestream.tables.arrow import arrow_schema
from icestream.tables.partition_values import json_values
from icestream.write.conform import plain
from icestream.write.partition import Partitioner, transformed
from icestream.write.sort import SortOrder

pytestmark = pytest.mark.slow

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**62), 2**62)
MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)  # years 1 to 9999
DAYS = st.integers(-719_162, 2_932_896)


def edges(second):
    """Moments around full hours and days, where a wrong rounding shows."""
    hours = st.integers(-9999, 9999) | st.integers(-9999, 9999).map(lambda day: day * 24)
    return st.builds(lambda n, off: n * 3600 * second + off, hours, st.integers(-1001, 1001))


KINDS = {
    t.BooleanType(): (st.booleans(), []),
    t.IntegerType(): (INT.filter(lambda v: v > -(2**31) + 99), ["bucket", "truncate"]),
    t.LongType(): (LONG, ["bucket", "truncate"]),
    t.FloatType(): (st.floats(width=32), []),
    t.DoubleType(): (st.floats(), []),
    t.DecimalType(9, 2): (st.decimals(-9_999_999, 9_999_999, places=2), ["bucket", "truncate"]),
    t.DecimalType(38, 5): (st.decimals(-(10**30), 10**30, places=5), ["bucket", "truncate"]),
    t.StringType(): (st.text(max_size=9), ["bucket", "truncate"]),
    t.BinaryType(): (st.binary(max_size=9), ["bucket", "truncate"]),
    t.FixedType(4): (st.binary(min_size=4, max_size=4), ["bucket"]),
    t.UUIDType(): (st.uuids().map(lambda u: u.bytes), ["bucket"]),
    t.DateType(): (DAYS, ["bucket", "year", "month", "day"]),
    t.TimeType(): (st.integers(0, 86_399_999_999), ["bucket"]),
    t.TimestampType(): (MICROS | edges(10**6), ["bucket", "year", "month", "day", "hour"]),
    t.TimestamptzType(): (MICROS | edges(10**6), ["bucket", "year", "month", "day", "hour"]),
    t.TimestampNanoType(): (LONG | edges(10**9), ["year", "month", "day", "hour"]),
    t.TimestamptzNanoType(): (LONG | edges(10**9), ["year", "month", "day", "hour"]),
}
CASES = [
    (kind, {"bucket": "bucket[16]", "truncate": "truncate[3]"}.get(name, name), values)
    for kind, (values, names) in KINDS.items()
    for name in ["identity", "void", *names]
]


def column(kind, values):
    arrow = arrow_schema(Schema(t.NestedField(1, "c", kind, required=False))).field("c").type
    if pa.types.is_temporal(arrow):
        width = pa.int32() if pa.types.is_date32(arrow) else pa.int64()
        return pa.array(values, width).cast(arrow)
    return pa.array(values, arrow)


def physical(array):
    array = plain(array)
    if pa.types.is_temporal(array.type):
        array = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64())
    return array.to_pylist()


@pytest.mark.parametrize(
    "kind, name, values", CASES, ids=[f"{name}-{kind}" for kind, name, _ in CASES]
)
@settings(max_examples=25)
@given(data=st.data())
def test_columns_agree_with_scalars(kind, name, values, data):
    drawn = data.draw(st.lists(st.none() | values, max_size=8))
    rows = pa.record_batch({"c": column(kind, drawn)})
    schema = Schema(t.NestedField(1, "c", kind, required=False))
    scalar = parse_transform(name).transform(kind)
    got = physical(transformed(rows, schema, 1, parse_transform(name)))
    expected = [scalar(v) if v is not None else None for v in physical(rows.column(0))]
    assert repr(got) == repr(expected)


def test_nested_sources_are_found_by_id():
    inner = t.StructType(t.NestedField(3, "b", t.LongType(), required=False))
    schema = Schema(
        t.NestedField(1, "x", t.LongType(), required=False),
        t.NestedField(2, "a", inner, required=False),
    )
    rows = pa.record_batch({"x": pa.array([1, 2, 3]), "a": pa.array([{"b": 17}, None, {"b": -1}])})
    got = transformed(rows, schema, 3, parse_transform("truncate[10]"))
    assert got.to_pylist() == [10, None, -10]


def test_what_cannot_be_computed_is_refused():
    schema = Schema(t.NestedField(1, "x", t.LongType(), required=False))
    rows = pa.record_batch({"x": pa.array([1])})
    with pytest.raises(TableRefused, match="id 7"):
        transformed(rows, schema, 7, parse_transform("identity"))
    with pytest.raises(TableRefused, match="zorder"):
        transformed(rows, schema, 1, parse_transform("zorder[3]"))


JSON = [
    (t.BooleanType(), True, True, "true"),
    (t.LongType(), -7, -7, "-7"),
    (t.DoubleType(), 1.0, 1.0, "1.0"),
    (t.DecimalType(9, 2), Decimal("-1.50"), "-1.50", "-1.50"),
    (t.DecimalType(38, 10), Decimal("1E-10"), "0.0000000001", "0.0000000001"),
    (t.StringType(), "a/b ä", "a/b ä", "a%2Fb+%C3%A4"),
    (t.BinaryType(), b"\x0a\xff", "0AFF", "Cv8%3D"),
    (t.FixedType(2), b"\x0a\xff", "0AFF", "Cv8%3D"),
    (t.UUIDType(), UUID(int=1).bytes, str(UUID(int=1)), str(UUID(int=1))),
    (t.DateType(), -1, "1969-12-31", "1969-12-31"),
    (t.DateType(), 2_932_897, "+10000-01-01", "%2B10000-01-01"),
    (t.TimeType(), 1, "00:00:00.000001", "00%3A00%3A00.000001"),
    (t.TimestampType(), -1, "1969-12-31T23:59:59.999999", "1969-12-31T23%3A59%3A59.999999"),
    (
        t.TimestamptzNanoType(),
        1,
        "1970-01-01T00:00:00.000000001+00:00",
        "1970-01-01T00%3A00%3A00.000000001%2B00%3A00",
    ),
    (t.StringType(), None, None, "null"),
]


@pytest.mark.parametrize("kind, value, written, text", JSON)
def test_identity_values_are_written_by_type(kind, value, written, text):
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform("identity"), "p q"))
    partitioner = Partitioner(Schema(t.NestedField(1, "c", kind, required=False)), spec)
    grouping = partitioner.group(pa.record_batch({"c": column(kind, [value, value])}))
    (partition,) = partitioner.partitions
    assert partition.values == [written]
    assert type(partition.values[0]) is type(written)
    assert partition.folder == f"p+q={text}"
    assert grouping.ranges == {0: (0, 2)}


@pytest.mark.parametrize(
    "transform, value, written, text",
    [
        ("year", -1, -1, "1969"),
        ("month", -1, -1, "1969-12"),
        ("day", -1, "1969-12-31", "1969-12-31"),
        ("hour", -1, -1, "1969-12-31-23"),
    ],
)
def test_times_are_written_for_people(transform, value, written, text):
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p"))
    kind = t.TimestampType()
    partitioner = Partitioner(Schema(t.NestedField(1, "c", kind, required=False)), spec)
    partitioner.group(pa.record_batch({"c": column(kind, [value])}))
    (partition,) = partitioner.partitions
    assert partition.values == [written]
    assert partition.folder == f"p={text}"


def test_numbers_stay_over_many_batches():
    spec = PartitionSpec(PartitionField(1, 1000, parse_transform("identity"), "p"))
    partitioner = Partitioner(Schema(t.NestedField(1, "c", t.DoubleType(), required=False)), spec)
    nan = float("nan")
    first = partitioner.group(pa.record_batch({"c": pa.array([2.0, nan, 2.0, None, -0.0])}))
    second = partitioner.group(pa.record_batch({"c": pa.array([None, nan, 5.0, 2.0, 0.0])}))
    assert first.order.tolist() == [0, 2, 1, 3, 4]
    assert first.ranges == {0: (0, 2), 1: (2, 3), 2: (3, 4), 3: (4, 5)}
    assert second.order.tolist() == [3, 1, 0, 2, 4]
    assert json.dumps([p.values[0] for p in partitioner.partitions]) == (
        "[2.0, NaN, null, -0.0, 5.0, 0.0]"
    )


@pytest.mark.slow
def test_many_partitions_do_not_overflow_the_numbering():
    names = "abcd"
    schema = Schema(
        *(t.NestedField(i, n, t.LongType(), required=False) for i, n in enumerate(names, 1))
    )
    fields = [
        PartitionField(i, 999 + i, parse_transform("identity"), n) for i, n in enumerate(names, 1)
    ]
    count = 70_000
    rows = pa.record_batch({n: pa.array(range(count)) for n in names})
    partitioner = Partitioner(schema, PartitionSpec(*fields), most=1 << 20)
    grouping = partitioner.group(rows)
    assert len(partitioner.partitions) == len(grouping.ranges) == count
    assert grouping.order.tolist() == list(range(count))


def test_sort_orders_may_transform_and_void_sorts_nothing():
    fields = [
        {"source-id": 1, "transform": "void", "direction": "asc", "null-order": "nulls-first"},
        {
            "source-id": 1,
            "transform": "truncate[10]",
            "direction": "desc",
            "null-order": "nulls-last",
        },
    ]
    order = SortOrder.parse(json.dumps({"order-id": 4, "fields": fields}))
    schema = Schema(t.NestedField(1, "x", t.LongType(), required=False))
    rows = pa.record_batch({"x": pa.array([3, 25, None, 8, 21, 40])})
    assert order.indices(rows, schema).to_pylist() == [5, 1, 4, 0, 3, 2]


def test_every_column_type_has_its_json():
    for kind in KINDS:
        assert json_values(column(kind, [None]), kind) == [None]


def test_days_change_at_midnight_before_1970_too():
    """A day in pyiceberg-core 0.11 begins too late there: rows would be misplaced."""
    day = 86_400_000_000
    values = [n * day + off for n in range(-500, 500) for off in (-1000, -1, 0, 1)]
    schema = Schema(t.NestedField(1, "c", t.TimestamptzType(), required=False))
    rows = pa.record_batch({"c": column(t.TimestamptzType(), values)})
    got = physical(transformed(rows, schema, 1, parse_transform("day")))
    assert got == [value // day for value in values]
