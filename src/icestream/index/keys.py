"""Key hashes: 128 bits that stand for the values of the key columns, the same on every machine.

The hash is MD5 of a canonical encoding. It does not change when a column is widened (int → long,
float → double, decimal precision, date → timestamp), and nobody can aim at another row's key.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icestream.errors import SchemaRefused
from icestream.formats.duck import connection

Hashes = NDArray[np.uint64]  # one row per key: high word, low word
Matrix = NDArray[np.uint8]  # one row per key, so many bytes each

# Stands for all keys at once, where a truncate leaves its tombstone.
EVERY_KEY: Hashes = np.full((1, 2), ~np.uint64(0))

_AT_ONCE = 1 << 16  # rows; kilobyte keys are copied once, in pieces that stay small
_HASH = """
    SELECT (h >> 64)::UBIGINT AS hi, (h & 18446744073709551615::UHUGEINT)::UBIGINT AS lo
    FROM (SELECT md5_number(v) AS h FROM t)
"""
_LITTLE = np.dtype("<i8")
_NAN = np.float64("nan")


def key_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """Hash the rows of key columns; nulls have a hash of their own, and the caller reports them."""
    if not columns:
        raise ValueError("a key has at least one column")
    rows = len(columns[0])
    hashes = np.empty((rows, 2), dtype=np.uint64)
    plain = [_plain(column) for column in columns]
    for start in range(0, rows, _AT_ONCE):
        piece = _canonical([column.slice(start, _AT_ONCE) for column in plain])
        hashes[start : start + len(piece)] = _digests(piece)
    return hashes


def bucket_of(hashes: Hashes, buckets: int) -> NDArray[np.intp]:
    """Return the bucket of each key: the first bits of its hash. `buckets` is a power of 2."""
    bits = buckets.bit_length() - 1
    if buckets != 1 << bits:
        raise ValueError(f"{buckets} is no power of two")
    if bits == 0:
        return np.zeros(len(hashes), dtype=np.intp)
    return (hashes[:, 0] >> np.uint64(64 - bits)).astype(np.intp)


def _canonical(columns: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """Encode each row as one binary value: null flags, fixed parts, sizes of texts, then texts."""
    rows = len(columns[0])
    fixed: list[Matrix] = [_null_flags(columns)]
    texts: list[pa.LargeBinaryArray] = []
    for column in columns:
        numbers, text = _encoded(column)
        fixed += [_bytes_of(values) for values in numbers]
        if text is not None:
            fixed.append(_bytes_of(pc.binary_length(text).to_numpy()))
            texts.append(text)
    head = _binary(np.concatenate(fixed, axis=1), rows)
    if not texts:
        return head
    return pc.binary_join_element_wise(head, *texts, pa.scalar(b"", pa.large_binary()))


def _encoded(column: pa.Array) -> tuple[list[NDArray[Any]], pa.LargeBinaryArray | None]:
    """Encode a column as numbers of fixed width and, where values vary in length, their bytes."""
    arrow_type = column.type
    if pa.types.is_decimal(arrow_type):
        digits, exponent = _decimal(column)
        return [exponent], digits
    if pa.types.is_floating(arrow_type):
        values = _numbers(column.cast(pa.float64()), 0.0)
        values = np.where(np.isnan(values), _NAN, values + 0.0)  # one NaN; -0.0 is 0.0
        return [values], None
    if pa.types.is_integer(arrow_type) or pa.types.is_boolean(arrow_type):
        return [_numbers(column.cast(pa.int64()), 0)], None
    if pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type):
        return _moment(column), None
    if pa.types.is_time(arrow_type):
        return [_numbers(column.cast(pa.time64("ns")).cast(pa.int64()), 0)], None
    if pa.types.is_null(arrow_type):
        return [np.zeros(len(column), dtype=np.int64)], None
    if _is_bytes(arrow_type):
        # In two steps: a fixed width becomes binary before it becomes large binary.
        narrow = column if pa.types.is_large_binary(arrow_type) else column.cast(_wide(arrow_type))
        return [], narrow.cast(pa.large_binary()).fill_null(b"")
    raise SchemaRefused(
        f"a column of type {arrow_type} cannot be part of a key",
        hint="name columns with plain values under `keys:`",
    )


def _moment(column: pa.Array) -> list[NDArray[Any]]:
    """Return microseconds, and nanoseconds beyond them; a date counts as its midnight."""
    arrow_type = column.type
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit == "ns":
        nanos = _numbers(column.cast(pa.int64()), 0)
        return [nanos // 1000, nanos % 1000]
    micros = column.cast(pa.timestamp("us", getattr(arrow_type, "tz", None)))
    values = _numbers(micros.cast(pa.int64()), 0)
    return [values, np.zeros_like(values)]


def _decimal(column: pa.Array) -> tuple[pa.LargeBinaryArray, NDArray[Any]]:
    """Return the digits without trailing zeros, and the exponent: 1.0 is the same key as 1.00."""
    scale = column.type.scale
    wide = column.cast(pa.decimal128(38, scale))
    whole = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(wide), wide.buffers(), wide.null_count, wide.offset
    )
    digits = whole.cast(pa.string()).fill_null("0")
    bare = pc.utf8_rtrim(digits, "0")
    kept = pc.binary_length(bare).to_numpy().astype(np.int64)
    dropped = pc.binary_length(digits).to_numpy().astype(np.int64) - kept
    exponent = np.where(kept == 0, 0, dropped - scale)
    return bare.cast(pa.large_string()).cast(pa.large_binary()), exponent


def _digests(values: pa.LargeBinaryArray) -> Hashes:
    con = connection()
    con.register("t", pa.table({"v": values}))
    try:
        words = con.execute(_HASH).to_arrow_table(max(len(values), 1))
    finally:
        con.unregister("t")
    return np.column_stack([words.column("hi").to_numpy(), words.column("lo").to_numpy()])


def _plain(column: pa.Array) -> pa.Array:
    """Return one array of plain values: no chunks, no dictionary, no extension type."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_bytes(arrow_type: pa.DataType) -> bool:
    tests = (
        pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view,
        pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )  # fmt: skip
    return any(test(arrow_type) for test in tests)


def _wide(arrow_type: pa.DataType) -> pa.DataType:
    is_text = pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type)
    if is_text or pa.types.is_string_view(arrow_type):
        return pa.large_string()
    return pa.binary() if pa.types.is_fixed_size_binary(arrow_type) else pa.large_binary()


def _numbers(column: pa.Array, missing: float) -> NDArray[Any]:
    values: NDArray[Any] = column.fill_null(missing).to_numpy(zero_copy_only=False)
    return values


def _null_flags(columns: Sequence[pa.Array]) -> Matrix:
    flags = [column.is_null().to_numpy(zero_copy_only=False) for column in columns]
    return np.column_stack(flags).astype(np.uint8)


def _bytes_of(values: NDArray[Any]) -> Matrix:
    """Return eight bytes a value, lowest first on every machine."""
    wide = values.astype(np.dtype("<f8") if values.dtype.kind == "f" else _LITTLE)
    return np.ascontiguousarray(wide).view(np.uint8).reshape(len(values), 8)


def _binary(matrix: Matrix, rows: int) -> pa.LargeBinaryArray:
    """Return the rows of a matrix as binary values, without a copy of each."""
    width = matrix.shape[1]
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    return pa.Array.from_buffers(pa.large_binary(), rows, buffers)
