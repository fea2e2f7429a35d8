"""Real captures of Debezium, decoded and folded, give what the tables held at the end."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from icestream.formats import DELETE, IGNORE, TRUNCATE, UPSERT, DecodedBatch
from icestream.formats.debezium import DebeziumFormat
from icestream.records import RECORDS
from icestream.schema import with_new_fields

pytestmark = pytest.mark.slow

FIXTURES = Path(__file__).parents[1] / "fixtures" / "debezium"
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KEYS = {"pk_change": ("region", "id"), "nopk": ()}
DECLARED: dict[tuple[str, ...], dict[str, IcebergType]] = {
    ("postgres", "types", "decstring"): {"c_interval": StringType()},
    ("mysql8", "types"): {"c_time": LongType(), "c_bigu": DecimalType(20, 0)},
    ("postgres", "types"): {"c_numfree": DecimalType(38, 35), "c_time": TimeType()},
    ("postgres", "types_edge"): {
        "id": IntegerType(),
        "n": DecimalType(38, 6),
        "n2": DecimalType(10, 2),
        "d": DateType(),
        "ts": TimestampType(),
        "tstz": TimestamptzType(),
        "f": DoubleType(),
    },
}
UNITS = {
    "postgres": {"c_time": "us", "c_ts": "us", "c_ts3": "ms", "ts": "us"},
    "mysql8": {"c_time": "us", "c_dt": "ms", "c_dt3": "ms", "c_dt6": "us"},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "decstring": {"decimal_handling_mode": "string"},
    "decdouble": {"decimal_handling_mode": "double", "time_units": {"*": "ms"}},
    "edgestr": {"decimal_handling_mode": "string"},
}
CAPTURED = sorted(
    (path.parent.name, *path.name.split(".")[:2])
    for path in FIXTURES.glob("*/*.jsonl")
    if ".truth." not in path.name
)
DATA = [each for each in CAPTURED if each[1] not in ("transaction", "ddl")]
NO_DATA = [each for each in CAPTURED if each not in DATA]
captures = pytest.mark.parametrize("db, case, variant", DATA)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Key = tuple[Any, ...]

# What a stream says otherwise than its table: (database, case, variant, column) → key → value.
INTERVAL = 37_091_106_789_000  # Debezium takes a year for 365.25 days, and a twelfth for a month
ROUNDED = Decimal("1234567890123456900000000000")
SAID: dict[tuple[str, str, str, str], dict[Key, Any]] = {
    **{
        ("postgres", "types", variant, "c_interval"): {(1,): INTERVAL, (3,): INTERVAL}
        for variant in ("plain", "schemas", "unwrap", "decdouble")
    },
    # a converter, or the SMT, that puts the column's default for NULL
    ("postgres", "lifecycle", "nulldefault", "updated_at"): {(2,): EPOCH},
    ("postgres", "lifecycle", "unwrap", "updated_at"): {(2,): EPOCH},
    # ADD COLUMN … DEFAULT sends no events for the rows that are there
    **{
        (db, "schema_change", variant, "b"): {(9,): None}
        for db in ("postgres", "mysql8")
        for variant in ("plain", "schemas", "unwrap", "nulldefault")
    },
    # a column that is renamed is another one
    **{
        (db, "schema_change", variant, "c2"): {(4,): None}
        for db in ("postgres", "mysql8")
        for variant in ("plain", "schemas", "unwrap", "nulldefault")
    },
    # more digits than a decimal has: text with a schema; without one nobody knows the scale
    **{
        ("mysql8", "types", variant, "c_dec65"): {
            (1,): "HgK8HpeFi9xsuVBY80JNfTp/7HsD4maOPwrS",
            (3,): "4f1D4Wh6dCOTRq+nDL2ygsWAE4T8HZlxwPUu",
        }
        for variant in ("plain", "unwrap")
    },
    # unsigned numbers as signed ones, unless told otherwise
    **{
        ("mysql8", "types", variant, "c_bigu"): {(1,): Decimal(-1), (3,): Decimal(-1)}
        for variant in ("plain", "schemas", "unwrap", "decdouble")
    },
    # TIME beyond a day does not exist in these modes
    **{
        ("mysql8", "types", variant, "c_time"): {(1,): None, (3,): None}
        for variant in ("decstring", "decdouble")
    },
    # doubles
    ("postgres", "types", "decdouble", "c_num38"): {(1,): ROUNDED, (3,): -ROUNDED},
    ("postgres", "types", "decdouble", "c_numfree"): {(3,): Decimal("-3.141592653589793")},
    ("mysql8", "types", "decdouble", "c_dec38"): {(1,): ROUNDED, (3,): -ROUNDED},
    ("mysql8", "types", "decdouble", "c_dec65"): {
        (1,): "1.234567890123457E34", (3,): "-1.234567890123457E34"
    },
    # milliseconds
    ("postgres", "types", "decdouble", "c_time"): dict.fromkeys(
        [(1,), (3,)], time(23, 59, 59, 123000)
    ),
    ("postgres", "types", "decdouble", "c_ts"): dict.fromkeys(
        [(1,), (3,)], datetime(2024, 2, 29, 12, 34, 56, 123000)  # noqa: DTZ001
    ),
    ("mysql8", "types", "decdouble", "c_dt6"): dict.fromkeys(
        [(1,), (3,)], datetime(2024, 2, 29, 12, 34, 56, 123000)  # noqa: DTZ001
    ),
}  # fmt: skip
SAID[("postgres", "types", "decstring", "c_interval")] = dict.fromkeys(
    [(1,), (3,)], "P1Y2M3DT4H5M6.789S"
)
# Rows that a stream cannot give: infinite and ancient times, NaN that was written as text.
BAD_ROWS = {"edge": {2, 3}, "edgestr": {2, 3, 4}}


def load(db: str, case: str, variant: str) -> pa.RecordBatch:
    """A capture as the records that a source would deliver, headers included."""
    lines = (FIXTURES / db / f"{case}.{variant}.jsonl").read_text().splitlines()
    rows = []
    for line in map(json.loads, lines):
        row = {name: line[name] for name in ("topic", "partition", "offset")}
        row["timestamp"] = line["timestamp_ms"] * 1000
        for name in ("key", "value"):
            row[name] = None if line[name] is None else line[name].encode()
        row["headers"] = [{"key": k, "value": v.encode()} for k, v in line["headers"]]
        rows.append(row)
    return pa.RecordBatch.from_pylist(rows, schema=RECORDS.append(pa.field("headers", HEADERS)))


def made(db: str, variant: str) -> DebeziumFormat:
    mode = "hex" if (db, variant) == ("mysql8", "decdouble") else "base64"
    options = {"time_units": UNITS[db], "binary_handling_mode": mode, **OPTIONS.get(variant, {})}
    return DebeziumFormat(**options)


def decode(
    fmt: DebeziumFormat, records: pa.RecordBatch, target: Schema
) -> tuple[DecodedBatch, Schema]:
    """Decode as a pipeline does: the table follows until it has all that the events have."""
    for _ in range(4):
        out = fmt.decode(records, target)
        if not out.new_fields:
            return out, target
        target = with_new_fields(target, out.new_fields)
    raise AssertionError("still new fields")


@cache
def table(db: str, case: str, variant: str = "schemas") -> Schema:
    """The columns of a case: what is declared, and what embedded schemas make of the rest."""
    declared = DECLARED.get((db, case), {}) | DECLARED.get((db, case, variant), {})
    schema = Schema(*(NestedField(i, *each) for i, each in enumerate(declared.items(), 1)))
    if case == "types_edge":
        return schema
    return decode(made(db, "schemas"), load(db, case, "schemas"), schema)[1]


def fold(out: DecodedBatch, keys: tuple[str, ...]) -> dict[Key, dict[str, Any]]:
    """The reference model of a mirror: a dict, and an older position never wins."""
    changes = out.changes
    assert changes is not None
    rows: dict[Key, dict[str, Any]] = {}
    seen: dict[Key, bytes] = {}
    old_keys: list[Any] = [None] * len(out.errors)
    if changes.old_key:
        old_keys = changes.old_key.to_pylist()
    missing = {name: flags.to_pylist() for name, flags in changes.missing.items()}
    gone: dict[Key, dict[str, Any]] = {}
    for at, (op, row, place, bad) in enumerate(zip(
        changes.op.to_pylist(), out.columns.to_pylist(), changes.sequence.to_pylist(),
        out.errors.to_pylist(), strict=True,
    )):  # fmt: skip
        if op == IGNORE or bad:
            continue
        if op == TRUNCATE:
            rows.clear()
            continue
        key = tuple(row[name] for name in keys) if keys else (at,)
        assert None not in key
        assert place is not None
        if place < seen.get(key, b""):
            continue
        seen[key] = place
        if op == DELETE:
            gone[key] = rows.pop(key, {})
            continue
        assert op == UPSERT
        before = tuple(old_keys[at].values()) if old_keys[at] else key
        old = rows.get(key) or (
            gone.get(before, {}) if before != key and None not in before else {}
        )
        rows[key] = row | {name: old[name] for name, flags in missing.items() if flags[at]}
    return rows


def truth(db: str, case: str, keys: tuple[str, ...]) -> dict[Key, dict[str, Any]]:
    lines = (FIXTURES / db / f"{case}.truth.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_float=Decimal) for line in lines]
    return {tuple(row[name] for name in keys) if keys else (i,): row for i, row in enumerate(rows)}


def typed(db: str, name: str, value: Any, kind: IcebergType) -> Any:
    """A value of the truth, as a column of this type has it."""
    if value is None:
        return None
    match kind:
        case ListType():
            return [typed(db, name, each, kind.element_type) for each in value]
        case DecimalType():
            return Decimal(str(value).replace("$", ""))
        case BinaryType() if name == "c_bit":
            return int(value, 2).to_bytes(1, "big")
        case BinaryType():
            return bytes.fromhex(value.removeprefix("\\x").removeprefix("hex:"))
        case DateType():
            return date.fromisoformat(value)
        case TimeType():
            return time.fromisoformat(value)
        case TimestampType():
            return datetime.fromisoformat(value)
        case TimestamptzType():
            return datetime.fromisoformat(value).replace(tzinfo=UTC)
        case LongType() if name == "c_time":  # MySQL's: -838:59:58.000001
            days, _, clock = value.partition(" days, ")
            of_day = datetime.strptime(clock, "%H:%M:%S.%f") - datetime(1900, 1, 1)  # noqa: DTZ001, DTZ007
            return (timedelta(int(days)) + of_day) // timedelta(microseconds=1)
    return value


def same(name: str, found: Any, wanted: Any, kind: IcebergType) -> bool:
    """Whether a column shows the truth, where that has another form as well."""
    if found is None or wanted is None:
        return bool(found is wanted)
    if "json" in name:
        parsed = wanted if not isinstance(wanted, str) else json.loads(wanted, parse_float=Decimal)
        return bool(json.loads(found, parse_float=Decimal) == parsed)
    if name == "c_point":  # PostgreSQL: (x,y); MySQL: an id and the bytes
        if wanted.startswith("("):
            return bool(wanted == f"({found['x']},{found['y']})")
        return bool(found["wkb"] == bytes.fromhex(wanted.removeprefix("hex:"))[4:])
    if name == "c_timetz":  # Debezium moves it to UTC
        moved = datetime.fromisoformat(f"2000-01-01T{wanted}").astimezone(UTC)
        return bool(found == moved.strftime("%H:%M:%S.%fZ"))
    if name == "c_bit1":
        return bool(found) is (wanted == "hex:01")
    if isinstance(found, float) and isinstance(wanted, Decimal):
        return bool(found == float(wanted))
    return bool(found == wanted)


@captures
def test_a_capture_gives_the_truth(db: str, case: str, variant: str) -> None:
    target = table(db, case, variant)
    keys = KEYS.get(case, ("id",))
    out, after = decode(made(db, variant), load(db, case, variant), target)
    assert after == target, "no stream may bring columns that its schemas do not know"
    assert out.widened == ()
    bad = [i for i, why in enumerate(out.errors.to_pylist(), 1) if why]
    assert set(bad) == BAD_ROWS.get(variant, set())
    rows = fold(out, keys)
    wanted = truth(db, case, keys)
    if case == "nopk":  # no key tells which row an update means; nothing but the log is there
        assert len(rows) == out.changes.op.to_pylist().count(UPSERT)
        return
    if (case, variant) == ("truncated", "unwrap"):  # the SMT drops truncates
        assert rows.keys() == wanted.keys() | {(2,), (3,), (4,)}
    else:
        assert rows.keys() == {key for key in wanted if key[0] not in BAD_ROWS.get(variant, ())}
    kinds = {column.name: column.field_type for column in target.fields}
    for key in rows.keys() & wanted.keys():
        for name, value in wanted[key].items():
            said = SAID.get((db, case, variant, name), {})
            expected = said[key] if key in said else typed(db, name, value, kinds[name])
            if (case, variant, name, key) == ("types_edge", "edge", "n", (4,)):
                expected = None  # NaN has no digits
            assert same(name, rows[key][name], expected, kinds[name]), (key, name)


@captures
def test_a_record_is_decoded_alike_alone(db: str, case: str, variant: str) -> None:
    """No record may be read otherwise because of its neighbours."""
    fmt, records, target = made(db, variant), load(db, case, variant), table(db, case, variant)
    whole = fmt.decode(records, target)
    alone = [fmt.decode(records.slice(at, 1), target) for at in range(len(records))]
    assert whole.errors.to_pylist() == [each.errors[0].as_py() for each in alone]
    rows = [each.columns.to_pylist()[0] for each in alone]
    assert str(whole.columns.to_pylist()) == str(rows)  # NaN is not itself
    assert whole.changes is not None
    changes = [each.changes for each in alone]
    assert whole.changes.op.to_pylist() == [each.op[0].as_py() for each in changes if each]
    assert whole.changes.sequence.to_pylist() == [e.sequence[0].as_py() for e in changes if e]
    for name, flags in whole.changes.missing.items():
        assert flags.to_pylist() == [
            name in each.missing and each.missing[name][0].as_py() for each in changes if each
        ]


@pytest.mark.parametrize("db, case, variant", NO_DATA)
@pytest.mark.parametrize("flattened", [None, True, False])
def test_what_is_no_row_is_ignored(
    db: str, case: str, variant: str, flattened: bool | None
) -> None:
    records = load(db, case, variant)
    out = DebeziumFormat(flattened=flattened).decode(records, Schema())
    assert out.changes is not None
    assert set(out.changes.op.to_pylist()) == {IGNORE}
    assert out.errors.null_count == len(records)
    assert out.new_fields == ()
    assert DebeziumFormat(flattened=flattened).key_columns(records) is None


def every_other(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    half = len(records) // 2
    yield records.slice(0, half)
    yield records.slice(half)


def test_a_column_that_grows_wider_is_told() -> None:
    for db in ("postgres", "mysql8"):
        first, second = every_other(load(db, "schema_change", "schemas"))
        _, target = decode(DebeziumFormat(), first, Schema())
        assert target.find_field("b").field_type == IntegerType()
        out, _ = decode(DebeziumFormat(), second, target)
        assert [(each.name, each.type) for each in out.widened] == [("b", LongType())]
        assert [why for why in out.errors.to_pylist() if why] == ["`b`: '5000000000' is not a int"]


@captures
def test_the_names_of_the_keys(db: str, case: str, variant: str) -> None:
    wanted = KEYS.get(case, ("id",)) or None
    assert made(db, variant).key_columns(load(db, case, variant)) == wanted


def test_types_of_new_columns() -> None:
    kinds = {c.name: str(c.field_type) for c in table("postgres", "types").fields}
    wanted = {
        "id": "int", "c_small": "int", "c_big": "long", "c_num": "decimal(12, 2)",
        "c_money": "decimal(38, 2)", "c_real": "float", "c_dbl": "double", "c_bool": "boolean",
        "c_text": "string", "c_bytea": "binary", "c_date": "date", "c_time": "time",
        "c_timetz": "string", "c_ts": "timestamp", "c_tstz": "timestamptz", "c_interval": "long",
        "c_uuid": "string", "c_json": "string", "c_ints": "list<int>", "c_texts": "list<string>",
        "c_nums": "list<decimal(8, 3)>", "c_tss": "list<timestamptz>", "c_enum": "string",
        "c_bit": "binary",
    }  # fmt: skip
    assert {name: kinds[name] for name in wanted} == wanted
    mysql = {c.name: c.field_type for c in table("mysql8", "types").fields}
    assert mysql["c_dec65"] == StringType()
    assert str(mysql["c_intu"]) == "long"
