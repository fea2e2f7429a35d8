"""The demo with Kafka: a broker, a producer that does not wait, and the pipeline."""

import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from icestream.cli import output
from icestream.cli.demo.broker import Broker
from icestream.cli.demo.expected_orders import prove
from icestream.cli.demo.generated import MALFORMED, RATE, SEED, prepare, suggest, summary
from icestream.cli.watch import run_watched
from icestream.errors import InternalError, Unreachable
from icestream.observe.status import PipelineStatus
from icestream.sources.shop import ORDERS_EVERY, make
from icestream.spark import jars

TOPICS = ("page_events", "order_changes")
_PARTITIONS = 3
_TICK_SECONDS = 0.1
_PATIENCE_SECONDS = 30
_SOURCE = """\
  type: kafka
  bootstrap_servers: {bootstrap}   # the demo's own broker, which ends with it
  topics: [page_events, order_changes]
"""


def run_demo(folder: Path, seconds: int, log_format: str) -> None:
    """Run broker, producer and pipeline for a time; compare what was read with what was sent."""
    broker = Broker(folder / "kafka")
    loaded = prepare(folder, _SOURCE.format(bootstrap=broker.bootstrap))
    with output.jar_progress() as progress:
        jars.ensure(["broker"], progress=progress)
    output.note("starting Kafka …")
    with broker:
        _create_topics(broker.bootstrap)
        with ShopProducer(broker.bootstrap) as shop:
            run_watched([loaded], log_format, seconds=seconds)
    status = summary(loaded)
    compare(status, shop.acknowledged)
    prove(loaded, shop.changes_below(status), shop.began_ms)
    suggest(loaded.path, "status --partitions", runs=False)


def compare(status: PipelineStatus, acknowledged: Counter[tuple[str, int]]) -> None:
    """Check that the tables have as many records as Kafka acknowledged below their positions."""
    arrived = sum(table.records + table.quarantined for table in status.tables)
    # Offsets of a partition have no gaps here: nobody writes in transactions or compacts.
    due = sum(
        min(state.position, acknowledged[state.stream, state.partition])
        for table in status.tables
        for state in table.partitions
    )
    if arrived != due:
        raise InternalError(
            f"the tables hold {arrived:,} records; up to their positions Kafka took {due:,}",
            hint="please report this, with the demo's folder",
        )
    sent = acknowledged.total()
    output.result(
        f"{sent:,} acknowledged by Kafka = {due:,} up to where the tables stand, all there, "
        f"+ {sent - due:,} sent after the last commit"
    )


class ShopProducer:
    """Sends the shop's records at a steady rate, and counts what the broker acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: Counter[tuple[str, int]] = Counter()
        self.began_ms = int(time.time() * 1000)
        self._changes: dict[int, list[int]] = {}  # numbers, by partition, in order of offsets
        self._failure: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 20,
                "log_level": 0,  # failures come to us
            }
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send, name="demo shop", daemon=True)

    def __enter__(self) -> "ShopProducer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
        unanswered = self._producer.flush(_PATIENCE_SECONDS)
        if error is None and (self._failure or unanswered):
            why = self._failure.str() if self._failure else f"{unanswered} records got no answer"
            raise Unreachable(f"the demo's producer could not send everything: {why}")

    def _send(self) -> None:
        began, sent = self.began_ms / 1000, 0
        while not self._over.wait(_TICK_SECONDS) and self._failure is None:
            due = int((time.time() - began) * RATE)
            orders_sent, orders_due = sent // ORDERS_EVERY, due // ORDERS_EVERY
            self._send_range("page_events", sent - orders_sent, due - orders_due)
            self._send_range("order_changes", orders_sent, orders_due)
            sent = due

    def _send_range(self, topic: str, low: int, high: int) -> None:
        if low == high:
            return
        batch = make(topic, low, high, SEED, self.began_ms, RATE, MALFORMED, mixed=True)
        columns = batch.select(["offset", "key", "value", "timestamp"]).to_pydict()
        for number, key, value, timestamp in zip(*columns.values(), strict=True):
            self._produce(topic, number, key, value, int(timestamp.timestamp() * 1000))

    def _produce(self, topic: str, number: int, key: bytes, value: bytes, time_ms: int) -> None:
        while not self._over.is_set():
            try:
                delivered = partial(self._delivered, number)
                self._producer.produce(topic, value, key, timestamp=time_ms, on_delivery=delivered)
                break
            except BufferError:
                self._producer.poll(_TICK_SECONDS)  # the broker is slower than we are
            except KafkaException as failure:
                self._failure = failure.args[0]
                return
        self._producer.poll(0)

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or error
            return
        topic, partition = str(message.topic()), message.partition() or 0
        self.acknowledged[topic, partition] += 1
        if topic == "order_changes":
            self._changes.setdefault(partition, []).append(number)

    def changes_below(self, status: PipelineStatus) -> list[int]:
        """List the numbers of the order changes below the positions of their table."""
        return [
            number
            for table in status.tables
            for state in table.partitions
            if state.stream == "order_changes"
            for number in self._changes.get(state.partition, ())[: state.position]
        ]


def _create_topics(bootstrap: str) -> None:
    topics = [NewTopic(name, _PARTITIONS, 1) for name in TOPICS]
    # Failures come as exceptions; at its end librdkafka may print what it had not handed over yet.
    with AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}) as admin:
        futures = admin.create_topics(topics, operation_timeout=_PATIENCE_SECONDS)
        for future in futures.values():
            future.result(_PATIENCE_SECONDS)
