"""Envelopes that are taken apart by position say what the parser reads in them."""

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

from icestream.formats.debezium import DebeziumFormat, tails
from icestream.formats.debezium.tails import SplitEnvelopes, tail_of, take_apart
from icestream.records import RECORDS

CAPTURES = sorted((Path(__file__).parents[1] / "fixtures" / "debezium").glob("*/*.jsonl"))
STRUCTURE = {"op": "VARCHAR", "source": {"connector": "VARCHAR", "lsn": "VARCHAR"}}
TABLE = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "text", StringType()),
    NestedField(3, "real", DoubleType()),
    NestedField(4, "__op", StringType()),
    NestedField(5, "__source_ts_ms", LongType()),
)
SOURCE = (
    ',"source":{"version":"3.6.1.Final","connector":"%s","name":"shop","ts_ms":%s,"snapshot":'
    '"false","sequence":"[\\"%s\\",\\"9\\"]","table":"orders1","lsn":%s,"xmin":null}'
)


def envelope(op, before, after, lsn="1234", connector="postgresql", ts="1767225602500", end=""):
    source = SOURCE % (connector, ts, lsn, lsn)
    return f'{{"before":{before},"after":{after}{source},"op":"{op}","ts_ms":{ts}{end}}}'


def row(number, text="a"):
    return f'{{"id":{number},"text":"{text}","real":0.5}}'


def update(number, **more):
    return envelope("u", row(number, "old"), row(number), **more)


def insert(number, **more):
    return envelope("c", "null", row(number), **more)


def delete(number, **more):
    return envelope("d", row(number), "null", **more)


def apart(*values):
    return take_apart(pa.array(values, pa.string()), STRUCTURE)


def decoded(values, target=TABLE):
    size = len(values)
    raw = [each.encode() if isinstance(each, str) else each for each in values]
    columns = [["t"] * size, [0] * size, range(size), [0] * size, [None] * size, raw]
    arrays = [pa.array(each, f.type) for each, f in zip(columns, RECORDS, strict=True)]
    records = pa.RecordBatch.from_arrays(arrays, schema=RECORDS)
    return DebeziumFormat().decode(records, target, "ignore")


def nothing(texts, _):
    return SplitEnvelopes(np.zeros(len(texts), bool), None, {}, {})


def both_ways(values, target=TABLE):
    quick = decoded(values, target)
    none = patch.object(
        tails, "take_apart", lambda t, _: SplitEnvelopes(np.zeros(len(t), bool), None, {}, {})
    )
    with none:
        slow = decoded(values, target)
    return quick, slow


def same(values, target=TABLE):
    """Both ways find the same rows bad, and read the same from all others."""
    quick, slow = both_ways(values, target)
    fine = slow.errors.is_null()
    assert quick.errors.is_null().equals(fine), (quick.errors, slow.errors)
    assert quick.columns.filter(fine).equals(slow.columns.filter(fine))
    for name in ("op", "sequence"):
        one, other = (getattr(each.changes, name).filter(fine) for each in (quick, slow))
        assert one.equals(other)


def test_envelopes_that_differ_in_rows_and_digits_are_taken_apart():
    found = apart(insert(1, lsn="1234"), update(22, lsn="5678"), delete(333), update(4, lsn="9999"))
    assert found.fits.all()
    assert found.outer["op"].to_pylist() == ["c", "u", "d", "u"]
    assert found.rows.to_pylist() == [row(1), row(22), row(333), row(4)]
    assert found.source["lsn"].to_pylist() == ["1234", "5678", "1234", "9999"]
    assert set(found.source["connector"].to_pylist()) == {"postgresql"}


def test_longer_numbers_are_another_kind():
    found = apart(*(insert(1, lsn="1" * size) for size in range(1, 12)))
    assert found.fits.tolist() == [True] * tails.MAX_KINDS + [False] * (11 - tails.MAX_KINDS)
    assert found.source["lsn"].to_pylist()[:8] == ["1" * size for size in range(1, 9)]


def test_a_row_that_does_not_count_is_none():
    values = [envelope("u", row(1), "null"), envelope("c", "null", "null"), insert(3)]
    found = apart(*values)
    assert found.fits.all()
    assert found.rows.to_pylist() == [None, None, row(3)]
    same(values)


def test_a_truncate_has_no_rows():
    found = apart(envelope("t", "null", "null"), envelope("t", "null", "null"))
    assert found.fits.all()
    assert found.rows.null_count == 2


@pytest.mark.parametrize(
    "odd",
    [
        None,
        "",
        "null",
        '{"id":1}',
        insert(2, connector="postgresqk"),  # a letter is not a digit
        insert(2, lsn="12a4"),
        insert(2, lsn="0234"),  # no number
        insert(2, lsn="-234"),
        insert(2).replace('"op":"c"', '"op":"c" '),
        insert(2).replace("orders1", "orders\u00e9"),
        insert(2).replace('"before":null', '"before": null'),
        insert(2).replace('"after":{', '"after":['),
        insert(2) + " ",
        insert(2)[:-1],
        insert(2)[1:],
        update(2).replace('"after":{', '"aftes":{'),
        update(2).replace('"id":2,', '"after":{},', 1),  # a column of that name
        update(2).replace('},"after"', ',"after"'),
        update(2).replace('{"before":{', '{"before":['),
        delete(2).replace("null,", "nul1,", 1),
        insert(2).replace('"table"', '"tables"'),
        insert(2).replace("xmin", "xmi9"),
    ],
)
def test_an_odd_record_among_the_others_is_left_to_the_parser(odd, monkeypatch):
    values = [insert(1), update(1), delete(1), odd, insert(3), update(3), delete(3)]
    same(values)  # also as a kind of its own
    monkeypatch.setattr(tails, "MAX_KINDS", 3)
    assert apart(*values).fits.tolist() == [True, True, True, False, True, True, True]
    same(values)


@pytest.mark.parametrize(
    "text",
    [
        insert(1).replace('"op":"c"', '"op":"c","after":null'),  # said twice
        insert(1).replace('"op":"c"', '"op":"c","op":"d"'),
        insert(1).replace('"lsn"', '"lsn":7,"lsn"'),
        insert(1).replace('"lsn":1234', '"lsn":12.5'),  # the parser writes it in its own way
        insert(1).replace('"lsn":1234', '"lsn":1e3'),
        insert(1).replace('"lsn":1234', '"lsn":[1234]'),
        insert(1).replace("postgresql", "postgre\\u0073ql"),
        insert(1).replace('"source":{', '"source": {'),
        insert(1).replace('"source"', '"sources"'),
        envelope("c", '"text"', row(1)),
        envelope("c", "null", "[1]"),
        envelope("d", row(1), row(2)),
        "{" + "[" * 100_000,
        '{"before":' + "[" * 100_000,
    ],
)
def test_a_kind_that_has_more_to_it_is_the_parsers(text):
    assert tail_of(text.encode(), STRUCTURE) is None
    same([text, text, insert(7)])


def test_an_odd_record_at_the_beginning_spoils_nothing():
    odd = update(2).replace('"id":2,', '"after":{},', 1)
    assert apart(odd, odd, update(3), insert(4)).fits.tolist() == [False, False, True, True]
    same([odd, odd, update(3), insert(4)])


def test_records_that_are_no_envelopes_are_given_up_soon():
    found = apart(*(row(at) for at in range(5000)))
    assert len(found.fits) == 5000
    assert not found.fits.any()


def test_digits_of_a_key_are_part_of_its_name():
    text = insert(1).replace('"xmin":null', '"xmin":null,"f1":1')
    assert apart(text, text.replace('"f1":1', '"f1":2')).fits.all()
    assert apart(text, text.replace('"f1":1', '"lsn":2')).fits.tolist() == [True, False]
    assert apart(text, text.replace('"f1":1', '"f2":1')).source["lsn"].to_pylist() == ["1234"] * 2


def test_events_of_another_connector_are_asked_for_their_own_position():
    mysql = insert(2).replace('"connector":"postgresql"', '"connector":"mysql"')
    mysql = mysql.replace('"xmin":null', '"file":"binlog.000007","pos":8,"row":0')
    same([insert(1), mysql, insert(3)])
    same([mysql, insert(1), mysql])


def test_what_is_wrong_in_a_row_is_found_where_it_is_read():
    bad = [row(1).replace('"text"', "text"), '{"id":1}}', '{"id":"x"}', "{,}", '{"id":1},{"id":2}']
    same([insert(1), *(envelope("c", "null", each) for each in bad), update(2), delete(1)])
    same([delete(1), *(envelope("d", each, "null") for each in bad), insert(1)])


def test_nobody_looks_into_the_row_before_an_update():
    quick, slow = both_ways([update(1), envelope("u", "{nonsense}", row(2))])
    assert quick.errors.null_count == 2
    assert quick.columns.column("id").to_pylist() == [1, 2]
    assert slow.errors.null_count == 1


def test_letters_beyond_ascii_are_the_rows_business():
    values = [envelope("u", row(1, "é"), row(2, "日本語")), envelope("u", row(1), row(3, "ü"))]
    found = apart(*values)
    assert found.fits.all()
    assert found.rows.to_pylist() == [row(2, "日本語"), row(3, "ü")]
    same(values)


def test_more_records_than_are_looked_at_in_one_go():
    values = [
        (insert, update, delete)[at % 3](at, lsn=str(1000 + at), ts=str(1767225602500 + at))
        for at in range(5000)
    ]
    values[4100] = None
    found = apart(*values)
    assert np.flatnonzero(~found.fits).tolist() == [4100]
    assert found.source["lsn"].to_pylist()[4099:4102] == ["5099", None, "5101"]
    same(values)


def test_a_slice_of_a_batch_is_read_at_its_own_place():
    values = pa.array([insert(1), update(2), insert(3), delete(4)]).slice(1, 2)
    assert take_apart(values, STRUCTURE).rows.to_pylist() == [row(2), row(3)]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_captures(path):
    values = [json.loads(line).get("value") for line in path.read_text().splitlines()]
    texts = [each if isinstance(each, str) else None for each in values]
    same(texts, Schema(NestedField(1, "id", StringType()), NestedField(2, "__op", StringType())))


def test_captured_envelopes_do_fit():
    path = next(each for each in CAPTURES if each.name == "lifecycle_full.plain.jsonl")
    values = [json.loads(line)["value"] for line in path.read_text().splitlines()]
    assert apart(*values).fits.sum() > len(values) / 2


BYTES = b'0123456789abnu{}[]",:\\ -.\x00\xc3'


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([insert, delete]), min_size=1, max_size=6),
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 10**6), st.sampled_from(sorted(BYTES))),
        max_size=4,
    ),
)
def test_damaged_envelopes_are_read_as_the_parser_reads_them(makers, damage):
    values = [make(at, lsn=str(1000 + 7 * at)).encode() for at, make in enumerate(makers)]
    for number, place, byte in damage:
        raw = bytearray(values[number % len(values)])
        raw[place % len(raw)] = byte
        values[number % len(values)] = bytes(raw)
    same([insert(99).encode(), delete(99).encode(), *values])
