"""Changes: what a run changes in an existing table, and what of the file it does not apply."""

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
    """One change that a run makes to an existing table."""

    kind: Literal["add", "widen", "lay out"]
    column: str  # dotted; of `lay out`: partitions and order in words
    type: str
    was: str | None
    when: Literal["start", "first batch"]


def changes(design: TableDesign, sample: SampleResult, table: Table) -> Iterator[TableChange]:
    """Yield icestream's own columns, added at the start, and changes by a batch like the sample."""
    metadata = Metadata.of(table)
    for field in missing_included(design, metadata):
        yield TableChange("add", field.name, format_type(field.type), None, "start")
    for field in sample.new:
        dotted = ".".join((*field.parent, field.name))
        yield TableChange("add", dotted, format_type(field.type), None, "first batch")
    for field in sample.wider:
        was = format_type(table.schema().find_field(field.name).field_type)
        yield TableChange("widen", field.name, format_type(field.type), was, "first batch")
    if awaits_layout(design, metadata, _new_names(sample)):
        terms = [f"partitioned by {ddl.partition_text(design)}"] if design.partition_by else []
        terms += [f"ordered by {ddl.order_text(design)}"] if design.sort_by else []
        yield TableChange("lay out", ", ".join(terms), "", None, "first batch")


def differences(
    catalog: str, design: TableDesign, sample: SampleResult, table: Table
) -> Iterator[str]:
    """Yield where the table is not as the file says, which a run leaves as it is."""
    name = ddl.table_name(catalog, design.name)
    types = {field.name: field.field_type for field in table.schema().fields}
    sampled = {field.name: format_type(field.type) for field in sample.new if not field.parent}
    for field in design.columns:
        wanted, column = format_type(field.field_type), quoted(field.name)
        if field.name not in types:
            sampled_type = f" as {sampled[field.name]}" if field.name in sampled else ""
            yield (
                f"`{field.name}` is declared {wanted}, but the table has no such column: it comes"
                f"{sampled_type} with the first record that has it; "
                f"to have it as declared: ALTER TABLE {name} ADD COLUMN {column} {wanted}"
            )
        elif wanted != (has := format_type(types[field.name])):
            statement = f"; wider: ALTER TABLE {name} ALTER COLUMN {column} TYPE {wanted}"
            yield (
                f"`{field.name}` is declared {wanted}, the table has {has} and keeps it"
                + (statement if is_wider(field.field_type, types[field.name]) else "")
            )
    if design.partition_by and not awaits_layout(design, Metadata.of(table), _new_names(sample)):
        yield from _other_partitions(design, table)


def _other_partitions(design: TableDesign, table: Table) -> Iterator[str]:
    has = [
        (table.schema().find_column_name(part.source_id), str(part.transform))
        for part in table.spec().fields
    ]
    wanted = [
        (part.column, part.transform + (f"[{part.argument}]" if part.argument else ""))
        for part in design.partition_by
    ]
    if has != wanted:
        now = ", ".join(f"{transform} of {column}" for column, transform in has)
        yield f"`partition_by` is for a new table; this one has {now or 'no partitions'}"


def _new_names(sample: SampleResult) -> list[str]:
    return [field.name for field in sample.new if not field.parent]
