"""Records of 20 MB, through a real broker: they land or are set aside, and hold nothing up."""

import pytest

from feeds import TABLE, ids
from icestream.events import RunRestarting

pytestmark = pytest.mark.spark

LARGE = "0123456789" * 2_000_000


def test_records_of_20_mb_land_or_are_set_aside(feed):
    feed.configure(tables=[{"name": TABLE, "columns": {"id": "bigint", "text": "string"}}])
    feed.create(max_message_bytes=32 << 20)
    broken = [('{"id": 2, "text": "' + LARGE).encode(), b"\xff" * len(LARGE)]
    feed.put([*ids(0, 100), {"id": 100, "text": LARGE}, *broken, *ids(101, 200)])
    seen = feed.lake.run()
    assert not [each for each in seen if isinstance(each, RunRestarting)]
    rows = feed.lake.rows(TABLE).select(["id", "text"]).to_pylist()
    assert sorted(row["id"] for row in rows) == list(range(200))
    assert [row["text"] == LARGE for row in rows if row["text"]] == [True]
    aside = feed.lake.rows(f"{TABLE}__quarantine").select(["offset", "value", "error"]).to_pylist()
    assert {row["offset"]: row["value"] for row in aside} == {101: broken[0], 102: broken[1]}
    assert all(0 < len(row["error"]) < 500 for row in aside)
    assert feed.lake.marker(TABLE)["counts"] == {"landed": 200, "quarantined": 2, "dropped": 0}
