"""Rows of old data files in the columns that a table has now."""

import io
import uuid
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as t
from pyiceberg.schema import Schema

from icestream.errors import SchemaRefused
from icestream.maintain.rewrite.conform import fitted
from icestream.tables.arrow import arrow_schema


def field(number, name, kind):
    return t.NestedField(number, name, kind, required=False)


def old_and_new():
    """A table before and after columns were widened, renamed, added and moved, at all levels."""
    old = Schema(
        field(1, "a", t.IntegerType()),
        field(2, "s", t.StructType(field(5, "x", t.IntegerType()), field(6, "y", t.StringType()))),
        field(3, "l", t.ListType(7, t.StructType(field(8, "p", t.FloatType())), False)),
        field(
            4,
            "m",
            t.MapType(9, t.StringType(), 10, t.StructType(field(11, "q", t.IntegerType())), False),
        ),
        field(20, "u", t.UUIDType()),
        field(21, "d", t.DecimalType(5, 2)),
        field(22, "dropped", t.StringType()),
    )
    kept = t.StructType(
        field(6, "z", t.StringType()), field(12, "n", t.LongType()), field(5, "x", t.LongType())
    )
    element = t.StructType(field(8, "p2", t.DoubleType()), field(13, "r", t.StringType()))
    value = t.StructType(field(11, "q", t.LongType()), field(14, "k", t.DateType()))
    new = Schema(
        field(2, "t", kept),
        field(1, "a", t.LongType()),
        field(3, "l", t.ListType(7, element, False)),
        field(4, "m", t.MapType(9, t.StringType(), 10, value, False)),
        field(20, "u", t.UUIDType()),
        field(21, "d", t.DecimalType(9, 2)),
        field(15, "dropped", t.IntegerType()),
    )
    return arrow_schema(old), arrow_schema(new)


ROWS = [
    {
        "a": 1,
        "s": {"x": 1, "y": "b"},
        "l": [{"p": 1.5}, None, {"p": None}],
        "m": [("k", {"q": 4}), ("j", None)],
        "u": uuid.UUID(int=7).bytes,
        "d": Decimal("1.25"),
        "dropped": "x",
    },
    dict.fromkeys(["a", "s", "l", "m", "u", "d", "dropped"]),
    {
        "a": 3,
        "s": {"x": None, "y": "c"},
        "l": [],
        "m": [],
        "u": uuid.UUID(int=8).bytes,
        "d": Decimal("-1.25"),
        "dropped": None,
    },
] * 3


def now(row):
    """A row as the table has it now."""
    struct, many, pairs = row["s"], row["l"], row["m"]
    return {
        "t": struct and {"z": struct["y"], "n": None, "x": struct["x"]},
        "a": row["a"],
        "l": many and [each and {"p2": each["p"], "r": None} for each in many],
        "m": pairs and [(key, each and {"q": each["q"], "k": None}) for key, each in pairs],
        "u": row["u"],
        "d": row["d"],
        "dropped": None,
    }


@pytest.fixture
def file():
    old, _ = old_and_new()
    sink = io.BytesIO()
    rows = pa.Table.from_batches([pa.RecordBatch.from_pylist(ROWS, schema=old)])
    pq.write_table(rows, sink, store_schema=False)
    return pq.ParquetFile(sink)


def test_by_field_id_at_every_level(file):
    old, new = old_and_new()
    (batch,) = file.iter_batches()
    odd = pa.array([at % 2 == 1 for at in range(len(batch))])
    for some in (batch, batch.slice(1, 4), batch.filter(odd), batch.slice(0, 0)):
        same, changed = fitted(some, old), fitted(some, new)
        for each in (same, changed):
            each.validate(full=True)
        assert same.schema.equals(old, check_metadata=True)
        assert changed.schema.equals(new, check_metadata=True)
        assert same.to_pylist() == some.to_pylist()
        assert changed.to_pylist() == [now(row) for row in some.to_pylist()]


def test_a_file_without_ids_is_refused(file):
    _, new = old_and_new()
    (batch,) = file.iter_batches()
    bare = pa.RecordBatch.from_arrays(batch.columns, names=batch.schema.names)
    with pytest.raises(SchemaRefused, match="no field id for `dropped`"):
        fitted(bare, new)


def test_a_value_that_does_not_fit_is_refused(file):
    old, _ = old_and_new()
    (batch,) = file.iter_batches()
    narrower = old.set(5, old.field(5).with_type(pa.decimal128(2, 1)))
    with pytest.raises(SchemaRefused, match="do not fit"):
        fitted(batch, narrower)
