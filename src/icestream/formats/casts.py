"""Casts texts to typed arrays; a text that does not fit its type is a bad row, never a null.

A column is cast as a whole. Only if that fails are the texts tidied and cast again, and only if
that fails too are the bad rows found by halving: only batches with bad rows pay for strictness.
"""

from collections.abc import Callable, Collection
from decimal import Decimal, InvalidOperation
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icestream.errors import ConfigError
from icestream.formats import duck
from icestream.formats.jsonbytes import characters

Cast: TypeAlias = Callable[[pa.StringArray, pa.DataType], pa.Array]
Bad: TypeAlias = dict[int, str]

_NUMBER = r"^-?[0-9.]+(?:[eE][-+]?[0-9]+)?$"
_UUID = r"(?i)^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_OFFSET = r"(?:[zZ]|[0-9][+-][0-9]{2}(?::?[0-9]{2})?)$"


def cast(
    texts: pa.StringArray, iceberg_type: IcebergType, arrow_type: pa.DataType
) -> tuple[pa.Array, Bad]:
    """Cast texts to an Iceberg type and its Arrow type; bad rows are null and have a reason."""
    if isinstance(iceberg_type, StringType):
        return texts.cast(arrow_type), {}
    try:
        caster = _CASTS[type(iceberg_type)]
    except KeyError:
        raise ConfigError(f"a column of type {iceberg_type} cannot be decoded from text") from None
    return strictly(texts, iceberg_type, arrow_type, caster)


def strictly(
    texts: pa.StringArray, iceberg_type: IcebergType, arrow_type: pa.DataType, caster: Cast
) -> tuple[pa.Array, Bad]:
    """Cast by `caster`, which raises ArrowInvalid if any text is bad; find the rows that are."""
    try:
        return caster(texts, arrow_type), {}
    except pa.ArrowInvalid:
        pass
    bad: Bad = {}
    tidied = texts
    for pattern, replacement in _TIDY.get(type(iceberg_type), ()):
        tidied = pc.replace_substring_regex(tidied, pattern, replacement)
    parts: list[pa.Array] = []
    ranges = [(0, len(tidied))]
    while ranges:
        start, size = ranges.pop()
        try:
            parts.append(caster(tidied.slice(start, size), arrow_type))
        except pa.ArrowInvalid:
            if size > 1:
                half = size // 2
                ranges += [(start + half, size - half), (start, half)]
                continue
            text = texts[start].as_py()
            integer = _integral(text) if isinstance(iceberg_type, IntegerType | LongType) else None
            try:
                parts.append(pa.array([integer], arrow_type))
            except (pa.ArrowInvalid, OverflowError):
                integer = None
                parts.append(pa.nulls(1, arrow_type))
            if integer is None:
                bad[start] = _reason(text, iceberg_type)
    return pa.concat_arrays(parts), bad


def utf8(values: pa.BinaryArray) -> tuple[pa.StringArray, Bad]:
    """Take bytes as text without a copy; rows that are not UTF-8 become null and have a reason."""
    values = values.cast(pa.binary())
    try:
        return values.cast(pa.string()), {}
    except pa.ArrowInvalid:
        pass
    bad: Bad = {}
    ranges = [(0, len(values))]
    while ranges:
        start, size = ranges.pop()
        try:
            values.slice(start, size).cast(pa.string())
        except pa.ArrowInvalid:
            if size > 1:
                half = size // 2
                ranges += [(start + half, size - half), (start, half)]
                continue
            bad[start] = _not_utf8(values[start].as_py())
    return without(values, bad).cast(pa.string()), bad


def without(values: pa.Array, rows: Collection[int]) -> pa.Array:
    """Make these rows null; unlike `if_else`, leave none of their bytes in the buffer."""
    if not len(rows):
        return values
    mask = np.zeros(len(values), bool)
    mask[list(rows)] = True
    return values.take(pa.array(np.arange(len(values)), mask=mask))


def quote(text: str) -> str:
    """Quote the start of a value for a bad row's reason: enough to find it, never the payload."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _not_utf8(value: bytes) -> str:
    try:
        value.decode()
    except UnicodeDecodeError as e:
        return f"not UTF-8 at byte {e.start}"
    return "not UTF-8"


def _reason(text: str, column_type: IcebergType) -> str:
    timestamps = TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType
    if (
        isinstance(column_type, timestamps | DateType | TimeType)
        and pc.match_substring_regex(text, _NUMBER).as_py()
    ):
        return f"number {quote(text)} given for a {column_type}: declare the column as long"
    if (
        isinstance(column_type, TimestampType | TimestampNanoType)
        and pc.match_substring_regex(text, _OFFSET).as_py()
    ):
        fix = "declare the column as timestamptz"
        return f"{quote(text)} has an offset, {column_type} has none: {fix}"
    return f"{quote(text)} is not a {column_type}"


def _integral(text: str) -> int | None:
    """Read an integer written as a double, as in `1e18`; None: the text is no integer."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number.adjusted()) > 20 or number != int(number):
        return None
    return int(number)


def _has(texts: pa.StringArray, *wanted: bytes) -> bool:
    data = characters(texts)
    return any((data == character[0]).any() for character in wanted)


def _boolean(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    true, false = pc.equal(texts, "true"), pc.equal(texts, "false")
    if not pc.all(pc.or_(true, false), min_count=0).as_py():
        raise pa.ArrowInvalid("boolean")
    return true


def _integer(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    integers = texts.cast(arrow_type)
    if _has(texts, b"x", b"X"):  # Arrow reads 0x1F
        raise pa.ArrowInvalid("hexadecimal")
    return integers


def _floating(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    numbers = texts.cast(arrow_type)
    is_infinite = pc.is_inf(numbers)
    if pc.any(is_infinite).as_py():  # Arrow reads 1e400 as inf
        is_spelled_out = pc.match_substring_regex(texts.filter(is_infinite), r"(?i)^[+-]?inf")
        if not pc.all(is_spelled_out, min_count=0).as_py():
            raise pa.ArrowInvalid("overflow")
    if _has(texts, b"("):  # Arrow reads nan(x)
        raise pa.ArrowInvalid("nan(x)")
    return numbers


def _plain(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    return texts.cast(arrow_type)


def _date(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    return _after_year_0(texts.cast(arrow_type), pa.int32(), -719162)  # 0001-01-01 in days


def _timestamp(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    naive = pa.timestamp(arrow_type.unit)
    try:
        timestamps = texts.cast(arrow_type)
    except pa.ArrowInvalid:
        if arrow_type.tz is None:
            raise
        timestamps = texts.cast(naive).cast(arrow_type)  # no offset in a timestamptz column: UTC
    if arrow_type.unit != "us":  # nanoseconds of 64 bits begin in 1677
        return timestamps
    return _after_year_0(timestamps, pa.int64(), -62135596800000000)  # 0001-01-01 in µs


def _after_year_0(values: pa.Array, integer: pa.DataType, first: int) -> pa.Array:
    """Raise if a value is before year 1, which neither Python nor SQL can represent."""
    least = pc.min(values.view(integer)).as_py()
    if least is not None and least < first:
        raise pa.ArrowInvalid("year 0")
    return values


def _time(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    shortest = pc.min(pc.binary_length(texts)).as_py()
    if shortest is not None and shortest < 5:  # Arrow would take 12 for 12 o'clock
        raise pa.ArrowInvalid("time")
    timestamps = pc.binary_join_element_wise("1970-01-01T", texts, "")
    return timestamps.cast(pa.timestamp("us")).cast(arrow_type)


def _uuid(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, _UUID), min_count=0).as_py():
        raise pa.ArrowInvalid("uuid")
    filled = texts.fill_null("00000000-0000-0000-0000-000000000000")
    raw = bytes.fromhex(characters(filled).tobytes().replace(b"-", b"").decode())
    storage = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(texts), [None, pa.py_buffer(raw)]
    )
    storage = pc.if_else(texts.is_valid(), storage, pa.scalar(None, storage.type))
    if arrow_type == storage.type:
        return storage
    return pa.ExtensionArray.from_storage(arrow_type, storage)


def _binary(texts: pa.StringArray, arrow_type: pa.DataType) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, BASE64), min_count=0).as_py():
        raise pa.ArrowInvalid("base64")
    return duck.base64(texts).cast(arrow_type)


_CASTS: dict[type[IcebergType], Cast] = {
    BooleanType: _boolean,
    IntegerType: _integer,
    LongType: _integer,
    FloatType: _floating,
    DoubleType: _floating,
    DecimalType: _plain,
    DateType: _date,
    TimeType: _time,
    TimestampType: _timestamp,
    TimestamptzType: _timestamp,
    TimestampNanoType: _timestamp,
    TimestamptzNanoType: _timestamp,
    UUIDType: _uuid,
    BinaryType: _binary,
    FixedType: _binary,
}

_MICROS = (r"(\.[0-9]{6})[0-9]+", r"\1")  # a finer time is cut to the column's precision
_NANOS = (r"(\.[0-9]{9})[0-9]+", r"\1")
_UPPER = ((r"^([0-9-]{10})t", r"\1T"), (r"z$", "Z"))
_UTC = (
    (r"^([0-9]{4}-[0-9]{2}-[0-9]{2})$", r"\1T00:00:00Z"),
    (r"^([0-9-]{10}[T ][0-9:]{5,8}(?:\.[0-9]+)?)$", r"\1Z"),
)
_WHOLE = ((r"^(-?[0-9]+)\.0*$", r"\1"),)
_TIDY: dict[type[IcebergType], tuple[tuple[str, str], ...]] = {
    IntegerType: _WHOLE,
    LongType: _WHOLE,
    TimeType: (_MICROS,),
    TimestampType: (_MICROS, *_UPPER),
    TimestamptzType: (_MICROS, *_UPPER, *_UTC),
    TimestampNanoType: (_NANOS, *_UPPER),
    TimestamptzNanoType: (_NANOS, *_UPPER, *_UTC),
}
