"""Parents of snapshots: also where PyIceberg's expiry has made one forget its own."""

import pytest

from icestream.tables.commits import FORGOTTEN, Snapshot


@pytest.mark.parametrize(
    "known, notes, parent",
    [
        (7, {}, 7),
        (7, {"operation": "replace"}, 7),
        (None, None, None),
        (None, {"operation": "append"}, None),
        # The first commit, or CREATE OR REPLACE … AS SELECT: the table holds what it added.
        (None, {"operation": "append", "added-records": "5", "total-records": "5"}, None),
        (None, {"operation": "overwrite", "added-data-files": "2", "total-data-files": "2"}, None),
        # Somebody was there before.
        (None, {"operation": "append", "added-records": "5", "total-records": "9"}, FORGOTTEN),
        (None, {"operation": "append", "total-records": "9"}, FORGOTTEN),
        (None, {"operation": "replace", "added-records": "5", "total-records": "5"}, FORGOTTEN),
    ],
)
def test_parent(known, notes, parent):
    raw = {"snapshot-id": 8, "parent-snapshot-id": known, "summary": notes}
    assert Snapshot.of(raw).known_parent == parent
