"""Reads Debezium's decimals: the bytes of an unscaled number in base64, with a scale."""

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats import duck
from icestream.formats.casts import BASE64
from icestream.formats.debezium.pieces import Rows
from icestream.formats.jsonbytes import characters, offsets
from icestream.formats.jsonkeys import places

_NARROW, _WIDE = 15, 31  # bytes whose numbers have 38 and 76 digits at most
_DIGITS = re.compile("-?[0-9]{1,9}")


def unscaled(texts: pa.StringArray, scale: int) -> pa.Array:
    """Read base64 of big-endian numbers; raises ArrowInvalid if any text is something else."""
    if not pc.all(is_unscaled(texts), min_count=0).as_py():
        raise pa.ArrowInvalid("base64")
    return _decimals(duck.base64(texts), scale)


def of_any_scale(texts: pa.StringArray) -> list[tuple[Rows, pa.Array]]:
    """Read objects of scale and value; returns the rows and the decimals of each scale."""
    if not pc.all(pc.starts_with(texts, "{"), min_count=0).as_py():
        raise pa.ArrowInvalid("no object")
    (scales, values), malformed = duck.extract(texts, ["scale", "value"])
    if malformed or scales.null_count > texts.null_count or values.null_count > texts.null_count:
        raise pa.ArrowInvalid("no decimal")
    pieces = []
    for scale in pc.unique(scales.drop_null()).to_pylist():
        if not _DIGITS.fullmatch(scale):
            raise pa.ArrowInvalid("scale")
        rows = places(pc.equal(scales, scale))
        pieces.append((rows, unscaled(values.take(pa.array(rows)), int(scale))))
    return pieces


def is_unscaled(texts: pa.StringArray) -> pa.BooleanArray:
    """Return which texts could be base64."""
    return pc.match_substring_regex(texts, BASE64)


def as_text(values: pa.Array) -> pa.StringArray:
    """Write decimals with all their digits, never with an exponent."""
    texts = values.cast(pa.string())
    if (characters(texts) == ord("E")).any():
        has_exponent = pc.match_substring(texts, "E").fill_null(False)
        plain = [f"{Decimal(text):f}" for text in texts.filter(has_exponent).to_pylist()]
        texts = pc.replace_with_mask(texts, has_exponent, pa.array(plain, pa.string()))
    return texts


def _decimals(values: pa.BinaryArray, scale: int) -> pa.Array:
    """Reverse bytes and pad them with the sign: Arrow's decimals are little-endian."""
    values = values.cast(pa.binary())
    body = characters(values)
    ends = offsets(values).astype(np.int64)
    ends -= ends[0]
    start, stop = ends[:-1], ends[1:]
    length = stop - start
    longest = int(length.max(initial=0))
    if longest > _WIDE or pc.any(pc.equal(pc.binary_length(values), 0)).as_py():
        raise pa.ArrowInvalid("not a number of a size that can be written")
    arrow_type = pa.decimal128(38, scale) if longest <= _NARROW else pa.decimal256(76, scale)
    out = np.empty((len(values), arrow_type.byte_width), np.uint8)
    padded = np.append(body, np.uint8(0))
    fill = np.where(padded[start] > 127, np.uint8(255), np.uint8(0))
    out[:] = fill[:, None]
    for byte in range(longest):
        has_byte = length > byte
        out[has_byte, byte] = padded[stop[has_byte] - 1 - byte]
    decimals = pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(out)])
    if not values.null_count:
        return decimals
    return pc.if_else(values.is_valid(), decimals, pa.scalar(None, arrow_type))
