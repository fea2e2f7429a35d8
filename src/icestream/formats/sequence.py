"""Encodes columns of any plain type as one binary column that compares as they do."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.errors import SchemaRefused

_NULL, _GIVEN = b"\x00", b"\x01"  # first byte of a value: nulls come first
_END, _ZERO = b"\x00", b"\x00\xff"  # a zero byte within a text must not look like its end
_SIGN = np.uint64(1 << 63)  # flipped, signed numbers compare as unsigned ones

Words = npt.NDArray[np.uint64]


def encode_sequence(columns: Sequence[pa.Array]) -> pa.BinaryArray:
    """Encode rows so that their bytes compare as the rows do: column by column, nulls first.

    Integers of any width are encoded alike, and so are decimals of one scale and times of any
    precision: a column that is made wider keeps its order. NaN comes last, and -0.0 is 0.0.
    """
    parts = [pc.fill_null(_joined(_GIVEN, _ordered(column)), _NULL) for column in columns]
    return parts[0] if len(parts) == 1 else _joined(*parts)


def big_endian(*words: Words) -> pa.BinaryArray:
    """Encode unsigned numbers, eight bytes each; the first one of a row is compared first."""
    return fixed(np.column_stack(words).astype(">u8").view(np.uint8))


def fixed(rows: npt.NDArray[np.uint8]) -> pa.BinaryArray:
    """Return the rows of a matrix of bytes as binary values."""
    rows = np.ascontiguousarray(rows)
    size, width = rows.shape
    ends = np.arange(0, (size + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(rows)]
    return pa.Array.from_buffers(pa.binary(), size, buffers)


def _joined(*parts: pa.Array | bytes) -> pa.BinaryArray:
    return pc.binary_join_element_wise(*parts, b"")


def _ordered(column: pa.Array) -> pa.BinaryArray:
    """Encode one column; null stays null."""
    arrow_type = column.type
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        column = column.cast(pa.binary())
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(arrow_type):
        escaped = pc.replace_substring(column.cast(pa.binary()), _END, _ZERO)
        return _joined(escaped, _END)
    if pa.types.is_decimal(arrow_type):
        encoded = big_endian(*_decimal(column))
    elif pa.types.is_floating(arrow_type):
        encoded = big_endian(_floating(column))
    else:
        encoded = big_endian(_whole(column).view(np.uint64) ^ _SIGN)
    return encoded if not column.null_count else pc.if_else(column.is_valid(), encoded, None)


def _whole(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return integers, dates, times and booleans as signed numbers; times in microseconds."""
    arrow_type = column.type
    if pa.types.is_timestamp(arrow_type):
        column = column.cast(pa.timestamp("us", arrow_type.tz), safe=False).view(pa.int64())
    elif pa.types.is_time(arrow_type):
        column = column.cast(pa.time64("us"), safe=False).view(pa.int64())
    elif pa.types.is_date32(arrow_type):
        column = column.view(pa.int32())
    elif not pa.types.is_boolean(arrow_type) and not pa.types.is_signed_integer(arrow_type):
        raise SchemaRefused(f"a column of type {arrow_type} has no order to go by")
    column = column.cast(pa.int64())
    numbers: npt.NDArray[np.int64] = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return numbers


def _decimal(column: pa.Array) -> tuple[Words, Words]:
    """Return the two words of a decimal's unscaled number, the one with the sign first."""
    column = column.cast(pa.decimal128(38, column.type.scale))
    words = np.frombuffer(column.buffers()[1], "<u8")
    words = words[2 * column.offset : 2 * (column.offset + len(column))]
    return words[1::2] ^ _SIGN, words[::2]


def _floating(column: pa.Array) -> Words:
    """Encode doubles: negative ones with all bits flipped, so that the greater one is less."""
    values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False)
    values = values + 0.0  # -0.0 becomes 0.0
    bits: Words = np.where(np.isnan(values), np.nan, values).view(np.uint64)
    return np.where(bits & _SIGN != 0, ~bits, bits | _SIGN)
