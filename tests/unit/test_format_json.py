"""JSON decoding: every rule as a row of a table, and what no input may ever do."""

import base64
import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
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
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icestream.formats import DecodedBatch
from icestream.formats.json import JsonFormat
from icestream.records import RECORDS
from icestream.schema import MAX_FIELDS, Rule

NAN = float("nan")


def records(*values: bytes | str | None) -> pa.RecordBatch:
    raw = [v.encode() if isinstance(v, str) else v for v in values]
    n = len(raw)
    columns: list[list[Any]] = [["t"] * n, [0] * n, list(range(n)), [0] * n, [None] * n, raw]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RECORDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def schema(**columns: IcebergType) -> Schema:
    return Schema(*(NestedField(i, n, t) for i, (n, t) in enumerate(columns.items(), 1)))


def decode(
    target: Schema,
    *values: bytes | str | None,
    rule: Rule = "evolve",
    dropped: frozenset[str] = frozenset(),
) -> DecodedBatch:
    out = JsonFormat().decode(records(*values), target, rule, dropped)
    assert out.columns.schema.equals(schema_to_pyarrow(target, include_field_ids=True), True)
    assert len(out.errors) == len(values)
    out.columns.validate(full=True)
    return out


def one(kind: IcebergType, literal: str) -> tuple[Any, str | None]:
    """Decode one value among good neighbours."""
    out = decode(schema(c=kind, n=LongType()), '{"n":1}', f'{{"c":{literal},"n":2}}', '{"n":3}')
    assert out.columns.column("n").to_pylist() == [1, 2, 3]
    assert (out.errors[0].as_py(), out.errors[2].as_py()) == (None, None)
    return out.columns.column("c")[1].as_py(), out.errors[1].as_py()


INT, LONG, FLOAT, DOUBLE = IntegerType(), LongType(), FloatType(), DoubleType()
STRING, BOOLEAN, MONEY = StringType(), BooleanType(), DecimalType(10, 2)
NTZ, TZ = TimestampType(), TimestamptzType()
LONGS = ListType(90, LONG, element_required=False)
INNER = StructType(NestedField(91, "x", LONG), NestedField(92, "y", STRING))
MAP = MapType(93, STRING, 94, LONG, value_required=False)


@pytest.mark.parametrize(
    "kind, literal, expected",
    [
        (LONG, "12", 12),
        (LONG, '"12"', 12),
        (LONG, "5.0", 5),
        (LONG, "1e3", 1000),
        (LONG, "1e18", 10**18),
        (LONG, "-0", 0),
        (LONG, "9223372036854775807", 2**63 - 1),
        (LONG, "-9223372036854775808", -(2**63)),
        (LONG, "9007199254740993.0", 9007199254740993),
        (LONG, "null", None),
        (INT, "2147483647", 2**31 - 1),
        (BOOLEAN, "true", True),
        (BOOLEAN, '"false"', False),
        (DOUBLE, "1.5", 1.5),
        (DOUBLE, "7", 7.0),
        (DOUBLE, "NaN", NAN),
        (DOUBLE, '"NaN"', NAN),
        (DOUBLE, "-Infinity", -math.inf),
        (DOUBLE, "-0.0", -0.0),
        (DOUBLE, "1e-400", 0.0),
        (FLOAT, "1.5", 1.5),
        (FLOAT, "Infinity", math.inf),
        (MONEY, "1.10", Decimal("1.10")),
        (MONEY, '"1.1000"', Decimal("1.10")),
        (MONEY, "1e2", Decimal("100.00")),
        (MONEY, "-0.00", Decimal("0.00")),
        (DecimalType(38, 20), "0.10000000000000000001", Decimal("0.10000000000000000001")),
        (DecimalType(38, 0), "123456789012345678901234567890", 123456789012345678901234567890),
        (DecimalType(38, 12), "12345678901234567890.123456789012",
         Decimal("12345678901234567890.123456789012")),
        (STRING, '"x"', "x"),
        (STRING, "12", "12"),
        (STRING, "true", "true"),
        (STRING, '""', ""),
        (STRING, '"null"', "null"),
        (STRING, '"\\u0000b"', "\0b"),
        (STRING, '"caf\\u00e9 \\"q\\""', 'café "q"'),
        (STRING, "1.12345678901234567890", "1.12345678901234567890"),
        (STRING, '{"b": 1.5, "c": [1, null]}', '{"b":1.5,"c":[1,null]}'),
        (STRING, '{"b":0.1000000000000000000001}', '{"b":0.1000000000000000000001}'),
        (STRING, "[]", "[]"),
        (DateType(), '"2024-02-29"', date(2024, 2, 29)),
        (DateType(), '"0001-01-01"', date(1, 1, 1)),
        (TZ, '"2024-01-02T03:04:05Z"', datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (TZ, '"2024-01-02 03:04:05.123+05:30"', datetime(2024, 1, 1, 21, 34, 5, 123000, UTC)),
        (TZ, '"2024-01-02T03:04:05"', datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (TZ, '"2024-01-02t03:04:05z"', datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (TZ, '"2024-01-02T03:04:05.123456789Z"', datetime(2024, 1, 2, 3, 4, 5, 123456, UTC)),
        (TZ, '"2024-01-02"', datetime(2024, 1, 2, tzinfo=UTC)),
        (TZ, '"0001-01-01T00:00:00Z"', datetime(1, 1, 1, tzinfo=UTC)),
        (TZ, '"9999-12-31T23:59:59.999999Z"', datetime.max.replace(tzinfo=UTC)),
        (NTZ, '"2024-01-02T03:04:05.5"', datetime(2024, 1, 2, 3, 4, 5, 500000)),  # noqa: DTZ001
        (TimeType(), '"03:04:05.5"', time(3, 4, 5, 500000)),
        (TimeType(), '"03:04"', time(3, 4)),
        (UUIDType(), '"00000000-0000-0000-0000-00000000000A"', UUID(int=10)),
        (BinaryType(), '"AQI="', b"\x01\x02"),
        (BinaryType(), '""', b""),
        (FixedType(2), '"AQI="', b"\x01\x02"),
        (LONGS, "[1,null,3]", [1, None, 3]),
        (LONGS, "[]", []),
        (LONGS, '"[1]"', [1]),
        (INNER, '{"x":1,"y":"q"}', {"x": 1, "y": "q"}),
        (INNER, "{}", {"x": None, "y": None}),
        (INNER, '{"y":{"z":"a:b"}}', {"x": None, "y": '{"z":"a:b"}'}),
        (MAP, '{"a.b":1,"":null}', [("a.b", 1), ("", None)]),
        (MAP, "{}", []),
        (ListType(95, INNER, element_required=False), '[{"x":1},null]',
         [{"x": 1, "y": None}, None]),
        (ListType(95, LONGS, element_required=False), "[[1],[]]", [[1], []]),
        (MapType(96, LONG, 97, LONGS, value_required=False), '{"7":[1]}', [(7, [1])]),
    ],
)  # fmt: skip
def test_good_values(kind: IcebergType, literal: str, expected: object) -> None:
    value, error = one(kind, literal)
    assert error is None
    assert repr(value) == repr(expected) or value == expected


@pytest.mark.parametrize(
    "kind, literal, why",
    [
        (LONG, "1.5", "'1.5' is not a long"),
        (LONG, "9223372036854775808", "not a long"),
        (LONG, "1e30", "not a long"),
        (LONG, "1.00000000000000000001", "not a long"),
        (LONG, "true", "not a long"),
        (LONG, '""', "'' is not a long"),
        (LONG, '"0x1F"', "not a long"),
        (LONG, "NaN", "not a long"),
        (LONG, "[1]", "not a long"),
        (LONG, f'"{"x" * 500}"', "…' is not a long"),
        (INT, "2147483648", "not a int"),
        (BOOLEAN, "1", "not a boolean"),
        (BOOLEAN, '"TRUE"', "not a boolean"),
        (DOUBLE, "1e400", "'1e400' is not a double"),
        (DOUBLE, '"one"', "not a double"),
        (DOUBLE, '"nan(1)"', "not a double"),
        (FLOAT, "1e39", "not a float"),
        (MONEY, "1.105", "not a decimal(10, 2)"),
        (MONEY, "0.10000000000000000001", "not a decimal"),
        (MONEY, "123456789.00", "not a decimal"),
        (MONEY, "NaN", "not a decimal"),
        (MONEY, "Infinity", "not a decimal"),
        (DateType(), '"2023-02-29"', "not a date"),
        (DateType(), '"2024-01-02T00:00:00"', "not a date"),
        (DateType(), '"0000-01-01"', "not a date"),
        (DateType(), "19000", "declare the column as long"),
        (TZ, "1700000000", "declare the column as long"),
        (TZ, '"1700000000000"', "declare the column as long"),
        (TZ, '"292278994-08-17T07:12:55Z"', "not a timestamptz"),
        (TZ, '"0000-01-01T00:00:00Z"', "not a timestamptz"),
        (TZ, '"2024-01-02T24:00:00Z"', "not a timestamptz"),
        (TZ, '"2024-01-02T23:59:60Z"', "not a timestamptz"),
        (NTZ, '"2024-01-02T03:04:05Z"', "declare the column as timestamptz"),
        (NTZ, '"2024-01-02T03:04:05+01:00"', "declare the column as timestamptz"),
        (TimeType(), '"24:00:00"', "not a time"),
        (TimeType(), "12", "declare the column as long"),
        (UUIDType(), '"0000"', "not a uuid"),
        (BinaryType(), '"A"', "not a binary"),
        (BinaryType(), '"_-=="', "not a binary"),
        (FixedType(2), '"AQID"', "not a fixed[2]"),
        (LONGS, "5", "`c`: '5' is not an array"),
        (LONGS, '{"a":1}', "not an array"),
        (LONGS, '[1,"x"]', "`c.element`: 'x' is not a long"),
        (LONGS, '"[1"', "malformed"),
        (INNER, "5", "`c`: '5' is not an object"),
        (INNER, "[1]", "not an object"),
        (INNER, '"{bad"', "malformed"),
        (INNER, '{"x":"q"}', "`c.x`: 'q' is not a long"),
        (INNER, '{"x":1,"x":2}', "key 'x' is given twice"),
        (INNER, '{"x":1,"X":2}', "only in case"),
        (MAP, '{"a":1,"a":2}', "key 'a' is given twice"),
        (MAP, '{"a":"q"}', "`c.value`: 'q' is not a long"),
        (MAP, "[]", "not an object"),
        (MapType(96, LONG, 97, LONG, value_required=False), '{"q":1}', "`c.key`: 'q'"),
        (INNER, '"' + "[" * 5000 + '"', "nested deeper than 100"),
    ],
)
def test_bad_values(kind: IcebergType, literal: str, why: str) -> None:
    _, error = one(kind, literal)
    assert error is not None
    assert why in error
    assert len(error) < 150


@pytest.mark.parametrize(
    "value, why",
    [
        (None, "null value"),
        (b"", "malformed JSON: Expecting value at character 0"),
        (b"  ", "malformed"),
        (b'{"id":1', "malformed JSON: Expecting ',' delimiter at character 7"),
        (b'\xef\xbb\xbf{"id":1}', "malformed JSON: Unexpected UTF-8 BOM"),
        (b'{"id":1} x', "Extra data"),
        (b'{"id":1}{"id":2}', "Extra data"),
        (b'{"id":1}\x00', "Extra data"),
        (b'{"id":1}//c', "Extra data"),
        (b'{"id":/**/1}', "malformed"),
        (b"{'id':1}", "malformed"),
        (b'{"id":01}', "malformed"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"id":"\xff"}', "not UTF-8 at byte 7"),
        (b"\x00\x01\x02", "malformed"),
        (b"[]", "the record is an array, not an object"),
        (b'"x"', "the record is a string"),
        (b"null", "the record is null"),
        (b" true", "the record is a boolean"),
        (b"12", "the record is a number"),
        (b'{"id":1,"id":2}', "key 'id' is given twice"),
        (b'{"id":null,"id":2}', "key 'id' is given twice"),
        (b'{"id":1,"ID":2}', "only in case"),
        (b'{"ID":2}', "only in case"),
        (b'{"_file":2}', "Iceberg"),
        (b'{"_src_offset":2}', "icestream writes"),
        (b'{"":2}', "without a name"),
        (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper than 100 levels"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "nested deeper than 100 levels"),
        (b"[" * 200_000, "nested deeper than 100 levels"),
        (b'{"' + b"k" * 1_000_000 + b'":1}', "more than 255 characters"),
        (json.dumps({f"k{i}": i for i in range(100_000)}).encode(), f"more than {MAX_FIELDS}"),
    ],
)
def test_bad_records(value: bytes | None, why: str) -> None:
    out = decode(schema(id=LONG, a=STRING), '{"id":1}', value, '{"id":3,"a":"x"}')
    assert out.new_fields == ()
    assert [e is None for e in out.errors.to_pylist()] == [True, False, True]
    assert why in out.errors[1].as_py()
    assert len(out.errors[1].as_py()) < 150
    assert [out.columns.column("id")[i].as_py() for i in (0, 2)] == [1, 3]


@pytest.mark.parametrize(
    "value, expected",
    [
        ('{"id":1,}', 1),
        (' \n{"id" : 1 }\r\n', 1),
        ('{"id":1,"id":null}', 1),
        ('{"id":1,"other":null}', 1),
        ('{"id":1,"other":   null}', 1),
        ('{"id":1,"other":[]}', 1),
        ('{"a":"' + "[{" * 500 + '","id":1}', 1),
        ('{"a":"x:null","id":1}', 1),
        ('{"a":"\\u003a\\u003A","id":1}', 1),
        ('{"a":"' + "x" * 20_000_000 + '","id":1}', 1),
        ('{"id":1,"a":' + "[" * 99 + "]" * 99 + "}", 1),
    ],
)
def test_odd_but_good_records(value: str, expected: int) -> None:
    out = decode(schema(id=LONG, a=STRING), value, '{"id":7}')
    assert out.errors.to_pylist() == [None, None]
    assert out.new_fields == ()
    assert out.columns.column("id").to_pylist() == [expected, 7]


NAMES = ["a.b", 'q"q', "`", "it's", "é", "日本", "select", "back\\slash", "$.*", "c:d", "x:null"]


def test_names_of_any_kind() -> None:
    target = schema(**dict.fromkeys(NAMES, LONG))
    row = {name: i for i, name in enumerate(NAMES)}
    out = decode(target, json.dumps(row), json.dumps(row, ensure_ascii=False), rule="freeze")
    assert out.errors.to_pylist() == [None, None]
    assert out.columns.to_pylist() == [row, row]


def test_names_of_any_kind_are_found() -> None:
    row = {name: i for i, name in enumerate(NAMES)}
    assert [f.name for f in decode(Schema(), json.dumps(row)).new_fields] == NAMES


@pytest.mark.parametrize(
    "extra, expected",
    [
        ('"z":1', "long"),
        ('"z":-1', "long"),
        ('"z":1.5', "double"),
        ('"z":"2024-01-01"', "string"),
        ('"z":true', "boolean"),
        ('"z":{"p":[1]}', "struct<1: p: optional list<long>>"),
        ('"z":{}', "string"),
        ('"z":[1,"x"]', "list<string>"),
        ('"z":123456789012345678901234567890', "string"),
        ('"z":9223372036854775808', "string"),
        ('"z":9223372036854775807', "long"),
        ('"z":":"', "string"),
        ('"a":"\\u003a","z":1', "long"),
        ('"a":"x:null","z":1', "long"),
        ('"a":{"n":  null},"z" : 1', "long"),
        ('"a":null,"z" : 1', "long"),
    ],
)
def test_new_fields_are_found(extra: str, expected: str) -> None:
    out = decode(schema(id=LONG, a=STRING), '{"id":1}', f'{{"id":2,{extra}}}', '{"id":3}')
    assert [(f.parent, f.name, str(f.type)) for f in out.new_fields] == [((), "z", expected)]
    frozen = decode(schema(id=LONG, a=STRING), '{"id":1}', f'{{"id":2,{extra}}}', rule="freeze")
    assert frozen.new_fields == ()
    assert frozen.errors.to_pylist() == [
        None,
        "field `z` is not in the table (schema_evolution: freeze)",
    ]
    ignored = decode(schema(id=LONG, a=STRING), f'{{"id":2,{extra}}}', rule="ignore")
    assert ignored.errors.to_pylist() == [None]


def test_new_fields_inside_structs_lists_and_maps() -> None:
    target = schema(
        s=INNER,
        l=ListType(80, StructType(NestedField(81, "p", LONG)), element_required=False),
        m=MapType(
            82, STRING, 83, StructType(NestedField(84, "v", LONG)), value_required=False
        ),
    )  # fmt: skip
    row = '{"s":{"x":1,"z":1},"l":[{"p":1},{"p":2,"q":1.5}],"m":{"k":{"v":1,"w":"t"}}}'
    out = decode(target, row)
    assert [(f.parent, f.name, str(f.type)) for f in out.new_fields] == [
        (("s",), "z", "long"),
        (("l", "element"), "q", "double"),
        (("m", "value"), "w", "string"),
    ]
    assert "`s.z` is not in the table" in decode(target, row, rule="freeze").errors[0].as_py()


def test_bad_rows_bring_no_new_fields() -> None:
    out = decode(schema(id=LONG), '{"id":"x","z":1}', '{"z":1,"z":2}', '{"z":1,"Z":2}')
    assert out.errors.null_count == 0
    assert out.new_fields == ()


def test_new_names_that_differ_in_case_meet_in_the_second_run() -> None:
    values = ['{"z":1}', '{"Z":2}']
    out = decode(schema(id=LONG), *values)
    assert [f.name for f in out.new_fields] == ["z"]
    again = decode(schema(id=LONG, z=LONG), *values)
    assert again.new_fields == ()
    assert again.errors.to_pylist() == [None, "field `Z` differs from column `z` only in case"]


def test_names_without_a_type_yet_do_no_harm() -> None:
    out = decode(schema(id=LONG), '{"Z":[]}', '{"z":[]}')
    assert (out.new_fields, out.errors.to_pylist()) == ((), [None, None])


def test_ids_used_as_keys_have_an_end() -> None:
    values = [json.dumps({f"user_{i}_{j}": 1 for j in range(50)}) for i in range(100)]
    assert len(decode(schema(id=LONG), *values).new_fields) == MAX_FIELDS - 1


def test_types_of_a_new_field_are_merged_over_the_batch() -> None:
    values = ['{"z":1,"o":{}}'] * 3 + ['{"z":2.5,"o":{"p":1}}'] + ['{"y":1}'] * 20_000
    found = {f.name: str(f.type) for f in decode(schema(id=LONG), *values).new_fields}
    assert found == {"z": "double", "o": "struct<1: p: optional long>", "y": "long"}


ALIKE = ['{"id": 1}'] * 5


@pytest.mark.parametrize(
    "rule, dropped", [("ignore", frozenset[str]()), ("evolve", frozenset({"id", "a"}))]
)
@pytest.mark.parametrize("odd, count", [("{broken", 1), ('{"a": {"b": 1}}', 0)])
def test_a_table_without_columns_takes_records_of_any_shape(rule, dropped, odd, count) -> None:
    """Those of the usual shape and the others are decoded apart, and have nothing to be joined."""
    out = decode(schema(), *ALIKE, odd, rule=rule, dropped=dropped)
    assert out.columns.num_columns == 0
    assert out.errors.null_count == len(ALIKE) + 1 - count
    assert not out.new_fields


def test_dropped_columns_are_known() -> None:
    target = schema(id=LONG)
    row = '{"id":1,"card":"1:2","n":{"x":1}}'
    out = decode(target, row, rule="freeze", dropped=frozenset({"card", "n"}))
    assert out.errors.to_pylist() == [None]
    assert out.columns.to_pylist() == [{"id": 1}]


def test_required_columns() -> None:
    inner = StructType(NestedField(3, "x", LONG, required=True))
    target = Schema(NestedField(1, "id", LONG, required=True), NestedField(2, "s", inner))
    out = JsonFormat().decode(
        records('{"id":1}', "{}", '{"id":null}', '{"id":1,"s":{}}', '{"id":1,"s":{"x":1}}'), target
    )
    assert out.errors.to_pylist() == [
        None,
        "`id`: required, but null",
        "`id`: required, but null",
        "`s.x`: required, but null",
        None,
    ]


def test_slices_of_larger_batches() -> None:
    batch = records("x", '{"a":1}', None, '{"a":0.12345678901234567890,"z":1}', b"\xff").slice(1, 3)
    out = JsonFormat().decode(batch, schema(a=STRING))
    assert out.errors.to_pylist() == [None, "null value", None]
    assert out.columns.column("a").to_pylist() == ["1", None, "0.12345678901234567890"]
    assert [f.name for f in out.new_fields] == ["z"]


def test_digits_survive_inside_nested_columns() -> None:
    inner = StructType(NestedField(3, "d", DecimalType(38, 20)), NestedField(4, "t", STRING))
    target = schema(s=inner, f=DOUBLE, m=STRING)
    text = '{"s":{"d":0.10000000000000000001,"t":{"k":[1.00000000000000000002,"a 5"]}},"f":2.5}'
    out = decode(target, text, '{"m":"\ufdd0 kept"}', '{"m":"1 \\ufdd1"}')
    assert out.errors.to_pylist() == [None] * 3
    assert out.columns.to_pylist()[0] == {
        "s": {
            "d": Decimal("0.10000000000000000001"),
            "t": '{"k":[1.00000000000000000002,"a 5"]}',
        },
        "f": 2.5,
        "m": None,
    }
    assert out.columns.column("m").to_pylist()[1:] == ["\ufdd0 kept", "1 \ufdd1"]


TYPED = schema(
    b=BOOLEAN, i=LONG, f=DOUBLE, s=STRING, l=LONGS, o=INNER, d=DecimalType(38, 10), x=BinaryType()
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
longs = st.integers(-(2**63), 2**63 - 1)
decimals = st.decimals(-(10**20), 10**20, places=10, allow_nan=False)
rows = st.fixed_dictionaries(
    {},
    optional={
        "b": st.none() | st.booleans(),
        "i": st.none() | longs,
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | texts,
        "l": st.none() | st.lists(st.none() | longs, max_size=4),
        "o": st.none() | st.fixed_dictionaries({"x": longs, "y": texts}),
        "d": st.none() | decimals.map(lambda d: f"{d:f}"),
        "x": st.none() | st.binary(max_size=8).map(lambda b: base64.b64encode(b).decode()),
    },
)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(rows, min_size=1, max_size=8), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_decodes_what_json_loads_reads(
    made: list[dict[str, Any]], ascii_: bool, indent: int | str | None
) -> None:
    values = [json.dumps(r, ensure_ascii=ascii_, indent=indent) for r in made]
    # decimals are written as numbers, not as strings
    values = [
        v.replace(f'"d": "{r["d"]}"', f'"d": {r["d"]}') if r.get("d") else v
        for v, r in zip(values, made, strict=True)
    ]
    out = decode(TYPED, *values, rule="freeze")
    assert out.errors.to_pylist() == [None] * len(made)
    for row, got in zip(made, out.columns.to_pylist(), strict=True):
        want = {f.name: row.get(f.name) for f in TYPED.fields}
        if want["d"] is not None:
            want["d"] = Decimal(want["d"])
        if want["x"] is not None:
            want["x"] = base64.b64decode(want["x"])
        assert got == want


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)
keyed = st.dictionaries(st.sampled_from([f.name for f in TYPED.fields] + ["z", "I"]), anything)
documents = keyed.map(json.dumps) | st.dictionaries(texts, anything, max_size=4).map(json.dumps)


@pytest.mark.slow
@settings(max_examples=200)
@given(st.lists(documents.map(str.encode) | st.binary(max_size=40) | st.none(), max_size=6))
def test_nothing_raises_and_nothing_is_a_silent_null(values: list[bytes | None]) -> None:
    out = decode(TYPED, *values)
    for value, error, got in zip(
        values, out.errors.to_pylist(), out.columns.to_pylist(), strict=True
    ):
        if error is not None or value is None:
            assert error
            continue
        said = json.loads(value)
        for name, column in got.items():
            assert (column is None) == (said.get(name) is None)
    for value, again in zip(values, out.errors.to_pylist(), strict=True):
        alone = decode(TYPED, value)
        assert (alone.errors[0].as_py() is None) == (again is None)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(keyed, min_size=1, max_size=5), st.sampled_from([None, 2]))
def test_unknown_keys_never_pass_a_frozen_table(
    made: list[dict[str, Any]], indent: int | None
) -> None:
    out = decode(TYPED, *(json.dumps(r, indent=indent) for r in made), rule="freeze")
    for row, error in zip(made, out.errors.to_pylist(), strict=True):
        if row.get("z") is not None or row.get("I") is not None:
            assert error is not None


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["1", "null", '":"'])), max_size=5)
)
def test_a_key_given_twice_never_loses_a_value(pairs: list[tuple[str, str]]) -> None:
    text = "{" + ",".join(f'"{k}":{v}' for k, v in pairs) + "}"
    out = decode(schema(a=STRING, b=STRING, c=STRING), text)
    seen: set[str] = set()
    twice = False
    for key, value in pairs:
        twice |= key in seen and value != "null"
        seen.add(key)
    assert (out.errors[0].as_py() is not None) == twice
