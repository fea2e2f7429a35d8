"""Column rules: inference, merging, comparing, refusing."""

import json
import pickle

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from icestream.schema import (
    ICEBERG_NAMES,
    MAX_DEPTH,
    MAX_FIELDS,
    METADATA_COLUMNS,
    OUR_NAMES,
    NewField,
    Structure,
    compare,
    infer,
    judge,
    merge_new_fields,
    merge_types,
    structure_of,
    with_new_fields,
)

LONG, DOUBLE, STRING, BOOLEAN = LongType(), DoubleType(), StringType(), BooleanType()


def struct(**fields: IcebergType) -> StructType:
    return StructType(*(NestedField(0, name, kind) for name, kind in fields.items()))


TABLE = Schema(
    NestedField(1, "id", LONG),
    NestedField(2, "s", StructType(NestedField(3, "x", LONG))),
    NestedField(
        4, "items", ListType(5, StructType(NestedField(6, "price", DOUBLE)), element_required=False)
    ),
    NestedField(
        7,
        "tags",
        MapType(8, STRING, 9, StructType(NestedField(10, "v", LONG)), value_required=False),
    ),
)


@pytest.mark.parametrize(
    "structure, expected",
    [
        ("BOOLEAN", "boolean"),
        ("UBIGINT", "long"),
        ("BIGINT", "long"),
        ("HUGEINT", "long"),
        ("DOUBLE", "double"),
        ("VARCHAR", "string"),
        ("JSON", "string"),
        ("NULL", None),
        (["NULL"], None),
        (["UBIGINT"], "list<long>"),
        (["JSON"], "list<string>"),
        ({"a": "NULL"}, None),
        ({"a": "UBIGINT", "b": "NULL"}, "struct<1: a: optional long>"),
        ({"a": "UBIGINT", "A": "UBIGINT"}, "string"),
        ({"": "UBIGINT"}, "string"),
        ({"a" * 256: "UBIGINT"}, "string"),
        ({f"k{i}": "UBIGINT" for i in range(MAX_FIELDS + 1)}, "string"),
        ([{"a": ["DOUBLE"]}], "list<struct<2: a: optional list<double>>>"),
    ],
)
def test_infer(structure: Structure, expected: str | None) -> None:
    found = infer(structure)
    assert (found and str(found)) == expected


def test_placeholder_ids_are_unique() -> None:
    kind = infer({"a": [{"b": ["UBIGINT"], "c": "VARCHAR"}], "d": {"e": "DOUBLE"}})
    assert kind is not None
    ids = list(Schema(NestedField(999, "new", kind))._lazy_id_to_field)
    assert len(ids) == len(set(ids)) == 8


@pytest.mark.parametrize(
    "one, two, expected",
    [
        (LONG, LONG, LONG),
        (LONG, DOUBLE, DOUBLE),
        (DOUBLE, LONG, DOUBLE),
        (LONG, BOOLEAN, STRING),
        (struct(a=LONG), STRING, STRING),
        (struct(a=LONG), struct(A=LONG), STRING),
    ],
)
def test_merge_types(one: IcebergType, two: IcebergType, expected: IcebergType) -> None:
    assert merge_types(one, two) == expected


def test_merge_structs_and_lists() -> None:
    one, two = infer([{"a": "UBIGINT", "b": "VARCHAR"}]), infer([{"a": "DOUBLE", "c": "BOOLEAN"}])
    assert one is not None
    assert two is not None
    assert merge_types(one, two) == infer([{"a": "DOUBLE", "b": "VARCHAR", "c": "BOOLEAN"}])


def test_values_of_a_map_stay_optional() -> None:
    one = MapType(1, STRING, 2, LONG, value_required=False)
    assert merge_types(one, one).value_required is False


def test_merge_new_fields_keeps_the_first_order_and_spelling() -> None:
    a, b = NewField((), "a", LONG), NewField((), "b", STRING)
    nested = NewField(("s",), "a", BOOLEAN)
    merged = merge_new_fields(
        [[a, b], [NewField((), "A", LONG), nested, NewField((), "a", DOUBLE)]]
    )
    assert merged == [NewField((), "a", DOUBLE), b, nested]
    told = NewField((), "a", DOUBLE, "the comment")
    assert merge_new_fields([[a], [told], [a]]) == [told]


def test_new_fields_survive_the_way_to_the_driver() -> None:
    kind = infer({"a": [{'b.`"é': "UBIGINT"}]})
    assert kind is not None
    fields = [NewField(("items", "element"), 'x"y', kind), NewField((), "d", DOUBLE, "said so")]
    assert pickle.loads(pickle.dumps(fields)) == fields


def test_compare_finds_new_fields_at_every_depth() -> None:
    seen: Structure = {
        "id": "UBIGINT",
        "s": {"x": "UBIGINT", "y": "DOUBLE"},
        "items": [{"price": "DOUBLE", "sku": "VARCHAR"}],
        "tags": {"k1": {"v": "UBIGINT"}, "k2": {"w": "BOOLEAN"}},
        "fresh": ["BOOLEAN"],
        "nothing": "NULL",
    }
    found = compare(TABLE, seen, "evolve")
    assert [(f.parent, f.name, str(f.type)) for f in found.new] == [
        ((), "fresh", "list<boolean>"),
        (("s",), "y", "double"),
        (("items", "element"), "sku", "string"),
        (("tags", "value"), "w", "boolean"),
    ]
    assert found.refused == {}
    assert compare(TABLE, seen, "ignore") == compare(TABLE, {}, "evolve")
    frozen = compare(TABLE, seen, "freeze")
    assert frozen.new == ()
    assert set(frozen.refused) == {"fresh", "s.y", "items.element.sku", "tags.value.w"}


def test_compare_below_a_path() -> None:
    found = compare(TABLE, {"price": "DOUBLE", "sku": "VARCHAR"}, "evolve", at=("items", "element"))
    assert found.new == (NewField(("items", "element"), "sku", STRING),)


@pytest.mark.parametrize(
    "name, why",
    [
        *((n, "Iceberg") for n in sorted(ICEBERG_NAMES)),
        ("_FILE", "Iceberg"),
        *((n, "icestream writes") for n in sorted(OUR_NAMES)),
        ("ID", "only in case"),
        ("", "without a name"),
        ("s.x", "path of another"),
        ("n" * 256, "more than 255"),
    ],
)
def test_refused_names(name: str, why: str) -> None:
    found = compare(TABLE, {name: "UBIGINT"}, "evolve")
    assert found.new == ()
    assert why in found.refused[name]
    assert len(found.refused[name]) < 150


def test_reserved_names_are_free_inside_a_struct() -> None:
    assert compare(TABLE, {"s": {"_file": "UBIGINT"}}, "evolve").new[0].name == "_file"


def test_two_new_names_that_differ_in_case() -> None:
    found = compare(TABLE, {"new": "UBIGINT", "NEW": "UBIGINT"}, "evolve")
    assert [f.name for f in found.new] == ["new"]
    assert list(found.refused) == ["NEW"]


def test_names_are_judged_one_by_one() -> None:
    names = ["id", "new", "NEW", "Id", "card"]
    assert judge(TABLE, names, "evolve", frozenset({"card"})) == {
        "new": None,
        "NEW": None,
        "Id": "field `Id` differs from column `id` only in case",
    }
    assert list(judge(TABLE, ["x", "y"], "evolve", at=("s",))) == ["y"]


def test_merging_stops_at_the_limit() -> None:
    many = [NewField((), f"k{i}", LONG) for i in range(MAX_FIELDS + 5)]
    assert len(merge_new_fields([many, [NewField(("s",), "a", LONG)]])) == MAX_FIELDS + 1


def test_ignored_names_are_ignored_at_the_top_only() -> None:
    seen: Structure = {"card": "UBIGINT", "s": {"card": "UBIGINT"}}
    found = compare(TABLE, seen, "evolve", frozenset({"card"}))
    assert [(f.parent, f.name) for f in found.new] == [(("s",), "card")]


def test_an_object_takes_so_many_names_and_no_more() -> None:
    found = compare(TABLE, {f"k{i}": "UBIGINT" for i in range(MAX_FIELDS + 5)}, "evolve")
    assert len(found.new) == MAX_FIELDS - 4
    assert len(found.refused) == 9


@pytest.mark.parametrize(
    "text, expected",
    [
        ('{"a":9223372036854775807}', {"a": "BIGINT"}),
        ('{"a":9223372036854775808}', {"a": "VARCHAR"}),
        ('{"a":[1,99999999999999999999]}', {"a": ["JSON"]}),
        ('{"a":[],"b":{},"c":true,"d":1.5,"e":null}',
         {"a": ["NULL"], "b": "JSON", "c": "BOOLEAN", "d": "DOUBLE", "e": "NULL"}),
    ],
)  # fmt: skip
def test_structure_of(text: str, expected: Structure) -> None:
    assert structure_of(json.loads(text)) == expected


def test_metadata_columns() -> None:
    assert [f"{f.name} {f.field_type}" for f in METADATA_COLUMNS] == [
        "_src_topic string",
        "_src_partition int",
        "_src_offset long",
        "_src_timestamp timestamptz",
        "_ingested_at timestamptz",
    ]


def test_with_new_fields_adds_at_every_depth():
    new = [
        NewField((), "name", STRING),
        NewField(("items", "element"), "b", DOUBLE),
        NewField(("tags", "value"), "w", STRING),
        NewField(("s",), "y", STRING),
    ]
    grown = with_new_fields(TABLE, new)
    assert {(*each.parent, each.name) for each in new} == {
        tuple(name.split(".")) for name in set(grown.column_names) - set(TABLE.column_names)
    }
    assert grown.column_names[-1] == "name"
    assert grown.find_type("items.element.b") == DOUBLE


def test_what_is_nested_too_deep_stays_text():
    structure: Structure = "BIGINT"
    for _ in range(100):
        structure = {"a": structure}
    kind, depth = infer(structure), 0
    while isinstance(kind, StructType):
        kind, depth = kind.fields[0].field_type, depth + 1
    assert (kind, depth) == (StringType(), MAX_DEPTH)
    whole = with_new_fields(Schema(), [NewField((), "deep", infer(structure))])
    assert Schema.model_validate_json(whole.model_dump_json()) == whole
    beyond = compare(whole, {"deep": structure}, "evolve")
    assert beyond.new == ()
