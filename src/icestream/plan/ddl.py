"""DDL: a table as a run would make it, written as Spark SQL that makes the same one; pure."""

import re
from collections.abc import Mapping, Sequence

from pyiceberg.types import NestedField

from icestream.config.ddl import PartitionField, SortField, format_type, quoted
from icestream.tables.design import TableDesign, layout_is_known

_PLURAL = {"year": "years", "month": "months", "day": "days", "hour": "hours"}
_SECRET = re.compile(r"secret|password|token|credential|(?<!icestream\.)key", re.IGNORECASE)
HIDDEN = "(hidden)"


def create_statements(
    catalog: str, design: TableDesign, fields: Sequence[NestedField], properties: Mapping[str, str]
) -> tuple[str, ...]:
    """Write CREATE TABLE and, for the order of rows, which has a statement of its own, ALTER."""
    name = table_name(catalog, design.name)
    known = layout_is_known(design, fields)
    columns = ",\n".join(f"  {_column(field)}" for field in fields)
    parts = [f"CREATE TABLE {name} (\n{columns}\n) USING iceberg"]
    if design.partition_by and known:
        parts.append(f"PARTITIONED BY ({partition_text(design)})")
    if design.comment:
        parts.append(f"COMMENT {_text(design.comment)}")
    if properties:
        set_to = ",\n".join(
            f"  {_text(key)} = {_value(key, properties[key])}" for key in properties
        )
        parts.append(f"TBLPROPERTIES (\n{set_to}\n)")
    order = f"ALTER TABLE {name} WRITE LOCALLY ORDERED BY {order_text(design)}"
    return ("\n".join(parts), *([order] if design.sort_by and known else []))


def table_name(catalog: str, name: str) -> str:
    """Write `lake.shop.orders`, each part in backticks if it needs them."""
    return ".".join(quoted(part) for part in (catalog, *name.split(".")))


def partition_text(design: TableDesign) -> str:
    """Write what is in the brackets of PARTITIONED BY."""
    return ", ".join(_term(part) for part in design.partition_by)


def order_text(design: TableDesign) -> str:
    """Write what follows ORDERED BY."""
    return ", ".join(
        f"{_term(part)} {'ASC' if part.ascending else 'DESC'} "
        f"NULLS {'FIRST' if part.nulls_first else 'LAST'}"
        for part in design.sort_by
    )


def _column(field: NestedField) -> str:
    comment = f" COMMENT {_text(field.doc)}" if field.doc else ""
    return f"{quoted(field.name)} {format_type(field.field_type)}{comment}"


def _term(part: PartitionField | SortField) -> str:
    column = ".".join(quoted(name) for name in part.column.split("."))
    if part.transform == "identity":
        return column
    argument = "" if part.argument is None else f"{part.argument}, "
    return f"{_PLURAL.get(part.transform, part.transform)}({argument}{column})"


def _value(key: str, value: str) -> str:
    """Write a property's value, hidden if its key says that it may be a secret."""
    return _text(HIDDEN if _SECRET.search(key) else value)


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
