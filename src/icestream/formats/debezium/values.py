"""Texts → arrays by what Debezium means: decimals, times, bytes, and values that are not there."""

import base64
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
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
    ListType,
    LongType,
    MapType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
)

from icestream.formats import casts
from icestream.formats.casts import Bad, Cast
from icestream.formats.debezium import decimals
from icestream.formats.debezium.connect import ConnectType, Sense, Unit
from icestream.formats.debezium.pieces import spread
from icestream.formats.debezium.times import CLOCKS
from icestream.formats.json import Path, TextCaster
from icestream.formats.jsonbytes import Rows, characters, offsets
from icestream.formats.jsonkeys import places

DecimalMode: TypeAlias = Literal["precise", "string", "double"]
BinaryMode: TypeAlias = Literal["base64", "base64-url-safe", "hex"]

_WHOLE_NUMBER = r"^-?[0-9]+$"
_DECIMAL = r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"
_HEX = r"^(?:[0-9a-fA-F]{2})*$"
_UTC = r"(?:[zZ]|\+00(?::?00)?)$"

_NUMBERS = IntegerType | LongType | DoubleType | FloatType
_STAMPS = TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType
_WITHOUT_ZONE = DateType | TimeType | TimestampType | TimestampNanoType


@dataclass(frozen=True)
class ConnectorModes:
    """What a connector was told, where its events do not say so themselves."""

    decimals: DecimalMode = "precise"
    binary: BinaryMode = "base64"
    time_units: Mapping[str, Unit] = field(default_factory=dict)  # by column; `*`: all others
    unavailable: str = "__debezium_unavailable_value"


@dataclass
class ConnectCaster(TextCaster):
    """Reads texts by an embedded schema, or by the types of the columns where there is none."""

    fields: Mapping[str, ConnectType] | None
    modes: ConnectorModes
    target: Schema
    missing: dict[str, list[Rows]] = field(default_factory=dict)

    @cached_property
    def raw(self) -> frozenset[str]:  # type: ignore[override]
        """Only the quotes tell base64 from a number: a converter may write decimals either way."""
        if self.fields is not None:
            return frozenset(n for n, each in self.fields.items() if each.sense == "decimal")
        columns = self.target.fields
        return frozenset(c.name for c in columns if isinstance(c.field_type, DecimalType))

    def before_cast(
        self, texts: pa.StringArray, kind: IcebergType, rows: Rows, path: Path
    ) -> pa.StringArray:
        """Note where an event says that it did not carry a column's value."""
        if len(path) > 1 or isinstance(kind, StructType):
            return texts
        marks = self._marks.plain
        if isinstance(kind, ListType | MapType):
            marks = self._marks.nested
        elif path[0] in self.raw:
            marks = self._marks.quoted
        found = _same(texts, marks)
        if len(found):
            self.missing.setdefault(path[0], []).append(rows[found])
            texts = casts.without(texts, found)
        return texts

    def cast(
        self, texts: pa.StringArray, kind: IcebergType, arrow: pa.DataType, path: Path
    ) -> tuple[pa.Array, Bad]:
        """Read by what the value means, else by what the column is."""
        meaning = self._meaning(path)
        if len(path) > 1 or path[0] not in self.raw:
            return self._read(texts, kind, arrow, path, meaning)
        if isinstance(kind, BinaryType | FixedType):
            return casts.cast(pc.ascii_trim(texts, '"'), kind, arrow)
        if meaning is not None:
            fast: Cast = partial(_written, scale=meaning.scale)
        else:
            fast = partial(_guessed, texts_first=self.modes.decimals == "string", quoted=True)
        out, bad = casts.strictly(texts, kind, arrow, fast)
        return out, {row: why.replace('"', "") for row, why in bad.items()}

    def _read(
        self,
        texts: pa.StringArray,
        kind: IcebergType,
        arrow: pa.DataType,
        path: Path,
        meaning: ConnectType | None,
    ) -> tuple[pa.Array, Bad]:
        if meaning is None:
            return self._by_column(texts, kind, arrow, path)
        fast = _by_sense(meaning, kind)
        if fast is not None:
            return casts.strictly(texts, kind, arrow, fast)
        if meaning.sense in ("local", "zoned") and isinstance(kind, _WITHOUT_ZONE):
            texts = _without_zone(texts)
        if meaning.sense == "text" and isinstance(kind, BinaryType | FixedType):
            return casts.strictly(texts, kind, arrow, _BINARY[self.modes.binary])
        if isinstance(kind, BooleanType):
            texts = _switches(texts)
        return casts.cast(texts, kind, arrow)

    @cached_property
    def _marks(self) -> "_UnavailableMarks":
        return _UnavailableMarks.of(self.modes.unavailable)

    def _meaning(self, path: Path) -> ConnectType | None:
        found = self.fields.get(path[0]) if self.fields else None
        for step in path[1:]:
            found = found.inner.get(step) if found else None
        return found

    def _by_column(
        self, texts: pa.StringArray, kind: IcebergType, arrow: pa.DataType, path: Path
    ) -> tuple[pa.Array, Bad]:
        """Read without a schema: what the column is, and the shape of the text, must do."""
        if isinstance(kind, DecimalType):
            fast = partial(_guessed, texts_first=self.modes.decimals == "string", quoted=False)
            return casts.strictly(texts, kind, arrow, fast)
        if isinstance(kind, BinaryType | FixedType) and len(path) == 1:  # within, it is base64
            return casts.strictly(texts, kind, arrow, _BINARY[self.modes.binary])
        if isinstance(kind, BooleanType):
            texts = _switches(texts)
        if isinstance(kind, _STAMPS | DateType | TimeType):
            return self._time(texts, kind, arrow, path[0])
        return casts.cast(texts, kind, arrow)

    def _time(
        self, texts: pa.StringArray, kind: IcebergType, arrow: pa.DataType, column: str
    ) -> tuple[pa.Array, Bad]:
        """Read a time: a number only if its unit is known."""
        units = self.modes.time_units
        unit = units.get(column) or units.get("*")
        sense: Sense = "timestamp"
        if isinstance(kind, DateType | TimeType):
            sense = "days" if isinstance(kind, DateType) else "time"
        number = None
        if sense == "days" or unit is not None:
            number = _by_sense(ConnectType(kind, sense, unit or "us"), kind)
        out, bad = casts.strictly(texts, kind, arrow, partial(_loose_times, number, kind))
        for row in bad:
            if number is None and pc.match_substring_regex(texts[row], _WHOLE_NUMBER).as_py():
                given = casts.quote(texts[row].as_py())
                bad[row] = f"number {given} given for a {kind}: say its unit in `format.time_units`"
        return out, bad


@dataclass(frozen=True)
class _UnavailableMarks:
    """The ways in which an event says that a value was not carried."""

    plain: pa.StringArray
    quoted: pa.StringArray
    nested: pa.StringArray

    @staticmethod
    def of(marker: str) -> "_UnavailableMarks":
        data = marker.encode()
        coded = base64.b64encode(data).decode()
        digest = hashlib.md5(data, usedforsecurity=False).digest()
        named = uuid.UUID(bytes=digest, version=3)  # Java's nameUUIDFromBytes
        pairs = _compact({marker: marker})
        lists = [[marker], [coded], [data.hex()], [str(named)], list(data)]
        nested = [marker, coded, pairs, *map(_compact, lists)]
        ways = ([marker, coded, data.hex(), pairs], [f'"{marker}"'], nested)
        return _UnavailableMarks(*(pa.array(some, pa.string()) for some in ways))


def _same(texts: pa.StringArray, marks: pa.StringArray) -> Rows:
    """Where one of the marks stands; nearly all other texts already differ in their length."""
    lengths = np.diff(offsets(texts))
    alike = np.flatnonzero(np.isin(lengths, pc.binary_length(marks).to_numpy()))
    if not len(alike):
        return alike
    return alike[places(pc.is_in(texts.take(pa.array(alike)), marks))]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _by_sense(meaning: ConnectType, kind: IcebergType) -> Cast | None:
    """Choose how to read numbers that mean a time and bytes that mean a number."""
    if meaning.sense == "decimal" and not isinstance(kind, BinaryType):
        return partial(_scaled, scale=meaning.scale)
    if meaning.sense == "variable":
        return _variable
    if isinstance(kind, _NUMBERS) or meaning.sense not in CLOCKS:
        return None
    return partial(_clock, read=CLOCKS[meaning.sense], unit=meaning.unit)


def _scaled(texts: pa.StringArray, arrow: pa.DataType, scale: int) -> pa.Array:
    return _fit(decimals.unscaled(texts, scale), arrow)


def _written(texts: pa.StringArray, arrow: pa.DataType, scale: int) -> pa.Array:
    """Read decimals with their quotes: base64, or numbers if the converter writes them so."""
    strings = pc.starts_with(texts, '"')
    digits = partial(_digits_of, scale=scale)
    ways: list[tuple[pa.BooleanArray, Cast]] = [
        (strings, partial(_scaled, scale=scale)), (pc.invert(strings), digits)
    ]  # fmt: skip
    return _each_its_way(pc.ascii_trim(texts, '"'), arrow, ways)


def _digits_of(texts: pa.StringArray, arrow: pa.DataType, scale: int) -> pa.Array:
    return _fit(texts.cast(pa.decimal128(38, scale)), arrow)


def _variable(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    """Read decimals whose scale differs from row to row."""
    pieces = [(rows, _fit(found, arrow)) for rows, found in decimals.of_any_scale(texts)]
    return spread(pieces, len(texts), arrow)


def _guessed(
    texts: pa.StringArray, arrow: pa.DataType, *, texts_first: bool, quoted: bool
) -> pa.Array:
    """Read decimals of a connector that does not say how it writes them, row by row.

    A JSON number is one. A string may be base64 or the decimal as text. Few could be both, such as
    "1234": for these the connector's mode decides.
    """
    plain = pc.ascii_trim(texts, '"') if quoted else texts
    written = pc.match_substring_regex(plain, _DECIMAL) if texts_first else None
    if written is not None and pc.all(written, min_count=0).as_py():
        return _number(plain, arrow)
    objects = pc.starts_with(texts, "{")
    strings = pc.starts_with(texts, '"') if quoted else pc.invert(objects)
    coded = pc.and_(strings, decimals.is_unscaled(plain))
    if written is not None:
        coded = pc.and_(coded, pc.invert(written))
    number = pc.invert(pc.or_(objects, coded))
    scaled = partial(_scaled, scale=arrow.scale)
    ways: list[tuple[pa.BooleanArray, Cast]] = [
        (coded, scaled), (number, _number), (objects, _variable)
    ]  # fmt: skip
    return _each_its_way(plain, arrow, ways)


def _number(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    return texts.cast(arrow)


def _loose_times(
    number: Cast | None, kind: IcebergType, texts: pa.StringArray, arrow: pa.DataType
) -> pa.Array:
    """Read numbers in their unit, and texts as ISO 8601 says."""
    is_number = pc.match_substring_regex(texts, _WHOLE_NUMBER)
    ways: list[tuple[pa.BooleanArray, Cast]] = [(pc.invert(is_number), partial(_iso, kind))]
    if number is not None:
        ways.append((is_number, number))
    elif pc.any(is_number).as_py():
        raise pa.ArrowInvalid("unit")
    return _each_its_way(texts, arrow, ways)


def _iso(kind: IcebergType, texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    if isinstance(kind, _WITHOUT_ZONE):
        texts = _without_zone(texts)
    out, bad = casts.cast(texts, kind, arrow)
    if bad:
        raise pa.ArrowInvalid("time")
    return out


def _each_its_way(
    texts: pa.StringArray, arrow: pa.DataType, ways: list[tuple[pa.BooleanArray, Cast]]
) -> pa.Array:
    """Cast each row by the way whose mask it is in; nulls are in none."""
    pieces = []
    for mask, way in ways:
        rows = places(mask)
        some = texts if len(rows) == len(texts) else texts.take(pa.array(rows))
        pieces += [(rows, way(some, arrow))] if len(rows) else []
    return spread(pieces, len(texts), arrow)


def _clock(
    texts: pa.StringArray,
    arrow: pa.DataType,
    read: Callable[[pa.Int64Array, Unit], pa.Array],
    unit: Unit,
) -> pa.Array:
    return _fit(read(texts.cast(pa.int64()), unit), arrow)


def _fit(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    """Cast what was read to the column's type, where that loses nothing."""
    kind = values.type
    if pa.types.is_large_string(arrow):
        if pa.types.is_decimal(kind):
            return decimals.as_text(values).cast(arrow)
        return pc.replace_substring(values.cast(pa.string()), " ", "T").cast(arrow)
    same = arrow.id == kind.id
    if not same and not any(a(kind) and b(arrow) for a, b in _CONVERSIONS):
        raise pa.ArrowInvalid("type")
    if pa.types.is_date(kind) and not same:
        values = values.cast(pa.timestamp("us"))
    return values.cast(arrow)


_CONVERSIONS = [
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_decimal, pa.types.is_floating),
    (pa.types.is_decimal, pa.types.is_integer),
    (pa.types.is_date, pa.types.is_timestamp),
]


def _without_zone(texts: pa.StringArray) -> pa.StringArray:
    """Take UTC away: so does Debezium mark values that have no zone."""
    return pc.replace_substring_regex(texts, _UTC, "")


def _switches(texts: pa.StringArray) -> pa.StringArray:
    """Take 0 and 1 for what they are in a column of booleans."""
    on = pc.replace_substring_regex(texts, "^1$", "true")
    return pc.replace_substring_regex(on, "^0$", "false")


def _base64(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    out, bad = casts.cast(texts, BinaryType(), pa.large_binary())
    if bad:
        raise pa.ArrowInvalid("base64")
    return out.cast(arrow)


def _url_safe(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    usual = pc.replace_substring(pc.replace_substring(texts, "-", "+"), "_", "/")
    return _base64(usual, arrow)


def _hex(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    """Read hexadecimal digits; bits are base64 in every mode, and mostly end as such."""
    padded = pc.ends_with(texts, "=")
    ways: list[tuple[pa.BooleanArray, Cast]] = [(pc.invert(padded), _digits), (padded, _base64)]
    return _each_its_way(texts, arrow, ways)


def _digits(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, _HEX), min_count=0).as_py():
        raise pa.ArrowInvalid("hex")
    body = bytes.fromhex(characters(texts).tobytes().decode())
    ends = offsets(texts).astype(np.int32)
    ends = (ends - ends[0]) // 2
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers).cast(arrow)


_BINARY: dict[BinaryMode, Cast] = {"base64": _base64, "base64-url-safe": _url_safe, "hex": _hex}
