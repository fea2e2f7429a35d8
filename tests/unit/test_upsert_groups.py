"""In how many groups of keys a batch is applied, and that each bucket is in one of them."""

import numpy as np
import pyarrow as pa
import pytest

from icestream.batch.table_modes import group_count
from icestream.formats import TRUNCATE, UPSERT, RowChanges
from icestream.index.keys import bucket_of
from icestream.upsert.changes import change_batch

BUCKETS = 16


@pytest.mark.parametrize(
    "records, widest, groups",
    [
        (0, 100, 1),
        (500, 1000, 1),
        (25_000, 1000, 1),
        (25_001, 1000, 2),
        (60_000, 1000, 4),  # of four cores
        (400_000, 300, 4),
        (400_001, 300, 8),
        (10_000_000, 1000, 16),
        (500, 20 << 20, 16),  # large records: not all of them in memory at once
        (500, 1 << 20, 4),
        (None, 1000, 16),  # a source whose positions count something else
        (500, None, 16),  # a first batch
    ],
)
def test_small_batches_have_few_groups(records: int | None, widest: int | None, groups: int):
    assert group_count(records, widest, BUCKETS, cores=4) == groups


@pytest.mark.parametrize("groups", range(1, BUCKETS + 1))
def test_every_bucket_is_in_one_group(groups):
    count = 400
    rows = pa.record_batch({"id": pa.array(range(count)), "_src_sequence": [b""] * count})
    names = ("topic", "timestamp", "key", "value")
    records = pa.record_batch(
        {"partition": [0] * count, "offset": list(range(count))} | dict.fromkeys(names, [0] * count)
    )
    ops = [UPSERT] * (count - 1) + [TRUNCATE]
    told = RowChanges(pa.array(ops, pa.int8()), rows.column(1))
    seen = []
    for group, some in change_batch(records, rows, told, ["id"]).by_group(BUCKETS, groups):
        *upserts, last = some.rows.column("id").to_pylist()
        assert last == count - 1  # a truncate concerns all groups
        # The rule by which the task says which buckets are its own.
        mine = [b for b in range(BUCKETS) if b * groups // BUCKETS == group]
        assert set(np.unique(bucket_of(some.hashes[:-1], BUCKETS)).tolist()) <= set(mine)
        seen += upserts
    assert sorted(seen) == list(range(count - 1))
