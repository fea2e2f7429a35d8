"""The events, a real Kafka broker on loopback, and producers: at full speed and at a fixed rate."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from icestream.cli.demo.broker import Broker

PARTITIONS = 4
CHUNK = 50_000
LOADED_AT_MS = 1_767_225_600_000

# A row is made from its id and the seed alone, so that what was loaded can be said again later.
ROWS = """
SELECT i AS id,
    (h % 1_000_000)::BIGINT AS user_id,
    ['view', 'click', 'search', 'purchase'][(1 + (h >> 20) % 4)::INT] AS event_type,
    'https://shop.example/products/' || (h >> 24) % 100_000 || '?ref=mail' AS url,
    ((h >> 8) % 1_000_000)::BIGINT AS cents,
    TIMESTAMP '2026-01-01' + to_milliseconds(i) AS event_time,
    lower(to_hex(h)) AS session,
    ['Mozilla/5.0 (X11; Linux x86_64)', 'Mozilla/5.0 (Windows NT 10.0)',
     'Mozilla/5.0 (iPhone; CPU OS 18_0)'][(1 + (h >> 40) % 3)::INT] AS agent
FROM (SELECT range AS i, hash(range, 42) AS h FROM range(?::BIGINT, ?::BIGINT))
"""
# The rest of an event after `{"created_ms":…`, which is stamped when it is sent.
TAILS = f"""
SELECT encode(
    ',"id":' || id || ',"user_id":' || user_id || ',"event_type":"' || event_type
    || '","url":"' || url
    || '","amount":' || cents // 100 || '.' || lpad((cents % 100)::VARCHAR, 2, '0')
    || ',"event_time":"' || strftime(event_time, '%Y-%m-%dT%H:%M:%S.%fZ')
    || '","session":"' || session || '","agent":"' || agent || '"}}')
FROM ({ROWS})
"""


@contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """A broker with memory, the normal compiler and unhurried timeouts."""
    settings = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
    with Broker(folder, settings=settings, java_options=("-Xms1g", "-Xmx1g")) as started:
        yield started


def create_topics(bootstrap: str, *names: str, partitions: int = PARTITIONS) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for made in client.create_topics([NewTopic(name, partitions, 1) for name in names]).values():
        made.result()


def records_of(bootstrap: str, topic: str) -> int:
    """How many records the broker holds, by its own word."""
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    ends = {TopicPartition(topic, each): OffsetSpec.latest() for each in range(PARTITIONS)}
    return sum(found.result().offset for found in client.list_offsets(ends).values())


class Tails:
    """Makes what an event has after its time stamp."""

    def __init__(self) -> None:
        self._database = duckdb.connect()
        self._database.execute("SET threads = 1")

    def __call__(self, first: int, end: int) -> list[bytes]:
        return self._database.execute(TAILS, [first, end]).to_arrow_table().column(0).to_pylist()


def fill(bootstrap: str, topic: str, records: int) -> float:
    """Send events 0 to `records` as fast as it goes; → their average size in bytes."""
    sender, tails = _Sender(bootstrap), Tails()
    head, size = b'{"created_ms":%d' % LOADED_AT_MS, 0
    for first in range(0, records, CHUNK):
        values = [head + tail for tail in tails(first, min(first + CHUNK, records))]
        size += sum(map(len, values))
        for partition in range(PARTITIONS):
            sender.send(topic, partition, values[partition::PARTITIONS])
    sender.flush()
    return size / records


class Trickle(threading.Thread):
    """Sends events at a fixed rate, each stamped with the time at which it is handed over."""

    def __init__(self, bootstrap: str, topic: str, per_second: int) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.failure: Exception | None = None
        self._sender = _Sender(bootstrap, linger_ms=5)
        self._topic = topic
        self._per_second = per_second
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            self._run()
            self._sender.flush()
        except Exception as failure:
            self.failure = failure

    def _run(self) -> None:
        tails, began, ready = Tails(), time.monotonic(), []
        while not self._stopped.wait(0.01):
            due = int((time.monotonic() - began) * self._per_second) - self.sent
            while len(ready) < due:
                first = self.sent + len(ready)
                ready += tails(first, first + self._per_second)
            now, ready = ready[:due], ready[due:]
            head = b'{"created_ms":%d' % int(time.time() * 1000)
            for partition in range(PARTITIONS):
                values = [head + tail for tail in now[partition::PARTITIONS]]
                self._sender.send(self._topic, partition, values)
            self.sent += due

    def stop(self) -> int:
        """Stop sending; → how many were sent, all of them acknowledged."""
        self._stopped.set()
        self.join()
        if self.failure:
            raise self.failure
        return self.sent


class _Sender:
    """A producer, lz4 as JSON topics mostly are; who calls counts what arrived (`records_of`)."""

    QUEUE = 300_000

    def __init__(self, bootstrap: str, linger_ms: int = 50) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": "lz4",
                "linger.ms": linger_ms,
                "queue.buffering.max.messages": 2 * self.QUEUE,
                "log_level": 0,
            }
        )

    def send(self, topic: str, partition: int, values: list[bytes]) -> None:
        messages = [{"value": value} for value in values]
        if self._producer.produce_batch(topic, messages, partition=partition) != len(values):
            raise RuntimeError("the producer did not take every event")
        self._producer.poll(0)
        while len(self._producer) > self.QUEUE:
            self._producer.poll(0.01)

    def flush(self) -> None:
        if self._producer.flush(60):
            raise RuntimeError("the broker did not take every event")
