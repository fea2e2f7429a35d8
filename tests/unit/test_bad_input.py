"""Whatever comes in, on the real way from bytes to files: landed or set aside, each record once."""

import json
import math
import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from icestream.batch.decode_task import StageTask
from icestream.batch.report import TaskReport, unpack_report
from icestream.batch.table_task import TableTaskInput
from icestream.formats import Format
from icestream.formats.json import JsonFormat
from icestream.formats.raw import RawFormat
from icestream.records import RECORDS
from icestream.schema import (
    METADATA_COLUMNS,
    QUARANTINE_SCHEMA,
    Rule,
    merge_new_fields,
    with_new_fields,
)
from icestream.write.stage import StagedFile, StageTarget

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TABLE = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "word", StringType()),
    NestedField(3, "f", DoubleType()),
    NestedField(4, "at", TimestamptzType()),
    *(NestedField(each.field_id + 10, each.name, each.field_type) for each in METADATA_COLUMNS),
)


class Reader:
    def read(self, batches: Any) -> Any:
        yield from batches


@dataclass(frozen=True)
class Outcome:
    """What became of the records, by their offsets."""

    landed: dict[int, dict[str, Any]]
    aside: dict[int, dict[str, Any]]


def target(place: Path, schema: Schema) -> StageTarget:
    return StageTarget(
        schema_json=schema.model_dump_json(),
        spec_json='{"spec-id": 0, "fields": []}',
        sort_order_json='{"order-id": 0, "fields": []}',
        data_location=str(place),
        file_prefix="p-00001-c",
        properties={},
    )


def rows(files: tuple[StagedFile, ...]) -> list[dict[str, Any]]:
    return [row for file in files for row in pq.read_table(file.path).to_pylist()]


def stage(
    place: Path,
    values: list[bytes | None],
    fmt: Format | None = None,
    rule: Rule = "ignore",
    schema: Schema = TABLE,
) -> Outcome:
    """Call the task as Spark does, and again while the table lacks columns, as the driver does."""
    columns: list[Any] = [["t"], [0], list(range(len(values))), [0], [None], values]
    arrays = [
        pa.array(c if len(c) == len(values) else c * len(values), f.type)
        for c, f in zip(columns, RECORDS, strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=RECORDS)
    for _ in range(4):
        table = TableTaskInput(
            target=target(place / "data", schema),
            quarantine=target(place / "aside", QUARANTINE_SCHEMA),
            floors={},
            quarantine_floors={},
            format=fmt or JsonFormat(),
            schema_evolution=rule,
            bad_records="quarantine",
            metadata_columns=True,
            dropped_columns=frozenset(),
        )
        job = pickle.loads(pickle.dumps(StageTask("p", Reader(), {"t": "t"}, {"t": table}, NOW)))
        # Two batches: what comes later must not change what came before.
        half = len(values) // 2
        (out,) = job(iter([batch.slice(0, half), batch.slice(half)]))
        told = {row["table"]: row["block"] for row in out.to_pylist()}
        assert set(told) <= {"t"}, told
        report = unpack_report("t", told["t"]) if told else TaskReport()
        new = merge_new_fields(report.requests.new_fields)
        if not new:
            break
        schema = with_new_fields(schema, new)
    assert not new, "new columns without end"
    good, bad = rows(report.staged.files), rows(report.staged.quarantine_files)
    assert (report.stats.records, report.counts.landed, report.counts.quarantined) == (
        len(values),
        len(good),
        len(bad),
    )
    landed = {row["_src_offset"]: row for row in good}
    aside = {row["offset"]: row for row in bad}
    assert len(landed) + len(aside) == len(values)
    assert landed.keys() | aside.keys() == set(range(len(values)))
    for offset, row in aside.items():
        assert row["value"] == values[offset]
        assert row["error"]
    return Outcome(landed, aside)


# ── records ─────────────────────────────────────────────────────────────────────────────────────

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
longs = st.integers(-(2**63), 2**63 - 1)
moments = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
goods = st.fixed_dictionaries(
    {"id": longs, "word": texts, "f": st.floats(allow_nan=False, allow_infinity=False)},
    optional={"at": moments},
)

NUMBERS = [
    "1e400", "-1e400", "1e-400", "NaN", "Infinity", "-Infinity", "-0", "-0.0", "01", "+1", ".5",
    "1.", "1e", "0x10", "1_000", "1e18", "1e19", "9223372036854775807", "9223372036854775808",
    "-9223372036854775809", "1.5", "5.0", "1e999999999", "0e0",
]  # fmt: skip
odd_numbers = st.sampled_from([*NUMBERS, "9" * 5000, "0." + "1" * 5000, "1" + "0" * 400])
TIMES = [
    "0001-01-01", "9999-12-31T23:59:59.999999Z", "10000-01-01", "0000-01-01",
    "292278994-08-17T07:12:55Z", "-0001-01-01", "1969-12-31T23:59:59Z", "2026-02-30",
    "2026-03-29T02:30:00", "2026-01-01T24:00:00Z", "2026-06-30T23:59:60Z",
    "2026-01-01T00:00:00+14:00", "2026-01-01T00:00:00-99:99", "1700000000", "now",
]  # fmt: skip
nested = st.integers(1, 3000).flatmap(
    lambda deep: st.sampled_from(
        ["[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep, "[" * deep]
    )
)


def member(key: str, value: str) -> bytes:
    return f'{{"id": 7, "{key}": {value}}}'.encode()


junk = st.one_of(
    st.none(),
    st.binary(max_size=80),
    odd_numbers.map(lambda text: member("f", text)),
    odd_numbers.map(lambda text: b'{"id": %s}' % text.encode()),
    st.sampled_from(TIMES).map(lambda text: member("at", json.dumps(text))),
    nested.map(lambda text: member("deep", text)),
    nested.map(str.encode),
    goods.map(lambda row: encoded(row)[:-3]),
    goods.map(lambda row: encoded(row) + b"}"),
    goods.map(lambda row: b"\xef\xbb\xbf" + encoded(row)),
    st.sampled_from(
        [
            b'{"id": 1, "word": "\\ud800"}',
            b'{"id": 1, "word": "\xff\xfe"}',
            b'{"id": 1, "word": "\\u0000"}',
            b'{"id": 1, "id": 2}',
            b'{"ID": 1, "id": 2}',
            b'{"": 1}',
            b'{"_file": 1, "_src_offset": 2}',
            b'{"a.b": 1, "`": 2, "a b": {"c.d": 3}}',
            b"null",
            b"[]",
            b'"text"',
            b"",
            b" ",
        ]
    ),
)


def encoded(row: dict[str, Any]) -> bytes:
    plain = {key: v.isoformat() if isinstance(v, datetime) else v for key, v in row.items()}
    return json.dumps(plain).encode()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["evolve", "freeze", "ignore"])
@settings(max_examples=60)
@given(st.lists(goods | junk, min_size=1, max_size=12))
@example([{"id": 1, "word": "w", "f": 1.5}, *(member("f", text) for text in NUMBERS)])
@example([{"id": 1, "word": "w", "f": 1.5}, *(member("at", f'"{text}"') for text in TIMES)])
def test_every_record_is_in_one_place_and_good_ones_are_whole(
    tmp_path_factory: pytest.TempPathFactory, rule: Rule, made: list[Any]
) -> None:
    """`made` holds rows, which must land as they are, and bytes, which may go either way."""
    values = [encoded(each) if isinstance(each, dict) else each for each in made]
    found = stage(tmp_path_factory.mktemp("any"), values, rule=rule)
    for offset, each in enumerate(made):
        if isinstance(each, dict):
            row = found.landed[offset]
            assert {name: row[name] for name in each} == each
        elif offset in found.landed:
            no_silent_null(each, found.landed[offset])


def no_silent_null(value: bytes | None, row: dict[str, Any]) -> None:
    """What landed says all that the record said of the table's columns."""
    assert value is not None
    said = json.loads(value.decode().rstrip().removesuffix(",}") or "null")
    for name in ("id", "word", "f", "at"):
        if said.get(name) is not None:
            assert row[name] is not None
    if isinstance(said.get("f"), float) and row["f"] is not None:
        assert row["f"] == said["f"] or math.isnan(said["f"])


@settings(max_examples=60)
@given(st.lists(st.none() | st.binary(max_size=60), min_size=1, max_size=8))
def test_raw_takes_all_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, values: list[bytes | None]
) -> None:
    schema = RawFormat().default_schema()
    assert schema
    whole = Schema(
        *schema.fields,
        *(NestedField(each.field_id + 10, each.name, each.field_type) for each in METADATA_COLUMNS),
    )
    found = stage(tmp_path_factory.mktemp("raw"), values, RawFormat(), schema=whole)
    assert not found.aside
    assert [found.landed[n]["value"] for n in range(len(values))] == values


@pytest.mark.slow
def test_large_records_beside_small_ones(tmp_path: Path) -> None:
    large = "x" * 20_000_000
    values = [
        b'{"id": 1}',
        json.dumps({"id": 2, "word": large}).encode(),
        b'{"id": 3, "word": "' + large.encode(),  # cut off
        json.dumps({"id": 4, large[:1_000_000]: 1}).encode(),  # a name without end
        b'{"id": 5, "f": ' + b"1" * 1_000_000 + b"}",
        b'{"id": 6}',
    ]
    found = stage(tmp_path, values)
    assert {row["id"] for row in found.landed.values()} >= {1, 2, 6}
    assert found.landed[1]["word"] == large
    assert 2 in found.aside
    assert 4 in found.aside
    assert all(len(row["error"]) < 500 for row in found.aside.values())
