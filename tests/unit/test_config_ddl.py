"""Spark DDL types, partition transforms and sort orders."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import types as iceberg

from icestream.config.ddl import (
    PartitionField,
    SortField,
    format_type,
    parse_partition,
    parse_sort,
    parse_type,
    quoted,
)

PLAIN = {
    "boolean": "boolean",
    "tinyint": "int",
    "SMALLINT": "int",
    "int": "int",
    "integer": "int",
    "bigint": "long",
    "long": "long",
    "float": "float",
    "double": "double",
    "decimal": "decimal(10, 0)",
    "decimal(12,2)": "decimal(12, 2)",
    "numeric( 38 , 38 )": "decimal(38, 38)",
    "string": "string",
    "varchar(20)": "string",
    "binary": "binary",
    "date": "date",
    "time": "time",
    "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
    "uuid": "uuid",
    "array<int>": "list<int>",
    "map<string, array<bigint>>": "map<string, list<long>>",
}


@pytest.mark.parametrize("text, iceberg_text", PLAIN.items())
def test_types(text: str, iceberg_text: str) -> None:
    assert str(parse_type(text)) == iceberg_text


def test_struct_has_optional_fields_with_placeholder_ids() -> None:
    struct = parse_type("struct<a:int, `b c` string, d:array<struct<e:uuid>>>")
    assert isinstance(struct, iceberg.StructType)
    assert [field.name for field in struct.fields] == ["a", "b c", "d"]
    assert not any(field.required for field in struct.fields)
    ids = _ids(struct)
    assert all(number < 0 for number in ids)
    assert len(set(ids)) == len(ids) == 5


def _ids(kind: Any) -> list[int]:
    if isinstance(kind, iceberg.StructType):
        return [n for f in kind.fields for n in (f.field_id, *_ids(f.field_type))]
    if isinstance(kind, iceberg.ListType):
        return [kind.element_id, *_ids(kind.element_type)]
    if isinstance(kind, iceberg.MapType):
        return [kind.key_id, kind.value_id, *_ids(kind.key_type), *_ids(kind.value_type)]
    return []


BAD_TYPES = {
    "": "expected a type, found the end",
    "strng": "unknown type `strng`",
    "interval": "unknown type `interval`",
    "`int`": "expected a type",
    "int int": "nothing may follow here, found `int`",
    "decimal(12": r"expected `\)`, found the end",
    "decimal(39,2)": "precision <= 38",
    "decimal(2,3)": "scale <= precision",
    "decimal(a)": "expected a whole number, found `a`",
    "array": "expected `<`",
    "array<int": "expected `>`",
    "map<int>": "expected `,`",
    "struct<>": "expected a name",
    "struct<a:int,A:int>": "field `A` twice",
    "int;": "cannot read `;`",
}


@pytest.mark.parametrize("text, message", BAD_TYPES.items())
def test_bad_types(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_type(text)


names = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=8)
scalars = st.sampled_from(
    [
        "boolean",
        "int",
        "bigint",
        "float",
        "double",
        "string",
        "binary",
        "date",
        "time",
        "timestamp",
        "timestamp_ntz",
        "uuid",
    ]
) | st.integers(1, 38).flatmap(
    lambda p: st.integers(0, p).map(lambda scale: f"decimal({p},{scale})")
)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fields = st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=_folded)
    return (
        inner.map(lambda item: f"array<{item}>")
        | st.tuples(inner, inner).map(lambda pair: f"map<{pair[0]},{pair[1]}>")
        | fields.map(
            lambda found: f"struct<{','.join(f'{quoted(name)}:{kind}' for name, kind in found)}>"
        )
    )


def _folded(field: tuple[str, str]) -> str:
    return field[0].lower()


@given(st.recursive(scalars, _nested, max_leaves=8))
def test_types_round_trip(text: str) -> None:
    assert format_type(parse_type(text)) == text


PARTITIONS = {
    "x": PartitionField("x"),
    "a.b": PartitionField("a.b"),
    "`odd name`": PartitionField("odd name"),
    "days": PartitionField("days"),
    "days(x)": PartitionField("x", "day"),
    "day( x )": PartitionField("x", "day"),
    "YEARS(x)": PartitionField("x", "year"),
    "months(a.`b c`)": PartitionField("a.b c", "month"),
    "hours(x)": PartitionField("x", "hour"),
    "bucket(16, x)": PartitionField("x", "bucket", 16),
    "bucket(x, 16)": PartitionField("x", "bucket", 16),
    "bucket(16, `16`)": PartitionField("16", "bucket", 16),
    "truncate(10, x)": PartitionField("x", "truncate", 10),
    "truncate(x,10)": PartitionField("x", "truncate", 10),
}


@pytest.mark.parametrize("text, field", PARTITIONS.items())
def test_partitions(text: str, field: PartitionField) -> None:
    assert parse_partition(text) == field


BAD_PARTITIONS = {
    "": "expected a name",
    "weeks(x)": "unknown transform `weeks`: years, months",
    "days(x": r"expected `\)`",
    "days()": "expected a name",
    "days(x) desc": "nothing may follow",
    "days(x, 3)": r"expected `\)`",
    "bucket(x)": r"bucket needs a number, such as bucket\(16, x\)",
    "bucket(0, x)": "above zero",
    "bucket(16)": "expected `,`",
    "x y": "nothing may follow",
    "a.": "expected a name",
}


@pytest.mark.parametrize("text, message", BAD_PARTITIONS.items())
def test_bad_partitions(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_partition(text)


SORTS = {
    "x": SortField("x", ascending=True, nulls_first=True),
    "x DESC": SortField("x", ascending=False, nulls_first=False),
    "x asc nulls last": SortField("x", ascending=True, nulls_first=False),
    "x desc nulls first": SortField("x", ascending=False, nulls_first=True),
    "x nulls last": SortField("x", ascending=True, nulls_first=False),
    "desc": SortField("desc", ascending=True, nulls_first=True),
    "bucket(4, x) desc": SortField("x", False, False, "bucket", 4),
}


@pytest.mark.parametrize("text, field", SORTS.items())
def test_sorts(text: str, field: SortField) -> None:
    assert parse_sort(text) == field


@pytest.mark.parametrize("text", ["", "x down", "x asc desc", "x nulls", "x nulls first last"])
def test_bad_sorts(text: str) -> None:
    with pytest.raises(ValueError):
        parse_sort(text)
