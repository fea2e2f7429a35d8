"""The generator: any range can be made again, and the planner never goes back."""

import json
from itertools import pairwise
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.positions import PositionRange
from icestream.records import RECORDS
from icestream.sources import LossReport, generator
from icestream.sources.generator import (
    GeneratorSource,
    ShopPlanner,
    ShopReader,
    available,
    share,
)
from icestream.sources.shop import make
from icestream.tables.marker import LocatedMarker, Marker

TOPICS = ("page_events", "order_changes")
BEGAN = 1_700_000_000_000


def shop(topic="page_events", low=0, high=10, seed=0, rate=None, malformed=0.0):
    return make(topic, low, high, seed, BEGAN, rate, malformed)


# ── records ─────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=25)
@given(
    topic=st.sampled_from(TOPICS),
    base=st.sampled_from([0, 4090, 8192, 10**6, 10**9]),
    edges=st.lists(st.integers(0, 60), min_size=4, max_size=4, unique=True).map(sorted),
    seed=st.integers(0, 2**31),
    rate=st.none() | st.integers(1, 5000),
    malformed=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_a_part_of_a_range_is_the_same_records(topic, base, edges, seed, rate, malformed):
    low, left, right, high = (base + each for each in edges)
    whole = make(topic, low, high, seed, BEGAN, rate, malformed)
    part = make(topic, left, right, seed, BEGAN, rate, malformed)
    assert part.equals(whole.slice(left - low, right - left))
    assert part.schema == RECORDS
    assert part.column("offset").to_pylist() == list(range(left, right))


@pytest.mark.parametrize("topic", TOPICS)
def test_records_are_json_of_about_the_right_size(topic):
    records = shop(topic, 0, 2000)
    values = [json.loads(value) for value in records.column("value").to_pylist()]
    assert len({tuple(one) for one in values}) == 1
    mean = records.column("value").nbytes / len(records)
    assert 220 < mean < 280 if topic == "page_events" else 120 < mean < 200
    ids = {one.get("event_id", one.get("change_id")) for one in values}
    assert len(ids) == 2000
    assert records.column("key").null_count == 0


def test_records_do_not_repeat_themselves_after_a_while():
    values = shop(low=0, high=20_000).column("value").to_pylist()
    sessions = {json.loads(value)["session_id"] for value in values}
    assert len(sessions) > 19_900


def test_a_malformed_share_is_cut_off():
    values = shop(high=4000, malformed=0.1).column("value").to_pylist()
    good = shop(high=4000).column("value").to_pylist()
    broken = [at for at, value in enumerate(values) if value != good[at]]
    assert 300 < len(broken) < 500
    for at in broken:
        assert good[at].startswith(values[at])
        with pytest.raises(ValueError):
            json.loads(values[at])
    assert len(set(shop(high=50, malformed=1.0).column("value").to_pylist()) & set(good)) == 0


def test_another_seed_is_another_shop():
    assert not shop(seed=1).equals(shop(seed=2))
    assert shop(seed=1).equals(shop(seed=1))


@pytest.mark.parametrize("topic", TOPICS)
def test_any_seed_that_the_pipeline_file_allows(topic):
    assert len(shop(topic, seed=-1)) == 10


def test_times_follow_the_rate():
    times = shop(high=4, rate=2).column("timestamp").cast(pa.int64()).to_pylist()
    assert [at - BEGAN * 1000 for at in times] == [0, 500_000, 1_000_000, 1_500_000]
    value = json.loads(shop(high=4, rate=2).column("value")[3].as_py())
    assert value["event_time"] == "2023-11-14T22:13:21.500Z"


def test_an_order_is_created_paid_and_shipped():
    changes = [
        json.loads(value) for value in shop("order_changes", 0, 300).column("value").to_pylist()
    ]
    assert {one["status"] for one in changes[0::3]} == {"created"}
    assert {one["status"] for one in changes[1::3]} == {"paid"}
    ends = [one["status"] for one in changes[2::3]]
    assert set(ends) == {"shipped", "cancelled"}
    assert 0 < ends.count("cancelled") < 30
    for at in (0, 3, 6):
        fixed = [
            (one["order_id"], one["customer_id"], one["amount"]) for one in changes[at : at + 3]
        ]
        assert len(set(fixed)) == 1


def test_the_reader_makes_orders(monkeypatch):
    monkeypatch.setattr(generator, "_STEP", 7)
    orders = [
        json.dumps(["page_events", low, high, 3, BEGAN, 5, False])
        for low, high in ((0, 20), (20, 21))
    ]
    made = list(ShopReader(0.5).read(iter([pa.record_batch({"work": orders})])))
    assert [len(each) for each in made] == [7, 7, 6, 1]
    whole = pa.Table.from_batches(made)
    assert whole.equals(pa.Table.from_batches([make("page_events", 0, 21, 3, BEGAN, 5, 0.5)]))


# ── how many are due ────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 10**9))
def test_shares_add_up_and_never_fall(total):
    shares = [share(topic, TOPICS, total) for topic in TOPICS]
    assert sum(shares) == total
    later = [share(topic, TOPICS, total + 1) for topic in TOPICS]
    assert all(after >= before for before, after in zip(shares, later, strict=True))
    for topic in TOPICS:
        assert share(topic, (topic,), total) == total


@pytest.mark.parametrize(
    "rows, rate, seconds, due",
    [
        (None, None, 5, None),
        (100, None, 5, 100),
        (None, 10, 5, 50),
        (100, 10, 5, 50),
        (100, 10, 50, 100),
    ],
)
def test_available(monkeypatch, rows, rate, seconds, due):
    monkeypatch.setattr(generator.time, "time", lambda: BEGAN / 1000 + seconds)
    assert available(rows, rate, BEGAN) == due


# ── the planner ─────────────────────────────────────────────────────────────────────────────────


def planner(topics=TOPICS, rows=None, rate=None, begin=None, max_records=100, tasks=3, once=False):
    return ShopPlanner(
        topics=topics,
        rows=rows,
        rate=rate,
        seed=0,
        began_ms=BEGAN,
        begin=begin or {},
        max_records=max_records,
        tasks=tasks,
        once=once,
    )


def plain(positions):
    return {topic: at[0] for topic, at in positions.items()}


def total(positions):
    return sum(plain(positions).values())


def walk(plans, calls):
    """Positions call by call; checks that they never go back and keep to `max_records`."""
    steps = [plans.initial_positions()]
    for _ in range(calls):
        steps.append(plans.latest_positions())
        before, after = plain(steps[-2]), plain(steps[-1])
        assert all(after[topic] >= before[topic] for topic in before)
        assert total(steps[-1]) - total(steps[-2]) <= plans._max_records
    return steps


def test_it_ends_with_its_rows():
    steps = walk(planner(rows=250), 5)
    assert [total(each) for each in steps] == [0, 100, 200, 250, 250, 250]
    assert plain(steps[-1]) == {"page_events": 200, "order_changes": 50}


def test_without_an_end_every_commit_is_full():
    assert [total(each) for each in walk(planner(), 3)] == [0, 100, 200, 300]


def test_it_keeps_to_the_rate(monkeypatch):
    now = [BEGAN / 1000]
    monkeypatch.setattr(generator.time, "time", lambda: now[0])
    plans = planner(rate=10, rows=95)
    reached = []
    for second in (0, 1, 1.5, 1.2, 9, 100):  # the clock may be set back
        now[0] = BEGAN / 1000 + second
        reached.append(total(plans.latest_positions()))
    assert reached == [0, 10, 15, 15, 90, 95]


@pytest.mark.parametrize(
    "rows, rate, end",
    [(250, None, 250), (None, None, 100), (None, 10, 50), (30, 10, 30)],
)
def test_once_ends_at_what_is_due_at_its_start(monkeypatch, rows, rate, end):
    now = [BEGAN / 1000 + 5]
    monkeypatch.setattr(generator.time, "time", lambda: now[0])
    plans = planner(rows=rows, rate=rate, once=True)
    now[0] += 1000
    assert [total(each) for each in walk(plans, 6)][-1] == end


def test_it_goes_on_where_the_tables_stand():
    begin = {"page_events": 80, "order_changes": 20}
    plans = planner(begin=begin, rows=150)
    assert plain(plans.initial_positions()) == begin
    assert plain(plans.latest_positions()) == {"page_events": 120, "order_changes": 30}
    assert plain(plans.initial_positions()) == begin


@pytest.mark.parametrize("begin", [{"page_events": 800}, {"order_changes": 300}])
def test_a_topic_that_begins_later_catches_up(begin):
    """A second table is added to a pipeline that has run for a while."""
    steps = walk(planner(begin=begin, rows=1000, max_records=100), 40)
    expected = {"page_events": 800, "order_changes": max(200, begin.get("order_changes", 0))}
    assert plain(steps[-1]) == expected


@pytest.mark.parametrize("tasks", [1, 3, 16])
def test_orders_cover_the_range_once(monkeypatch, tasks):
    monkeypatch.setattr(generator, "_STEP", 10)
    plans = planner(tasks=tasks)
    start = {"page_events": {0: 5}, "order_changes": {0: 7}}
    stop = {"page_events": {0: 98}, "order_changes": {0: 7}}
    orders = [json.loads(each) for each in plans.work_orders(start, stop)]
    edges = [(low, high) for _, low, high, *_ in orders]
    assert {order[0] for order in orders} == {"page_events"}
    assert len(orders) == min(tasks, 9)
    assert edges[0][0] == 5
    assert edges[-1][1] == 98
    assert all(one[1] == two[0] for one, two in pairwise(edges))
    assert all(low < high for low, high in edges)


# ── the driver's side ───────────────────────────────────────────────────────────────────────────


def source(**facts):
    known = {
        "topics": TOPICS,
        "rows": 100,
        "rate": None,
        "seed": 7,
        "malformed": 0.0,
        "max_records_per_commit": 50,
    }
    return GeneratorSource(SimpleNamespace(**{**known, **facts}))


def test_a_new_table_begins_at_the_beginning():
    one = source()
    start = one.resolve_start("earliest")
    assert start.positions == {"page_events": {0: 0}, "order_changes": {0: 0}}
    assert start.stream_ids == one.stream_ids(TOPICS)
    assert set(start.stream_ids) == set(TOPICS)


def test_the_clock_of_the_first_run_goes_on():
    first = source()
    first._began_ms = BEGAN
    mark = Marker("p", 1, "r", "c", None, 1, "u", 1, stream_ids=first.stream_ids(TOPICS))
    second = source()
    second.load_details([LocatedMarker(mark, "somewhere")])
    assert second.stream_ids(TOPICS) == first.stream_ids(TOPICS)
    other = source(seed=8)
    other.load_details([LocatedMarker(mark, "somewhere")])
    assert other.stream_ids(TOPICS) != first.stream_ids(TOPICS)  # seen as another stream


def test_open_hands_everything_to_the_planner(tmp_path):
    session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3))
    plans = source().open(session, {"page_events": {0: 8}}, tmp_path, once=True).planner()
    assert plain(plans.initial_positions()) == {"page_events": 8, "order_changes": 0}
    assert plain(walk(plans, 5)[-1]) == {"page_events": 80, "order_changes": 20}


def test_small_answers():
    one = source()
    span = PositionRange({}, {"order_changes": {0: 5}})
    assert one.topics(span) == ["order_changes"]
    assert one.stream_of("page_events") == "page_events"
    assert one.record_floors(span, {"order_changes": {0: 3}}) == {"order_changes": {0: 3}}
    assert one.store_details({}, "", "c", {}) == {}
    both = {"page_events": {0: 70}, "order_changes": {0: 15}}
    assert one.lag(both) == {"page_events": {0: 10}, "order_changes": {0: 5}}
    assert one.lag({"page_events": {0: 900}}) == {"page_events": {0: 0}}
    assert source(rows=None).lag(both) == {}  # without an end and a rate nothing is ever due
    assert set(one.stream_ids(["page_events"])) == {"page_events"}
    assert one.losses(both, one.stream_ids(TOPICS)) == LossReport()
    assert one.known_topics() == TOPICS
    assert [len(each) for each in one.sample(8)] == [4, 4]


def test_both_topics_keep_the_time_of_one_shop():
    """At 10 records a second in all, the topics' last records are of the same moment."""
    pages = make("page_events", 0, 80, 3, BEGAN, 10, 0, mixed=True)
    orders = make("order_changes", 0, 20, 3, BEGAN, 10, 0, mixed=True)
    times = [
        at - BEGAN * 1000
        for batch in (pages, orders)
        for at in batch.column("timestamp").cast(pa.int64()).to_pylist()
    ]
    assert sorted(times) == [n * 100_000 for n in range(100)]
