"""The statements that `plan` shows, text by text; tests/spark runs them."""

import json

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from icestream.config.ddl import parse_partition, parse_sort
from icestream.plan.ddl import HIDDEN, create_statements
from icestream.tables.design import TableDesign

FIELDS = (
    NestedField(1, "id", LongType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "odd name", DecimalType(12, 2), doc="what it's worth"),
    NestedField(4, "list", ListType(5, StructType(NestedField(6, "a", StringType())))),
)


def design(**facts):
    return TableDesign("shop.order-lines", FIELDS, (), **facts)


def test_columns_names_and_comments():
    (made,) = create_statements("lake", design(), FIELDS, {})
    assert made == (
        "CREATE TABLE lake.shop.`order-lines` (\n"
        "  id bigint,\n"
        "  at timestamp,\n"
        "  `odd name` decimal(12,2) COMMENT 'what it\\'s worth',\n"
        "  list array<struct<a:string>>\n"
        ") USING iceberg"
    )


def test_partitions_and_order():
    wanted = design(
        partition_by=tuple(map(parse_partition, ["days(at)", "bucket(16, id)", "id"])),
        sort_by=tuple(map(parse_sort, ["id desc", "truncate(4, list.a) nulls last"])),
    )
    made, ordered = create_statements("lake", wanted, FIELDS, {})
    assert made.endswith(") USING iceberg\nPARTITIONED BY (days(at), bucket(16, id), id)")
    assert ordered == (
        "ALTER TABLE lake.shop.`order-lines` WRITE LOCALLY ORDERED BY "
        "id DESC NULLS LAST, truncate(4, list.a) ASC NULLS LAST"
    )


def test_a_layout_that_waits_for_a_column_is_not_there_yet():
    wanted = design(partition_by=(parse_partition("days(later)"),), sort_by=(parse_sort("id"),))
    (made,) = create_statements("lake", wanted, FIELDS, {})
    assert "PARTITIONED" not in made


@pytest.mark.parametrize(
    "name, value, shown",
    [
        ("write.target-file-size-bytes", "1", "1"),
        ("icestream.keys", json.dumps(["id"]), '["id"]'),
        ("encryption.key-id", "CANARY", HIDDEN),
        ("some.secret", "CANARY", HIDDEN),
        ("a.Token", "CANARY", HIDDEN),
        ("path", "C:\\new 'one'", "C:\\\\new \\'one\\'"),
    ],
)
def test_properties_without_what_may_be_secret(name, value, shown):
    (made,) = create_statements("lake", design(), FIELDS, {name: value})
    assert made.endswith(f"TBLPROPERTIES (\n  '{name}' = '{shown}'\n)")
    assert "CANARY" not in made


def test_a_comment_of_the_table():
    (made,) = create_statements("lake", design(comment="all lines"), Schema(*FIELDS).fields, {})
    assert made.endswith("\nCOMMENT 'all lines'")
