"""What `plan` says a run would make is what a run makes; its DDL makes the same once more."""

import pyarrow as pa
import pytest

from conformance.stand import Stand
from icestream.catalogs import catalog_for
from icestream.config.model import PipelineConfig
from icestream.plan import make_plan
from icestream.plan.ddl import table_name
from icestream.sources.shop import make

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TOPICS = ("page_events", "order_changes")
FACTS = {
    "tables": [
        {
            "match": "page_events",
            "name": "shop.page-events",
            "columns": {"event_time": "timestamp", "price": "decimal(10,2)"},
            "partition_by": ["days(event_time)", "bucket(4, user_id)"],
            "sort_by": ["user_id desc", "event_id"],
            "properties": {"write.target-file-size-bytes": "1048576"},
        },
        {
            "match": "order_changes",
            "name": "shop.orders",
            "mode": "upsert",
            "keys": ["order_id"],
            "deletes": "soft",
            "apply_as_deletes": "status = 'cancelled'",
            "partition_by": ["truncate(3, status)"],
        },
    ]
}
# Not by the statements: the marker comes with a claim, the others from Spark itself.
BESIDES = ("icestream.p.marker", "owner", "write.distribution-mode")


def shape(table):
    """All that a CREATE TABLE decides; field ids are numbers that nobody chooses."""
    schema, spec, order = table.schema(), table.spec(), table.sort_order()
    return {
        "columns": [(field.name, str(field.field_type)) for field in schema.fields],
        "partitions": [
            (schema.find_column_name(each.source_id), str(each.transform), each.name)
            for each in spec.fields
        ],
        "order": [
            (schema.find_column_name(each.source_id), str(each.transform), each.direction,
             each.null_order)
            for each in order.fields
        ],
        "version": table.metadata.format_version,
        "properties": {k: v for k, v in table.properties.items() if k not in BESIDES},
    }  # fmt: skip


def test_the_statements_make_what_a_run_makes(spark, tmp_path):
    config = planned_config(tmp_path)
    before = {each.table: each for each in make_plan(config, None, None).tables}
    assert sorted(before) == ["shop.orders", "shop.page-events"]
    assert not (tmp_path / "lake").exists()
    stand = Stand(spark, tmp_path, TOPICS, FACTS)
    records = [make(topic, 0, 300, 0, 0, None, 0.0) for topic in TOPICS]
    stand.take(pa.Table.from_batches(records).combine_chunks().to_batches()[0])
    catalog = catalog_for(config.catalog).open()
    for name, planned in before.items():
        made, twin = catalog.load_table(name), f"{name}-again"
        for statement in planned.ddl:
            old, new = (table_name("stand", each) for each in (name, twin))
            assert statement.count(old) == 1
            stand.sql(statement.replace(old, new))
        assert shape(catalog.load_table(twin)) == shape(made)
    # And now there is nothing left to change.
    for each in make_plan(config, None, None).tables:
        assert (each.exists, each.ddl, each.changes, each.notes) == (True, (), (), ())
        assert [(one.name, one.type) for one in each.columns] == [
            (one.name, one.type) for one in before[each.table].columns
        ]
        assert each.rows == catalog.load_table(each.table).scan().to_arrow().num_rows
    catalog.close()


def planned_config(folder):
    """The stand's pipeline, but with a source that can be asked without a broker."""
    facts = {
        "name": "p",
        "catalog": {"type": "local", "name": "stand", "warehouse": str(folder / "lake")},
        "state_location": str(folder / "state"),
        "source": {"type": "generator"},
        **FACTS,
    }
    return PipelineConfig.model_validate(facts, context={"folder": str(folder)})
