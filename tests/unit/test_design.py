"""How a table shall look: its own columns, then those that we add to every row."""

import pytest
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import LongType, NestedField

from icestream.config.model import PipelineConfig
from icestream.formats.json import JsonFormat
from icestream.schema import INCLUDED_COLUMNS, METADATA_COLUMNS, METADATA_NAMES, NewField
from icestream.tables.design import (
    TableDesign,
    declared_design,
    metadata_columns,
    missing_included,
    quarantine_design,
)
from icestream.tables.metadata import Metadata

KEY, HEADERS = INCLUDED_COLUMNS["key"], INCLUDED_COLUMNS["headers"]


def rule(**facts):
    return PipelineConfig.model_validate(
        {
            "name": "p",
            "source": {"type": "kafka", "bootstrap_servers": "x:1", "topics": ["a"]},
            "tables": [{"name": "shop.orders", "columns": {"id": "long"}, **facts}],
        }
    ).tables[0]


def document(*fields):
    """Iceberg's metadata of a table with these columns."""
    schema = assign_fresh_schema_ids(Schema(*fields))
    plain = schema.model_dump(mode="json", by_alias=True)
    return {"schemas": [{**plain, "schema-id": 4}], "current-schema-id": 4}


ID = NestedField(1, "id", LongType())

# ── columns of ours ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "include, more",
    [
        ((), ()),
        (("key",), (KEY,)),
        (("headers",), (HEADERS,)),
        (("key", "headers"), (KEY, HEADERS)),
        (("headers", "key"), (HEADERS, KEY)),
        (("key", "key"), (KEY,)),  # said twice is no second column
    ],
)
def test_what_is_included_comes_after_what_is_always_there(include, more):
    assert metadata_columns(rule(), include) == (*METADATA_COLUMNS, *more)
    design = declared_design("shop.orders", rule(), JsonFormat().known_columns("append"), include)
    assert design.metadata == (*METADATA_COLUMNS, *more)
    assert [column.name for column in design.columns] == ["id"]


def test_a_table_without_metadata_columns_has_none_of_them():
    assert metadata_columns(rule(metadata_columns=False), ("key", "headers")) == ()
    plain = declared_design(
        "t", rule(metadata_columns=False), JsonFormat().known_columns("append"), ("key",)
    )
    assert plain.metadata == ()


def test_nothing_is_included_unless_asked_for():
    assert TableDesign("t").metadata == METADATA_COLUMNS
    assert (
        declared_design("t", rule(), JsonFormat().known_columns("append")).metadata
        == METADATA_COLUMNS
    )
    assert quarantine_design("shop.orders").metadata == ()


def test_the_names_are_ours_whether_they_are_included_or_not():
    assert {KEY.name, HEADERS.name} == {"_src_key", "_src_headers"}
    assert {column.name for column in (*METADATA_COLUMNS, KEY, HEADERS)} == METADATA_NAMES


# ── a table that was made before ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "include, there, lacking",
    [
        ((), (), []),
        (("key",), (), [KEY]),
        (("key",), (KEY,), []),
        (("key", "headers"), (KEY,), [HEADERS]),
        (("headers", "key"), (), [HEADERS, KEY]),
        ((), (KEY, HEADERS), []),  # no longer asked for: they stay
    ],
)
def test_what_an_older_table_lacks(include, there, lacking):
    design = declared_design("shop.orders", rule(), JsonFormat().known_columns("append"), include)
    found = missing_included(design, Metadata(document(ID, *METADATA_COLUMNS, *there)))
    assert found == [NewField((), column.name, column.field_type) for column in lacking]


def test_columns_that_somebody_dropped_are_not_added_again():
    """Only `include` asks for columns; the others are there from the beginning or not wanted."""
    design = declared_design("shop.orders", rule(), JsonFormat().known_columns("append"), ("key",))
    assert [each.name for each in missing_included(design, Metadata(document(ID)))] == ["_src_key"]


def test_a_table_without_metadata_columns_lacks_nothing():
    design = declared_design(
        "t", rule(metadata_columns=False), JsonFormat().known_columns("append"), ("key",)
    )
    assert missing_included(design, Metadata(document(ID))) == []
