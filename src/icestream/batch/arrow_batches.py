"""How many records Spark hands to Python at once, in one Arrow batch.

Spark can limit an Arrow batch by bytes, but then computes its size after every row, headers from
the first row on: dearer the longer it is. Only large records, and a first batch, whose records are
not known yet, are worth that. Otherwise the limit is a number of records that fits into the memory
which Arrow's allocator in Java keeps for the next Arrow batch; what is larger goes back to the
system.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MOST = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MOST_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_BYTE_LIMIT, _NO_BYTE_LIMIT = 64 << 20, (1 << 31) - 1
_FEW = 5_000
_SMALL_RECORD = 8 << 10  # some ten thousand of them fit into memory whatever the next batch brings
_BYTES_KEPT = 14 << 20  # of 16 MB, with keys and the like


@dataclass(frozen=True)
class BatchSizes:
    """Number and sizes of the records of a batch."""

    records: int
    bytes: int
    widest: int  # bytes of the largest


def arrow_batch_settings(limit: int, last: BatchSizes | None) -> Mapping[str, int]:
    """Return Spark's settings for a batch, from sizes of the last; `limit` is the user's."""
    if last is None or last.widest > _SMALL_RECORD:
        return {MOST: min(limit, _FEW), _MOST_BYTES: _BYTE_LIMIT}
    fitting = _BYTES_KEPT * last.records // max(last.bytes, 1)
    return {MOST: min(limit, max(_FEW, fitting)), _MOST_BYTES: _NO_BYTE_LIMIT}
