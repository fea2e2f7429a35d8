"""Portions: how many records Spark hands to Python at once, in one Arrow batch.

Spark can bound a portion by bytes, but weighs it after every row then, and its headers from the
first row on: dearer the longer it is. Only large records, and a first batch, of which nothing is
known, are worth that.
"""

from collections.abc import Mapping

MOST = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_WEIGHED, _NOT_WEIGHED = 64 << 20, (1 << 31) - 1
_FEW = 5_000
_SMALL_RECORD = 8 << 10  # 50,000 of them fit into memory whatever the next batch brings


def settings(most: int, widest: int | None) -> Mapping[str, int]:
    """Spark's settings for a batch, from the widest record of the one before it.

    `most` is the user's limit.
    """
    if widest is None or widest > _SMALL_RECORD:
        return {MOST: min(most, _FEW), _MOST_BYTES: _WEIGHED}
    return {MOST: most, _MOST_BYTES: _NOT_WEIGHED}
