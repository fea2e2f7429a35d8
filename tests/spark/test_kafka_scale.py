"""Many partitions, and many topics into many tables: all of it exactly, and again after a stop."""

import json
import re
import shutil
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from feeds import Feed
from icestream.cli.demo.broker import Broker
from icestream.errors import Unreachable
from icestream.events import TableCommitted
from icestream.sources.kafka.client import KafkaAdmin
from servers import soon

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = {"columns": {"id": "bigint"}}


def create(feed, partitions):
    """Return when each partition has a leader: a broker takes its time to make a thousand."""
    cluster = KafkaAdmin(feed.bootstrap, {})

    def led():
        try:
            return bool(cluster.latest({name: range(n) for name, n in partitions.items()}))
        except Unreachable:
            return False

    with AdminClient({"bootstrap.servers": feed.bootstrap}) as admin:
        topics = [NewTopic(name, count, 1) for name, count in partitions.items()]
        for done in admin.create_topics(topics, operation_timeout=60).values():
            done.result(60)
    assert soon(led, 60)
    cluster.close()


def put(feed, records):
    """Write (topic, partition, id) by one producer."""
    failed = []
    producer = Producer({"bootstrap.servers": feed.bootstrap, "enable.idempotence": True})
    for topic, partition, number in records:
        producer.produce(
            topic,
            json.dumps({"id": number}),
            partition=partition,
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(60) == 0
    assert not failed


@pytest.mark.parametrize("partitions", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_many_partitions(lake, tmp_path_factory, partitions):
    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        feed = Feed(lake, broker.bootstrap, "t")
        create(feed, {"t": partitions})
        feed.configure(tables=[{"name": "shop.events", **COLUMNS}])
        put(feed, (("t", n % partitions, n) for n in range(3 * partitions)))
        lake.run()
        [commit] = feed.commits()
        assert len(commit.partitions) == partitions
        put(feed, (("t", n, 3 * partitions + n) for n in range(10)))
        shutil.rmtree(lake.folder / ".icestream")
        lake.run()
        assert [commit.landed for commit in feed.commits()] == [10]
        rows = lake.rows("shop.events")
        assert sorted(rows.column("id").to_pylist()) == list(range(3 * partitions + 10))
        counts = Counter(rows.column("_src_partition").to_pylist())
        assert counts == {n: 4 if n < 10 else 3 for n in range(partitions)}
        assert feed.positions() == {str(n): count for n, count in counts.items()}


@pytest.mark.parametrize("topics", [20, pytest.param(50, marks=pytest.mark.long)])
def test_many_topics_into_many_tables(feed, topics):
    lake, prefix = feed.lake, feed.topic
    names = [f"t{n:02d}" for n in range(topics)]
    create(feed, {f"{prefix}.{name}": 2 for name in names})
    pattern = re.escape(prefix) + r"\.(?P<table>\w+)"
    feed.configure({"topic_pattern": pattern}, [{"name": "shop.{table}", **COLUMNS}])
    expected = {f"shop.{name}": [*range(at, at + 5 + at)] for at, name in enumerate(names)}
    put(feed, ((f"{prefix}.{t[5:]}", n % 2, n) for t, numbers in expected.items() for n in numbers))
    lake.run()
    assert {name: feed.ids(name) for name in expected} == expected
    # Some go on, the others stay; all have their place after the state is lost.
    last = names[-1]
    more = {"t00": [900, 901], "t17": [902], last: [903, 904, 905]}
    put(feed, ((f"{prefix}.{name}", 1, n) for name, numbers in more.items() for n in numbers))
    shutil.rmtree(lake.folder / ".icestream")
    lake.run()
    again = {e.table: e.landed for e in lake.events if isinstance(e, TableCommitted)}
    assert again == {"shop.t00": 2, "shop.t17": 1, f"shop.{last}": 3}
    for name, numbers in more.items():
        expected[f"shop.{name}"] += numbers
    assert {name: feed.ids(name) for name in expected} == expected
