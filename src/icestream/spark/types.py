"""The Spark columns of what tasks yield; a text that says so costs Spark some 6 ms a batch."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def task_output_type() -> "StructType":
    """Rows of (table, group, block): reports, and blocks of rows for the shuffle."""
    from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

    named = StructType().add("table", StringType()).add("group", IntegerType())
    return named.add("block", BinaryType())
