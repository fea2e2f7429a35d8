"""How many records go to Python at once."""

import pytest

from icestream.portions import MOST, settings

BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT = (1 << 31) - 1


@pytest.mark.parametrize(
    "widest, records, limit",
    [
        (None, 5_000, 64 << 20),  # anything may come
        (0, 50_000, NO_LIMIT),  # tombstones alone
        (8_192, 50_000, NO_LIMIT),
        (8_193, 5_000, 64 << 20),
    ],
)
def test_the_last_batch_decides(widest: int | None, records: int, limit: int) -> None:
    assert settings(50_000, widest) == {MOST: records, BYTES: limit}


def test_nobody_gets_more_than_the_user_allows() -> None:
    assert settings(2_000, None)[MOST] == settings(2_000, 100)[MOST] == 2_000
