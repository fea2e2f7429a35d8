"""The Kafka source's driver side without a cluster: what it asks, and what it hands to Spark."""

import json
import re
import sys
import threading
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from icestream.config.kafka import OAUTH_HANDLER
from icestream.config.options.source import KafkaSourceOptions
from icestream.errors import Unreachable
from icestream.positions import PositionRange
from icestream.sources import LossReport, source_for
from icestream.sources.kafka import watch
from icestream.sources.kafka.source import KafkaSource, java_pattern
from icestream.sources.kafka.watch import EndOffsetWatcher
from icestream.tables.marker import Loss


def source(**facts):
    known = {"type": "kafka", "bootstrap_servers": "b:1"}
    if "topic_pattern" not in facts:
        known["topics"] = ["a", "b"]
    return source_for(KafkaSourceOptions.model_validate({**known, **facts}))


@pytest.fixture
def shop(cluster):
    """Topic, offsets of its partitions: the first, the stable end, the end of the log."""
    cluster.put("a", id="id-a", p0=(5, 9), p1=(0, 3, 4))
    cluster.put("b", id="id-b", p0=(2, 2))
    cluster.put("c", id="id-c", p0=(0, 1))
    return cluster


# ── patterns ────────────────────────────────────────────────────────────────────────────────────

PATTERNS = {
    "no group": (r"orders_\d+", r"orders_\d+"),
    "a plain group": (r"(a|b)_c", r"(a|b)_c"),
    "a named group": (r"shop\.public\.(?P<table>\w+)", r"shop\.public\.(\w+)"),
    "several named groups": (r"(?P<land>..)_(?P<x_1>.+)", r"(..)_(.+)"),
    "nested": (r"(?P<a>x(?P<b>y)?)", r"(x(y)?)"),
    "other kinds of groups": (r"(?:a)(?=b)(?!c)(?i:d)(?<=e)(?<!f)", None),
    "an escaped parenthesis": (r"\(?P<x>a", None),
    "an escaped backslash, then a group": (r"\\(?P<x>a)", r"\\(a)"),
    "an escaped backslash, then an escaped parenthesis": (r"\\\(?P<x>a", None),
    "groups in a row": (r"(?P<a>.)(?P<b>.)\((?P<c>.)", r"(.)(.)\((.)"),
    "empty": ("", ""),
}


@pytest.mark.parametrize("case", PATTERNS)
def test_patterns_for_java(case):
    pattern, expected = PATTERNS[case]
    found = java_pattern(pattern)
    assert found == f"(?!__)(?:{pattern if expected is None else expected})"
    # Both languages read what is left alike, and it matches what it matched before.
    assert re.compile(found).groups == re.compile(pattern).groups
    assert re.compile(found).groupindex == {}
    for topic in ("orders_1", "a_c", "shop.public.t", "de_x", "xy", "\\a", "(P<x>a", "ab(c"):
        assert bool(re.fullmatch(found, topic)) == bool(re.fullmatch(pattern, topic))
    assert re.fullmatch(java_pattern(".*"), "__consumer_offsets") is None


@pytest.mark.parametrize(
    "moved, cores, tasks",
    [(1, 2, 1), (50_000, 2, 1), (50_001, 2, 2), (10**7, 2, 4), (10**7, 8, 16)],
)
def test_a_batch_has_as_many_tasks_as_it_is_worth(moved, cores, tasks):
    batch = PositionRange({"a": {0: 10, 1: 5}}, {"a": {0: 10, 1: 5 + moved}})
    assert source().max_tasks(batch, cores) == tasks


# ── which topics ────────────────────────────────────────────────────────────────────────────────


def test_topics_of_a_range_are_those_that_moved():
    one = source()
    start = {"a": {0: 5, 1: 7}, "b": {0: 3}, "still": {0: 4}}
    assert one.topics(PositionRange(start, start)) == []
    stop = {"a": {0: 5, 1: 8}, "b": {0: 3}, "still": {0: 4}, "new": {0: 0}}
    assert one.topics(PositionRange(start, stop)) == ["a", "new"]
    more = {"a": {0: 5, 1: 7}, "b": {0: 3, 1: 0}, "still": {0: 4}}
    assert one.topics(PositionRange(start, more)) == ["b"]  # a partition came up
    assert one.topics(PositionRange({}, {"a": {0: 0}})) == ["a"]
    assert one.topics(PositionRange(start, {})) == []


def test_known_topics(shop):
    assert list(source().known_topics()) == ["a", "b"]
    assert shop.asked == []  # the file says it
    assert source(topic_pattern="[bc]|x").known_topics() == ["b", "c"]
    assert source(topic_pattern="a.").known_topics() == []  # the whole name has to match


def test_a_start_is_of_all_topics_that_exist(shop):
    one = source(topics=["a", "missing"])
    ids = {"a": "id-a"}
    start = one.resolve_start("earliest")
    assert (start.positions, start.stream_ids) == ({"a": {0: 5, 1: 0}}, ids)
    assert one.resolve_start("latest").positions == {"a": {0: 9, 1: 3}}
    assert one.resolve_start(datetime(2020, 1, 1, tzinfo=UTC)).positions == {"a": {0: 9, 1: 3}}
    assert "at 2020" in shop.asked


# ── check ───────────────────────────────────────────────────────────────────────────────────────


def test_check(shop):
    source().check()
    source(topic_pattern="nothing").check()
    with pytest.raises(Unreachable) as one:
        source(topics=["a", "x"]).check()
    assert (one.value.what, one.value.where) == ("topic `x` does not exist", "b:1")
    assert "source.topics" in one.value.hint
    with pytest.raises(Unreachable, match="topic `x` does not exist, nor do 2 others"):
        source(topics=["x", "a", "y", "z"]).check()


# ── identities and losses ───────────────────────────────────────────────────────────────────────


def test_ids_of_what_is_asked_for(shop):
    shop.put("old", id="", p0=(0, 1))  # of a broker that knows no topic ids
    one = source()
    assert one.stream_ids(["a", "c", "missing", "old"]) == {"a": "id-a", "c": "id-c"}
    assert one.stream_ids({"b": {0: 1}}) == {"b": "id-b"}
    assert one.stream_ids([]) == {}


def test_losses_of_what_is_read(shop):
    one = source()
    ids = {"a": "id-a", "b": "id-b", "c": "another"}
    assert one.losses({"a": {0: 5, 1: 3}, "b": {0: 2}}, ids) == LossReport()
    # An open transaction lies between the stable end and the end of the log: nothing is lost.
    assert one.losses({"a": {0: 9, 1: 4}}, ids) == LossReport()
    assert one.losses({"a": {0: 4, 1: 5}, "b": {0: 2}}, ids) == LossReport(
        (Loss("retention", "a", 0, 4, 5), Loss("truncated", "a", 1, 4, 5)),
        {"a": {0: 5, 1: 4}},
        {"a": "id-a"},
    )
    # A topic that the file does not name any more is not looked at.
    assert one.losses({"c": {0: 0}, "gone": {0: 7}}, ids) == LossReport()
    found = source(topic_pattern="[a-c]").losses({"c": {0: 1}, "gone": {0: 7}}, ids)
    assert found == LossReport((Loss("recreated", "c", 0, 1, None),), {"c": {0: 0}}, {"c": "id-c"})


def test_a_deleted_topic_is_lost(shop):
    del shop.topics["b"]
    assert source().losses({"a": {0: 9}, "b": {0: 2}}, {}) == LossReport(
        (Loss("deleted", "b", 0, 2, None),)
    )


# ── what Spark is told ──────────────────────────────────────────────────────────────────────────


class Reader:
    """Spark's DataStreamReader, as far as we use it; names are case-insensitive."""

    def __init__(self):
        self.set = {}

    def format(self, name):
        self.name = name
        return self

    def option(self, key, value):
        self.set[key.lower()] = value
        return self

    def options(self, **several):
        for key, value in several.items():
            self.option(key, value)
        return self

    def load(self):
        return self


def opened(one, begin, tmp_path):
    reader = one.open(SimpleNamespace(readStream=Reader()), begin, tmp_path, once=False).frame
    one.close()
    assert reader.name == "kafka"
    return reader


def test_spark_begins_where_the_tables_stand(shop, tmp_path):
    begin = {"a": {0: 7}, "gone": {0: 3}}
    reader = opened(source(max_records_per_commit=50), begin, tmp_path)
    assert json.loads(reader.set["startingoffsets"]) == {
        "a": {"0": 7, "1": -2},  # nobody knows partition 1 yet: from its earliest
        "b": {"0": -2},
    }
    assert reader.set["subscribe"] == "a,b"
    assert "subscribepattern" not in reader.set
    assert reader.set["kafka.bootstrap.servers"] == "b:1"
    assert reader.set["failondataloss"] == "true"
    assert reader.set["maxoffsetspertrigger"] == 50
    assert reader.set["kafka.isolation.level"] == "read_committed"
    assert reader.set["includeheaders"] == "false"


def test_spark_reads_by_pattern(shop, tmp_path):
    reader = opened(source(topic_pattern="(?P<x>[bc])"), {"b": {0: 2}}, tmp_path)
    assert reader.set["subscribepattern"] == "(?!__)(?:([bc]))"
    assert "subscribe" not in reader.set
    assert json.loads(reader.set["startingoffsets"]) == {"b": {"0": 2}, "c": {"0": -2}}


def test_a_pattern_that_matches_nothing_yet(shop, tmp_path):
    reader = opened(source(topic_pattern="later"), {}, tmp_path)
    assert reader.set["startingoffsets"] == "earliest"


def test_headers_are_read_when_they_are_kept(shop, tmp_path):
    reader = opened(source(include=["key", "headers"]), {}, tmp_path)
    assert reader.set["includeheaders"] == "true"
    assert opened(source(include=["key"]), {}, tmp_path).set["includeheaders"] == "false"


def test_options_go_to_spark_and_to_our_own_client(shop, tmp_path):
    options = {
        "kafka.isolation.level": "read_uncommitted",
        "minPartitions": "8",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://idp/t",
    }
    one = source(options=options)
    reader = opened(one, {}, tmp_path)
    assert {key: reader.set[key.lower()] for key in options} == options
    assert reader.set["kafka.sasl.login.callback.handler.class"] == OAUTH_HANDLER
    assert shop.made == [("b:1", options)]
    assert any("allowed.urls=https://idp/t" in flag for flag in one.java_options)


# ── lag ─────────────────────────────────────────────────────────────────────────────────────────


def soon(true):
    """Whether it becomes true while the other thread works."""
    for _ in range(500):
        if true():
            return True
        threading.Event().wait(0.01)
    return False


def test_lag_is_known_from_the_moment_of_opening(shop, tmp_path):
    one = source()
    reached = {"a": {0: 6, 1: 3}, "b": {0: 0}}
    assert one.lag(reached) == {}
    one.open(SimpleNamespace(readStream=Reader()), {}, tmp_path, once=False)
    try:
        assert soon(lambda: one.lag(reached) == {"a": {0: 3, 1: 0}, "b": {0: 2}})
        assert one.lag({"a": {0: 99}}) == {"a": {0: 0}}  # never below zero
    finally:
        one.close()


def test_closing(shop, tmp_path):
    fresh = source()
    fresh.close()
    assert shop.made == []  # a source that was only asked what it needs never connects
    assert shop.closed == 0
    fresh.open(SimpleNamespace(readStream=Reader()), {}, tmp_path, once=False)
    fresh.close()
    assert shop.closed == 1
    assert not [each for each in threading.enumerate() if each.name == "kafka ends"]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(watch, "_SECONDS", 0.001)


def test_ends_follow_the_log_and_what_comes_up(cluster, quick):
    cluster.put("a", p0=(0, 5))
    ends = EndOffsetWatcher(cluster, {"a": [0]})
    try:
        assert soon(lambda: ends.records_behind({"a": {0: 1}}) == {"a": {0: 4}})
        cluster.put("a", p0=(0, 9), p1=(0, 7))
        cluster.put("new", p3=(0, 2))
        reached = {"a": {0: 1, 1: 1}, "new": {3: 0}}
        assert soon(lambda: ends.records_behind(reached) == {"a": {0: 8, 1: 6}, "new": {3: 2}})
    finally:
        ends.close()


def test_a_broker_that_does_not_answer_leaves_the_last_answer(cluster, quick):
    cluster.put("a", p0=(0, 5))
    ends = EndOffsetWatcher(cluster, {"a": [0]})
    try:
        assert soon(lambda: ends.records_behind({"a": {0: 1}}) == {"a": {0: 4}})
        calls = []

        def silent(partitions):
            calls.append(1)
            raise Unreachable("no answer")

        answer, cluster.latest = cluster.latest, silent
        assert soon(lambda: len(calls) > 3)
        assert ends.records_behind({"a": {0: 2}}) == {"a": {0: 3}}
        cluster.latest = answer
        cluster.put("a", p0=(0, 8))
        assert soon(lambda: ends.records_behind({"a": {0: 2}}) == {"a": {0: 6}})
    finally:
        ends.close()


def test_commits_that_bring_new_topics_do_not_end_the_watch(cluster, monkeypatch):
    """Both threads work on the same list of partitions."""
    monkeypatch.setattr(watch, "_SECONDS", 0)
    cluster.latest = lambda partitions: {}
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    ends = EndOffsetWatcher(cluster, {f"topic {n}": range(20) for n in range(200)})
    try:
        for n in range(3000):
            ends.records_behind({f"new {n}": {0: 0}})
        assert ends._thread.is_alive()
    finally:
        sys.setswitchinterval(before)
        ends.close()


def test_it_is_registered():
    assert isinstance(source(), KafkaSource)
    assert source().jar_sets == ("kafka",)
    assert source().ends_by_itself
