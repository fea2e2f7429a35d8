"""Key hashes: the same for what is the same key, different for what is not, for all time."""

import datetime as dt
import decimal
import hashlib
import struct
import uuid

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.errors import SchemaRefused
from icestream.index.keys import bucket_of, key_hashes

D = decimal.Decimal
UTC = dt.UTC


def hashes(*columns):
    return [tuple(pair) for pair in key_hashes(list(columns)).tolist()]


def one(value, kind):
    (found,) = hashes(pa.array([value], kind))
    return found


def test_the_encoding_never_changes():
    """An index on disk outlives a version and moves between machines: this is its definition."""
    columns = [
        pa.array([-5]),
        pa.array(["ü"]),
        pa.array([D("1.50")], pa.decimal128(9, 2)),
        pa.array([0.5]),
        pa.array([dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)]),
        pa.array([True]),
        pa.array([None], pa.int32()),
        pa.array([b"\0"]),
    ]
    head = bytes([0, 0, 0, 0, 0, 0, 1, 0])
    numbers = struct.pack("<qqqqdqqqqq", -5, 2, -1, 2, 0.5, -1_000_000, 0, 1, 0, 1)
    digest = hashlib.md5(head + numbers + "ü".encode() + b"15" + b"\0").digest()
    assert hashes(*columns) == [struct.unpack("<QQ", digest)[::-1]]


@pytest.mark.parametrize("value", [0, 1, -1, 127, -128])
def test_integers_of_any_width(value):
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    assert len({one(value, kind) for kind in kinds}) == 1


def test_floats_of_both_widths():
    for value in (0.5, -1.25, float("inf"), float("nan")):
        assert one(value, pa.float32()) == one(value, pa.float64())
    assert one(-0.0, pa.float64()) == one(0.0, pa.float64())
    other = np.array([0x7FF8000000000001], dtype=np.uint64).view(np.float64)
    assert hashes(pa.array(other)) == hashes(pa.array([float("nan")]))


@pytest.mark.parametrize("text", ["0", "1", "10", "-1.5", "100.25", "1E-2", "99999999.99"])
def test_decimals_of_any_precision_and_scale(text):
    kinds = [pa.decimal128(10, 2), pa.decimal128(38, 2), pa.decimal128(20, 5), pa.decimal64(11, 2)]
    values = {one(D(text).quantize(D(1).scaleb(-kind.scale)), kind) for kind in kinds}
    assert len(values) == 1


def test_different_decimals():
    texts = ["0", "1", "10", "100", "0.1", "0.01", "-1", "-10", "1.01", "10.1", "101"]
    assert len({one(D(text), pa.decimal128(10, 2)) for text in texts}) == len(texts)
    widest = [D("9" * 38), D("-" + "9" * 38), D("1" + "0" * 37)]
    assert len({one(value, pa.decimal128(38, 0)) for value in widest}) == 3


def test_moments():
    zoned = dt.datetime(2024, 5, 1, 12, 30, 0, 123456, tzinfo=UTC)
    moment = zoned.replace(tzinfo=None)
    micros = one(moment, pa.timestamp("us"))
    assert one(zoned, pa.timestamp("us", "UTC")) == micros
    assert one(moment, pa.timestamp("ns")) == micros
    berlin = one(zoned, pa.timestamp("us", "Europe/Berlin"))
    assert berlin == micros
    nanos = pa.array([moment], pa.timestamp("ns")).cast(pa.int64()).to_numpy() + 1
    assert hashes(pa.array(nanos).cast(pa.timestamp("ns"))) != [micros]
    assert one(moment.replace(microsecond=0), pa.timestamp("s")) == one(
        moment.replace(microsecond=0), pa.timestamp("us")
    )


def test_a_date_that_became_a_timestamp():
    for day in (dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)):
        midnight = dt.datetime.combine(day, dt.time())
        assert one(day, pa.date32()) == one(midnight, pa.timestamp("us"))


def test_times():
    assert one(dt.time(1, 2, 3), pa.time32("ms")) == one(dt.time(1, 2, 3), pa.time64("us"))


def test_texts_and_bytes_of_any_layout():
    text = "grüße"
    kinds = [pa.string(), pa.large_string(), pa.string_view()]
    assert len({one(text, kind) for kind in kinds}) == 1
    assert hashes(pa.array([text]).dictionary_encode()) == [one(text, pa.string())]
    raw = uuid.UUID(int=7).bytes
    kinds = [pa.binary(), pa.large_binary(), pa.binary(16), pa.binary_view()]
    assert len({one(raw, kind) for kind in kinds}) == 1
    assert hashes(pa.array([raw], pa.uuid())) == [one(raw, pa.binary(16))]


def test_where_a_column_ends_counts():
    assert hashes(pa.array(["a"]), pa.array(["bc"])) != hashes(pa.array(["ab"]), pa.array(["c"]))
    assert hashes(pa.array([""]), pa.array(["x"])) != hashes(pa.array(["x"]), pa.array([""]))
    assert hashes(pa.array([1]), pa.array([2])) != hashes(pa.array([2]), pa.array([1]))


def test_nulls():
    number, none = pa.array([1]), pa.array([None], pa.int64())
    assert hashes(number, none) != hashes(none, number)
    assert one(None, pa.int64()) != one(0, pa.int64())
    assert one(None, pa.string()) != one("", pa.string())
    assert hashes(pa.nulls(1)) == [one(None, pa.int64())]


def test_slices_chunks_and_nothing():
    column = pa.array(range(100))
    assert hashes(column.slice(40, 7)) == hashes(column)[40:47]
    texts = pa.array([None, "b", "cc"] * 20)
    assert hashes(texts.slice(5, 9)) == hashes(texts)[5:14]
    decimals = pa.array([D(n) for n in range(20)], pa.decimal128(9, 2))
    assert hashes(decimals.slice(3, 5)) == hashes(decimals)[3:8]
    assert hashes(pa.chunked_array([[1], [2, 3]])) == hashes(pa.array([1, 2, 3]))
    assert key_hashes([pa.array([], pa.string())]).shape == (0, 2)


def test_many_rows_are_hashed_in_pieces(monkeypatch):
    from icestream.index import keys

    columns = [pa.array(range(1000)), pa.array([f"{n:x}" * 50 for n in range(1000)])]
    whole = hashes(*columns)
    monkeypatch.setattr(keys, "_AT_ONCE", 7)
    assert hashes(*columns) == whole
    assert len(set(whole)) == 1000


def test_what_cannot_be_a_key():
    for column in (pa.array([[1]]), pa.array([{"a": 1}])):
        with pytest.raises(SchemaRefused, match="part of a key"):
            key_hashes([column])


VALUES = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=5),
    st.none() | st.decimals(-999, 999, places=2),
    st.none() | st.binary(max_size=3),
)
KINDS = [pa.int64(), pa.string(), pa.decimal128(12, 2), pa.binary()]


@settings(max_examples=100)
@given(st.lists(VALUES, min_size=1, max_size=30))
def test_equal_hashes_are_equal_keys(rows):
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(KINDS)]
    found = hashes(*columns)
    for left, mine in zip(found, rows, strict=True):
        for right, theirs in zip(found, rows, strict=True):
            assert (left == right) == (mine == theirs)


def test_buckets_are_even_and_sorted():
    found = key_hashes([pa.array(range(20_000))])
    counts = np.bincount(bucket_of(found, 16), minlength=16)
    assert counts.min() > 1000
    assert counts.max() < 1500
    order = np.argsort(found[:, 0])
    assert (np.diff(bucket_of(found[order], 16)) >= 0).all()
    assert set(bucket_of(found, 1)) == {0}
    with pytest.raises(ValueError):
        bucket_of(found, 12)
