"""What a topic can no longer give, case by case: where we stand, what the log holds, the answer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.sources import LossReport
from icestream.sources.kafka.loss import LogBounds, losses
from icestream.tables.marker import Loss

ID, OTHER = "id-1", "id-2"


def log(earliest, latest, ids=None):
    """By default every topic still has its first id."""
    return LogBounds(dict.fromkeys(earliest, ID) if ids is None else ids, earliest, latest)


def retention(topic, partition, start, stop):
    return Loss("retention", topic, partition, start, stop)


def truncated(topic, partition, start, stop):
    return Loss("truncated", topic, partition, start, stop)


def recreated(topic, partition, start):
    return Loss("recreated", topic, partition, start, None)


def deleted(topic, partition, start):
    return Loss("deleted", topic, partition, start, None)


def reborn(**topics):
    """Losses whose streams go on with the new topic at these positions."""
    return topics, dict.fromkeys(topics, OTHER)


# name → (reached, known ids, log, lost, resume, stream ids)
CASES = {
    "nothing is known": ({}, {}, log({"a": {0: 5}}, {"a": {0: 9}}), [], {}, {}),
    "in the middle": (
        {"a": {0: 7}},
        {"a": ID},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [],
        {},
        {},
    ),
    "exactly at the earliest": (
        {"a": {0: 5}},
        {"a": ID},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [],
        {},
        {},
    ),
    "exactly at the end": (
        {"a": {0: 9}},
        {"a": ID},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [],
        {},
        {},
    ),
    "all was removed, but after we read it": (
        {"a": {0: 9}},
        {"a": ID},
        log({"a": {0: 9}}, {"a": {0: 9}}),
        [],
        {},
        {},
    ),
    "an empty topic": ({"a": {0: 0}}, {"a": ID}, log({"a": {0: 0}}, {"a": {0: 0}}), [], {}, {}),
    "a partition that is new to us": (
        {"a": {0: 9}},
        {"a": ID},
        log({"a": {0: 5, 1: 0}}, {"a": {0: 9, 1: 3}}),
        [],
        {},
        {},
    ),
    "retention": (
        {"a": {0: 4}},
        {"a": ID},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [retention("a", 0, 4, 5)],
        {"a": {0: 5}},
        {"a": ID},
    ),
    "retention took all that we had not read": (
        {"a": {0: 4}},
        {"a": ID},
        log({"a": {0: 9}}, {"a": {0: 9}}),
        [retention("a", 0, 4, 9)],
        {"a": {0: 9}},
        {"a": ID},
    ),
    "retention in one of three partitions": (
        {"a": {0: 7, 1: 4, 2: 9}},
        {"a": ID},
        log({"a": {0: 5, 1: 5, 2: 5}}, {"a": {0: 9, 1: 9, 2: 9}}),
        [retention("a", 1, 4, 5)],
        {"a": {0: 7, 1: 5, 2: 9}},
        {"a": ID},
    ),
    "truncated": (
        {"a": {0: 12}},
        {"a": ID},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [truncated("a", 0, 9, 12)],
        {"a": {0: 9}},
        {"a": ID},
    ),
    "truncated to nothing": (
        {"a": {0: 12}},
        {"a": ID},
        log({"a": {0: 0}}, {"a": {0: 0}}),
        [truncated("a", 0, 0, 12)],
        {"a": {0: 0}},
        {"a": ID},
    ),
    "retention, truncation and neither in one topic": (
        {"a": {0: 4, 1: 12, 2: 7}},
        {"a": ID},
        log({"a": {0: 5, 1: 5, 2: 5, 3: 0}}, {"a": {0: 9, 1: 9, 2: 9, 3: 4}}),
        [retention("a", 0, 4, 5), truncated("a", 1, 9, 12)],
        {"a": {0: 5, 1: 9, 2: 7}},
        {"a": ID},
    ),
    "recreated": (
        {"a": {0: 7, 1: 8}},
        {"a": ID},
        log({"a": {0: 0, 1: 0}}, {"a": {0: 2, 1: 0}}, {"a": OTHER}),
        [recreated("a", 0, 7), recreated("a", 1, 8)],
        *reborn(a={0: 0, 1: 0}),
    ),
    "recreated, and our positions exist in the new one": (
        {"a": {0: 7}},
        {"a": ID},
        log({"a": {0: 0}}, {"a": {0: 900}}, {"a": OTHER}),
        [recreated("a", 0, 7)],
        *reborn(a={0: 0}),
    ),
    "recreated, and the new one has lost records, too": (
        {"a": {0: 7}},
        {"a": ID},
        log({"a": {0: 50}}, {"a": {0: 900}}, {"a": OTHER}),
        [recreated("a", 0, 7)],
        *reborn(a={0: 50}),
    ),
    "recreated with more partitions": (
        {"a": {0: 7}},
        {"a": ID},
        log({"a": {0: 0, 1: 0, 2: 3}}, {"a": {0: 9, 1: 9, 2: 9}}, {"a": OTHER}),
        [recreated("a", 0, 7)],
        *reborn(a={0: 0, 1: 0, 2: 3}),
    ),
    "recreated with fewer partitions": (
        {"a": {0: 7, 1: 8}},
        {"a": ID},
        log({"a": {0: 0}}, {"a": {0: 9}}, {"a": OTHER}),
        [recreated("a", 0, 7), recreated("a", 1, 8)],
        *reborn(a={0: 0}),
    ),
    "deleted": (
        {"a": {0: 7, 1: 8}},
        {"a": ID},
        log({}, {}),
        [deleted("a", 0, 7), deleted("a", 1, 8)],
        {},
        {},
    ),
    "deleted, and its id was never known": (
        {"a": {0: 7}},
        {},
        log({}, {}),
        [deleted("a", 0, 7)],
        {},
        {},
    ),
    "an id that was never known": (
        {"a": {0: 7}},
        {},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [],
        {},
        {},
    ),
    "an id that was never known, and retention": (
        {"a": {0: 4}},
        {},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [retention("a", 0, 4, 5)],
        {"a": {0: 5}},
        {"a": ID},
    ),
    "a broker that has no ids": (
        {"a": {0: 7}},
        {},
        log({"a": {0: 5}}, {"a": {0: 9}}, {"a": ""}),
        [],
        {},
        {},
    ),
    "a broker that has no ids, and retention": (
        {"a": {0: 4}},
        {},
        log({"a": {0: 5}}, {"a": {0: 9}}, {"a": ""}),
        [retention("a", 0, 4, 5)],
        {"a": {0: 5}},
        {},
    ),
    "a broker that has no ids any more": (
        {"a": {0: 7}},
        {"a": ID},
        log({"a": {0: 5}}, {"a": {0: 9}}, {"a": ""}),
        [],
        {},
        {},
    ),
    # Kafka never removes a partition of a living topic: it is another topic of that name.
    "a partition vanished": (
        {"a": {0: 7, 1: 8}},
        {},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [recreated("a", 0, 7), recreated("a", 1, 8)],
        {"a": {0: 5}},
        {"a": ID},
    ),
    "a partition vanished behind one that retention hit": (
        {"a": {0: 4, 1: 8}},
        {},
        log({"a": {0: 5}}, {"a": {0: 9}}),
        [recreated("a", 0, 4), recreated("a", 1, 8)],
        {"a": {0: 5}},
        {"a": ID},
    ),
    "every partition vanished": (
        {"a": {0: 7}},
        {},
        log({"a": {}}, {"a": {}}),
        [recreated("a", 0, 7)],
        {"a": {}},
        {"a": ID},
    ),
    "several topics, one of each kind": (
        {
            "fine": {0: 7, 1: 7},
            "old": {0: 4, 1: 5},
            "short": {0: 12},
            "new": {0: 3},
            "gone": {0: 1, 1: 2},
        },
        dict.fromkeys(("fine", "old", "short", "new", "gone"), ID),
        log(
            {"fine": {0: 5, 1: 5}, "old": {0: 5, 1: 5}, "short": {0: 5}, "new": {0: 0}},
            {"fine": {0: 9, 1: 9}, "old": {0: 9, 1: 9}, "short": {0: 9}, "new": {0: 1}},
            {"fine": ID, "old": ID, "short": ID, "new": OTHER},
        ),
        [
            retention("old", 0, 4, 5),
            truncated("short", 0, 9, 12),
            recreated("new", 0, 3),
            deleted("gone", 0, 1),
            deleted("gone", 1, 2),
        ],
        {"old": {0: 5, 1: 5}, "short": {0: 9}, "new": {0: 0}},
        {"old": ID, "short": ID, "new": OTHER},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_losses(case):
    reached, known_ids, seen, lost, resume, ids = CASES[case]
    assert losses(reached, known_ids, seen) == LossReport(tuple(lost), resume, ids)


OFFSETS = st.integers(0, 9)
TOPICS = st.sampled_from(["a", "b", "c"])
POSITIONS = st.dictionaries(TOPICS, st.dictionaries(st.integers(0, 3), OFFSETS, max_size=4))
IDS = st.dictionaries(TOPICS, st.sampled_from([ID, OTHER]))


@st.composite
def logs(draw):
    ids = draw(st.dictionaries(TOPICS, st.sampled_from([ID, OTHER, ""])))
    numbers = {topic: draw(st.sets(st.integers(0, 3))) for topic in ids}
    earliest = {topic: {n: draw(OFFSETS) for n in numbers[topic]} for topic in ids}
    latest = {
        topic: {n: at + draw(OFFSETS) for n, at in partitions.items()}
        for topic, partitions in earliest.items()
    }
    return LogBounds(ids, earliest, latest)


@pytest.mark.slow
@settings(max_examples=300)
@given(POSITIONS, IDS, logs())
def test_whoever_goes_on_where_he_is_told_has_lost_nothing_more(reached, known_ids, seen):
    """`resume` and `stream_ids` take the place of a hurt stream's own; then all is well."""
    found = losses(reached, known_ids, seen)
    hurt = {loss.stream for loss in found.lost}
    assert set(found.resume) == {stream for stream in hurt if stream in seen.ids}
    assert set(found.stream_ids) <= set(found.resume)
    after = {s: at for s, at in reached.items() if s not in hurt} | dict(found.resume)
    ids = {s: one for s, one in known_ids.items() if s not in hurt} | dict(found.stream_ids)
    assert losses(after, ids, seen) == LossReport()


@settings(max_examples=300)
@given(POSITIONS, IDS, logs())
def test_a_loss_is_told_once_and_only_of_what_we_reached(reached, known_ids, seen):
    lost = losses(reached, known_ids, seen).lost
    places = [(loss.stream, loss.partition) for loss in lost]
    assert len(places) == len(set(places))
    for loss in lost:
        at = reached[loss.stream][loss.partition]
        assert at == (loss.stop if loss.kind == "truncated" else loss.start)
        assert loss.stop is None or loss.start < loss.stop
        assert (loss.stop is None) == (loss.kind in ("recreated", "deleted"))
