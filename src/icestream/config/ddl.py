"""Parses column types, partition transforms and sort orders written as in Spark DDL."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:.]))")
_ALIASES = {
    "tinyint": "int", "byte": "int", "smallint": "int", "short": "int", "integer": "int",
    "long": "bigint", "real": "float", "dec": "decimal", "numeric": "decimal",
    "timestamp_ltz": "timestamp", "varchar": "string", "char": "string",
}  # fmt: skip
_TRANSFORMS = {
    "year": "year", "years": "year", "month": "month", "months": "month",
    "day": "day", "days": "day", "hour": "hour", "hours": "hour",
    "bucket": "bucket", "truncate": "truncate",
}  # fmt: skip
_WITH_ARGUMENT = ("bucket", "truncate")
_PLAIN_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class PartitionField:
    """One partition field: `transform` in Iceberg's spelling, `argument` of bucket or truncate."""

    column: str
    transform: str = "identity"
    argument: int | None = None


@dataclass(frozen=True)
class SortField:
    """One sort field; the transform is read as in a partition field."""

    column: str
    ascending: bool = True
    nulls_first: bool = True
    transform: str = "identity"
    argument: int | None = None


@dataclass(frozen=True)
class _Token:
    text: str
    kind: str  # name (in backticks), word, mark or end

    def is_mark(self, mark: str) -> bool:
        return self.kind == "mark" and self.text == mark

    @property
    def shown(self) -> str:
        return "the end" if self.kind == "end" else f"`{self.text}`"


class _Tokens:
    """The tokens of one text, read from left to right; errors are ValueErrors."""

    def __init__(self, text: str) -> None:
        self._pending = list(self._split(text.rstrip()))[::-1]

    @staticmethod
    def _split(text: str) -> Iterator[_Token]:
        position = 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"cannot read `{text[position:].strip()}`")
            position = match.end()
            if match[1] is not None:
                yield _Token(match[1].replace("``", "`"), "name")
            else:
                yield _Token(match[2] or match[3], "word" if match[2] else "mark")

    @property
    def next(self) -> _Token:
        return self._pending[-1] if self._pending else _Token("", "end")

    def take(self) -> _Token:
        return self._pending.pop() if self._pending else self.next

    def skip(self, mark: str) -> bool:
        """Take the mark if it comes next; returns whether it does."""
        return self.next.is_mark(mark) and bool(self.take())

    def need(self, mark: str) -> None:
        if not self.skip(mark):
            raise ValueError(f"expected `{mark}`, found {self.next.shown}")

    def name(self) -> str:
        token = self.take()
        if token.kind not in ("name", "word"):
            raise ValueError(f"expected a name, found {token.shown}")
        return token.text

    def number(self) -> int:
        token = self.take()
        if token.kind != "word" or re.fullmatch("[0-9]{1,9}", token.text) is None:
            raise ValueError(f"expected a whole number, found {token.shown}")
        return int(token.text)

    def end(self) -> None:
        if self.next.kind != "end":
            raise ValueError(f"nothing may follow here, found {self.next.shown}")


def parse_type(text: str) -> "IcebergType":
    """Parse a Spark DDL type as an Iceberg type; field ids are placeholders (-1, -2, …)."""
    tokens = _Tokens(text)
    ids = count(-1, -1)
    parsed = _type(tokens, lambda: next(ids))
    tokens.end()
    return parsed


def _type(tokens: _Tokens, new_id: Callable[[], int]) -> "IcebergType":
    from pyiceberg import types as iceberg  # takes half a second: only if columns are declared

    token = tokens.take()
    word = _ALIASES.get(token.text.lower(), token.text.lower())
    if token.kind != "word":
        raise ValueError(f"expected a type, found {token.shown}")
    if word == "array":
        tokens.need("<")
        array = iceberg.ListType(new_id(), _type(tokens, new_id), element_required=False)
        tokens.need(">")
        return array
    if word == "map":
        tokens.need("<")
        key_id, key = new_id(), _type(tokens, new_id)
        tokens.need(",")
        pair = iceberg.MapType(key_id, key, new_id(), _type(tokens, new_id), value_required=False)
        tokens.need(">")
        return pair
    if word == "struct":
        return _struct(tokens, new_id)
    if word == "decimal":
        return iceberg.DecimalType(*_decimal(tokens))
    if token.text.lower() in ("varchar", "char"):
        tokens.need("(")
        tokens.number()
        tokens.need(")")
    plain: dict[str, type[IcebergType]] = {
        "boolean": iceberg.BooleanType, "int": iceberg.IntegerType, "bigint": iceberg.LongType,
        "float": iceberg.FloatType, "double": iceberg.DoubleType, "string": iceberg.StringType,
        "binary": iceberg.BinaryType, "date": iceberg.DateType, "time": iceberg.TimeType,
        "timestamp": iceberg.TimestamptzType, "timestamp_ntz": iceberg.TimestampType,
        "uuid": iceberg.UUIDType,
    }  # fmt: skip
    if word not in plain:
        raise ValueError(f"unknown type {token.shown}")
    return plain[word]()


def _struct(tokens: _Tokens, new_id: Callable[[], int]) -> "IcebergType":
    from pyiceberg import types as iceberg

    tokens.need("<")
    fields: list[iceberg.NestedField] = []
    while True:
        name, field_id = tokens.name(), new_id()
        tokens.skip(":")  # Spark takes `a: int` and `a int`
        if any(name.lower() == field.name.lower() for field in fields):
            raise ValueError(f"field `{name}` twice in one struct")
        fields.append(iceberg.NestedField(field_id, name, _type(tokens, new_id), required=False))
        if not tokens.skip(","):
            tokens.need(">")
            return iceberg.StructType(*fields)


def _decimal(tokens: _Tokens) -> tuple[int, int]:
    if not tokens.skip("("):
        return 10, 0
    precision, scale = tokens.number(), 0
    if tokens.skip(","):
        scale = tokens.number()
    tokens.need(")")
    if not 1 <= precision <= 38 or scale > precision:
        raise ValueError("decimal(precision, scale) needs 1 <= precision <= 38, scale <= precision")
    return precision, scale


def format_type(iceberg_type: "IcebergType") -> str:
    """Return the Spark DDL text that `parse_type` reads back to the same type."""
    from pyiceberg import types as iceberg

    match iceberg_type:
        case iceberg.ListType():
            return f"array<{format_type(iceberg_type.element_type)}>"
        case iceberg.MapType():
            parts = (iceberg_type.key_type, iceberg_type.value_type)
            return f"map<{','.join(map(format_type, parts))}>"
        case iceberg.StructType():
            inner = (f"{quoted(f.name)}:{format_type(f.field_type)}" for f in iceberg_type.fields)
            return f"struct<{','.join(inner)}>"
        case iceberg.DecimalType():
            return f"decimal({iceberg_type.precision},{iceberg_type.scale})"
        case iceberg.FixedType():
            return "binary"
    spark_names = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz"}
    return spark_names.get(str(iceberg_type), str(iceberg_type))


def quoted(name: str) -> str:
    """Quote a column or table name for Spark SQL: in backticks unless it is a plain word."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"


def parse_partition(text: str) -> PartitionField:
    """Parse `days(at)`, `bucket(16, id)`, `truncate(name, 10)` or a plain column."""
    tokens = _Tokens(text)
    field = PartitionField(*_term(tokens))
    tokens.end()
    return field


def parse_sort(text: str) -> SortField:
    """Parse a column or transform with `asc` or `desc` and `nulls first` or `nulls last`."""
    tokens = _Tokens(text)
    column, transform, argument = _term(tokens)
    words = []
    while tokens.next.kind == "word":
        words.append(tokens.take().text.lower())
    tokens.end()
    order = words.pop(0) if words[:1] in (["asc"], ["desc"]) else "asc"
    if words not in ([], ["nulls", "first"], ["nulls", "last"]):
        raise ValueError("after the column: asc or desc, then nulls first or nulls last")
    nulls_first = words[1] == "first" if words else order == "asc"
    return SortField(column, order == "asc", nulls_first, transform, argument)


def _term(tokens: _Tokens) -> tuple[str, str, int | None]:
    """Parse a column or a transform of one; returns column, transform and its number, if any."""
    word = tokens.next
    column = _column(tokens)
    if not tokens.skip("("):
        return column, "identity", None
    transform = _TRANSFORMS.get(column.lower())
    if transform is None or word.kind != "word":
        raise ValueError(
            f"unknown transform {word.shown}: years, months, days, hours, bucket or truncate"
        )
    argument = None
    if transform in _WITH_ARGUMENT and tokens.next.text.isdigit() and tokens.next.kind == "word":
        argument = tokens.number()
        tokens.need(",")
    column = _column(tokens)
    if transform in _WITH_ARGUMENT and argument is None:
        if not tokens.skip(","):
            raise ValueError(f"{transform} needs a number, such as {transform}(16, {column})")
        argument = tokens.number()
    tokens.need(")")
    if argument == 0:
        raise ValueError(f"{transform} needs a number above zero")
    return column, transform, argument


def _column(tokens: _Tokens) -> str:
    parts = [tokens.name()]
    while tokens.skip("."):
        parts.append(tokens.name())
    return ".".join(parts)
