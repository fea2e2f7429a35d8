"""Expiry: which snapshots go, as a table of cases; and when none may."""

from datetime import timedelta

import pytest

from icestream.commit.table_state import AncestorSnapshot, TableState
from icestream.config.options.maintenance import ExpireSnapshots
from icestream.maintain.expire import expire_before, why_not_yet
from icestream.tables.marker import Marker
from icestream.tables.metadata import Metadata

NOW = 1_000_000


def document(*ages_ms, refs=()):
    """Snapshots by age, numbered from the oldest; `main` is the newest."""
    snapshots = [
        {"snapshot-id": number, "timestamp-ms": NOW - age}
        for number, age in enumerate(sorted(ages_ms, reverse=True))
    ]
    heads = {"main": len(snapshots) - 1, **{f"ref{at}": at for at in refs}}
    return {
        "snapshots": snapshots,
        "refs": {name: {"snapshot-id": at} for name, at in heads.items()},
    }


def rules(older_ms=100, retain=1, most=500):
    age = timedelta(milliseconds=older_ms)
    return ExpireSnapshots(older_than=age, retain_last=retain, max_snapshots=most)


@pytest.mark.parametrize(
    "ages, how, left",
    [
        ([], rules(), 0),
        ([5], rules(), 1),
        ([500], rules(), 1),  # the last one never goes
        ([50, 20, 10], rules(), 3),  # all too young
        ([500, 300, 50, 10], rules(), 2),
        ([500, 300, 50, 10], rules(retain=3), 3),
        ([500, 400, 300, 200], rules(retain=3), 3),
        ([500, 400], rules(retain=20), 2),
        ([50, 40, 30, 20, 10], rules(most=3), 3),  # young, but too many
        ([500, 40, 30, 20, 10], rules(most=4), 4),
        ([500, 400, 30, 20, 10], rules(most=4), 3),
        ([50, 40, 30, 20, 10], rules(most=2, retain=4), 4),  # what is to stay stays
        ([30, 20, 10, 5], rules(older_ms=1, retain=1, most=1), 1),
        ([7, 7, 7], rules(older_ms=1, retain=1, most=1), 3),  # of one moment: nobody can tell
    ],
)
def test_what_stays(ages, how, left):
    found = document(*ages)
    moment = expire_before(Metadata(found), how, NOW)
    stays = [s for s in found["snapshots"] if moment is None or s["timestamp-ms"] >= moment]
    assert len(stays) == left
    assert (moment is None) == (left == len(ages))


def test_nothing_is_due_when_only_named_snapshots_are_old():
    assert expire_before(Metadata(document(500, 50, 10, refs=[0])), rules(), NOW) is None
    assert expire_before(Metadata(document(500, 400, 10, refs=[0])), rules(), NOW) is not None


def view(own, marker, parent=7):
    """A table whose newest own snapshot says `own`, and whose property says `marker`."""
    told = marker and Marker("p", 1, "run", marker, None, 1, "uuid", snapshot_sequence=5)
    return TableState("uuid", told, (AncestorSnapshot(9, parent, 6, own),), 6, 0)


def test_the_marker_must_agree_with_the_snapshots():
    assert why_not_yet(view("c1", "c1")) is None
    assert why_not_yet(view(None, "c1")) is None  # expired before, behind a compaction
    assert "no marker" in why_not_yet(view(None, None))
    assert "rewound" in why_not_yet(view("c0", "c1"))
    assert "rewound" in why_not_yet(view("c0", None))
    assert "replaced" in why_not_yet(view(None, "c1", parent=None))
