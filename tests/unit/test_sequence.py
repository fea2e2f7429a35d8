"""The order of rows and the order of their bytes are the same, whatever the columns."""

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.errors import SchemaRefused
from icestream.formats.sequence import encode_sequence

LONGS = st.integers(-(2**63), 2**63 - 1)
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), LONGS | st.integers(-3, 3)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(10, 2), st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(n) / 100)),
    (pa.float64(), st.floats()),
    (pa.float32(), st.floats(width=32)),
    (pa.string(), st.text(max_size=4) | st.text("\0a\xff", max_size=4)),
    (pa.large_string(), st.text("ab", max_size=3)),
    (pa.binary(), st.binary(max_size=4) | st.text("\0\1a", max_size=4).map(str.encode)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("us"), st.datetimes()),
]


def rank(value: Any) -> tuple[Any, ...]:
    """Where a value stands among those of its column: nulls first, NaN last."""
    if value is None:
        return (0,)
    if isinstance(value, float) and math.isnan(value):
        return (2,)
    return (1, value)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[pa.Array], list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    size = draw(st.integers(1, 8))
    columns = [
        pa.array(draw(st.lists(st.none() | values, min_size=size, max_size=size)), kind)
        for kind, values in kinds
    ]
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return columns, [tuple(rank(value) for value in row) for row in rows]


@pytest.mark.slow
@settings(max_examples=300)
@given(tables(), st.integers(0, 3))
def test_bytes_compare_as_rows_do(
    table: tuple[list[pa.Array], list[tuple[Any, ...]]], cut: int
) -> None:
    columns, rows = table
    cut = min(cut, len(rows) - 1)  # a slice has its own offset into the buffers
    encoded = encode_sequence([column.slice(cut) for column in columns])
    assert encoded.type == pa.binary()
    keys = encoded.to_pylist()
    for i, left in enumerate(rows[cut:]):
        for j, right in enumerate(rows[cut:]):
            assert (keys[i] < keys[j]) == (left < right)
            assert (keys[i] == keys[j]) == (left == right)


@settings(max_examples=100)
@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1, max_size=8))
def test_the_widest_decimals(digits: list[int]) -> None:
    column = pa.array([Decimal(n) for n in sorted(digits)], pa.decimal256(40, 0))
    keys = encode_sequence([column.cast(pa.decimal128(38, 0))]).to_pylist()
    assert all(a < b if x < y else a == b for (a, b), (x, y) in zip(
        pairwise(keys), pairwise(sorted(digits)), strict=True
    ))  # fmt: skip


@pytest.mark.parametrize(
    "narrow, wide, values",
    [
        (pa.int32(), pa.int64(), [-5, 0, 7]),
        (pa.decimal128(5, 2), pa.decimal128(20, 2), [Decimal("-1.25"), Decimal("3.10")]),
        (pa.float32(), pa.float64(), [-1.5, 0.0, math.inf]),
        (pa.timestamp("ms"), pa.timestamp("us"), [datetime(2024, 1, 2)]),  # noqa: DTZ001
        (pa.string(), pa.large_string(), ["a", "b\0"]),
    ],
)
def test_a_wider_column_keeps_its_encoding(
    narrow: pa.DataType, wide: pa.DataType, values: list[Any]
) -> None:
    assert encode_sequence([pa.array(values, narrow)]) == encode_sequence([pa.array(values, wide)])


def test_zeros_are_equal_and_times_are_ordered() -> None:
    zeros = encode_sequence([pa.array([0.0, -0.0])]).to_pylist()
    assert zeros[0] == zeros[1]
    times = pa.array([time(0), time(23, 59, 59, 999999)])
    dates = pa.array([date(1, 1, 1), date(9999, 12, 31)])
    for column in (times, dates):
        keys = encode_sequence([column]).to_pylist()
        assert keys == sorted(keys)


def test_no_rows_and_no_order() -> None:
    assert encode_sequence([pa.array([], pa.int64()), pa.array([], pa.string())]).to_pylist() == []
    with pytest.raises(SchemaRefused):
        encode_sequence([pa.array([[1]])])
