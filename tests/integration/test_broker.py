"""The broker that demo, tests and benchmarks share: real clients, kills, processes left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from icestream.cli.demo.broker import HOST, Broker
from icestream.errors import SetupError
from servers import create_topic, delete_topic, produce

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def consume(bootstrap: str, topic: str, count: int) -> list[Message]:
    settings = {"bootstrap.servers": bootstrap, "group.id": "tests"}
    with Consumer(settings) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer.consume(count, timeout=30)


def first_offset(bootstrap: str, topic: str) -> int:
    with Consumer({"bootstrap.servers": bootstrap, "group.id": "tests"}) as consumer:
        return consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[0]


def soon(true: Callable[[], bool], seconds: float = 30) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found


def group_is_gone(group: int) -> bool:
    """No process of it is left, not even one that waits to be reaped."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_records_keep_what_they_were_given(broker: Broker) -> None:
    create_topic(broker.bootstrap, "plain", retention_ms=-1)  # its times are of 1970
    produce(
        broker.bootstrap,
        "plain",
        [b"one", None, "x" * 20_000_000],
        keys=[b"k", "l", None],
        partition=0,
        headers={"h": b"1", "none": None},
        timestamps=[1_000, 2_000, 3_000],
    )
    found = consume(broker.bootstrap, "plain", 3)
    assert [len(record.value() or b"") for record in found] == [3, 0, 20_000_000]
    assert [record.key() for record in found] == [b"k", b"l", None]
    assert [record.timestamp()[1] for record in found] == [1_000, 2_000, 3_000]
    assert found[0].headers() == [("h", b"1"), ("none", None)]


def test_topics_come_and_go_only_when_asked(broker: Broker) -> None:
    def topics() -> set[str]:
        with AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:
            return set(admin.list_topics(timeout=30).topics)

    with pytest.raises(AssertionError, match="not delivered"):
        produce(broker.bootstrap, "nobody-made-it", [b"1"], patient=False)
    create_topic(broker.bootstrap, "short-lived", partitions=3)
    assert "short-lived" in topics()
    delete_topic(broker.bootstrap, "short-lived")
    assert soon(lambda: "short-lived" not in topics())
    create_topic(broker.bootstrap, "short-lived")
    with pytest.raises(KafkaException, match="exists"):
        create_topic(broker.bootstrap, "short-lived")


def test_retention_removes_within_seconds(broker: Broker) -> None:
    create_topic(broker.bootstrap, "fleeting", retention_ms=1_000)
    produce(broker.bootstrap, "fleeting", [b"old"] * 10)
    assert soon(lambda: first_offset(broker.bootstrap, "fleeting") == 10)


def test_survives_a_kill_and_a_stop_on_the_same_port(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "with a space")
    with broker:
        first, address = broker.pid, broker.bootstrap
        create_topic(address, "kept")
        produce(address, "kept", [b"before"])
        broker.kill()
        assert broker.pid is None

        broker.start()
        assert broker.bootstrap == address
        assert broker.pid != first
        produce(address, "kept", [b"after"])
        broker.stop()
        broker.start()
        broker.start()  # already running: nothing happens
        assert [record.value() for record in consume(address, "kept", 2)] == [b"before", b"after"]
        last = broker.pid
    assert last
    assert group_is_gone(last)
    broker.stop()  # once more does no harm


def test_two_at_once_and_a_port_that_is_taken(broker: Broker, tmp_path: Path) -> None:
    with Broker(tmp_path / "other") as other:
        assert other.bootstrap != broker.bootstrap
        create_topic(other.bootstrap, "same-name")
        create_topic(broker.bootstrap, "same-name")
    with pytest.raises(SetupError, match="port is taken") as raised:
        Broker(tmp_path / "third", broker.port).start()
    assert raised.value.where == f"{HOST}:{broker.port}"


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    broker = Broker(tmp_path, settings={"log.retention.ms": "soon"})
    with pytest.raises(SetupError, match="Invalid value soon") as raised:
        broker.start()
    assert raised.value.where == str(broker.log)
    assert broker.pid is None


def test_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, threading, time; from icestream.cli.demo.broker import Broker;"
        "broker = Broker(pathlib.Path(sys.argv[1]));"
        # The thread ends at once: the broker must not end with it.
        "thread = threading.Thread(target=broker.start); thread.start(); thread.join();"
        "time.sleep(1); print(broker.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        try:
            assert parent.stdout
            group = int(parent.stdout.readline())
            assert not group_is_gone(group)
        finally:
            parent.send_signal(signal.SIGKILL)
    assert soon(lambda: group_is_gone(group))
