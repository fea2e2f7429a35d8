"""The marker: what is written into a table comes back the same, and says only what moved."""

import json
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.errors import Replaced
from icestream.tables.commits import summary
from icestream.tables.marker import Counts, Loss, LossKind, Marker, property_name

NAMES = st.text(max_size=12)
POSITIONS = st.dictionaries(
    NAMES, st.dictionaries(st.integers(0, 9), st.integers(0, 2**63 - 1), max_size=3), max_size=3
)
LOSSES = st.builds(
    Loss,
    kind=st.sampled_from(get_args(LossKind)),
    stream=NAMES,
    partition=st.integers(0, 9),
    start=st.integers(0, 2**63 - 1),
    stop=st.none() | st.integers(0, 2**63 - 1),
)
MARKERS = st.builds(
    Marker,
    pipeline=NAMES,
    generation=st.integers(1),
    run_id=NAMES,
    commit_id=NAMES,
    previous_commit_id=st.none() | NAMES,
    sequence=st.integers(1),
    table_uuid=NAMES,
    snapshot_sequence=st.integers(0),
    positions=POSITIONS,
    stream_ids=st.dictionaries(NAMES, NAMES, max_size=3),
    counts=st.builds(Counts, st.integers(0), st.integers(0), st.integers(0)),
    watermark_ms=st.none() | st.integers(),
    details=st.dictionaries(NAMES, NAMES, max_size=2),
    losses=st.lists(LOSSES, max_size=3).map(tuple),
)


def marker(**facts):
    known = {
        "pipeline": "shop",
        "generation": 3,
        "run_id": "run",
        "commit_id": "c2",
        "previous_commit_id": "c1",
        "sequence": 2,
        "table_uuid": "u",
        "snapshot_sequence": 7,
    }
    return Marker(**{**known, **facts})


@settings(max_examples=50)
@given(MARKERS)
def test_json_gives_the_same_marker_back(one):
    assert Marker.from_json(one.to_json()) == one


@settings(max_examples=50)
@given(MARKERS)
def test_equal_markers_are_equal_text(one):
    """Order of dictionaries must not show: people compare properties."""
    turned = {name: dict(reversed(at.items())) for name, at in reversed(one.positions.items())}
    again = Marker(**{**vars(one), "positions": turned})
    assert again.to_json() == one.to_json()


def test_partitions_are_numbers_again():
    restored = Marker.from_json(marker(positions={"orders": {10: 5, 2: 7}}).to_json())
    assert restored.positions == {"orders": {10: 5, 2: 7}}


@pytest.mark.parametrize("version", [None, 0, 2, "1"])
def test_a_version_that_we_do_not_know_is_refused(version):
    raw = {**json.loads(marker().to_json()), "version": version}
    with pytest.raises(Replaced, match="version"):
        Marker.from_json(json.dumps(raw))


def test_a_marker_from_before_losses_were_written_down():
    raw = json.loads(marker(positions={"orders": {0: 5}}).to_json())
    assert raw.pop("losses") == []
    restored = Marker.from_json(json.dumps(raw))
    assert restored.losses == ()
    assert restored.positions == {"orders": {0: 5}}


def test_losses_keep_their_order():
    lost = (Loss("retention", "b", 1, 5, 9), Loss("deleted", "a", 0, 7, None))
    assert Marker.from_json(marker(losses=lost).to_json()).losses == lost


def test_a_loss_for_people():
    assert str(Loss("retention", "shop.orders", 3, 5, 9)) == "shop.orders/3: 5 to 9 (4 records)"
    assert str(Loss("recreated", "orders", 0, 5, None)) == "orders/0: 5 to the end"


def test_counts_add_up():
    total = Counts(1, 2, 3) + Counts(10, 20, 30)
    assert total == Counts(11, 22, 33)
    assert total.read == 66


def test_property_name_is_per_pipeline():
    assert property_name("a") != property_name("b")
    assert property_name("shop") == "icestream.shop.marker"


def test_summary_holds_only_the_partitions_that_moved():
    after = {"a": {0: 5, 1: 9}, "b": {0: 1}, "new": {0: 0}}
    before = {"a": {0: 5, 1: 4}, "b": {0: 1}, "gone": {0: 3}}
    notes = summary(marker(positions=after), before, 12)
    assert json.loads(notes["icestream.offsets"]) == {"a": {"1": 9}, "new": {"0": 0}}
    assert notes["icestream.records"] == "12"
    assert notes["icestream.commit-id"] == "c2"
    assert notes["icestream.previous-commit-id"] == "c1"
    assert notes["icestream.pipeline"] == "shop"
    assert notes["icestream.sequence"] == "2"
    assert notes["icestream.generation"] == "3"


@settings(max_examples=50)
@given(MARKERS, POSITIONS)
def test_before_and_summary_give_the_positions(one, before):
    """What the summary leaves out is what did not move."""
    moved = json.loads(summary(one, before, 0)["icestream.offsets"])
    for stream, partitions in one.positions.items():
        for number, at in partitions.items():
            changed = moved.get(stream, {}).get(str(number))
            assert at == (before[stream][number] if changed is None else changed)


@settings(max_examples=50)
@given(MARKERS)
def test_a_summary_is_text(one):
    """Iceberg's summary holds strings only, and never the word None."""
    notes = summary(one, {}, 1)
    assert all(isinstance(value, str) for value in notes.values())
    assert ("icestream.previous-commit-id" in notes) == (one.previous_commit_id is not None)
    assert ("icestream.watermark" in notes) == (one.watermark_ms is not None)
