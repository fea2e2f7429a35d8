"""Changes: what a run does to a table that exists, and what the file says that it does not do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pyiceberg.table import Table

from icestream.config.ddl import format_type, quoted
from icestream.plan import ddl
from icestream.plan.sample import SampleResult
from icestream.schema import is_wider
from icestream.tables.design import TableDesign, awaits_layout, missing_included
from icestream.tables.metadata import Metadata


@dataclass(frozen=True)
class TableChange:
    """What a run changes in a table that exists."""

    kind: Literal["add", "widen", "lay out"]
    column: str  # dotted; of a layout: what it is
    type: str
    was: str | None
    when: Literal["start", "first batch"]


def changes(design: TableDesign, found: SampleResult, table: Table) -> Iterator[TableChange]:
    """Columns of ours at the start; the rest with the first batch that is like the sample."""
    metadata = Metadata.of(table)
    for each in missing_included(design, metadata):
        yield TableChange("add", each.name, format_type(each.type), None, "start")
    for each in found.new:
        dotted = ".".join((*each.parent, each.name))
        yield TableChange("add", dotted, format_type(each.type), None, "first batch")
    for each in found.wider:
        was = format_type(table.schema().find_field(each.name).field_type)
        yield TableChange("widen", each.name, format_type(each.type), was, "first batch")
    if awaits_layout(design, metadata, _new_names(found)):
        terms = [f"partitioned by {ddl.partition_text(design)}"] if design.partition_by else []
        terms += [f"ordered by {ddl.order_text(design)}"] if design.sort_by else []
        yield TableChange("lay out", ", ".join(terms), "", None, "first batch")


def differences(
    catalog: str, design: TableDesign, found: SampleResult, table: Table
) -> Iterator[str]:
    """Where the table was made otherwise than the file says now: a run leaves that as it is."""
    name = ddl.table_name(catalog, design.name)
    there = {field.name: field.field_type for field in table.schema().fields}
    seen = {each.name: format_type(each.type) for each in found.new if not each.parent}
    for field in design.columns:
        wanted, column = format_type(field.field_type), quoted(field.name)
        if field.name not in there:
            comes = f" as {seen[field.name]}" if field.name in seen else ""
            yield (
                f"`{field.name}` is declared {wanted}, but the table has no such column: it comes"
                f"{comes} with the first record that has it; "
                f"to have it as declared: ALTER TABLE {name} ADD COLUMN {column} {wanted}"
            )
        elif wanted != (has := format_type(there[field.name])):
            wider = is_wider(field.field_type, there[field.name])
            how = f"; wider: ALTER TABLE {name} ALTER COLUMN {column} TYPE {wanted}"
            yield (
                f"`{field.name}` is declared {wanted}, the table has {has} and keeps it"
                + (how if wider else "")
            )
    if design.partition_by and not awaits_layout(design, Metadata.of(table), _new_names(found)):
        yield from _other_partitions(design, table)


def _other_partitions(design: TableDesign, table: Table) -> Iterator[str]:
    has = [
        (table.schema().find_column_name(part.source_id), str(part.transform))
        for part in table.spec().fields
    ]
    wanted = [
        (each.column, each.transform + (f"[{each.argument}]" if each.argument else ""))
        for each in design.partition_by
    ]
    if has != wanted:
        now = ", ".join(f"{transform} of {column}" for column, transform in has)
        yield f"`partition_by` is for a new table; this one has {now or 'no partitions'}"


def _new_names(found: SampleResult) -> list[str]:
    return [each.name for each in found.new if not each.parent]
