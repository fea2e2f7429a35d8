"""Casts texts by what Debezium means: decimals, times, bytes, and values that are not there."""

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
Choices: TypeAlias = list[tuple[pa.BooleanArray, Cast]]  # masks of rows, and how to cast them

_WHOLE_NUMBER = r"^-?[0-9]+$"
_DECIMAL = r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$"
_HEX = r"^(?:[0-9a-fA-F]{2})*$"
_UTC = r"(?:[zZ]|\+00(?::?00)?)$"

_NUMBERS = IntegerType | LongType | DoubleType | FloatType
_STAMPS = TimestampType | TimestamptzType | TimestampNanoType | TimestamptzNanoType
_WITHOUT_ZONE = DateType | TimeType | TimestampType | TimestampNanoType


@dataclass(frozen=True)
class ConnectorModes:
    """How a connector writes values, from `format:`, for events that do not say it themselves."""

    decimals: DecimalMode = "precise"
    binary: BinaryMode = "base64"
    time_units: Mapping[str, Unit] = field(default_factory=dict)  # by column; `*`: all others
    unavailable: str = "__debezium_unavailable_value"


@dataclass
class ConnectCaster(TextCaster):
    """Casts texts by an embedded schema, or by the types of the columns where there is none."""

    fields: Mapping[str, ConnectType] | None
    modes: ConnectorModes
    target: Schema
    missing: dict[str, list[Rows]] = field(default_factory=dict)  # unavailable values, by column

    @cached_property
    def raw(self) -> frozenset[str]:  # type: ignore[override]
        """Decimals: their quotes tell base64 from a number, and a converter may write either."""
        if self.fields is not None:
            return frozenset(n for n, meaning in self.fields.items() if meaning.sense == "decimal")
        columns = self.target.fields
        return frozenset(c.name for c in columns if isinstance(c.field_type, DecimalType))

    def before_cast(
        self, texts: pa.StringArray, iceberg_type: IcebergType, rows: Rows, path: Path
    ) -> pa.StringArray:
        """Make null, and note in `missing`, values that an event marks as not carried."""
        if len(path) > 1 or isinstance(iceberg_type, StructType):
            return texts
        marks = self._marks.plain
        if isinstance(iceberg_type, ListType | MapType):
            marks = self._marks.nested
        elif path[0] in self.raw:
            marks = self._marks.quoted
        hits = _matching(texts, marks)
        if len(hits):
            self.missing.setdefault(path[0], []).append(rows[hits])
            texts = casts.without(texts, hits)
        return texts

    def cast(
        self, texts: pa.StringArray, iceberg_type: IcebergType, arrow_type: pa.DataType, path: Path
    ) -> tuple[pa.Array, Bad]:
        """Cast by what the embedded schema says of the value, else by the type of the column."""
        meaning = self._meaning(path)
        if len(path) > 1 or path[0] not in self.raw:
            return self._read(texts, iceberg_type, arrow_type, path, meaning)
        if isinstance(iceberg_type, BinaryType | FixedType):
            return casts.cast(pc.ascii_trim(texts, '"'), iceberg_type, arrow_type)
        if meaning is not None:
            caster: Cast = partial(_written, scale=meaning.scale)
        else:
            caster = partial(_guessed, texts_first=self.modes.decimals == "string", quoted=True)
        values, bad = casts.strictly(texts, iceberg_type, arrow_type, caster)
        return values, {row: reason.replace('"', "") for row, reason in bad.items()}

    def _read(
        self,
        texts: pa.StringArray,
        iceberg_type: IcebergType,
        arrow_type: pa.DataType,
        path: Path,
        meaning: ConnectType | None,
    ) -> tuple[pa.Array, Bad]:
        if meaning is None:
            return self._by_column(texts, iceberg_type, arrow_type, path)
        caster = _by_sense(meaning, iceberg_type)
        if caster is not None:
            return casts.strictly(texts, iceberg_type, arrow_type, caster)
        if meaning.sense in ("local", "zoned") and isinstance(iceberg_type, _WITHOUT_ZONE):
            texts = _without_zone(texts)
        if meaning.sense == "text" and isinstance(iceberg_type, BinaryType | FixedType):
            return casts.strictly(texts, iceberg_type, arrow_type, _BINARY[self.modes.binary])
        if isinstance(iceberg_type, BooleanType):
            texts = _switches(texts)
        return casts.cast(texts, iceberg_type, arrow_type)

    @cached_property
    def _marks(self) -> "_UnavailableMarks":
        return _UnavailableMarks.of(self.modes.unavailable)

    def _meaning(self, path: Path) -> ConnectType | None:
        meaning = self.fields.get(path[0]) if self.fields else None
        for step in path[1:]:
            meaning = meaning.inner.get(step) if meaning else None
        return meaning

    def _by_column(
        self, texts: pa.StringArray, iceberg_type: IcebergType, arrow_type: pa.DataType, path: Path
    ) -> tuple[pa.Array, Bad]:
        """Cast without a schema, by the type of the column and the shape of the text."""
        if isinstance(iceberg_type, DecimalType):
            caster = partial(_guessed, texts_first=self.modes.decimals == "string", quoted=False)
            return casts.strictly(texts, iceberg_type, arrow_type, caster)
        if (
            isinstance(iceberg_type, BinaryType | FixedType) and len(path) == 1
        ):  # within, it is base64
            return casts.strictly(texts, iceberg_type, arrow_type, _BINARY[self.modes.binary])
        if isinstance(iceberg_type, BooleanType):
            texts = _switches(texts)
        if isinstance(iceberg_type, _STAMPS | DateType | TimeType):
            return self._time(texts, iceberg_type, arrow_type, path[0])
        return casts.cast(texts, iceberg_type, arrow_type)

    def _time(
        self, texts: pa.StringArray, iceberg_type: IcebergType, arrow_type: pa.DataType, column: str
    ) -> tuple[pa.Array, Bad]:
        """Cast dates and times; a number only if its unit is known, which for dates is days."""
        units = self.modes.time_units
        unit = units.get(column) or units.get("*")
        sense: Sense = "timestamp"
        if isinstance(iceberg_type, DateType | TimeType):
            sense = "days" if isinstance(iceberg_type, DateType) else "time"
        number_caster = None
        if sense == "days" or unit is not None:
            number_caster = _by_sense(ConnectType(iceberg_type, sense, unit or "us"), iceberg_type)
        values, bad = casts.strictly(
            texts, iceberg_type, arrow_type, partial(_loose_times, number_caster, iceberg_type)
        )
        for row in bad:
            if (
                number_caster is None
                and pc.match_substring_regex(texts[row], _WHOLE_NUMBER).as_py()
            ):
                text = casts.quote(texts[row].as_py())
                bad[row] = (
                    f"number {text} given for a {iceberg_type}: say its unit in `format.time_units`"
                )
        return values, bad


@dataclass(frozen=True)
class _UnavailableMarks:
    """The spellings of `unavailable_value_placeholder`, by how the value is written."""

    plain: pa.StringArray
    quoted: pa.StringArray
    nested: pa.StringArray

    @staticmethod
    def of(marker: str) -> "_UnavailableMarks":
        data = marker.encode()
        in_base64 = base64.b64encode(data).decode()
        digest = hashlib.md5(data, usedforsecurity=False).digest()
        hash_uuid = uuid.UUID(bytes=digest, version=3)  # Java's nameUUIDFromBytes
        pairs = _compact({marker: marker})
        lists = [[marker], [in_base64], [data.hex()], [str(hash_uuid)], list(data)]
        nested = [marker, in_base64, pairs, *map(_compact, lists)]
        spellings = ([marker, in_base64, data.hex(), pairs], [f'"{marker}"'], nested)
        return _UnavailableMarks(*(pa.array(texts, pa.string()) for texts in spellings))


def _matching(texts: pa.StringArray, marks: pa.StringArray) -> Rows:
    """Return the rows that are one of the marks; by length first, in which most texts differ."""
    lengths = np.diff(offsets(texts))
    candidates = np.flatnonzero(np.isin(lengths, pc.binary_length(marks).to_numpy()))
    if not len(candidates):
        return candidates
    return candidates[places(pc.is_in(texts.take(pa.array(candidates)), marks))]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _by_sense(meaning: ConnectType, iceberg_type: IcebergType) -> Cast | None:
    """Return the cast of numbers that mean a time and bytes that mean a number; None: another."""
    if meaning.sense == "decimal" and not isinstance(iceberg_type, BinaryType):
        return partial(_scaled, scale=meaning.scale)
    if meaning.sense == "variable":
        return _variable
    if isinstance(iceberg_type, _NUMBERS) or meaning.sense not in CLOCKS:
        return None
    return partial(_clock, read=CLOCKS[meaning.sense], unit=meaning.unit)


def _scaled(texts: pa.StringArray, arrow: pa.DataType, scale: int) -> pa.Array:
    return _fit(decimals.unscaled(texts, scale), arrow)


def _written(texts: pa.StringArray, arrow: pa.DataType, scale: int) -> pa.Array:
    """Cast decimals that have their quotes: base64, or numbers if the converter writes such."""
    is_string = pc.starts_with(texts, '"')
    digits = partial(_digits_of, scale=scale)
    choices: Choices = [(is_string, partial(_scaled, scale=scale)), (pc.invert(is_string), digits)]
    return _cast_by_choice(pc.ascii_trim(texts, '"'), arrow, choices)


def _digits_of(texts: pa.StringArray, arrow: pa.DataType, scale: int) -> pa.Array:
    return _fit(texts.cast(pa.decimal128(38, scale)), arrow)


def _variable(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    """Cast decimals whose scale differs from row to row."""
    pieces = [(rows, _fit(values, arrow)) for rows, values in decimals.of_any_scale(texts)]
    return spread(pieces, len(texts), arrow)


def _guessed(
    texts: pa.StringArray, arrow: pa.DataType, *, texts_first: bool, quoted: bool
) -> pa.Array:
    """Cast decimals of a connector that does not say how it writes them, row by row.

    A JSON number is one. A string may be base64 or the decimal as text. Few could be both, such as
    "1234": for these the connector's mode decides.
    """
    plain = pc.ascii_trim(texts, '"') if quoted else texts
    is_decimal = pc.match_substring_regex(plain, _DECIMAL) if texts_first else None
    if is_decimal is not None and pc.all(is_decimal, min_count=0).as_py():
        return _number(plain, arrow)
    is_object = pc.starts_with(texts, "{")
    is_string = pc.starts_with(texts, '"') if quoted else pc.invert(is_object)
    is_base64 = pc.and_(is_string, decimals.is_unscaled(plain))
    if is_decimal is not None:
        is_base64 = pc.and_(is_base64, pc.invert(is_decimal))
    is_number = pc.invert(pc.or_(is_object, is_base64))
    scaled = partial(_scaled, scale=arrow.scale)
    choices: Choices = [(is_base64, scaled), (is_number, _number), (is_object, _variable)]
    return _cast_by_choice(plain, arrow, choices)


def _number(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    return texts.cast(arrow)


def _loose_times(
    number_caster: Cast | None, iceberg_type: IcebergType, texts: pa.StringArray, arrow: pa.DataType
) -> pa.Array:
    """Cast numbers in their unit, and texts as ISO 8601 says."""
    is_number = pc.match_substring_regex(texts, _WHOLE_NUMBER)
    choices: Choices = [(pc.invert(is_number), partial(_iso, iceberg_type))]
    if number_caster is not None:
        choices.append((is_number, number_caster))
    elif pc.any(is_number).as_py():
        raise pa.ArrowInvalid("unit")
    return _cast_by_choice(texts, arrow, choices)


def _iso(iceberg_type: IcebergType, texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    if isinstance(iceberg_type, _WITHOUT_ZONE):
        texts = _without_zone(texts)
    values, bad = casts.cast(texts, iceberg_type, arrow)
    if bad:
        raise pa.ArrowInvalid("time")
    return values


def _cast_by_choice(texts: pa.StringArray, arrow: pa.DataType, choices: Choices) -> pa.Array:
    """Cast each row by the choice whose mask it is in; rows in none, such as nulls, are null."""
    pieces = []
    for mask, caster in choices:
        rows = places(mask)
        part = texts if len(rows) == len(texts) else texts.take(pa.array(rows))
        pieces += [(rows, caster(part, arrow))] if len(rows) else []
    return spread(pieces, len(texts), arrow)


def _clock(
    texts: pa.StringArray,
    arrow: pa.DataType,
    read: Callable[[pa.Int64Array, Unit], pa.Array],
    unit: Unit,
) -> pa.Array:
    return _fit(read(texts.cast(pa.int64()), unit), arrow)


def _fit(values: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Cast values to the column's type; raise ArrowInvalid if that would lose something."""
    value_type = values.type
    if pa.types.is_large_string(arrow_type):
        if pa.types.is_decimal(value_type):
            return decimals.as_text(values).cast(arrow_type)
        return pc.replace_substring(values.cast(pa.string()), " ", "T").cast(arrow_type)
    is_same = arrow_type.id == value_type.id
    if not is_same and not any(
        from_type(value_type) and to_type(arrow_type) for from_type, to_type in _CONVERSIONS
    ):
        raise pa.ArrowInvalid("type")
    if pa.types.is_date(value_type) and not is_same:
        values = values.cast(pa.timestamp("us"))
    return values.cast(arrow_type)


_CONVERSIONS = [
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_decimal, pa.types.is_floating),
    (pa.types.is_decimal, pa.types.is_integer),
    (pa.types.is_date, pa.types.is_timestamp),
]


def _without_zone(texts: pa.StringArray) -> pa.StringArray:
    """Remove UTC, which Debezium adds to values that have no zone."""
    return pc.replace_substring_regex(texts, _UTC, "")


def _switches(texts: pa.StringArray) -> pa.StringArray:
    """Replace 0 and 1 by false and true, for a column of booleans."""
    on = pc.replace_substring_regex(texts, "^1$", "true")
    return pc.replace_substring_regex(on, "^0$", "false")


def _base64(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    out, bad = casts.cast(texts, BinaryType(), pa.large_binary())
    if bad:
        raise pa.ArrowInvalid("base64")
    return out.cast(arrow)


def _url_safe(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    standard = pc.replace_substring(pc.replace_substring(texts, "-", "+"), "_", "/")
    return _base64(standard, arrow)


def _hex(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    """Cast hexadecimal digits; bit columns are base64 in every mode, mostly seen by a `=`."""
    is_padded = pc.ends_with(texts, "=")
    choices: Choices = [(pc.invert(is_padded), _digits), (is_padded, _base64)]
    return _cast_by_choice(texts, arrow, choices)


def _digits(texts: pa.StringArray, arrow: pa.DataType) -> pa.Array:
    if not pc.all(pc.match_substring_regex(texts, _HEX), min_count=0).as_py():
        raise pa.ArrowInvalid("hex")
    body = bytes.fromhex(characters(texts).tobytes().decode())
    ends = offsets(texts).astype(np.int32)
    ends = (ends - ends[0]) // 2
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(body)]
    return pa.Array.from_buffers(pa.binary(), len(texts), buffers).cast(arrow)


_BINARY: dict[BinaryMode, Cast] = {"base64": _base64, "base64-url-safe": _url_safe, "hex": _hex}
