"""Raw: bytes stay bytes, text must be text."""

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, LongType, NestedField, StringType

from icestream.errors import ConfigError
from icestream.formats.raw import RawFormat
from icestream.records import RECORDS


def records(keys: list[bytes | None], values: list[bytes | None]) -> pa.RecordBatch:
    n = len(values)
    columns = [["t"] * n, [0] * n, list(range(n)), [0] * n, keys, values]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, RECORDS, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


BATCH = records([b"k", None, b"\xfe"], [b"v", b"\xff", None])


def test_default_schema_takes_everything() -> None:
    out = RawFormat().decode(BATCH, RawFormat().default_schema())
    assert out.errors.to_pylist() == [None] * 3
    assert out.new_fields == ()
    assert out.columns.to_pylist() == [
        {"key": b"k", "value": b"v"},
        {"key": None, "value": b"\xff"},
        {"key": b"\xfe", "value": None},
    ]


def test_text_must_be_utf8() -> None:
    target = Schema(NestedField(1, "value", StringType()), NestedField(2, "key", BinaryType()))
    out = RawFormat().decode(BATCH, target)
    assert out.errors.to_pylist() == [None, "`value`: not UTF-8 at byte 0", None]
    assert out.columns.column("value").to_pylist() == ["v", None, None]
    assert out.columns.schema.names == ["value", "key"]


@pytest.mark.parametrize(
    "column", [NestedField(1, "other", BinaryType()), NestedField(1, "value", LongType())]
)
def test_other_columns_are_a_mistake_in_the_file(column: NestedField) -> None:
    with pytest.raises(ConfigError):
        RawFormat().decode(BATCH, Schema(column))
