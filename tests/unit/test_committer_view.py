"""From Iceberg's metadata JSON to the protocol's view of a table."""

import pytest

from icestream.commit.protocol import MarkerStatus, marker_status
from icestream.commit.table_state import AncestorSnapshot, table_state
from icestream.errors import Replaced
from icestream.tables.marker import Marker
from icestream.tables.metadata import Metadata

MARKER = Marker(
    pipeline="shop",
    generation=1,
    run_id="run",
    commit_id="c1",
    previous_commit_id=None,
    sequence=1,
    table_uuid="table-1",
    snapshot_sequence=2,
    positions={"orders": {0: 5}},
)


def snapshot(at, parent, commit_id=None, pipeline="shop", operation="append"):
    notes = {"operation": operation}
    if commit_id:
        notes |= {"icestream.pipeline": pipeline, "icestream.commit-id": commit_id}
    found = {"snapshot-id": at * 11, "sequence-number": at, "timestamp-ms": at, "summary": notes}
    return found if parent is None else {**found, "parent-snapshot-id": parent * 11}


def document(*snapshots, current=None, marker=MARKER, **facts):
    known = {
        "format-version": 2,
        "table-uuid": "table-1",
        "current-schema-id": 3,
        "last-sequence-number": max((each["sequence-number"] for each in snapshots), default=0),
        "current-snapshot-id": current * 11 if current else -1,
        "properties": {"icestream.shop.marker": marker.to_json()} if marker else {},
        "snapshots": list(snapshots),
    }
    return {**known, **facts}


def test_a_table_without_anything():
    seen = table_state(Metadata(document(marker=None)), "shop")
    assert (seen.marker, seen.ancestors, seen.last_sequence) == (None, (), 0)
    assert marker_status(seen) is MarkerStatus.NEW


@pytest.mark.parametrize("missing", ["properties", "snapshots", "current-snapshot-id"])
def test_keys_that_metadata_may_leave_out(missing):
    found = document(marker=None)
    del found[missing]
    assert marker_status(table_state(Metadata(found), "shop")) is MarkerStatus.NEW


def test_all_of_it():
    base = object()
    seen = table_state(
        Metadata(document(snapshot(1, None), snapshot(2, 1, "c1"), current=2)), "shop", base
    )
    assert seen.uuid == "table-1"
    assert seen.marker == MARKER
    assert seen.last_sequence == 2
    assert seen.schema_id == 3
    assert seen.base is base
    assert seen.ancestors == (
        AncestorSnapshot(22, 11, 2, "c1"),
        AncestorSnapshot(11, None, 1, None),
    )
    assert marker_status(seen) is MarkerStatus.OURS


def test_the_walk_follows_parents_not_the_list():
    """A rolled-back snapshot is still listed; it is no ancestor."""
    rolled = document(snapshot(1, None, "c0"), snapshot(2, 1, "c1"), snapshot(3, 1), current=3)
    seen = table_state(Metadata(rolled), "shop")
    assert [each.snapshot_id for each in seen.ancestors] == [33, 11]
    assert seen.last_sequence == 3
    assert marker_status(seen) is MarkerStatus.REWOUND


def test_snapshots_of_other_pipelines_are_foreign():
    both = document(
        snapshot(1, None), snapshot(2, 1, "c1"), snapshot(3, 2, "x", "other"), current=3
    )
    seen = table_state(Metadata(both), "shop")
    assert [each.commit_id for each in seen.ancestors] == [None, "c1", None]
    assert marker_status(seen) is MarkerStatus.OURS
    theirs = table_state(Metadata(both), "other")
    assert theirs.marker is None
    assert [each.commit_id for each in theirs.ancestors] == ["x", None, None]


def test_maintenance_does_not_hide_our_commit():
    kept = document(snapshot(2, None, "c1"), snapshot(3, 2, operation="replace"), current=3)
    assert marker_status(table_state(Metadata(kept), "shop")) is MarkerStatus.OURS


def test_an_expired_parent_ends_the_walk():
    expired = table_state(Metadata(document(snapshot(4, 3), snapshot(5, 4), current=5)), "shop")
    assert expired.ancestors[-1] == AncestorSnapshot(44, 33, 4, None)
    assert marker_status(expired) is MarkerStatus.OURS
    # The same snapshots as the whole history: then our commit was never in it.
    whole = table_state(Metadata(document(snapshot(4, None), snapshot(5, 4), current=5)), "shop")
    assert marker_status(whole) is MarkerStatus.REPLACED


def test_create_or_replace_keeps_the_property_and_drops_the_history():
    assert (
        marker_status(table_state(Metadata(document(snapshot(2, None, "c1"))), "shop"))
        is MarkerStatus.REPLACED
    )
    other = document(snapshot(2, None, "c1"), current=2, **{"table-uuid": "table-2"})
    assert marker_status(table_state(Metadata(other), "shop")) is MarkerStatus.REPLACED


def test_a_table_of_format_one_has_no_sequence_numbers():
    old = snapshot(1, None, "c1")
    del old["sequence-number"]
    found = document(current=1, snapshots=[old])
    del found["last-sequence-number"]
    seen = table_state(Metadata(found), "shop")
    assert (seen.last_sequence, seen.ancestors[0].sequence_number) == (0, 0)
    assert marker_status(seen) is MarkerStatus.OURS


def test_a_marker_of_a_later_version_is_not_guessed_at():
    found = document(marker=None)
    found["properties"] = {"icestream.shop.marker": '{"version": 99}'}
    with pytest.raises(Replaced):
        table_state(Metadata(found), "shop")
