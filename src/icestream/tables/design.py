"""Table designs: what the pipeline file says a table should look like, before any data is seen."""

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
    """A table as configured; columns that only the data shows are added later."""

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
    """Return the design of a table, from its rule and the columns that its format knows.

    `include` names parts of the records to keep as columns (`source.include`).
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
    """Return the key columns of a mirror: named by its rule, or written down in the table.

    (): its records have no key, so each is a row. None: not known yet, or the table is no mirror.
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
    """Return the columns before any data is seen; declared types win over those of the format."""
    types = dict(known)
    types.update({name: parse_type(text) for name, text in rule.columns.items()})
    return [
        NestedField(field_id=field_id, name=name, field_type=field_type, required=False)
        for field_id, (name, field_type) in enumerate(types.items(), start=1)
        if name not in rule.except_columns
    ]


def metadata_columns(rule: Any, include: Sequence[str] = ()) -> tuple[NestedField, ...]:
    """Return the columns that we add to every row of a table."""
    columns: tuple[NestedField, ...] = ()
    if rule.metadata_columns:
        columns = (*METADATA_COLUMNS, *(INCLUDED_COLUMNS[part] for part in dict.fromkeys(include)))
    if rule.mode == "upsert":
        columns += (SEQUENCE_COLUMN,)
        if rule.deletes == "soft":
            columns += (DELETED_COLUMN,)
    return columns


def quarantine_design(name: str) -> TableDesign:
    """Return the design of the quarantine of a table, which takes its bad records."""
    return TableDesign(
        name=quarantine_name(name),
        columns=tuple(QUARANTINE_SCHEMA.fields),
        metadata=(),
        comment=f"Records that could not be written to {name}, with the reason",
    )


def quarantine_name(name: str) -> str:
    """Return the name of a table's quarantine: `shop.orders__quarantine` of `shop.orders`."""
    return name + QUARANTINE


def layout_is_known(design: TableDesign, fields: Sequence[NestedField]) -> bool:
    """Tell whether all columns that the layout names exist; others come with the first batch."""
    return laid_out_columns(design) <= {field.name for field in fields}


def laid_out_columns(design: TableDesign) -> set[str]:
    """Return the top-level columns that partitioning and sort order need."""
    names = [part.column for part in design.partition_by] + [part.column for part in design.sort_by]
    return {name.partition(".")[0] for name in names}


DEFAULTS = {
    "format-version": "2",
    # One metadata file per commit must not pile up: the table itself remembers what it needs.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}


def missing_included(design: TableDesign, metadata: Metadata) -> list[NewField]:
    """Return columns of ours that a table made without `source.include` or upserts lacks."""
    existing = metadata.columns
    included = [f for f in design.metadata if f not in METADATA_COLUMNS]
    return [NewField((), f.name, f.field_type) for f in included if f.name not in existing]


def awaits_layout(design: TableDesign, metadata: Metadata, more: Sequence[str] = ()) -> bool:
    """Tell whether the layout was left open for columns that exist by now, with `more` added."""
    needed = laid_out_columns(design)
    return bool(needed) and metadata.has_no_layout_or_data and needed <= {*metadata.columns, *more}
