"""Decimals as Debezium writes them: the bytes of an unscaled number in base64, with a scale."""

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats import duck
from icestream.formats.debezium.pieces import Rows
from icestream.formats.jsonbytes import characters, offsets
from icestream.formats.jsonkeys import places

_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_NARROW, _WIDE = 15, 31  # bytes whose numbers have 38 and 76 digits at most
_DIGITS = re.compile("-?[0-9]{1,9}")


def unscaled(texts: pa.StringArray, scale: int) -> pa.Array:
    """Read base64 of big-endian numbers; raises ArrowInvalid where there is none."""
    if not pc.all(pc.match_substring_regex(texts, _BASE64), min_count=0).as_py():
        raise pa.ArrowInvalid("base64")
    return _decimals(duck.base64(texts), scale)


def of_any_scale(texts: pa.StringArray) -> list[tuple[Rows, pa.Array]]:
    """Read objects of scale and value: rows and decimals of each scale there is."""
    if not pc.all(pc.starts_with(texts, "{"), min_count=0).as_py():
        raise pa.ArrowInvalid("no object")
    (scales, values), malformed = duck.extract(texts, ["scale", "value"])
    if malformed or scales.null_count > texts.null_count or values.null_count > texts.null_count:
        raise pa.ArrowInvalid("no decimal")
    found = []
    for scale in pc.unique(scales.drop_null()).to_pylist():
        if not _DIGITS.fullmatch(scale):
            raise pa.ArrowInvalid("scale")
        rows = places(pc.equal(scales, scale))
        found.append((rows, unscaled(values.take(pa.array(rows)), int(scale))))
    return found


def is_unscaled(texts: pa.StringArray) -> pa.BooleanArray:
    """Tell which texts could be base64."""
    return pc.match_substring_regex(texts, _BASE64)


def as_text(values: pa.Array) -> pa.StringArray:
    """Write decimals with all their digits, never with an exponent."""
    texts = values.cast(pa.string())
    if (characters(texts) == ord("E")).any():
        short = pc.match_substring(texts, "E").fill_null(False)
        full = [f"{Decimal(text):f}" for text in texts.filter(short).to_pylist()]
        texts = pc.replace_with_mask(texts, short, pa.array(full, pa.string()))
    return texts


def _decimals(values: pa.BinaryArray, scale: int) -> pa.Array:
    """Turn bytes around and fill them up with their sign: that is what Arrow's decimals are."""
    values = values.cast(pa.binary())
    body = characters(values)
    ends = offsets(values).astype(np.int64)
    ends -= ends[0]
    start, stop = ends[:-1], ends[1:]
    length = stop - start
    longest = int(length.max(initial=0))
    given = values.is_valid()
    if longest > _WIDE or pc.any(pc.equal(pc.binary_length(values), 0)).as_py():
        raise pa.ArrowInvalid("not a number of a size that can be written")
    kind = pa.decimal128(38, scale) if longest <= _NARROW else pa.decimal256(76, scale)
    out = np.empty((len(values), kind.byte_width), np.uint8)
    padded = np.append(body, np.uint8(0))
    fill = np.where(padded[start] > 127, np.uint8(255), np.uint8(0))
    out[:] = fill[:, None]
    for place in range(longest):
        here = length > place
        out[here, place] = padded[stop[here] - 1 - place]
    found = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(out)])
    return found if not values.null_count else pc.if_else(given, found, pa.scalar(None, kind))
