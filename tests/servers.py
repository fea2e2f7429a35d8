"""Real servers for tests, one of each for a test process, and what fills them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from icestream.cli.demo.broker import Broker

SECONDS = 30
POLL_SECONDS = 0.02
LARGEST = 32 << 20


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Leave it running: a test that stops or kills one starts its own."""
    # Compaction begins within a second instead of fifteen.
    settings = {"log.cleaner.backoff.ms": "500"}
    with Broker(tmp_path_factory.mktemp("kafka"), settings=settings) as started:
        yield started


def soon(true: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Look until it is true or the time is over."""
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: object) -> None:
    """Return when the topic can be written to; config is as in `retention_ms=1000`."""
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    topic = NewTopic(name, partitions, 1, config=settings)
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([topic], operation_timeout=SECONDS)[name].result(SECONDS)


def delete_topic(bootstrap: str, name: str) -> None:
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.delete_topics([name], operation_timeout=SECONDS)[name].result(SECONDS)


def produce(
    bootstrap: str,
    topic: str,
    values: Sequence[bytes | str | None],
    keys: Sequence[bytes | str | None] | None = None,
    partition: int | None = None,
    headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None = None,
    timestamps: Sequence[int] | None = None,
    patient: bool = True,
) -> None:
    """Write in this order and return when all is acknowledged; headers go to every record."""
    failed: list[object] = []
    optional: dict[str, Any] = {}
    if partition is not None:
        optional["partition"] = partition
    if headers is not None:
        optional["headers"] = list(headers.items() if isinstance(headers, Mapping) else headers)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            # An idempotent producer waits half a second for its id. In order, and once as long as
            # no broker dies in the middle: who kills one has a producer of its own.
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 0,
            "message.max.bytes": LARGEST,
            "delivery.timeout.ms": SECONDS * 1000,
            # Then a topic is known not to exist.
            "topic.metadata.propagation.max.ms": int(SECONDS * 500) if patient else 1000,
        }
    )
    for at, value in enumerate(values):
        if timestamps is not None:
            optional["timestamp"] = timestamps[at]
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    keys[at] if keys else None,
                    on_delivery=lambda error, _message: failed.append(error) if error else None,
                    **optional,
                )
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(SECONDS)
    assert not failed, f"{len(failed)} not delivered: {failed[0]}"
    assert left == 0, f"{left} not acknowledged in {SECONDS} s"
