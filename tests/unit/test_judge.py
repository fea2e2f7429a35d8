"""What a rule says about changes: the order that they are in, by columns, fields and envelopes."""

import json

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType, StructType

from icestream.errors import SchemaRefused
from icestream.formats import DecodedBatch
from icestream.formats.debezium import DebeziumFormat
from icestream.formats.json import JsonFormat
from icestream.formats.sequence import encode_sequence
from icestream.records import RECORDS
from icestream.upsert.change_rules import ChangeRules, apply_change_rules, order_only_fields

ROW = (NestedField(1, "id", LongType()), NestedField(2, "v", LongType()))
META = StructType(NestedField(4, "version", LongType()), NestedField(5, "by", StringType()))


def records(*values):
    rows = [
        {"topic": "t", "partition": 0, "offset": n, "timestamp": 0, "key": None,
         "value": json.dumps(value).encode()}
        for n, value in enumerate(values)
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, schema=RECORDS)


def judge(record_format, given, schema, *sequence_by, **more) -> DecodedBatch:
    hidden = order_only_fields(sequence_by, schema, record_format)
    decoded = record_format.decode(given, Schema(*schema.fields, *hidden), "ignore")
    terms = ChangeRules(("id",), sequence_by, **more)
    return apply_change_rules(given, decoded, terms, [each.name for each in hidden])


def event(key, op="u", **source):
    after = {"id": key, "v": key}
    source = {"connector": "postgresql", **source}
    return {"op": op, "before": after, "after": None if op == "d" else after, "source": source}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("declared", [(), (NestedField(3, "__source_lsn", LongType()),)])
def test_a_field_of_the_envelope(soft, declared):
    given = records(event(1, lsn=9, ts_ms=5), event(2, lsn=10, ts_ms=4), event(3, "d", lsn=2))
    schema = Schema(*ROW, *declared)
    told = judge(DebeziumFormat(), given, schema, "source.lsn", soft=soft)
    assert told.changes.sequence == encode_sequence([pa.array([9, 10, 2])])
    names = [each.name for each in schema.fields] + ["_is_deleted"] * soft + ["_src_sequence"]
    assert told.columns.schema.names == names
    assert set(told.changes.missing) <= set(names)
    told = judge(DebeziumFormat(), given, schema, "source.ts_ms", "v", soft=soft)
    wanted = [pa.array([5, 4, None], pa.int64()), pa.array([1, 2, 3])]
    assert told.changes.sequence == encode_sequence(wanted)


def test_text_of_the_envelope_compares_as_text():
    given = records(event(1, file="b.000009", pos=70), event(2, file="b.000010", pos=8))
    told = judge(DebeziumFormat(), given, Schema(*ROW), "source.file", "source.pos")
    wanted = [pa.array(["b.000009", "b.000010"]), pa.array([70, 8])]
    assert told.changes.sequence == encode_sequence(wanted)


def test_a_flattened_row_says_it_too():
    row = {"id": 1, "v": 2, "__op": "u", "__source_lsn": 77}
    told = judge(DebeziumFormat(), records(row), Schema(*ROW), "source.lsn")
    assert told.changes.sequence == encode_sequence([pa.array([77])])


def test_a_field_within_a_column():
    schema = Schema(*ROW, NestedField(3, "meta", META))
    given = records({"id": 1, "v": 1, "meta": {"version": 7}}, {"id": 2, "v": 1, "meta": None})
    told = judge(JsonFormat(), given, schema, "meta.version")
    assert told.changes.sequence == encode_sequence([pa.array([7, None], pa.int64())])


def test_a_column_whose_name_has_a_dot():
    schema = Schema(*ROW, NestedField(3, "meta.version", LongType()))
    given = records({"id": 1, "v": 1, "meta.version": 8})
    told = judge(JsonFormat(), given, schema, "meta.version")
    assert told.changes.sequence == encode_sequence([pa.array([8])])


@pytest.mark.parametrize("path", ["at", "meta.at", "id.at", "source.lsn", "at.source"])
def test_what_no_record_has_is_refused(path):
    schema = Schema(*ROW, NestedField(3, "meta", META))
    with pytest.raises(SchemaRefused, match=f"`sequence_by` names `{path}`"):
        judge(JsonFormat(), records({"id": 1, "v": 1}), schema, path)
    if path != "source.lsn":
        with pytest.raises(SchemaRefused, match=f"`sequence_by` names `{path}`"):
            judge(DebeziumFormat(), records(event(1)), schema, path)
