"""Portions: how many records Spark hands to Python at once, in one Arrow batch.

Spark can bound a portion by bytes, but weighs it after every row then, and its headers from the
first row on: dearer the longer it is. Only large records, and a first batch, of which nothing is
known, are worth that. Otherwise it is a number of records that fits into a piece of memory which
Arrow's allocator in Java keeps for the next portion; what is larger goes back to the system.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MOST = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_WEIGHED, _NOT_WEIGHED = 64 << 20, (1 << 31) - 1
_FEW = 5_000
_SMALL_RECORD = 8 << 10  # some ten thousand of them fit into memory whatever the next batch brings
_BYTES_KEPT = 14 << 20  # of 16 MB, with keys and the like


@dataclass(frozen=True)
class BatchSizes:
    """What the records of a batch were like."""

    records: int
    bytes: int
    widest: int  # bytes of the largest


def arrow_batch_settings(most: int, last: BatchSizes | None) -> Mapping[str, int]:
    """Spark's settings for a batch, from the one before it; `most` is the user's limit."""
    if last is None or last.widest > _SMALL_RECORD:
        return {MOST: min(most, _FEW), _MOST_BYTES: _WEIGHED}
    fitting = _BYTES_KEPT * last.records // max(last.bytes, 1)
    return {MOST: min(most, max(_FEW, fitting)), _MOST_BYTES: _NOT_WEIGHED}
