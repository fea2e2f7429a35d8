"""Comments of the source's columns become those of the mirror's, for new columns too."""

import json
from typing import Any

import pyarrow as pa
import pytest

from conformance.stand import Stand
from icestream.catalogs import catalog_for
from icestream.records import RECORDS

pytestmark = pytest.mark.spark

# As Debezium writes it with include.schema.comments and column.propagate.source.type.
COMMENT = "__debezium.source.column.comment"
MONEY = "org.apache.kafka.connect.data.Decimal"


def commented(column: str, kind: str, comment: str | None, **more: Any) -> dict[str, Any]:
    told = {"__debezium.source.column.type": kind.upper(), **more.pop("parameters", {})}
    told |= {COMMENT: comment} if comment else {}
    return {"type": kind, "optional": True, "parameters": told, "field": column, **more}


FIELDS = [
    commented("id", "int64", "number of the order"),
    commented("total", "bytes", "net, in “€”", name=MONEY,
              parameters={"scale": "2", "connect.decimal.precision": "10"}),
    commented("plain", "string", None),
    {"type": "string", "optional": True, "doc": "by its doc", "field": "told"},
]  # fmt: skip
LATER = commented("later", "int32", "added with 'quotes'")


def record(offset: int, fields: list[dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    image = {"type": "struct", "fields": fields, "optional": True, "name": "pg.public.t.Value"}
    sides = [{**image, "field": side} for side in ("before", "after")]
    schema = {"type": "struct", "name": "pg.public.t.Envelope", "fields": sides}
    source = {"connector": "postgresql", "lsn": offset}
    payload = {"before": None, "after": row, "source": source, "op": "c"}
    return {
        "topic": "pg.public.t",
        "partition": 0,
        "offset": offset,
        "timestamp": 0,
        "key": json.dumps({"id": row["id"]}).encode(),
        "value": json.dumps({"schema": schema, "payload": payload}).encode(),
    }


def test_comments_of_columns(spark: Any, tmp_path: Any) -> None:
    rule = {"name": "shop.t", "mode": "upsert"}
    facts = {"source": {"format": {"type": "debezium"}}, "tables": [rule]}
    stand = Stand(spark, tmp_path, ["pg.public.t"], facts)
    first = {"id": 1, "total": "AMg=", "plain": "a", "told": "b"}
    later = {"id": 2, "total": "AMg=", "plain": "a", "told": "b", "later": 5}
    for offset, fields, row in [(0, FIELDS, first), (1, [*FIELDS, LATER], later)]:
        batch = pa.RecordBatch.from_pylist([record(offset, fields, row)], schema=RECORDS)
        stand.take(batch)
    table = catalog_for(stand.config.catalog).open().load_table("shop.t")
    docs = {each.name: each.doc for each in table.schema().fields if each.name[0] != "_"}
    assert docs == {
        "id": "number of the order",
        "total": "net, in “€”",
        "plain": None,
        "told": "by its doc",
        "later": "added with 'quotes'",
    }
    assert sorted(table.scan().to_arrow().column("later").to_pylist(), key=str) == [5, None]
    shown = {row.col_name: row.comment for row in stand.sql("DESCRIBE stand.shop.t")}
    assert shown["later"] == "added with 'quotes'"
