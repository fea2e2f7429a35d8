"""`icestream plan` as a whole: topics, tables, changes; a catalog made by PyIceberg, no JVM."""

import json

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DecimalType, IntegerType, LongType, NestedField, StringType

from icestream.catalogs import catalog_for
from icestream.cli import main as entry
from icestream.config.load import load
from icestream.plan import make_plan
from icestream.plan.preview import preview
from icestream.records import RECORDS

FILES = """\
name: p
source: {type: files, path: ./in}
tables:
  - {match: '.*[.]tmp', skip: true}
  - match: 'a.*'
    name: shop.events
    columns: {amount: "decimal(12,2)"}
    partition_by: [region]
"""
MIRROR = """\
name: p
source:
  type: kafka
  bootstrap_servers: here:1
  topic_pattern: 'db[.](?P<table>\\w+)'
  format: {type: debezium}
tables: [{name: 'shop.{table}', mode: upsert}]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    return tmp_path


def planned(folder, text, **options):
    (folder / "icestream.yml").write_text(text)
    config = load(folder / "icestream.yml", env={}).pipeline
    return make_plan(config, options.get("rate"), options.get("record_bytes"))


def put(folder, name, *rows):
    (folder / "in" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def existing(folder, text, schema, *parts):
    """The table as somebody made it before."""
    (folder / "icestream.yml").write_text(text)
    catalog = catalog_for(load(folder / "icestream.yml", env={}).pipeline.catalog).open()
    catalog.create_namespace_if_not_exists("shop")
    catalog.create_table("shop.events", schema, partition_spec=PartitionSpec(*parts))
    catalog.close()


def test_a_table_that_is_not_there(folder):
    put(folder, "a.jsonl", {"id": 1, "amount": "1.50"}, {"id": 2, "region": "eu", "x": {"y": True}})
    put(folder, "b.jsonl", {"id": 3})
    put(folder, "c.tmp", {"id": 4})
    plan = planned(folder, FILES)
    assert {each.topic: (each.table, each.why) for each in plan.topics} == {
        "a.jsonl": ("shop.events", ""),
        "b.jsonl": (None, "no rule matches"),
        "c.tmp": (None, "skipped"),
    }
    (table,) = plan.tables
    assert (table.table, table.topics, table.exists) == ("shop.events", ("a.jsonl",), False)
    assert [(each.name, each.type, each.origin) for each in table.columns[:4]] == [
        ("amount", "decimal(12,2)", "declared"),
        ("id", "bigint", "sampled"),
        ("region", "string", "sampled"),
        ("x", "struct<y:boolean>", "sampled"),
    ]
    assert {each.origin for each in table.columns[4:]} == {"icestream"}
    (statement,) = table.ddl
    assert "  amount decimal(12,2),\n  id bigint,\n  region string,\n" in statement
    assert "PARTITIONED BY (region)" in statement
    assert "'format-version' = '2'" in statement
    assert (table.sampled, table.changes, table.notes) == (2, (), ())
    assert not (folder / "warehouse").exists()
    assert not (folder / ".icestream").exists()


def test_what_nobody_knows_yet_is_said(folder):
    (table,) = planned(folder, FILES).tables
    assert table.notes == ("partitions and order wait for `region`",)
    assert "PARTITIONED" not in table.ddl[0]
    assert [each.name for each in table.columns][:1] == ["amount"]


def test_bad_records_are_counted(folder):
    (folder / "in" / "a.jsonl").write_text('{"id": 1, "region": "eu"}\n{"id": \n')
    (table,) = planned(folder, FILES).tables
    assert table.notes == (
        "1 of 2 sampled records are bad and would be set aside; `icestream preview` says why",
    )


def test_changes_to_a_table_that_is_there(folder):
    """What a run does by itself, and what it leaves as it is though the file says otherwise."""
    text = FILES.replace(
        '{amount: "decimal(12,2)"}', '{amount: "decimal(12,2)", n: bigint, t: int}'
    )
    schema = Schema(
        NestedField(1, "amount", DecimalType(10, 2)),
        NestedField(2, "n", StringType()),
        NestedField(3, "region", StringType()),
    )
    existing(folder, text, schema, PartitionField(3, 1000, IdentityTransform(), "region"))
    put(folder, "a.jsonl", {"amount": "1.5", "n": "x", "region": "eu", "t": 5, "more": [1]})
    (table,) = planned(folder, text).tables
    assert (table.exists, table.ddl, table.rows) == (True, (), 0)
    told = [(each.kind, each.column, each.type, each.when) for each in table.changes]
    assert told == [
        ("add", "t", "bigint", "first batch"),
        ("add", "more", "array<bigint>", "first batch"),
    ]
    amount, n, t = table.notes
    assert amount == (
        "`amount` is declared decimal(12,2), the table has decimal(10,2) and keeps it; "
        "wider: ALTER TABLE lake.shop.events ALTER COLUMN amount TYPE decimal(12,2)"
    )
    assert n == "`n` is declared bigint, the table has string and keeps it"
    assert t == (
        "`t` is declared int, but the table has no such column: it comes as bigint with the first "
        "record that has it; to have it as declared: "
        "ALTER TABLE lake.shop.events ADD COLUMN t int"
    )


def test_a_layout_that_came_too_late(folder):
    schema = Schema(
        NestedField(1, "amount", DecimalType(12, 2)), NestedField(2, "region", LongType())
    )
    existing(folder, FILES, schema, PartitionField(1, 1000, IdentityTransform(), "amount"))
    (table,) = planned(folder, FILES).tables
    assert table.notes == ("`partition_by` is for a new table; this one has identity of amount",)
    assert table.changes == ()


def test_an_empty_table_gets_its_layout_with_the_first_batch(folder):
    existing(folder, FILES, Schema(NestedField(1, "amount", DecimalType(12, 2))))
    put(folder, "a.jsonl", {"region": "eu"})
    (table,) = planned(folder, FILES).tables
    assert [(each.kind, each.column) for each in table.changes] == [
        ("add", "region"),
        ("lay out", "partitioned by region"),
    ]
    assert table.notes == ()


# -- mirrors -----------------------------------------------------------------------------------


def envelope(**row):
    kinds = {int: "int64", str: "string"}
    fields = [{"field": k, "type": kinds[type(v)], "optional": True} for k, v in row.items()]
    struct = {"type": "struct", "optional": True, "fields": fields}
    schema = {
        "type": "struct",
        "fields": [{**struct, "field": "before"}, {**struct, "field": "after"}],
    }
    source = {"connector": "postgresql", "lsn": 5, "db": "db", "table": "orders", "ts_ms": 1}
    payload = {"before": None, "after": row, "source": source, "op": "c", "ts_ms": 1}
    return json.dumps({"schema": schema, "payload": payload}).encode()


@pytest.fixture
def orders(cluster, monkeypatch):
    """A topic of Debezium's on the stub of a cluster."""

    def sample(begin, count):
        facts = {"topic": "db.orders", "partition": 0, "offset": 0}
        record = {**facts, "key": b'{"id": 7}', "value": envelope(id=7, name="x")}
        yield pa.RecordBatch.from_pylist([record], schema=RECORDS)

    cluster.put("db.orders", p0=(0, 1))
    cluster.put("other", p0=(0, 1))
    monkeypatch.setattr(cluster, "sample", sample)
    return cluster


def test_a_mirror_whose_keys_and_columns_its_records_tell(folder, orders):
    plan = planned(folder, MIRROR)
    assert [(each.topic, each.table) for each in plan.topics] == [("db.orders", "shop.orders")]
    (table,) = plan.tables
    assert (table.mode, table.keys, table.sampled) == ("upsert", ("id",), 1)
    assert [(each.name, each.type) for each in table.columns][:2] == [
        ("id", "bigint"),
        ("name", "string"),
    ]
    assert table.columns[-1].name == "_src_sequence"
    assert """'icestream.keys' = '["id"]'""" in table.ddl[0]
    assert [each.what for each in plan.memory if "index of" in each.what] == [
        "key index of shop.orders"
    ]
    assert orders.closed == 1


def test_columns_of_ours_that_an_older_table_lacks(folder, orders):
    existing(folder, MIRROR, Schema(NestedField(1, "id", IntegerType())))
    catalog = catalog_for(load(folder / "icestream.yml", env={}).pipeline.catalog).open()
    catalog.rename_table("shop.events", "shop.orders")
    catalog.close()
    (table,) = planned(folder, MIRROR).tables
    told = [(each.kind, each.column, each.was, each.type, each.when) for each in table.changes]
    assert told == [
        ("add", "_src_sequence", None, "binary", "start"),
        ("add", "name", None, "string", "first batch"),
        ("widen", "id", "int", "bigint", "first batch"),
    ]


def test_a_preview_widens_columns_as_a_run_does(folder, orders, monkeypatch):
    """The records are rows, not bad, and the preview has the types that the table gets."""
    facts = {"topic": "db.orders", "partition": 0, "offset": 0}
    record = {**facts, "key": b'{"id": 5000000000}', "value": envelope(id=5_000_000_000, name="x")}
    batch = pa.RecordBatch.from_pylist([record], schema=RECORDS)
    monkeypatch.setattr(orders, "sample", lambda begin, count: iter([batch]))
    existing(folder, MIRROR, Schema(NestedField(1, "id", IntegerType())))
    loaded = load(folder / "icestream.yml", env={})
    catalog = catalog_for(loaded.pipeline.catalog).open()
    catalog.rename_table("shop.events", "shop.orders")
    catalog.close()
    (table,) = preview(loaded, 10)
    assert (table.good.num_rows, table.bad.num_rows) == (1, 0)
    assert table.schema.find_field("id").field_type == LongType()
    assert [(row["id"], row["name"]) for row in table.good.to_pylist()] == [(5_000_000_000, "x")]


def said(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        entry.main([str(each) for each in arguments])
    told = capsys.readouterr()
    return end.value.code or 0, told.out, told.err


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_is_away_costs_one_line(folder, capsys):
    (folder / "icestream.yml").write_text(
        MIRROR.replace("here:1", "127.0.0.1:1") + "  # nobody is there\n"
    )
    code, out, err = said(capsys, "plan", folder / "icestream.yml", "--rate", 100)
    assert code == 0
    [line] = err.splitlines()
    assert line.startswith("warning: Kafka broker 127.0.0.1:1")
    assert "none is known yet" in out
    assert "shop.{table}: 100 records/s" in out
    assert "JVM heap: 1.0 GiB (limit)" in out


def test_people_and_machines_are_told_the_same(folder, capsys):
    put(folder, "a.jsonl", {"id": 1, "region": "eu"})
    (folder / "icestream.yml").write_text(FILES)
    _, text, _ = said(capsys, "plan", folder / "icestream.yml")
    _, out, _ = said(capsys, "plan", folder / "icestream.yml", "--json")
    told = json.loads(out)
    assert list(told) == [
        "pipeline", "interval", "compaction", "topics", "tables", "memory", "troubles",
    ]  # fmt: skip
    (table,) = told["tables"]
    assert f"{table['table']}: append, would be created; records looked at: 1" in text
    for line in table["ddl"][0].splitlines():
        assert f"  {line}" in text
    assert "  a.jsonl → shop.events" in text
    assert "icestream plan --rate" in text
    for need in told["memory"]:
        assert f"  {need['what']}: " in text
