"""Records that Kafka lost: a stop that says which, and `--accept-loss` that goes on behind them."""

import re
import shutil
import threading

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from feeds import Feed, ids
from icestream import errors
from icestream.cli.demo.broker import Broker
from icestream.events import (
    BatchPlanned,
    LossAccepted,
    RunFailed,
    SchemaEvolved,
    TableCommitted,
)
from icestream.sources.kafka.client import KafkaAdmin
from servers import create_topic, delete_topic, soon

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BAD = b'{"id": '


def forget(feed, partition, before):
    """What retention does, at once."""
    with AdminClient({"bootstrap.servers": feed.bootstrap}) as admin:
        place = TopicPartition(feed.topic, partition, before)
        for done in admin.delete_records([place]).values():
            done.result(30)


def delete(feed, topic=None):
    cluster = KafkaAdmin(feed.bootstrap, {})
    delete_topic(feed.bootstrap, topic or feed.topic)
    assert soon(lambda: not cluster.describe([topic or feed.topic]))
    cluster.close()


def recreate(feed, values):
    delete(feed)
    create_topic(feed.bootstrap, feed.topic)
    feed.put(values)


def refused(feed, kind, *missing, **options):
    """The run stops with this error, which names exactly these ranges; → the error."""
    with pytest.raises(errors.IcestreamError) as failure:
        feed.lake.run(**options)
    error = failure.value
    assert type(error) is kind, error
    assert error.where == "missing: " + "; ".join(missing)
    assert "--accept-loss" in error.hint
    [told] = [e for e in feed.lake.events if isinstance(e, RunFailed)]
    assert told.error_kind == kind.__name__
    return error


def accepted(feed, *ranges):
    """A run that gives these up; the marker keeps them, also in runs to come."""
    feed.lake.run(accept_loss=True)
    told = {e.table: e.ranges for e in feed.lake.events if isinstance(e, LossAccepted)}
    assert told["shop.events"] == ranges
    losses = feed.lake.marker("shop.events")["losses"]
    feed.lake.run()
    assert not feed.commits()
    assert feed.lake.marker("shop.events")["losses"] == losses
    return losses


def once(action, kind=TableCommitted):
    """A listener that acts at the first such event.

    The first commit: between two batches. BatchPlanned: before the batch is read.
    """
    done = []

    def listen(event):
        if isinstance(event, kind) and not done:
            done.append(event)
            action()

    return listen


RUNNING = {"once": False, "seconds": 60}


# ── retention ────────────────────────────────────────────────────────────────────────────────────


def test_retention_that_overtook_us(feed):
    feed.create(partitions=2)
    feed.configure()
    feed.put(ids(0, 10), partition=0)
    feed.put(ids(100, 110), partition=1)
    feed.lake.run()
    feed.put(ids(10, 20), partition=0)
    feed.put(ids(110, 120), partition=1)
    forget(feed, 0, 15)
    forget(feed, 1, 5)  # all of which is in
    missing = f"{feed.topic}/0: 10 to 15 (5 records)"
    error = refused(feed, errors.Gap, missing)
    assert "retention" in error.what
    assert feed.ids() == [*range(10), *range(100, 110)]
    [loss] = accepted(feed, missing)
    assert loss == {
        "kind": "retention", "stream": feed.topic, "partition": 0, "start": 10, "stop": 15,
    }  # fmt: skip
    assert feed.ids() == [*range(10), *range(15, 20), *range(100, 120)]
    feed.put(ids(20, 23), partition=0)
    feed.lake.run()
    assert feed.ids() == [*range(10), *range(15, 23), *range(100, 120)]


def test_retention_that_overtakes_a_run_under_way(feed):
    feed.create()
    feed.configure(commit_interval="1s")
    feed.put(ids(0, 10))

    def overtake():
        feed.put(ids(10, 40))
        forget(feed, 0, 35)

    missing = f"{feed.topic}/0: 10 to 35 (25 records)"
    refused(feed, errors.Gap, missing, listen=once(overtake), **RUNNING)
    assert feed.ids() == list(range(10))
    accepted(feed, missing)
    assert feed.ids() == [*range(10), *range(35, 40)]


# ── topics deleted, and created again ────────────────────────────────────────────────────────────


def test_a_deleted_topic(feed):
    other = f"{feed.topic}-other"
    feed.create()
    feed.create(topic=other)
    feed.configure({"topic_pattern": re.escape(feed.topic) + ".*"})
    feed.put(ids(0, 10))
    feed.put(ids(100, 110), other)
    feed.lake.run()
    delete(feed)
    feed.put(ids(110, 112), other)
    missing = f"{feed.topic}/0: 10 to the end"
    error = refused(feed, errors.Incarnation, missing)
    assert "was deleted" in error.what
    assert feed.ids() == [*range(10), *range(100, 110)]
    [loss] = accepted(feed, missing)
    assert (loss["kind"], loss["start"], loss["stop"]) == ("deleted", 10, None)
    assert feed.ids() == [*range(10), *range(100, 112)]
    # A topic of that name may come again: it is a new one.
    create_topic(feed.bootstrap, feed.topic)
    feed.put(ids(20, 23))
    feed.lake.run()
    assert feed.ids() == [*range(10), *range(20, 23), *range(100, 112)]


def test_a_deleted_topic_that_the_file_names(feed):
    other = f"{feed.topic}-other"
    feed.create()
    feed.create(topic=other)
    feed.configure({"topics": [feed.topic, other]})
    feed.put(ids(0, 10))
    feed.put(ids(100, 110), other)
    feed.lake.run()
    delete(feed)
    feed.put(ids(110, 112), other)
    missing = f"{feed.topic}/0: 10 to the end"
    refused(feed, errors.Incarnation, missing)
    with pytest.raises(errors.Unreachable, match=f"`{feed.topic}` does not exist") as failure:
        feed.lake.run(accept_loss=True)
    assert "correct `source.topics`" in failure.value.hint
    assert [e.ranges for e in feed.lake.events if isinstance(e, LossAccepted)] == [(missing,)]
    feed.configure({"topics": [other]})
    feed.lake.run()
    assert feed.ids() == [*range(10), *range(100, 112)]
    [loss] = feed.lake.marker("shop.events")["losses"]
    assert (loss["kind"], loss["stream"]) == ("deleted", feed.topic)


def test_a_topic_that_is_deleted_under_a_run(feed):
    feed.create()
    feed.configure(commit_interval="1s")
    feed.put(ids(0, 10))
    missing = f"{feed.topic}/0: 10 to the end"
    refused(feed, errors.Incarnation, missing, listen=once(lambda: delete(feed)), **RUNNING)
    assert feed.ids() == list(range(10))


NEW = {
    "fewer": [*ids(100, 105), BAD],
    "as many": [*ids(100, 110), BAD, BAD],
    "more": [*ids(100, 125), BAD],
}


@pytest.mark.parametrize(
    "when, count",
    [
        # With more records than before our position is a valid one of the new topic, and between
        # two batches nobody but us sees that it is another topic.
        ("between runs", "more"),
        ("between batches", "more"),
        ("within a batch", "as many"),
        ("within a batch", "more"),
        pytest.param("between runs", "fewer", marks=pytest.mark.long),
        pytest.param("between runs", "as many", marks=pytest.mark.long),
        pytest.param("between batches", "fewer", marks=pytest.mark.long),
        pytest.param("within a batch", "fewer", marks=pytest.mark.long),
    ],
)
def test_a_topic_that_was_created_again(feed, when, count):
    feed.create()
    quickly = {"options": {"kafkaConsumer.pollTimeoutMs": "5000"}}
    feed.configure(quickly, commit_interval="1s")
    feed.put([*ids(0, 9), BAD, *ids(9, 11)])
    missing = f"{feed.topic}/0: 12 to the end"
    if when == "between runs":
        feed.lake.run()
        recreate(feed, NEW[count])
        error = refused(feed, errors.Incarnation, missing)
    elif when == "between batches":
        again = once(lambda: recreate(feed, NEW[count]))
        error = refused(feed, errors.Incarnation, missing, listen=again, **RUNNING)
    else:
        feed.lake.run()
        feed.put(ids(11, 13))
        again = once(lambda: recreate(feed, NEW[count]), BatchPlanned)
        error = refused(feed, errors.Incarnation, missing, listen=again, **RUNNING)
    assert "created again" in error.what
    assert feed.ids() == list(range(11))
    assert feed.lake.rows("shop.events__quarantine").num_rows == 1
    [loss] = accepted(feed, missing)
    assert (loss["kind"], loss["start"], loss["stop"]) == ("recreated", 12, None)
    good = [each["id"] for each in NEW[count] if each != BAD]
    assert feed.ids() == [*range(11), *good]
    aside = feed.lake.rows("shop.events__quarantine").column("offset").to_pylist()
    assert sorted(aside) == sorted(
        [9, *(at for at, value in enumerate(NEW[count]) if value == BAD)]
    )
    feed.put(ids(200, 203))
    feed.lake.run()
    assert feed.ids() == [*range(11), *good, *range(200, 203)]


def test_a_topic_that_is_gone_when_we_plan_and_back_when_we_read(feed):
    feed.create()
    feed.configure()
    feed.put(ids(0, 10))
    feed.lake.run()
    feed.put([{"id": 10, "more": 1}])  # a new column: the batch is planned again
    gone, back = once(lambda: delete(feed), SchemaEvolved), once(lambda: again(), BatchPlanned)

    def again():
        create_topic(feed.bootstrap, feed.topic)
        feed.put([{"id": n, "more": 2} for n in range(100, 120)])

    def listen(event):
        gone(event)
        if any(isinstance(seen, SchemaEvolved) for seen in feed.lake.events):
            back(event)

    missing = f"{feed.topic}/0: 10 to the end"
    refused(feed, errors.Incarnation, missing, listen=listen)
    assert feed.ids() == list(range(10))
    accepted(feed, missing)
    assert feed.ids() == [*range(10), *range(100, 120)]


# ── a log that ends before our position ──────────────────────────────────────────────────────────


def test_a_truncated_log(lake, tmp_path_factory):
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    data, before = broker.folder / "data", broker.folder / "before"
    feed = Feed(lake, broker.bootstrap, "t")
    with broker:
        feed.create()
        feed.configure()
        feed.put([*ids(0, 9), BAD])
    shutil.copytree(data, before)
    with broker:
        feed.put([BAD, *ids(9, 14)])
        lake.run()
    shutil.rmtree(data)
    before.rename(data)
    with broker:  # as after the election of a replica that lagged behind
        missing = "t/0: 10 to 16 (6 records)"
        error = refused(feed, errors.Truncated, missing)
        assert "ends before our position" in error.what
        assert feed.ids() == list(range(14))
        [loss] = accepted(feed, missing)
        assert loss == {
            "kind": "truncated", "stream": "t", "partition": 0, "start": 10, "stop": 16,
        }  # fmt: skip
        feed.put([BAD, *ids(100, 103)])
        lake.run()
        assert feed.ids() == [*range(14), *range(100, 103)]
        aside = lake.rows("shop.events__quarantine").column("offset").to_pylist()
        assert sorted(aside) == [9, 10, 10]


# ── a broker that goes away and comes back ───────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(TableCommitted, marks=pytest.mark.long),  # Spark asks for new offsets
        BatchPlanned,  # Spark reads
        SchemaEvolved,  # we ask whether the topic is still the same
    ],
)
def test_a_killed_broker_is_waited_for(lake, tmp_path_factory, kind):
    feed = Feed(lake, "", "t")
    killed = threading.Event()
    with Broker(tmp_path_factory.mktemp("kafka")) as broker:
        feed.bootstrap = broker.bootstrap
        feed.create(partitions=2)
        feed.configure({"max_records_per_commit": 50}, commit_interval="1s")
        feed.put(ids(0, 100), partition=0)
        feed.put(ids(100, 200), partition=1)

        def kill():
            broker.kill()
            killed.set()

        with lake.running(listen=once(kill, kind)) as ended:
            assert soon(killed.is_set, 60)
            broker.start()
            feed.put(ids(200, 210), partition=0)
            assert soon(lambda: ended.done() or landed(feed) >= 210, 120)
        assert feed.ids() == list(range(210))
        places = lake.rows("shop.events").select(["_src_partition", "_src_offset"]).to_pylist()
        assert len({tuple(place.values()) for place in places}) == 210
        lake.run()
        assert not feed.commits()


def landed(feed):
    return sum(commit.landed for commit in feed.commits())
