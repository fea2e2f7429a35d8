"""Taking objects apart by position gives what parsing them gives, or leaves them alone."""

import json
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icestream.formats import template
from icestream.formats.casts import utf8
from icestream.formats.json import JsonFormat
from icestream.formats.template import Slot, Template, match_templates, template_of

KINDS = {
    "id": LongType(),
    "n": IntegerType(),
    "x": DoubleType(),
    "price": DecimalType(9, 2),
    "ok": BooleanType(),
    "name": StringType(),
    "at": TimestamptzType(),
}
TARGET = Schema(*(NestedField(i, name, kind) for i, (name, kind) in enumerate(KINDS.items(), 1)))


def batch(values: list[bytes | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})


def both_ways(
    values: list[bytes | None], rule: str = "evolve", dropped: frozenset[str] = frozenset()
):
    """Decode by templates where they fit, and by parsing alone."""
    records = batch(values)
    quick = JsonFormat().decode(records, TARGET, rule, dropped)
    with patch.object(template, "match_templates", lambda texts, *_: ([], np.arange(len(texts)))):
        slow = JsonFormat().decode(records, TARGET, rule, dropped)
    return quick, slow


def same(
    values: list[bytes | None], rule: str = "evolve", dropped: frozenset[str] = frozenset()
) -> None:
    quick, slow = both_ways(values, rule, dropped)
    assert quick.new_fields == slow.new_fields
    if slow.new_fields:
        return
    assert quick.errors.to_pylist() == slow.errors.to_pylist()
    fine = slow.errors.is_null()
    assert quick.columns.filter(fine).equals(slow.columns.filter(fine))


def taken(values: list[bytes | None], unwanted=lambda name: False) -> list[int]:
    texts, _ = utf8(pa.array(values, pa.binary()))
    parts, rest = match_templates(texts, KINDS, unwanted)
    rows = sorted(row for part in parts for row in part.rows.tolist())
    assert sorted([*rows, *rest.tolist()]) == list(range(len(values)))
    return rows


def test_a_template_is_the_object_without_its_values():
    assert template_of(b'{"id":1,"name": "Zo\xc3\xab" , "ok" :true}') == Template(
        (b'{"id":', b',"name": "', b'" , "ok" :', b"}"),
        (Slot("id", False), Slot("name", True), Slot("ok", False)),
    )


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{}", b"[1]", b'{"a":1', b'{"a":}', b'{"a":1}x', b'{"a":{"b":1}}', b'{"a":[1]}',
        b'{"a":1,"a":2}', b'{"a":1,}', b'{"a" 1}', b'{a:1}', b'{"a":"b}', b"null", b'{"":1}',
    ],
)  # fmt: skip
def test_anything_else_has_no_template(text):
    assert template_of(text) is None


def test_rows_of_one_shape_are_taken_whatever_their_values():
    rows = [b'{"id":%d,"name":"%s"}' % (n * 7919, b"x" * (n % 30)) for n in range(20_000)]
    assert len(taken(rows)) == 20_000
    same(rows)


def test_several_shapes_in_one_batch_keep_their_order():
    rows = []
    for n in range(9_000):
        rows += [b'{"id":%d}' % n, b'{"id":%d,"name":"a%d"}' % (n, n), b'{"ok":true}']
    assert len(taken(rows)) == len(rows)
    quick, _ = both_ways(rows)
    assert quick.columns.column("id").to_pylist()[:6] == [0, 0, None, 1, 1, None]
    same(rows)


@pytest.mark.parametrize(
    "odd",
    [
        b'{"id":01,"name":"a"}', b'{"id":-0,"name":"a"}', b'{"id":+1,"name":"a"}',
        b'{"id":1e3,"name":"a"}', b'{"id":1.5,"name":"a"}', b'{"id":.5,"name":"a"}',
        b'{"id":-,"name":"a"}', b'{"id":1.,"name":"a"}', b'{"id":-.5,"name":"a"}',
        b'{"id":0x1F,"name":"a"}', b'{"id":NaN,"name":"a"}', b'{"id":nul,"name":"a"}',
        b'{"id":1234567890123456789,"name":"a"}', b'{"id":1..2,"name":"a"}',
        b'{"id":1,"name":"a\\n"}', b'{"id":1,"name":"a\\""}', b'{"id":1,"name":"a\tb"}',

        b'{"id":1,"name":"a"}}', b'{"id":[1],"name":"a"}',
        b'{"id":{},"name":"a"}', b'{"id":1 2,"name":"a"}', b'{"ID":1,"name":"a"}',
        b'{"id":1,"name":"a","name":"b"}', b'{"id":1,"name":"', b"", b"\xff\xfe", None, b"null",
        b'{"id":1,"name":"a","new":1}', b'\xef\xbb\xbf{"id":1,"name":"a"}',
        b'{"id":tru,"name":"a"}',
        b'{"id":,"name":"a"}', b'{"id":1,"name":"a":"b"}', b'{"id":1,"name":"a"b"c"}',
    ],
)  # fmt: skip
def test_an_odd_row_among_plain_ones_is_left_to_the_parser(odd):
    plain = [b'{"id":%d,"name":"n%d"}' % (n, n) for n in range(6)]
    rows = [*plain[:3], odd, *plain[3:]]
    assert 3 not in taken(rows)
    same(rows)


@pytest.mark.parametrize(
    "other",
    [
        b'{"id":1,"name":"a"} ', b'{"id":1, "name":"a"}', b'{"id":1,"name":"a","ok":true}',
        b'{"id":"1","name":"a"}', b'{"id":1,"name":5}', b'{"id": 1,"name":"a"}',
    ],
)  # fmt: skip
def test_another_shape_makes_a_template_of_its_own(other):
    rows = [*(b'{"id":%d,"name":"n%d"}' % (n, n) for n in range(6)), other]
    assert 6 in taken(rows)
    same(rows)


def test_null_true_and_false():
    rows = [b'{"id":1,"ok":true}', b'{"id":null,"ok":null}', b'{"id":3,"ok":false}']
    assert taken(rows) == [0, 1, 2]
    same(rows)


def test_reals_are_taken_where_their_text_does_not_matter():
    rows = [b'{"x":%d.50,"price":1.25}' % n for n in range(4)]
    assert taken(rows) == [0, 1, 2, 3]
    assert taken([b'{"price":1.50}']) == []  # a decimal would count the needless digit
    assert taken([b'{"name":1.5}']) == []  # a string would show it
    same([*rows, b'{"x":2.50,"price":1.20}'])


def test_unwanted_keys_are_passed_over_but_checked():
    rows = [b'{"id":%d,"secret":"s","more":1}' % n for n in range(4)]
    assert taken(rows) == []
    assert taken(rows, lambda name: name in ("secret", "more")) == [0, 1, 2, 3]
    broken = [*rows, b'{"id":9,"secret":"s","more":0x}']
    assert taken(broken, lambda name: True) == [0, 1, 2, 3]
    same(broken, dropped=frozenset({"secret", "more"}))
    same(broken, rule="ignore")


def test_a_slice_of_a_batch_is_read_at_its_own_place():
    whole = batch([b'{"id":%d,"name":"n%d"}' % (n, n) for n in range(50)])
    part = JsonFormat().decode(whole.slice(17, 20), TARGET)
    assert part.columns.column("id").to_pylist() == list(range(17, 37))


def test_nested_columns_are_the_parsers():
    target = Schema(NestedField(1, "id", ListType(2, LongType())))
    decoded = JsonFormat().decode(batch([b'{"id":5}', b'{"id":[5]}']), target)
    assert decoded.errors[0].is_valid
    assert decoded.columns.column("id")[1].as_py() == [5]


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-50, 50),
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.0, -0.0, 1.5, 1e20]),
    st.text(max_size=16), st.sampled_from(["2026-11-14T10:00:00Z", "12", "1.50", "true", ""]),
)  # fmt: skip
ROWS = st.dictionaries(st.sampled_from([*KINDS, "extra"]), SCALARS, max_size=5)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.lists(st.tuples(ROWS, st.booleans(), st.booleans()), min_size=1, max_size=12))
def test_any_objects_are_read_as_the_parser_reads_them(made):
    rows = [
        json.dumps(row, ensure_ascii=plain, separators=(",", ":") if tight else None).encode(
            "utf-8", "replace"
        )
        for row, tight, plain in made
    ]
    same(rows, dropped=frozenset({"extra"}))
    same(rows, rule="ignore")


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(st.integers(0, 10**6), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 60), st.binary(min_size=1, max_size=2)), max_size=4),
)
def test_damaged_objects_are_read_as_the_parser_reads_them(numbers, damage):
    rows = [b'{"id":%d,"name":"n%d","x":%d.5,"ok":true}' % (n, n, n) for n in numbers]
    spoilt = bytearray(rows[-1])
    for at, what in damage:
        at %= len(spoilt)
        spoilt[at : at + 1] = what
    same([*rows, bytes(spoilt), *rows])
