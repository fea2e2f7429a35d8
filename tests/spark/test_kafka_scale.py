"""Many partitions, and many topics into many tables: all of it exactly, and again after a stop."""

import json
import re
import shutil
from collections import Counter

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from feeds import ids
from icestream.errors import Unreachable
from icestream.observe.events import TableCommitted
from icestream.sources.kafka.client import Cluster
from servers import delete_topic, soon

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PARTITIONS = 1000
TOPICS = 50


def spread(feed, numbers):
    """One record for each number, over all partitions in turn."""
    failed = []
    producer = Producer({"bootstrap.servers": feed.bootstrap, "enable.idempotence": True})
    for n in numbers:
        producer.produce(
            feed.topic,
            json.dumps({"id": n}),
            partition=n % PARTITIONS,
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(60) == 0
    assert not failed


def led(feed):
    """Every partition has a leader: a broker takes its time to make a thousand."""
    cluster = Cluster(feed.bootstrap, {})
    try:
        return bool(cluster.latest({feed.topic: range(PARTITIONS)}))
    except Unreachable:
        return False
    finally:
        cluster.close()


def test_a_thousand_partitions(feed):
    feed.create(PARTITIONS)
    assert soon(lambda: led(feed), 60)
    feed.configure()
    spread(feed, range(3 * PARTITIONS))
    feed.lake.run()
    [commit] = feed.commits()
    assert len(commit.partitions) == PARTITIONS
    spread(feed, range(3 * PARTITIONS, 3 * PARTITIONS + 10))
    shutil.rmtree(feed.lake.folder / ".icestream")
    feed.lake.run()
    assert [commit.landed for commit in feed.commits()] == [10]
    rows = feed.lake.rows("shop.events")
    assert sorted(rows.column("id").to_pylist()) == list(range(3 * PARTITIONS + 10))
    per_partition = Counter(rows.column("_src_partition").to_pylist())
    assert per_partition == {n: 4 if n < 10 else 3 for n in range(PARTITIONS)}
    assert feed.positions() == {str(n): count for n, count in per_partition.items()}
    delete_topic(feed.bootstrap, feed.topic)


def test_fifty_topics_into_fifty_tables(feed):
    lake = feed.lake
    names = [f"t{n:02d}" for n in range(TOPICS)]
    topics = {name: f"{feed.topic}.{name}" for name in names}
    with AdminClient({"bootstrap.servers": feed.bootstrap}) as admin:
        wanted = [NewTopic(topic, 2, 1) for topic in topics.values()]
        for done in admin.create_topics(wanted, operation_timeout=30).values():
            done.result(30)
    pattern = re.escape(feed.topic) + r"\.(?P<table>\w+)"
    feed.configure({"topic_pattern": pattern}, [{"name": "shop.{table}"}])
    for at, topic in enumerate(topics.values()):
        feed.put(ids(at * 100, at * 100 + 5 + at), topic)
    lake.run()
    expected = {
        f"shop.{name}": list(range(at * 100, at * 100 + 5 + at)) for at, name in enumerate(names)
    }
    assert {name: feed.ids(name) for name in expected} == expected
    # Some go on, the others stay; all have their place after the state is lost.
    for at in (0, 17, 49):
        feed.put(ids(at * 100 + 90, at * 100 + 92), topics[names[at]])
        expected[f"shop.{names[at]}"] += [at * 100 + 90, at * 100 + 91]
    shutil.rmtree(lake.folder / ".icestream")
    lake.run()
    again = {e.table: e.landed for e in lake.events if isinstance(e, TableCommitted)}
    assert again == {"shop.t00": 2, "shop.t17": 2, "shop.t49": 2}
    assert {name: feed.ids(name) for name in expected} == expected
