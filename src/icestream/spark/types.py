"""The Spark columns of what tasks yield: reports, and blocks of rows for the shuffle."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def block_type() -> "StructType":
    """The columns of what goes through the shuffle, for Spark."""
    from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

    named = StructType().add("table", StringType()).add("group", IntegerType())
    return named.add("block", BinaryType())


def report_type() -> "StructType":
    """The columns of what a task yields, for Spark; a text that says so costs it some 6 ms."""
    from pyspark.sql.types import StringType, StructType

    return StructType().add("table", StringType()).add("report", StringType())
