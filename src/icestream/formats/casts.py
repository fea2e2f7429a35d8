"""Texts → typed arrays, exactly: a text that does not fit its type is a bad row, never a null.

A column is cast whole. Only when that fails are texts tidied and cast again, and only when that
fails too are the bad rows found by halving. So the price of strictness is paid by bad batches.
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
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_OFFSET = r"(?:[zZ]|[0-9][+-][0-9]{2}(?::?[0-9]{2})?)$"


def cast(texts: pa.StringArray, kind: IcebergType, arrow: pa.DataType) -> tuple[pa.Array, Bad]:
    """Cast texts to an Iceberg type as Arrow spells it; bad rows are null and have a reason."""
    if isinstance(kind, StringType):
        return texts.cast(arrow), {}
    try:
        fast = _CASTS[type(kind)]
    except KeyError:
        raise ConfigError(f"a column of type {kind} cannot be decoded from text") from None
    return strictly(texts, kind, arrow, fast)


def strictly(
    texts: pa.StringArray, kind: IcebergType, arrow: pa.DataType, fast: Cast
) -> tuple[pa.Array, Bad]:
    """Cast by `fast`, which raises ArrowInvalid when any text is bad; find those that are."""
    try:
        return fast(texts, arrow), {}
    except pa.ArrowInvalid:
        pass
    bad: Bad = {}
    tidy = texts
    for pattern, replacement in _TIDY.get(type(kind), ()):
        tidy = pc.replace_substring_regex(tidy, pattern, replacement)
    parts: list[pa.Array] = []
    todo = [(0, len(tidy))]
    while todo:
        start, size = todo.pop()
        try:
            parts.append(fast(tidy.slice(start, size), arrow))
        except pa.ArrowInvalid:
            if size > 1:
                half = size // 2
                todo += [(start + half, size - half), (start, half)]
                continue
            text = texts[start].as_py()
            rescued = _integral(text) if isinstance(kind, IntegerType | LongType) else None
            try:
                parts.append(pa.array([rescued], arrow))
            except (pa.ArrowInvalid, OverflowError):
                rescued = None
                parts.append(pa.nulls(1, arrow))
            if rescued is None:
                bad[start] = _reason(text, kind)
    return pa.concat_arrays(parts), bad


def utf8(values: pa.BinaryArray) -> tuple[pa.StringArray, Bad]:
    """Take bytes as text without a copy; rows that are not UTF-8 become null."""
    values = values.cast(pa.binary())
    try:
        return values.cast(pa.string()), {}
    except pa.ArrowInvalid:
        pass
    bad: Bad = {}
    todo = [(0, len(values))]
    while todo:
        start, size = todo.pop()
        try:
            values.slice(start, size).cast(pa.string())
        except pa.ArrowInvalid:
            if size > 1:
                half = size // 2
                todo += [(start + half, size - half), (start, half)]
                continue
            bad[start] = _not_utf8(values[start].as_py())
    return without(values, bad).cast(pa.string()), bad


def without(values: pa.Array, rows: Collection[int]) -> pa.Array:
    """Make these rows null and leave none of their bytes behind, as `if_else` would."""
    if not len(rows):
        return values
    mask = np.zeros(len(values), bool)
    mask[list(rows)] = True
    return values.take(pa.array(np.arange(len(values)), mask=mask))


def quote(text: str) -> str:
    """Quote the start of a value for a reason: enough to find it, never the payload."""
    return repr(text if len(text) <= 40 else text[:39] + "…")


def _not_utf8(value: bytes) -> str:
    try:
        value.decode()
    except UnicodeDecodeError as e:
        return f"not UTF-8 at byte {e.start}"
    return "not UTF-8"


def _reason(text: str, kind: IcebergType) -> str:
    times = TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType
    if (
        isinstance(kind, times | DateType | TimeType)
        and pc.match_substring_regex(text, _NUMBER).as_py()
    ):
        return f"number {quote(text)} given for a {kind}: declare the column as long"
    if (
        isinstance(kind, TimestampType | TimestampNanoType)
        and pc.match_substring_regex(text, _OFFSET).as_py()
    ):
        return f"{quote(text)} has an offset, {kind} has none: declare the column as timestamptz"
    return f"{quote(text)} is not a {kind}"


def _integral(text: str) -> int | None:
    """Read `1e18`; JSON texts of integral doubles look like this."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number.adjusted()) > 20 or number != int(number):
        return None
    return int(number)


def _has(texts: pa.StringArray, *wanted: bytes) -> bool:
    view = characters(texts)
    return any((view == c[0]).any() for c in wanted)


def _boolean(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    true, false = pc.equal(texts, "true"), pc.equal(texts, "false")
    if not pc.all(pc.or_(true, false), min_count=0).as_py():
        raise pa.ArrowInvalid("boolean")
    return true


def _integer(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    out = texts.cast(arrow)
    if _has(texts, b"x", b"X"):  # Arrow reads 0x1F
        raise pa.ArrowInvalid("hexadecimal")
    return out


def _floating(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    out = texts.cast(arrow)
    infinite = pc.is_inf(out)
    if pc.any(infinite).as_py():  # Arrow gives inf for 1e400
        named = pc.match_substring_regex(texts.filter(infinite), r"(?i)^[+-]?inf")
        if not pc.all(named, min_count=0).as_py():
            raise pa.ArrowInvalid("overflow")
    if _has(texts, b"("):  # Arrow reads nan(x)
        raise pa.ArrowInvalid("nan(x)")
    return out


def _plain(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    return texts.cast(arrow)


def _date(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    return _after_year_0(texts.cast(arrow), pa.int32(), -719162)


def _timestamp(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    naive = pa.timestamp(arrow.unit)
    try:
        out = texts.cast(arrow)
    except pa.ArrowInvalid:
        if arrow.tz is None:
            raise
        out = texts.cast(naive).cast(arrow)  # no offset in a timestamptz column: UTC
    if arrow.unit != "us":
        return out
    return _after_year_0(out, pa.int64(), -62135596800000000)


def _after_year_0(values: pa.Array, integer: pa.DataType, first: int) -> pa.Array:
    """Refuse year 0, which neither Python nor SQL has."""
    least = pc.min(values.view(integer)).as_py()
    if least is not None and least < first:
        raise pa.ArrowInvalid("year 0")
    return values


def _time(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    shortest = pc.min(pc.binary_length(texts)).as_py()
    if shortest is not None and shortest < 5:  # Arrow would take 12 for 12 o'clock
        raise pa.ArrowInvalid("time")
    stamps = pc.binary_join_element_wise("1970-01-01T", texts, "")
    return stamps.cast(pa.timestamp("us")).cast(arrow)


def _uuid(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, _UUID), min_count=0).as_py():
        raise pa.ArrowInvalid("uuid")
    filled = texts.fill_null("00000000-0000-0000-0000-000000000000")
    raw = bytes.fromhex(characters(filled).tobytes().replace(b"-", b"").decode())
    storage = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(16), len(texts), [None, pa.py_buffer(raw)]
    )
    storage = pc.if_else(texts.is_valid(), storage, pa.scalar(None, storage.type))
    return pa.ExtensionArray.from_storage(arrow, storage) if arrow != storage.type else storage


def _binary(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, _BASE64), min_count=0).as_py():
        raise pa.ArrowInvalid("base64")
    return duck.base64(texts).cast(arrow)


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
