"""What every registered format must do, whatever it decodes."""

import pickle
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from icestream.formats import FORMATS, DecodedBatch, Format, format_for
from icestream.records import RECORDS
from icestream.schema import Rule

formats = pytest.mark.parametrize("name", sorted(FORMATS))
TARGET = Schema(NestedField(1, "key", StringType()), NestedField(2, "value", StringType()))


def made(name: str) -> Format:
    return format_for(SimpleNamespace(type=name))


def decode(fmt: Format, values: list[bytes | None], rule: Rule = "evolve") -> DecodedBatch:
    n = len(values)
    columns: list[list[Any]] = [["t"] * n, [0] * n, list(range(n)), [0] * n, values, values]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RECORDS, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=RECORDS)
    out = fmt.decode(batch, TARGET, rule)
    assert out.columns.schema.equals(schema_to_pyarrow(TARGET, include_field_ids=True), True)
    assert len(out.columns) == len(out.errors) == n
    assert out.errors.type == pa.string()
    out.columns.validate(full=True)
    assert pickle.loads(pickle.dumps(out.new_fields)) == out.new_fields
    return out


@formats
def test_is_small_and_picklable(name: str) -> None:
    small = made(name)
    data = pickle.dumps(small)
    assert len(data) < 10_000
    assert pickle.loads(data) == small


@formats
def test_empty_batches(name: str) -> None:
    assert decode(made(name), []).new_fields == ()


@formats
def test_null_values(name: str) -> None:
    decode(made(name), [None, None])


@formats
@pytest.mark.parametrize("rule", ["evolve", "freeze", "ignore"])
@settings(max_examples=60)
@given(values=st.lists(st.none() | st.binary(max_size=60), max_size=6))
def test_arbitrary_bytes_never_raise(name: str, rule: Rule, values: list[bytes | None]) -> None:
    out = decode(made(name), values, rule)
    for value, error in zip(values, out.errors.to_pylist(), strict=True):
        assert error is None or 0 < len(error) < 200
        if value and error:
            assert repr(value)[2:-1] not in error or len(value) <= 40


@formats
def test_reasons_do_not_depend_on_the_neighbours(name: str) -> None:
    values = [b"\xff", b'{"key":1}', b"", None, b"x" * 100, b'{"value":"v"}']
    together = decode(made(name), values, "freeze").errors.to_pylist()
    alone = [decode(made(name), [v], "freeze").errors[0].as_py() for v in values]
    assert together == alone


@formats
def test_default_schema_is_a_schema_or_nothing(name: str) -> None:
    found = made(name).default_schema()
    assert found is None or isinstance(found, Schema)
