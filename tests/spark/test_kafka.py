"""A pipeline on a real broker: every committed record is in the table once, with its origin."""

import re
import shutil
import threading
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from feeds import ids
from icestream.cli import main as entry
from icestream.config.load import load
from icestream.events import TableCommitted, TopicUnrouted
from icestream.observe.status import pipeline_status
from icestream.sources.kafka.client import KafkaAdmin
from servers import soon

pytestmark = [pytest.mark.spark, pytest.mark.slow]

T0 = 1_700_000_000_000


def stamps(count, at=T0):
    return [at + n * 1000 for n in range(count)]


def instant(millis):
    return datetime.fromtimestamp(millis / 1000, UTC)


def committed(events):
    return [event for event in events if isinstance(event, TableCommitted)]


# ── where it reads ───────────────────────────────────────────────────────────────────────────────


def test_everything_lands_once_with_its_origin(feed):
    lake = feed.lake
    feed.create(partitions=3, retention_ms=-1)
    feed.configure()
    produced = {}
    for partition in range(3):
        first, at = partition * 100, T0 + partition
        feed.put(ids(first, first + 10), partition=partition, timestamps=stamps(10, at))
        produced |= {
            first + n: (feed.topic, partition, n, instant(at + n * 1000)) for n in range(10)
        }
    origin = ["_src_topic", "_src_partition", "_src_offset", "_src_timestamp"]

    def found():
        rows = lake.rows("shop.events").to_pylist()
        assert len(rows) == len(produced)
        return {row["id"]: tuple(row[name] for name in origin) for row in rows}

    lake.run()
    assert found() == produced
    assert feed.positions() == {"0": 10, "1": 10, "2": 10}
    assert not committed(lake.run())
    assert found() == produced
    feed.put(ids(1000, 1002), partition=1, timestamps=stamps(2))
    produced |= {1000 + n: (feed.topic, 1, 10 + n, instant(T0 + n * 1000)) for n in range(2)}
    shutil.rmtree(lake.folder / ".icestream")
    lake.run()
    assert [commit.landed for commit in feed.commits()] == [2]
    assert found() == produced
    shutil.rmtree(lake.folder / ".icestream")
    assert not committed(lake.run())
    assert found() == produced
    assert lake.marker("shop.events")["counts"]["landed"] == 32


def test_start_is_where_a_new_table_begins_and_nothing_more(feed):
    feed.create(partitions=2, retention_ms=-1)
    feed.put(ids(0, 10), partition=0, timestamps=stamps(10))
    feed.configure({"start": "latest"})
    feed.lake.run()
    assert feed.positions() == {"0": 10, "1": 0}  # also without a record: the claim holds it
    feed.put(ids(10, 13), partition=0)
    feed.put(ids(13, 15), partition=1)
    feed.lake.run()
    assert feed.ids() == [10, 11, 12, 13, 14]
    feed.configure({"start": "earliest"})
    assert not committed(feed.lake.run())
    # Of another table, by time: the first record of that moment or later.
    when = instant(T0) + timedelta(seconds=7)
    feed.configure({"start": when.isoformat()}, [{"name": "shop.later"}])
    feed.lake.run()
    assert feed.ids("shop.later") == [7, 8, 9, 10, 11, 12, 13, 14]
    feed.configure({"start": "latest"}, [{"name": "shop.later"}])
    feed.put(ids(15, 16), partition=1)
    feed.lake.run()
    assert feed.ids("shop.later") == list(range(7, 16))


def test_a_pattern_takes_up_topics_and_partitions_while_it_runs(feed):
    lake, prefix = feed.lake, feed.topic
    orders, clicks, stray = (f"{prefix}.{name}" for name in ("orders", "clicks", "Stray9"))
    pattern = re.escape(prefix) + r"\.(?P<table>\w+)"
    rule = {"match": re.escape(prefix) + r"\.[a-z]+", "name": "shop.{table}"}
    feed.configure({"topic_pattern": pattern}, [rule], commit_interval="1s")
    feed.create(topic=orders)
    feed.put(ids(0, 5), orders)
    with lake.running():
        assert feed.landed(5, "shop.orders")
        feed.create(topic=clicks, partitions=2)
        feed.create(topic=stray)
        feed.put(ids(100, 104), clicks, partition=0)
        feed.put(ids(104, 107), clicks, partition=1)
        feed.put(ids(0, 9), stray)
        with AdminClient({"bootstrap.servers": feed.bootstrap}) as admin:
            for done in admin.create_partitions([NewPartitions(orders, 3)]).values():
                done.result(30)
        feed.put(ids(5, 9), orders, partition=2)
        feed.put(ids(9, 12), orders, partition=0)
        assert feed.landed(12, "shop.orders")
        assert feed.landed(7, "shop.clicks")
        assert soon(lambda: any(isinstance(e, TopicUnrouted) for e in lake.events))
    assert [e.topic for e in lake.events if isinstance(e, TopicUnrouted)] == [stray]
    assert feed.ids("shop.orders") == list(range(12))
    assert feed.ids("shop.clicks") == list(range(100, 107))
    assert feed.positions("shop.orders", orders) == {"0": 8, "1": 0, "2": 4}
    assert feed.positions("shop.clicks", clicks) == {"0": 4, "1": 3}
    # And while it does not run.
    feed.create(topic=f"{prefix}.late")
    feed.put(ids(0, 3), f"{prefix}.late")
    feed.put(ids(12, 14), orders, partition=1)
    lake.run()
    assert {e.table: e.landed for e in committed(lake.events)} == {
        "shop.orders": 2,
        "shop.late": 3,
    }
    assert feed.ids("shop.orders") == list(range(14))
    assert feed.ids("shop.late") == [0, 1, 2]
    assert feed.ids("shop.clicks") == list(range(100, 107))


def test_no_commit_takes_more_than_the_limit(feed):
    feed.create(partitions=3)
    feed.configure({"max_records_per_commit": 40})
    for partition, count in enumerate((70, 30, 5)):
        feed.put(ids(partition * 100, partition * 100 + count), partition=partition)
    feed.lake.run()
    sizes = [commit.landed for commit in feed.commits()]
    assert sum(sizes) == 105
    assert len(sizes) >= 3
    assert max(sizes) <= 40
    assert feed.ids() == [*range(70), *range(100, 130), *range(200, 205)]


# ── what it reads ────────────────────────────────────────────────────────────────────────────────


def test_only_committed_transactions_are_read(feed):
    feed.create()
    feed.configure()
    producer = Producer({"bootstrap.servers": feed.bootstrap, "transactional.id": feed.topic})
    producer.init_transactions(30)

    def transaction(numbers):
        producer.begin_transaction()
        for n in numbers:
            producer.produce(feed.topic, f'{{"id": {n}}}')
        producer.flush(30)

    feed.put(ids(0, 3))
    transaction(range(100, 105))
    producer.abort_transaction(30)
    transaction(range(3, 6))
    producer.commit_transaction(30)
    transaction(range(6, 9))
    feed.put(ids(20, 22))  # behind an open transaction: not readable either
    feed.lake.run()
    assert feed.ids() == list(range(6))
    assert feed.positions() == {"0": 13}  # with the records that end transactions
    assert not committed(feed.lake.run())
    producer.commit_transaction(30)
    cluster = KafkaAdmin(feed.bootstrap, {})
    assert soon(lambda: cluster.latest({feed.topic: [0]})[feed.topic][0] == 19)
    feed.lake.run()
    assert feed.ids() == [*range(9), 20, 21]
    # A range that holds nothing readable at all is passed over, and is no gap later.
    transaction(range(200, 205))
    producer.abort_transaction(30)
    assert soon(lambda: cluster.latest({feed.topic: [0]})[feed.topic][0] == 25)
    cluster.close()
    assert not committed(feed.lake.run())
    assert feed.positions() == {"0": 25}
    feed.put(ids(30, 32))
    feed.lake.run()
    assert feed.ids() == [*range(9), 20, 21, 30, 31]


def test_holes_of_a_compacted_topic_are_no_gaps(feed):
    quickly = {"segment_ms": 100, "min_cleanable_dirty_ratio": 0.01, "max_compaction_lag_ms": 200}
    feed.create(cleanup_policy="compact", **quickly)
    feed.configure({"max_records_per_commit": 30})
    feed.put(ids(0, 100), keys=[f"k{n % 5}" for n in range(100)])
    first = threading.Event()
    feed.lake.run(once=False, stop=first, listen=lambda e: committed([e]) and first.set())
    taken = len(feed.ids())
    assert 0 < taken < 95
    cluster = KafkaAdmin(feed.bootstrap, {})

    def left():
        batches = cluster.sample({feed.topic: {0: 0}}, 10_000)
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    def compacted():
        feed.put([{"id": 1000}], keys=["last"])  # never the segment that is written to
        return left()[:5] == [95, 96, 97, 98, 99]

    assert soon(compacted)
    stay_as_it_is(feed)
    feed.lake.run()
    found = feed.lake.rows("shop.events").column("_src_offset").to_pylist()
    assert sorted(found) == [*range(taken), *left()]
    cluster.close()
    assert not committed(feed.lake.run())


def stay_as_it_is(feed):
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in {"cleanup.policy": "delete", "retention.ms": "-1"}.items()
    ]
    topic = ConfigResource(ResourceType.TOPIC, feed.topic, incremental_configs=entries)
    with AdminClient({"bootstrap.servers": feed.bootstrap}) as admin:
        admin.incremental_alter_configs([topic])[topic].result(30)


def test_null_values_and_keys(feed):
    feed.create()
    feed.put([{"id": 1}, None, {"id": 2}, None, {"id": 3}], keys=["a", "a", None, None, b"\xff"])
    feed.configure()
    feed.lake.run()
    assert feed.ids() == [1, 2, 3]
    aside = feed.lake.rows("shop.events__quarantine").sort_by("offset").to_pylist()
    assert [(row["offset"], row["key"], row["value"]) for row in aside] == [
        (1, b"a", None),
        (3, None, None),
    ]
    assert all("null" in row["error"] for row in aside)
    feed.configure({"format": {"type": "raw"}}, [{"name": "shop.raw"}])
    feed.lake.run()
    rows = feed.lake.rows("shop.raw").sort_by("_src_offset").to_pylist()
    assert [(row["key"], row["value"]) for row in rows] == [
        (b"a", b'{"id": 1}'),
        (b"a", None),
        (None, b'{"id": 2}'),
        (None, None),
        (b"\xff", b'{"id": 3}'),
    ]


def test_keys_and_headers_are_kept_on_request_and_later_too(feed):
    lake = feed.lake
    feed.create()
    feed.configure()
    feed.put(ids(0, 1), keys=["before"], headers={"h": b"0"})
    lake.run()
    assert "_src_key" not in lake.rows("shop.events").column_names
    feed.configure({"include": ["key", "headers"]})
    feed.put(ids(1, 2), keys=[b"\x00\xff"], headers=[("h", b"1"), ("h", b"\xfe"), ("none", None)])
    feed.put(ids(2, 3))
    lake.run()
    feed.configure({"include": ["key"]})
    feed.put(ids(3, 4), keys=["again"], headers={"h": b"3"})
    lake.run()
    rows = lake.rows("shop.events").sort_by("id").to_pylist()
    assert [row["_src_key"] for row in rows] == [None, b"\x00\xff", None, b"again"]
    assert rows[1]["_src_headers"] == [
        {"key": "h", "value": b"1"},
        {"key": "h", "value": b"\xfe"},
        {"key": "none", "value": None},
    ]
    # PyIceberg 0.12 reads a list that is null as an empty one; Spark tells them apart.
    query = "SELECT id FROM lake.shop.events WHERE _src_headers IS NULL"
    assert sorted(row.id for row in lake.spark_rows(query)) == [0, 2, 3]


# ── what it says ─────────────────────────────────────────────────────────────────────────────────


def test_status_tells_how_far_behind_it_stopped(feed):
    feed.create(partitions=2)
    feed.configure({"max_records_per_commit": 20}, commit_interval="1s")
    feed.put(ids(0, 60), partition=0)
    feed.put(ids(60, 100), partition=1)
    second = threading.Event()
    feed.lake.run(
        once=False, stop=second, listen=lambda e: len(feed.commits()) == 2 and second.set()
    )
    taken = len(feed.ids())
    assert 0 < taken < 100
    [table] = pipeline_status(load(feed.lake.file)).tables
    assert (table.rows, table.lag_records) == (taken, 100 - taken)
    assert [(p.stream, p.partition) for p in table.partitions] == [(feed.topic, 0), (feed.topic, 1)]
    positions = feed.positions()
    for each, end in zip(table.partitions, (60, 40), strict=True):
        assert each.position == positions[str(each.partition)]
        assert each.lag_records == end - each.position
        assert 0 <= each.freshness_seconds < 300
    assert 0 < table.lag_s < 300
    feed.lake.run()
    [table] = pipeline_status(load(feed.lake.file)).tables
    assert (table.rows, table.lag_records) == (100, 0)
    assert [p.position for p in table.partitions] == [60, 40]


@pytest.mark.parametrize("what", ["nobody there", "no such topic"])
def test_validate_says_why_the_source_cannot_be_read(feed, capsys, what):
    if what == "nobody there":
        feed.bootstrap = "127.0.0.1:1"
    feed.configure()
    with pytest.raises(SystemExit) as ended:
        entry.main(["validate", str(feed.lake.file)])
    assert ended.value.code == 69
    said = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert len(said) == 1
    if what == "nobody there":
        assert "127.0.0.1:1: connection refused" in said[0]
    else:
        assert f"topic `{feed.topic}` does not exist" in said[0]
    with pytest.raises(SystemExit) as ended:
        entry.main(["validate", "--offline", str(feed.lake.file)])
    assert not ended.value.code
