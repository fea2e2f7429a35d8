"""How many records go to Python at once."""

import pytest

from icestream.batch.arrow_batches import MOST, BatchSizes, arrow_batch_settings

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT = (1 << 31) - 1


@pytest.mark.parametrize(
    "last, records, limit",
    [
        (None, 5_000, 64 << 20),  # anything may come
        (BatchSizes(1_000, 1_000 * 150, 200), 50_000, NO_LIMIT),
        (BatchSizes(1_000, 1_000 * 700, 900), 20_971, NO_LIMIT),
        (BatchSizes(1_000, 1_000 * 8_000, 8_192), 5_000, NO_LIMIT),
        (BatchSizes(1_000, 1_000 * 150, 8_193), 5_000, 64 << 20),  # a single large one
        (BatchSizes(10, 0, 0), 50_000, NO_LIMIT),  # tombstones alone
    ],
)
def test_the_last_batch_decides(last: BatchSizes | None, records: int, limit: int) -> None:
    assert arrow_batch_settings(50_000, last) == {MOST: records, BYTES: limit}


def test_nobody_gets_more_than_the_user_allows() -> None:
    assert arrow_batch_settings(2_000, None)[MOST] == 2_000
    assert arrow_batch_settings(10_000, BatchSizes(1_000, 1_000 * 150, 200))[MOST] == 10_000
