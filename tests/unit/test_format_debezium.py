"""Debezium's events, rule by rule: what each record does, and what its values mean."""

import base64
import json
import pickle
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
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

from icestream.config.options.format import DebeziumFormatOptions
from icestream.formats import DELETE, IGNORE, TRUNCATE, UPSERT, DecodedBatch, format_for
from icestream.formats.debezium import DebeziumFormat
from icestream.records import RECORDS
from icestream.schema import NewField, Rule

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
INT, LONG, STRING = IntegerType(), LongType(), StringType()
MONEY = DecimalType(10, 2)
NTZ, TZ = TimestampType(), TimestamptzType()
MARK = "__debezium_unavailable_value"
SOURCE = {"connector": "postgresql", "lsn": 5, "ts_ms": 1700000000123, "table": "t"}


def text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def event(op: str, after: object = None, before: object = None, **source: object) -> str:
    return text({"before": before, "after": after, "source": SOURCE | source, "op": op})


def records(
    *values: str | bytes | None,
    keys: list[str | None] | None = None,
    headers: list[list[tuple[str, str]] | None] | None = None,
    topic: str = "shop.public.t",
) -> pa.RecordBatch:
    n = len(values)
    raw = [v.encode() if isinstance(v, str) else v for v in values]
    coded = [k.encode() if k is not None else None for k in keys or [None] * n]
    columns: list[list[Any]] = [[topic] * n, [0] * n, list(range(n)), [0] * n, coded, raw]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RECORDS, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=RECORDS)
    if headers is None:
        return batch
    pairs = [
        None if each is None else [{"key": k, "value": v.encode()} for k, v in each]
        for each in headers
    ]
    return batch.append_column("headers", pa.array(pairs, HEADERS))


def schema(**columns: IcebergType) -> Schema:
    return Schema(*(NestedField(i, n, t) for i, (n, t) in enumerate(columns.items(), 1)))


TABLE = schema(id=LONG, v=STRING)


def decode(
    batch: pa.RecordBatch,
    target: Schema = TABLE,
    rule: Rule = "evolve",
    dropped: frozenset[str] = frozenset(),
    **options: Any,
) -> DecodedBatch:
    out = DebeziumFormat(**options).decode(batch, target, rule, dropped)
    assert len(out.errors) == len(batch)
    if not out.new_fields:
        assert len(out.columns) == len(batch) or not target.fields
        out.columns.validate(full=True)
        assert out.changes is not None
        assert len(out.changes.op) == len(out.changes.sequence) == len(batch)
    return out


def ops(out: DecodedBatch) -> list[int]:
    assert out.changes is not None
    return out.changes.op.to_pylist()


def rows(out: DecodedBatch) -> list[dict[str, Any]]:
    return out.columns.to_pylist()


# ── what a record does ──────────────────────────────────────────────────────────────────────────


def test_a_message_in_the_log_is_no_row() -> None:
    message = {"op": "m", "source": SOURCE, "message": {"prefix": "p", "content": "eA=="}}
    out = decode(records(text(message)))
    assert ops(out) == [IGNORE]
    assert out.errors.to_pylist() == [None]


def test_every_op() -> None:
    one, two = {"id": 1, "v": "a"}, {"id": 2, "v": "b"}
    out = decode(records(
        event("r", one), event("c", one), event("u", two, one), event("d", None, two),
        event("t"), event("m"), None,
        keys=['{"id":1}', '{"id":1}', '{"id":2}', '{"id":2}', None, None, '{"id":2}'],
    ))  # fmt: skip
    assert ops(out) == [UPSERT, UPSERT, UPSERT, DELETE, TRUNCATE, IGNORE, IGNORE]
    none = {"id": None, "v": None}
    assert rows(out) == [one, one, two, two, none, none, none]
    assert out.errors.null_count == 7


@pytest.mark.parametrize(
    "value, why",
    [
        (event("x", {"id": 1}), "`op` is 'x', none of r, c, u, d, t and m"),
        (event("", {"id": 1}), "`op` is '', none of r, c, u, d, t and m"),
        (event("u"), "`op` is 'u', but there is no object in `after`"),
        (event("c", '{"id":1}'), "no object in `after`"),
        (event("d"), "a delete without `before`, and without a key"),
        ('{"id":1,"v":"a"}', "neither an envelope of Debezium nor a flattened row"),
        ('{"before":null,"after":{"id":1}}', "neither an envelope"),
        ("[]", "the record is an array, not an object"),
        ("5", "the record is a number"),
        ("", "malformed JSON"),
        (event("c", {"id": 1})[:-1], "malformed JSON"),
        (event("c", {"id": 1}) + "x", "malformed JSON"),
        (b'{"op":"\xff"}', "not UTF-8 at byte 7"),
        ('{"op":' * 200, "nested deeper than 100 levels"),
        (event("c", {"id": "x"}), "`id`: 'x' is not a long"),
        (event("c", {"id": 1}, lsn="x"), "`source.lsn`: 'x' is not a long"),
        (text({"schema": {"a": 1}, "payload": {"id": 1}}), "not one of Kafka Connect"),
        ('{"schema":{"type":"struct"},"payload":{}}', "not one of Kafka Connect"),
    ],
)
def test_bad_records(value: str | bytes, why: str) -> None:
    good = event("c", {"id": 7, "v": "g"})
    out = decode(records(good, value, good))
    assert [e is None for e in out.errors.to_pylist()] == [True, False, True]
    assert why in out.errors[1].as_py()
    assert out.new_fields == ()
    assert [rows(out)[i]["id"] for i in (0, 2)] == [7, 7]


@pytest.mark.parametrize(
    "value, topic",
    [
        ('{"ts_ms":1700000000000}', "__debezium-heartbeat.shop"),
        ('{"ts_ms":1700000000000}', "renamed"),
        ('{"ts_ms":1700000000000,"more":1}', "__debezium-heartbeat.shop"),
        ('{"status":"END","id":"1:2","event_count":1,"data_collections":[],"ts_ms":1}', "x"),
        (text({"source": SOURCE, "databaseName": "a", "ddl": "b", "tableChanges": []}), "shop"),
        ("null", "x"),
    ],
)
def test_records_that_are_no_rows(value: str, topic: str) -> None:
    for flattened in (None, False, True):
        out = decode(records(value, topic=topic), flattened=flattened)
        if value != "null" or not flattened:
            assert ops(out) == [IGNORE]
        assert out.errors.to_pylist() == [None]
        assert out.new_fields == ()


def test_a_delete_takes_its_key_from_the_record() -> None:
    target = schema(region=STRING, id=LONG, day=DateType(), v=STRING)
    key = '{"region":"eu","id":3,"day":19782}'
    wrapped = text({"schema": {"type": "struct", "fields": []}, "payload": json.loads(key)})
    out = decode(records(
        event("d"), event("d", None, {"id": 4, "v": "x"}), event("d"), event("c", {"id": 9}),
        keys=[key, key, wrapped, key],
    ), target)  # fmt: skip
    day = date(2024, 2, 29)
    whole = {"region": "eu", "id": 3, "day": day, "v": None}
    mixed = {"region": "eu", "id": 4, "day": day, "v": "x"}
    assert rows(out)[:3] == [whole, mixed, whole]
    assert rows(out)[3] == {"region": None, "id": 9, "day": None, "v": None}
    assert out.errors.null_count == 4


def test_the_old_key_stands_beside_the_row_with_the_new_one() -> None:
    old = [("__debezium.oldkey", '{"id":1}'), ("other", "x")]
    headers = [[("__debezium.newkey", '{"id":2}')], None, old, []]
    out = decode(records(
        event("d", None, {"id": 1}), None, event("c", {"id": 2}), event("c", {"id": 3}),
        headers=headers, keys=['{"id":1}', '{"id":1}', '{"id":2}', '{"id":3}'],
    ))  # fmt: skip
    assert out.changes is not None
    assert out.changes.old_key is not None
    assert out.changes.old_key.to_pylist() == [{"id": None}, {"id": None}, {"id": 1}, {"id": None}]
    plain = decode(records(event("c", {"id": 2}), headers=[[("a", "b")]]))
    assert plain.changes is not None
    assert plain.changes.old_key is None


# ── flattened rows ──────────────────────────────────────────────────────────────────────────────


def test_flattened_rows_are_known_by_their_marks() -> None:
    out = decode(records(
        '{"id":1,"v":"a","__op":"c","__lsn":7}',
        '{"id":2,"v":null,"__deleted":"true","__source_lsn":8,"__table":"t"}',
        '{"id":3,"v":"c","__deleted":"false"}',
        event("c", {"id": 4, "v": "d"}),
        None,
    ))  # fmt: skip
    assert ops(out) == [UPSERT, DELETE, UPSERT, UPSERT, IGNORE]
    assert [row["id"] for row in rows(out)] == [1, 2, 3, 4, None]
    assert out.changes is not None
    places = [None if p is None else int.from_bytes(p) for p in out.changes.sequence.to_pylist()]
    assert places == [7, 8, None, 5, None]
    assert out.errors.null_count == 5


def test_a_table_may_have_columns_that_look_like_an_envelope() -> None:
    flat = '{"op":"u","source":"web","after":"noon","__op":"c"}'
    out = decode(records(flat), schema(op=STRING, source=STRING, after=STRING))
    assert out.errors.to_pylist() == [None]
    assert rows(out) == [{"op": "u", "source": "web", "after": "noon"}]


def test_flattened_on_demand_a_null_value_deletes() -> None:
    batch = records('{"id":1,"v":"a"}', None, None, keys=['{"id":1}', '{"id":1}', None])
    out = decode(batch, flattened=True)
    assert ops(out) == [UPSERT, DELETE, IGNORE]
    assert rows(out)[1] == {"id": 1, "v": None}
    assert out.errors.null_count == 3
    strict = decode(records('{"id":1,"__op":"c"}'), flattened=False)
    assert "neither an envelope" in strict.errors[0].as_py()


def test_a_key_is_read_by_its_own_schema() -> None:
    kind = {"type": "struct", "fields": [field_of("at", "int64", "io.debezium.time.Timestamp")]}
    key = text({"schema": kind, "payload": {"at": MS}})
    batch = records(None, None, keys=[key, text({"at": MS})])
    out = decode(batch, schema(at=NTZ), flattened=True)
    assert ops(out) == [DELETE, DELETE]
    assert rows(out)[0] == {"at": FULL.replace(microsecond=123000)}
    assert "a delete without `before`" in out.errors[1].as_py()  # no unit; and not in silence


def test_flattened_rows_with_a_schema() -> None:
    fields = [field_of("id", "int64"), field_of("day", "int32", "io.debezium.time.Date"),
              field_of("__op", "string"), field_of("__deleted", "string")]  # fmt: skip
    kind = {"type": "struct", "name": "shop.t.Value", "fields": fields}
    row = {"id": 1, "day": 19782, "__op": "u", "__deleted": "false"}
    value = text({"schema": kind, "payload": row})
    out = decode(records(value), Schema())
    assert [(f.name, str(f.type)) for f in out.new_fields] == [("id", "long"), ("day", "date")]
    out = decode(records(value), schema(id=LONG, day=DateType()))
    assert ops(out) == [UPSERT]
    assert rows(out) == [{"id": 1, "day": date(2024, 2, 29)}]


@pytest.mark.parametrize("key", ["x", "5", "{}", '{"other":1}', '{"id":"x"}', None])
def test_a_delete_without_anything_to_go_by_is_bad(key: str | None) -> None:
    out = decode(records(event("d"), event("d"), keys=[key, '{"id":1}']))
    assert "a delete without `before`" in out.errors[0].as_py()
    assert out.errors[1].as_py() is None


@pytest.mark.parametrize("rule", ["evolve", "freeze", "ignore"])
def test_what_flattening_adds_is_no_column(rule: Rule) -> None:
    batch = records('{"id":1,"__op":"c","__x":5}', '{"id":2,"__op":"c","__y":{"z":1}}')
    out = decode(batch, rule=rule)
    assert out.errors.null_count == 2
    assert out.new_fields == ()


def test_declared_columns_take_what_an_event_says_of_itself() -> None:
    target = schema(
        id=LONG, __op=STRING, __deleted=STRING, __source_ts_ms=NTZ, __ts_ms=LONG, __table=STRING
    )
    whole = json.loads(event("u", {"id": 1})) | {"ts_ms": 9}
    flat = '{"id":2,"__op":"d","__deleted":"true","__source_ts_ms":1700000000123}'
    out = decode(records(text(whole), flat), target, time_units={"*": "ms"})
    at = datetime(2023, 11, 14, 22, 13, 20, 123000)  # noqa: DTZ001
    assert out.errors.to_pylist() == [None, None]
    assert rows(out)[0] == {
        "id": 1, "__op": "u", "__deleted": "false", "__source_ts_ms": at, "__ts_ms": 9,
        "__table": "t",
    }  # fmt: skip
    assert rows(out)[1]["__op"] == "d"
    assert rows(out)[1]["__source_ts_ms"] == at


def test_odd_names_of_such_columns_do_no_harm() -> None:
    names = ["__", "__source_", "__LSN", "__lsn", "__source_LSN", "__source_lsn", "__Op"]
    target = Schema(*(NestedField(i, name, STRING) for i, name in enumerate(names, 1)))
    out = decode(records(event("c", {"__": "own"}), '{"__op":"c","__LSN":"x"}'), target)
    assert out.errors.to_pylist() == [None, None]
    assert rows(out)[0]["__lsn"] == rows(out)[0]["__source_lsn"] == "5"
    assert rows(out)[0]["__"] == "own"
    assert rows(out)[1]["__LSN"] == "x"


# ── embedded schemas ────────────────────────────────────────────────────────────────────────────


def field_of(name: str, kind: str, semantic: str | None = None, **more: Any) -> dict[str, Any]:
    named = {"name": semantic} if semantic else {}
    return {"field": name, "type": kind, "optional": True, **named, **more}


def connect(*fields: dict[str, Any]) -> dict[str, Any]:
    image = {"type": "struct", "fields": list(fields), "optional": True}
    return {
        "type": "struct",
        "name": "shop.t.Envelope",
        "fields": [{**image, "field": "before"}, {**image, "field": "after"}],
    }


def wrapped(fields: list[dict[str, Any]], *after: dict[str, Any]) -> list[str]:
    return [
        text({"schema": connect(*fields), "payload": json.loads(event("c", each))})
        for each in after
    ]


def test_schemas_are_found_wherever_they_stand() -> None:
    fields = [field_of("id", "int64"), field_of("v", "string")]
    usual = wrapped(fields, {"id": 1, "v": "a"}, {"id": 2, "v": "b"})
    whole = json.loads(wrapped(fields, {"id": 3, "v": "c"})[0])
    turned = text({"payload": whole["payload"], "schema": whole["schema"]})
    spaced = json.dumps(whole, indent=1)
    none = text({"schema": None, "payload": whole["payload"]})
    out = decode(records(*usual, turned, spaced, none, event("c", {"id": 4}), None))
    assert out.errors.null_count == 7
    assert [row["id"] for row in rows(out)] == [1, 2, 3, 3, 3, 4, None]


def test_a_table_gets_the_columns_of_the_schema() -> None:
    fields = [
        field_of("id", "int32"),
        field_of("big", "int64"),
        field_of("day", "int32", "io.debezium.time.Date"),
        field_of("price", "bytes", "org.apache.kafka.connect.data.Decimal",
                 parameters={"scale": "2", "connect.decimal.precision": "10"}),
        field_of("tags", "map", keys={"type": "string"}, values={"type": "int64"}),
        field_of("pairs", "map", keys={"type": "int32"}, values={"type": "int64"}),
        field_of("_file", "string"),
    ]  # fmt: skip
    out = decode(records(*wrapped(fields, {"id": None})), Schema())
    assert [(f.name, str(f.type)) for f in out.new_fields] == [
        ("id", "int"), ("big", "long"), ("day", "date"), ("price", "decimal(10, 2)"),
        ("tags", "map<string, long>"), ("pairs", "string"),
    ]  # fmt: skip
    known = schema(id=INT, big=LONG, day=DateType(), price=MONEY, tags=STRING, pairs=STRING)
    fine, refused = wrapped(fields, {"id": 1, "tags": {"a": 1}}, {"id": 2, "_file": "x"})
    out = decode(records(fine, refused), known)
    assert out.errors[0].as_py() is None
    assert "metadata column of Iceberg" in out.errors[1].as_py()


@pytest.mark.parametrize("rule, why", [("freeze", "`more` is not in the table"), ("ignore", None)])
def test_unknown_columns_follow_the_rule(rule: Rule, why: str | None) -> None:
    fields = [field_of("id", "int64"), field_of("more", "string")]
    given, silent = wrapped(fields, {"id": 1, "more": "x"}, {"id": 2, "more": None})
    for batch in (records(given, silent), records(event("c", {"id": 1, "more": "x"}), silent)):
        out = decode(batch, rule=rule)
        assert out.new_fields == ()
        assert out.errors[1].as_py() is None
        assert (out.errors[0].as_py() is None) if why is None else (why in out.errors[0].as_py())


def test_new_columns_of_several_schemas_are_the_widest() -> None:
    narrow = wrapped([field_of("n", "int32"), field_of("x", "float")], {"n": 1, "x": 1})
    wide = wrapped([field_of("n", "int64"), field_of("x", "double")], {"n": 2**40, "x": 1})
    out = decode(records(*narrow, *wide, *narrow), Schema())
    assert [(f.name, str(f.type)) for f in out.new_fields] == [("n", "long"), ("x", "double")]
    out = decode(records(*narrow, *wide), schema(n=INT, x=DoubleType()))
    assert out.widened == (NewField((), "n", LONG),)
    assert out.errors.to_pylist() == [None, f"`n`: '{2**40}' is not a int"]


def test_new_columns_have_the_comments_of_the_source() -> None:
    comment = {"parameters": {"__debezium.source.column.comment": "said there"}}
    old = wrapped([field_of("n", "int32", **comment), field_of("x", "string")], {"n": 1})
    new = wrapped([field_of("n", "int32", doc="said later"), field_of("x", "string", doc="X")], {})
    out = decode(records(*old, *new), Schema())
    assert out.new_fields == (NewField((), "n", INT, "said there"), NewField((), "x", STRING, "X"))


def test_new_fields_within_structs_and_lists() -> None:
    inner = {"type": "struct", "fields": [field_of("x", "double"), field_of("y", "bytes")]}
    fields = [{**inner, "field": "p"}, field_of("ps", "array", items=inner)]
    point = StructType(NestedField(10, "x", DoubleType()))
    target = schema(p=point, ps=ListType(11, point, element_required=False))
    out = decode(records(*wrapped(fields, {"p": {"x": 1, "y": "AQ=="}})), target)
    assert out.new_fields == (
        NewField(("p",), "y", BinaryType()),
        NewField(("ps", "element"), "y", BinaryType()),
    )


def test_dropped_columns_are_neither_new_nor_wrong() -> None:
    fields = [field_of("id", "int64"), field_of("card", "string")]
    batch = records(*wrapped(fields, {"id": 1, "card": "x"}), event("c", {"id": 2, "card": "y"}))
    out = decode(batch, dropped=frozenset({"card"}))
    assert out.new_fields == ()
    assert out.errors.null_count == 2


# ── what values mean ────────────────────────────────────────────────────────────────────────────


def b64(number: int) -> str:
    size = (number.bit_length() + 8) // 8
    return base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()


DECIMAL = "org.apache.kafka.connect.data.Decimal"
SCALE2 = {"parameters": {"scale": "2"}}
VARIABLE = "io.debezium.data.VariableScaleDecimal"
TIMES = "io.debezium.time."
FULL = datetime(2024, 2, 29, 12, 34, 56, 123456)  # noqa: DTZ001
MS = 1709210096123


@pytest.mark.parametrize(
    "kind, field, given, expected",
    [
        (MONEY, field_of("c", "bytes", DECIMAL, **SCALE2), b64(-125), Decimal("-1.25")),
        (MONEY, field_of("c", "bytes", DECIMAL, **SCALE2), b64(0), Decimal("0.00")),
        (DecimalType(38, 2), field_of("c", "bytes", DECIMAL, **SCALE2), b64(10**38 - 1),
         Decimal("9" * 36 + ".99")),
        (DecimalType(12, 4), field_of("c", "bytes", DECIMAL, **SCALE2), b64(125), Decimal("1.25")),
        (STRING, field_of("c", "bytes", DECIMAL, **SCALE2), b64(-(10**60)),
         "-1" + "0" * 58 + ".00"),
        (STRING, field_of("c", "bytes", DECIMAL, parameters={"scale": "9"}), b64(1), "0.000000001"),
        (DoubleType(), field_of("c", "bytes", DECIMAL, **SCALE2), b64(150), 1.5),
        (BinaryType(), field_of("c", "bytes", DECIMAL, **SCALE2), "AQ==", b"\x01"),
        (MONEY, field_of("c", "bytes", DECIMAL, **SCALE2), 1234, Decimal("1234.00")),
        (MONEY, field_of("c", "bytes", DECIMAL, **SCALE2), 1.25, Decimal("1.25")),
        (STRING, field_of("c", "bytes", DECIMAL, **SCALE2), 1.5, "1.50"),
        (MONEY, field_of("c", "string"), "1.25", Decimal("1.25")),
        (MONEY, field_of("c", "double"), 1.25, Decimal("1.25")),
        (STRING, field_of("c", "struct", VARIABLE, fields=[]), {"scale": 3, "value": b64(-1500)},
         "-1.500"),
        (MONEY, field_of("c", "struct", VARIABLE, fields=[]), {"scale": 1, "value": b64(15)},
         Decimal("1.50")),
        (DateType(), field_of("c", "int32", TIMES + "Date"), 19782, date(2024, 2, 29)),
        (DateType(), field_of("c", "int32", "org.apache.kafka.connect.data.Date"), -1,
         date(1969, 12, 31)),
        (DateType(), field_of("c", "string", TIMES + "IsoDate"), "2024-02-29Z", date(2024, 2, 29)),
        (STRING, field_of("c", "int32", TIMES + "Date"), 19782, "2024-02-29"),
        (NTZ, field_of("c", "int32", TIMES + "Date"), 19782, datetime(2024, 2, 29)),  # noqa: DTZ001
        (INT, field_of("c", "int32", TIMES + "Date"), 19782, 19782),
        (TimeType(), field_of("c", "int32", TIMES + "Time"), 86399123, time(23, 59, 59, 123000)),
        (TimeType(), field_of("c", "int64", TIMES + "MicroTime"), 1, time(0, 0, 0, 1)),
        (TimeType(), field_of("c", "int64", TIMES + "NanoTime"), 1999, time(0, 0, 0, 1)),
        (TimeType(), field_of("c", "string", TIMES + "IsoTime"), "23:59:59.5Z",
         time(23, 59, 59, 500000)),
        (TimeType(), field_of("c", "string", TIMES + "ZonedTime"), "18:29:59Z", time(18, 29, 59)),
        (NTZ, field_of("c", "int64", TIMES + "Timestamp"), MS, FULL.replace(microsecond=123000)),
        (NTZ, field_of("c", "int64", "org.apache.kafka.connect.data.Timestamp"), 0,
         datetime(1970, 1, 1)),  # noqa: DTZ001
        (NTZ, field_of("c", "int64", TIMES + "MicroTimestamp"), MS * 1000 + 456, FULL),
        (NTZ, field_of("c", "int64", TIMES + "NanoTimestamp"), MS * 10**6 + 456789, FULL),
        (NTZ, field_of("c", "int64", TIMES + "NanoTimestamp"), -1,
         datetime(1969, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001
        (NTZ, field_of("c", "string", TIMES + "IsoTimestamp"), "2024-02-29T12:34:56.123456Z", FULL),
        (TZ, field_of("c", "int64", TIMES + "MicroTimestamp"), MS * 1000 + 456,
         FULL.replace(tzinfo=UTC)),
        (TZ, field_of("c", "string", TIMES + "ZonedTimestamp"), "2024-02-29T18:04:56.123456+05:30",
         FULL.replace(tzinfo=UTC)),
        (STRING, field_of("c", "int64", TIMES + "MicroTimestamp"), MS * 1000 + 456,
         "2024-02-29T12:34:56.123456"),
        (LONG, field_of("c", "int64", TIMES + "MicroDuration"), -5, -5),
        (STRING, field_of("c", "string", TIMES + "Interval"), "P1Y", "P1Y"),
        (BooleanType(), field_of("c", "int16"), 1, True),
        (BooleanType(), field_of("c", "boolean"), False, False),
        (UUIDType(), field_of("c", "string", "io.debezium.data.Uuid"),
         "00000000-0000-0000-0000-00000000000a", None),
        (STRING, field_of("c", "string", "io.debezium.data.Json"), '{"a": 1.0}', '{"a": 1.0}'),
        (STRING, field_of("c", "bytes"), "AQ==", "AQ=="),
        (BinaryType(), field_of("c", "bytes", "io.debezium.data.Bits"), "qg==", b"\xaa"),
        (DoubleType(), field_of("c", "double"), "NaN", None),
        (ListType(9, MONEY, element_required=False),
         field_of("c", "array", items={"type": "bytes", "name": DECIMAL, **SCALE2}),
         [b64(125), None], [Decimal("1.25"), None]),
        (MapType(9, STRING, 8, DateType(), value_required=False),
         field_of("c", "map", keys={"type": "string"},
                  values={"type": "int32", "name": TIMES + "Date"}),
         {"a": 0}, [("a", date(1970, 1, 1))]),
    ],
)  # fmt: skip
def test_values_by_their_schema(
    kind: IcebergType, field: dict[str, Any], given: Any, expected: Any
) -> None:
    fields = [field_of("id", "int64"), field]
    values = wrapped(fields, {"id": 1}, {"id": 2, "c": given}, {"id": 3, "c": None})
    out = decode(records(*values), schema(id=LONG, c=kind))
    assert out.errors.to_pylist() == [None, None, None]
    found = [row["c"] for row in rows(out)]
    assert found[0] is found[2] is None
    assert found[1] is not None
    if expected is not None:
        assert repr(found[1]) == repr(expected) or found[1] == expected


@pytest.mark.parametrize(
    "kind, field, given, why",
    [
        (MONEY, field_of("c", "bytes", DECIMAL, **SCALE2), b64(10**10), "not a decimal(10, 2)"),
        (MONEY, field_of("c", "bytes", DECIMAL, parameters={"scale": "3"}), b64(1), "not a dec"),
        (MONEY, field_of("c", "bytes", DECIMAL, **SCALE2), "", "'' is not a decimal"),
        (MONEY, field_of("c", "bytes", DECIMAL, **SCALE2), "1.25", "'1.25' is not a decimal"),
        (MONEY, field_of("c", "bytes", DECIMAL, **SCALE2), base64.b64encode(b"x" * 40).decode(),
         "not a decimal"),
        (STRING, field_of("c", "struct", VARIABLE, fields=[]), {"scale": "x", "value": "AQ=="},
         "not a string"),
        (STRING, field_of("c", "struct", VARIABLE, fields=[]), {"value": "AQ=="}, "not a string"),
        (DateType(), field_of("c", "int32", TIMES + "Date"), -2147472692, "given for a date"),
        (DateType(), field_of("c", "int32", TIMES + "Date"), "2024-01-01", "not a date"),
        (TimeType(), field_of("c", "int64", TIMES + "MicroTime"), -1, "given for a time"),
        (TimeType(), field_of("c", "int64", TIMES + "MicroTime"), 86_400_000_000, "for a time"),
        (NTZ, field_of("c", "int64", TIMES + "Timestamp"), 2**62, "given for a timestamp"),
        (NTZ, field_of("c", "int64", TIMES + "MicroTimestamp"), -(2**60), "given for a timestamp"),
        (DateType(), field_of("c", "int64", TIMES + "Timestamp"), 5, "given for a date"),
        (BooleanType(), field_of("c", "int16"), 2, "not a boolean"),
        (INT, field_of("c", "int64"), 2**31, "not a int"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(
    kind: IcebergType, field: dict[str, Any], given: Any, why: str
) -> None:
    fields = [field_of("id", "int64"), field]
    out = decode(
        records(*wrapped(fields, {"id": 1}, {"id": 2, "c": given}, {"id": 3})),
        schema(id=LONG, c=kind),
    )
    assert [e is None for e in out.errors.to_pylist()] == [True, False, True]
    assert out.errors[1].as_py().startswith("`c`: ")
    assert why in out.errors[1].as_py()
    assert [rows(out)[i]["id"] for i in (0, 2)] == [1, 3]


@pytest.mark.parametrize(
    "mode, given, expected",
    [
        ("precise", "fQ==", "1.25"),
        ("precise", 1234, "1234"),
        ("precise", "1234", "-26588.24"),  # base64 of three bytes
        ("precise", "12345", "12345"),
        ("precise", "-1.25", "-1.25"),
        ("precise", 1e3, "1000"),
        ("precise", {"scale": 1, "value": "Dw=="}, "1.5"),
        ("string", "1234", "1234"),
        ("string", "1e27", None),
        ("string", "1e02", "100"),
        ("string", "fQ==", "1.25"),
        ("double", 1.25, "1.25"),
        ("precise", "nonsense!", None),
        ("precise", '"', None),
    ],
)
def test_decimals_without_a_schema(mode: str, given: Any, expected: str | None) -> None:
    target = schema(id=LONG, c=MONEY, v=STRING)
    nested = schema(id=LONG, c=MONEY, v=ListType(9, LONG, element_required=False))
    for table in (target, nested):  # flat rows go another way than nested ones
        others = [event("c", {"id": i, "c": None, "v": None}) for i in range(3)]
        one = event("c", {"id": 9, "c": given, "v": None})
        out = decode(records(*others, one), table, decimal_handling_mode=mode)
        if expected is None:
            assert "is not a decimal(10, 2)" in out.errors[3].as_py()
        else:
            assert out.errors[3].as_py() is None
            assert rows(out)[3]["c"] == Decimal(expected)


def test_numbers_keep_all_their_digits() -> None:
    digits = "1234567890123456789012345678.0123456789"
    value = event("c", {"id": 1, "v": "x"}).replace('"x"', digits)
    out = decode(records(value), schema(id=LONG, v=DecimalType(38, 10)))
    assert rows(out)[0]["v"] == Decimal(digits)


@pytest.mark.parametrize(
    "kind, given, units, expected",
    [
        (NTZ, MS, {"c": "ms"}, FULL.replace(microsecond=123000)),
        (NTZ, MS * 1000 + 456, {"*": "us"}, FULL),
        (TZ, MS * 10**6 + 456000, {"c": "ns", "*": "ms"}, FULL.replace(tzinfo=UTC)),
        (TimeType(), 5000, {"*": "ms"}, time(0, 0, 5)),
        (NTZ, "2024-02-29T12:34:56.123456Z", {}, FULL),
        (NTZ, "2024-02-29T12:34:56.123456", {"*": "ms"}, FULL),
        (DateType(), 19782, {}, date(2024, 2, 29)),
        (DateType(), "2024-02-29Z", {}, date(2024, 2, 29)),
        (TimeType(), "12:34:56Z", {}, time(12, 34, 56)),
        (NTZ, MS, {}, f"number '{MS}' given for a timestamp: say its unit in `format.time_units`"),
        (TimeType(), 5, {"d": "ms"}, "say its unit"),
    ],
)
def test_times_without_a_schema(
    kind: IcebergType, given: Any, units: dict[str, str], expected: Any
) -> None:
    batch = records(event("c", {"c": given}), event("c", {"c": None}))
    out = decode(batch, schema(c=kind), time_units=units)
    if isinstance(expected, str):
        assert expected in out.errors[0].as_py()
    else:
        assert out.errors[0].as_py() is None
        assert rows(out) == [{"c": expected}, {"c": None}]


@pytest.mark.parametrize(
    "mode, given, expected",
    [
        ("base64", "3q0=", b"\xde\xad"),
        ("hex", "dead", b"\xde\xad"),
        ("hex", "qg==", b"\xaa"),
        ("hex", "", b""),
        ("base64-url-safe", "_-8=", b"\xff\xef"),
        ("hex", "xy", None),
        ("base64", "dea", None),
    ],
)
def test_bytes_without_a_schema(mode: str, given: str, expected: bytes | None) -> None:
    batch = records(event("c", {"c": given}), event("c", {"c": None}))
    out = decode(batch, schema(c=BinaryType()), binary_handling_mode=mode)
    if expected is None:
        assert "is not a binary" in out.errors[0].as_py()
    else:
        assert [row["c"] for row in rows(out)] == [expected, None]


# ── values that are not there ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("embedded", [True, False])
def test_values_that_an_event_does_not_carry(embedded: bool) -> None:
    coded = base64.b64encode(MARK.encode()).decode()
    kinds: dict[str, tuple[IcebergType, dict[str, Any], Any]] = {
        "s": (STRING, field_of("s", "string"), MARK),
        "b": (BinaryType(), field_of("b", "bytes"), coded),
        "l": (ListType(50, STRING, element_required=False),
              field_of("l", "array", items={"type": "string"}), [MARK]),
        "n": (ListType(51, LONG, element_required=False),
              field_of("n", "array", items={"type": "int64"}), list(MARK.encode())),
        "h": (MapType(52, STRING, 53, STRING, value_required=False),
              field_of("h", "map", keys={"type": "string"}, values={"type": "string"}),
              {MARK: MARK}),
        "j": (STRING, field_of("j", "string"), "x"),
    }  # fmt: skip
    target = schema(id=LONG, **{name: each[0] for name, each in kinds.items()})
    row = {"id": 2} | {name: each[2] for name, each in kinds.items()}
    fields = [field_of("id", "int64"), *(each[1] for each in kinds.values())]
    values = wrapped(fields, {"id": 1, "s": MARK + "x", "l": [MARK, "x"]}, row, {"id": 3})
    if not embedded:
        values = [text(json.loads(value)["payload"]) for value in values]
    out = decode(records(*values), target)
    assert out.errors.to_pylist() == [None, None, None]
    assert out.changes is not None
    flags = {name: each.to_pylist() for name, each in out.changes.missing.items()}
    assert flags == {name: [False, True, False] for name in "sblnh"}
    assert rows(out)[1] == {"id": 2, "j": "x", **dict.fromkeys("sblnh")}
    assert rows(out)[0]["s"] == MARK + "x"


def test_a_required_column_is_demanded_of_rows_alone() -> None:
    target = Schema(NestedField(1, "id", LONG, required=True),
                    NestedField(2, "v", STRING, required=True))  # fmt: skip
    out = DebeziumFormat().decode(records(
        event("c", {"id": 1, "v": "a"}), event("c", {"id": 2, "v": None}),
        event("d", None, {"id": 3}), event("d"), event("t"), None,
        event("u", {"id": 6, "v": MARK}),
        keys=[None, None, None, '{"id":4}', None, None, None],
    ), target)  # fmt: skip
    assert out.errors.to_pylist() == [None, "`v`: required, but null", *[None] * 5]
    assert [row["id"] for row in rows(out)] == [1, 2, 3, 4, None, None, 6]
    assert not any(f.nullable for f in out.columns.schema)


def test_another_placeholder() -> None:
    batch = records(event("u", {"id": 1, "v": "gone"}), event("u", {"id": 2, "v": MARK}))
    for kind in (STRING, MONEY):
        out = decode(batch, schema(id=LONG, v=kind), unavailable_value_placeholder="gone")
        assert out.changes is not None
        assert {n: f.to_pylist() for n, f in out.changes.missing.items()} == {"v": [True, False]}
    out = decode(batch, unavailable_value_placeholder="gone")
    assert rows(out)[1]["v"] == MARK


# ── order ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "positions",
    [
        [{"lsn": n} for n in (0, 1, 255, 256, 2**40, 2**63 - 1)],
        [{"connector": "mysql", "lsn": None, "file": f, "pos": p, "row": r} for f, p, r in [
            ("binlog.000009", 900, 0), ("binlog.000010", 4, 0), ("binlog.000010", 4, 1),
            ("binlog.000010", 300, 0), ("binlog.1000000", 4, 0)]],
        [{"connector": "sqlserver", "lsn": None, "commit_lsn": c, "change_lsn": h,
          "event_serial_no": s} for c, h, s in [
            ("00000027:00000ac0:0002", None, None),
            ("00000027:00000ac0:0002", "00000027:00000ab0:0001", 1),
            ("00000027:00000ac0:0002", "00000027:00000ab0:0001", 2),
            ("00000027:00000AC0:000a", "00000001:00000000:0000", 1)]],
        [{"connector": "oracle", "lsn": None, "scn": str(n)} for n in (1, 99, 2**50)],
    ],
)  # fmt: skip
def test_positions_compare_as_bytes(positions: list[dict[str, Any]]) -> None:
    out = decode(records(*(event("u", {"id": 1}, **each) for each in positions)))
    assert out.changes is not None
    found = out.changes.sequence.to_pylist()
    assert out.errors.null_count == len(positions)
    assert found == sorted(found)
    assert len(set(found)) == len(positions)
    assert len({len(each) for each in found}) == 1


def test_a_row_may_look_like_a_source() -> None:
    """What is read of a source is guessed from a first event; a wrong guess costs time alone."""
    looks = {"id": 1, "connector": "mysql", "source": {"connector": "oracle"}}
    mysql = {"connector": "mysql", "file": "b.000003", "pos": 4, "row": 2, "lsn": None}
    columns = schema(id=LONG, connector=STRING, source=STRING)
    late = text({"source": SOURCE, "op": "u", "before": None, "after": looks})
    bare = text({"op": "d", "before": {"id": 2}, "after": {"id": 3}, "source": {"lsn": 6}})
    events = [late, event("u", looks, **mysql), bare, event("u", looks, looks, lsn=7)]
    for first in range(len(events)):
        turned = events[first:] + events[:first]
        out = decode(records(*turned), columns)
        assert out.errors.null_count == len(events)
        assert out.changes is not None
        found = dict(zip(turned, out.changes.sequence.to_pylist(), strict=True))
        assert [found[each].hex().lstrip("0") for each in events] == [
            "5", "3" + f"{4:016x}" + f"{2:08x}", "6", "7"
        ]  # fmt: skip
        kept = dict(zip(turned, out.columns.column("id").to_pylist(), strict=True))
        assert [kept[each] for each in events] == [1, 1, 2, 1]


def test_layout_of_positions() -> None:
    mysql = {"connector": "mysql", "file": "mysql-bin.000003", "pos": 4711, "row": 2}
    other = {"connector": "mongodb", "lsn": None, "ord": 1}
    out = decode(records(
        event("r", {"id": 1}, lsn=0x0102030405060708, snapshot="true"),
        event("u", {"id": 1}, **mysql),
        event("u", {"id": 1}, **other), event("u", {"id": 1}, lsn=None),
        event("u", {"id": 1}, **(mysql | {"file": "nameless"})),
    ))  # fmt: skip
    assert out.changes is not None
    assert [each and each.hex() for each in out.changes.sequence.to_pylist()[:4]] == [
        "0102030405060708", "00000003" + f"{4711:016x}" + "00000002", None, None
    ]  # fmt: skip
    assert "does not end in the number of a binlog" in out.errors[4].as_py()


# ── the format as a whole ───────────────────────────────────────────────────────────────────────


def test_key_columns() -> None:
    keys = [None, "x", '{"region":"eu","id":1}', '{"other":1}']
    heartbeat = '{"ts_ms":1}'
    batch = records(*[event("c", {"id": 1})] * 4, keys=keys)
    assert DebeziumFormat().key_columns(batch) == ("region", "id")
    assert DebeziumFormat().key_columns(records(heartbeat, keys=['{"serverName":"a"}'])) is None
    assert DebeziumFormat().key_columns(records(event("c", {"id": 1}))) is None
    schemas = text({"schema": {"type": "struct"}, "payload": {"id": 1}})
    assert DebeziumFormat().key_columns(records(event("d"), keys=[schemas])) == ("id",)


def test_options_reach_the_format() -> None:
    options = DebeziumFormatOptions(type="debezium", flattened=True, time_units={"*": "ms"})
    made = format_for(options)
    assert made == DebeziumFormat(flattened=True, time_units={"*": "ms"})
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_long_mixed_batch_is_in_order() -> None:
    fields = [field_of("id", "int64"), field_of("v", "string")]
    makers = [
        lambda i: event("c", {"id": i, "v": f"v{i}"}),
        lambda i: wrapped(fields, {"id": i, "v": f"v{i}"})[0],
        lambda i: text({"id": i, "v": f"v{i}", "__op": "u"}),
        lambda i: event("d", None, {"id": i, "v": f"v{i}"}),
        lambda i: wrapped([*fields, field_of("w", "string")], {"id": i, "v": f"v{i}"})[0],
        lambda i: None,
    ]
    values = [makers[i * i % 6](i) for i in range(500)]
    out = decode(records(*values), schema(id=LONG, v=STRING, w=STRING))
    assert out.errors.null_count == 500
    for i, row in enumerate(rows(out)):
        given = None if values[i] is None else i
        assert row["id"] == given
        assert row["v"] == (None if given is None else f"v{i}")


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["op", "after", "before", "source", "schema", "payload", "type", "fields",
                         "field", "id", "v", "lsn", "file", "pos", "__op", "name", "items"]),
        inner, max_size=5,
    ),
    max_leaves=12,
)  # fmt: skip
WHOLE = wrapped([field_of("id", "int64"), field_of("v", "string")], {"id": 1, "v": "a"})[0].encode()


@pytest.mark.slow
@settings(max_examples=150)
@given(
    values=st.lists(
        JSONS.map(lambda v: json.dumps(v).encode()) | st.binary(max_size=30), max_size=5
    ),
    flattened=st.sampled_from([None, True, False]),
)
def test_no_record_raises(values: list[bytes], flattened: bool | None) -> None:
    batch = records(*values, WHOLE, keys=[None] * len(values) + ["{}"])
    out = decode(batch, flattened=flattened)
    if not out.new_fields and not flattened:
        assert out.errors[len(values)].as_py() is None
        assert rows(out)[-1] == {"id": 1, "v": "a"}
    keyed = records(*values, keys=[v.decode("latin-1") for v in values])
    decode(keyed, flattened=flattened)
    DebeziumFormat(flattened=flattened).key_columns(keyed)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3), st.integers(0, 3))
def test_damaged_events_do_not_raise(at: int, put: bytes, cut: int) -> None:
    damaged = WHOLE[:at] + put + WHOLE[at + cut :]
    out = decode(records(WHOLE, damaged, WHOLE))
    if not out.new_fields:
        assert [out.errors[i].as_py() for i in (0, 2)] == [None, None]
        assert [rows(out)[i] for i in (0, 2)] == [{"id": 1, "v": "a"}] * 2


def test_a_table_with_a_column_named_schema() -> None:
    rows_in = [text({"schema": f"s{i}", "payload": {"a": i}, "__op": "c"}) for i in range(300)]
    target = schema(schema=STRING, payload=STRING)
    out = decode(records(*rows_in), target)
    assert out.errors.null_count == 300
    assert rows(out)[299] == {"schema": "s299", "payload": '{"a":299}'}


def test_more_schemas_than_are_compared() -> None:
    values = [wrapped([field_of("id", "int64"), field_of(f"c{i}", "string")], {"id": i})[0]
              for i in range(40)]  # fmt: skip
    out = decode(records(*values), schema(id=LONG), "ignore")
    assert [row["id"] for row in rows(out)] == list(range(40))
    out = decode(records(*values), schema(id=LONG))
    assert [each.name for each in out.new_fields] == [f"c{i}" for i in range(40)]
