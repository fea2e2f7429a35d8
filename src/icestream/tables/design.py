"""Designs: what the pipeline file says a table should look like, before any data is seen."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.types import IcebergType, NestedField

from icestream.config.ddl import (
    PartitionField,
    SortField,
    parse_partition,
    parse_sort,
    parse_type,
)
from icestream.config.route import QUARANTINE
from icestream.schema import (
    DELETED_COLUMN,
    INCLUDED_COLUMNS,
    METADATA_COLUMNS,
    QUARANTINE_SCHEMA,
    SEQUENCE_COLUMN,
    NewField,
)
from icestream.tables.metadata import Metadata

KEYS_PROPERTY = "icestream.keys"  # of a mirror: the key columns, as a JSON list


@dataclass(frozen=True)
class TableDesign:
    """A table as configured; columns that only the data can tell come later."""

    name: str
    columns: tuple[NestedField, ...] = ()
    metadata: tuple[NestedField, ...] = METADATA_COLUMNS  # what we add to every row
    partition_by: tuple[PartitionField, ...] = ()
    sort_by: tuple[SortField, ...] = ()
    properties: dict[str, str] = field(default_factory=dict)
    comment: str = ""


def declared_design(
    name: str, rule: Any, known: Mapping[str, IcebergType], include: Sequence[str] = ()
) -> TableDesign:
    """The design of a table from its rule and the columns that its format knows.

    `include` names parts of the records to keep.
    """
    return TableDesign(
        name=name,
        columns=tuple(declared_columns(rule, known)),
        metadata=metadata_columns(rule, include),
        partition_by=tuple(parse_partition(text) for text in rule.partition_by),
        sort_by=tuple(parse_sort(text) for text in rule.sort_by),
        properties=dict(rule.properties) | _keys_property(rule),
    )


def key_columns(rule: Any, properties: Mapping[str, str]) -> tuple[str, ...] | None:
    """The key columns of a mirror: named by its rule, or written down in the table.

    () means that its records have none, so that all are rows; None that nobody knows yet, or
    that it is no mirror.
    """
    if rule.mode != "upsert":
        return None
    if rule.keys:
        return tuple(rule.keys)
    stored = properties.get(KEYS_PROPERTY)
    return tuple(json.loads(stored)) if stored is not None else None


def _keys_property(rule: Any) -> dict[str, str]:
    return {KEYS_PROPERTY: json.dumps(rule.keys)} if rule.mode == "upsert" and rule.keys else {}


def declared_columns(rule: Any, known: Mapping[str, IcebergType]) -> list[NestedField]:
    """Columns before any data is seen; declared types win over those that the format knows."""
    kinds = dict(known)
    kinds.update({name: parse_type(text) for name, text in rule.columns.items()})
    return [
        NestedField(field_id=number, name=name, field_type=kind, required=False)
        for number, (name, kind) in enumerate(kinds.items(), start=1)
        if name not in rule.except_columns
    ]


def metadata_columns(rule: Any, include: Sequence[str] = ()) -> tuple[NestedField, ...]:
    """The columns that we add to every row of a table."""
    found: tuple[NestedField, ...] = ()
    if rule.metadata_columns:
        found = (*METADATA_COLUMNS, *(INCLUDED_COLUMNS[part] for part in dict.fromkeys(include)))
    if rule.mode == "upsert":
        found += (SEQUENCE_COLUMN,)
        if rule.deletes == "soft":
            found += (DELETED_COLUMN,)
    return found


def quarantine_design(name: str) -> TableDesign:
    """The table that takes what could not be decoded for `name`."""
    return TableDesign(
        name=quarantine_name(name),
        columns=tuple(QUARANTINE_SCHEMA.fields),
        metadata=(),
        comment=f"Records that could not be written to {name}, with the reason",
    )


def quarantine_name(name: str) -> str:
    """`shop.orders` → `shop.orders__quarantine`."""
    return name + QUARANTINE


def layout_is_known(design: TableDesign, fields: Sequence[NestedField]) -> bool:
    """Whether all columns that the layout names exist; others come with the first batch."""
    return laid_out_columns(design) <= {each.name for each in fields}


def laid_out_columns(design: TableDesign) -> set[str]:
    """Top-level columns that partitioning and sort order need."""
    named = [part.column for part in design.partition_by] + [part.column for part in design.sort_by]
    return {name.partition(".")[0] for name in named}


DEFAULTS = {
    "format-version": "2",
    # One metadata file per commit must not pile up: the table itself remembers what it needs.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def missing_included(design: TableDesign, metadata: Metadata) -> list[NewField]:
    """Columns of ours that a table made without `source.include` or upserts does not have yet."""
    existing = metadata.columns
    included = [f for f in design.metadata if f not in METADATA_COLUMNS]
    return [NewField((), f.name, f.field_type) for f in included if f.name not in existing]


def awaits_layout(design: TableDesign, metadata: Metadata, more: Sequence[str] = ()) -> bool:
    """Whether partitioning and order waited for columns that, with `more`, are there by now."""
    wanted = laid_out_columns(design)
    return bool(wanted) and metadata.has_no_layout_or_data and wanted <= {*metadata.columns, *more}
