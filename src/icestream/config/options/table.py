"""Options of `tables:` and `defaults:`: which topics go where, and how tables are written."""

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from icestream.config import ddl
from icestream.config.options.base import Model, Names, later
from icestream.config.values import PassThrough, Regex


def _parsed(parse: Callable[[str], object]) -> AfterValidator:
    def check(value: str) -> str:
        parse(value)
        return value

    return AfterValidator(check)


ColumnType = Annotated[str, _parsed(ddl.parse_type)]
PartitionBy = Annotated[str, _parsed(ddl.parse_partition)]
SortBy = Annotated[str, _parsed(ddl.parse_sort)]


class Defaults(Model):
    """Settings that hold for every table unless its rule says otherwise."""

    mode: Literal["append", "upsert"] = Field(
        "append",
        description="Add every record, or keep one row per key",
    )
    deletes: Literal["hard", "soft"] = Field(
        "hard",
        description="Upsert: a delete removes the row, or sets _is_deleted",
    )
    truncate: Literal["apply", "stop", "ignore"] = Field(
        "apply",
        description="Upsert: what a truncate of the source table does",
    )
    schema_evolution: Literal["evolve", "freeze", "ignore"] = Field(
        "evolve", description="New fields: add columns, refuse the records, or leave the fields out"
    )
    bad_records: Literal["quarantine", "fail", "drop"] = Field(
        "quarantine", description="Records that cannot be decoded: keep aside, stop, or count only"
    )
    metadata_columns: bool = Field(
        True, description="Write _src_topic, _src_partition, _src_offset, _src_timestamp, "
        "_ingested_at",
    )  # fmt: skip
    except_columns: Names = Field((), description="Fields that are not written")
    properties: PassThrough = Field(
        default_factory=dict, description="Iceberg table properties, as they are", repr=False
    )


class TableRule(Defaults):
    """Which topics go to which table, and how it is written."""

    match: Regex | None = Field(
        None, description="Regular expression of the whole topic name; default: every topic"
    )
    skip: bool = Field(False, description="Leave the matching topics out")
    name: str | None = Field(
        None,
        description="namespace.table; {group} is filled from the groups of match or topic_pattern",
    )
    keys: Names | None = Field(
        None,
        min_length=1,
        description="Upsert: key columns; default: the record's key",
    )
    sequence_by: Names | None = Field(
        None,
        min_length=1,
        description="Upsert: order of changes; default: the source's log position",
    )
    apply_as_deletes: str | None = Field(
        None,
        description="Upsert: SQL condition of records that delete their key",
    )
    partition_by: tuple[PartitionBy, ...] = Field(
        (), description="Partition fields of a new table, such as days(created_at)"
    )
    sort_by: tuple[SortBy, ...] = Field((), description="Sort order within the files")
    columns: dict[str, ColumnType] = Field(
        default_factory=dict, description="Declared column types in Spark DDL"
    )
    branch: str | None = Field(
        None,
        min_length=1,
        description="Commit to this branch of the table",
        json_schema_extra=later("leave it out to commit to `main`"),
    )
