"""A Kafka cluster that is not there: it says what a test puts into it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icestream.records import RECORDS
from icestream.sources.kafka import causes, source
from icestream.sources.kafka.client import KafkaTopic


@dataclass
class StubCluster:
    """The questions of `client.Cluster`; the real one is tested against real brokers."""

    topics: dict[str, KafkaTopic] = field(default_factory=dict)
    first: dict[str, dict[int, int]] = field(default_factory=dict)
    stable: dict[str, dict[int, int]] = field(default_factory=dict)
    end: dict[str, dict[int, int]] = field(default_factory=dict)
    made: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    closed: int = 0

    def put(self, name: str, **partitions: Any) -> None:
        """`put("a", id="x", p0=(first, stable[, end]))`"""
        one = partitions.pop("id", f"id of {name}")
        offsets = {int(key[1:]): (*at, at[-1])[:3] for key, at in partitions.items()}
        self.topics[name] = KafkaTopic(name, one, tuple(sorted(offsets)))
        for at, store in enumerate((self.first, self.stable, self.end)):
            store[name] = {number: three[at] for number, three in offsets.items()}

    def names(self) -> list[str]:
        self.asked.append("names")
        return sorted(self.topics)

    def describe(self, names: Any) -> dict[str, KafkaTopic]:
        self.asked.append(f"describe {' '.join(names)}")
        return {name: self.topics[name] for name in names if name in self.topics}

    def earliest(self, partitions: Any) -> dict[str, dict[int, int]]:
        return _of(self.first, partitions)

    def latest(self, partitions: Any) -> dict[str, dict[int, int]]:
        return _of(self.stable, partitions)

    def high_watermark(self, partitions: Any) -> dict[str, dict[int, int]]:
        return _of(self.end, partitions)

    def at_time(self, partitions: Any, when: Any) -> dict[str, dict[int, int]]:
        self.asked.append(f"at {when:%Y}")
        return _of(self.stable, partitions)

    def sample(self, begin: Any, count: int) -> Iterator[pa.RecordBatch]:
        rows = [
            {"topic": topic, "partition": number, "offset": at, "value": b"{}"}
            for topic, partitions in begin.items()
            for number, at in partitions.items()
        ]
        yield pa.RecordBatch.from_pylist(rows[:count], schema=RECORDS)

    def close(self) -> None:
        self.closed += 1


def _of(store: dict[str, dict[int, int]], partitions: Any) -> dict[str, dict[int, int]]:
    return {topic: {n: store[topic][n] for n in numbers} for topic, numbers in partitions.items()}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> StubCluster:
    """What every Kafka source of this test talks to."""
    stub = StubCluster()

    def connect(bootstrap: str, options: dict[str, str]) -> StubCluster:
        stub.made.append((bootstrap, dict(options)))
        return stub

    monkeypatch.setattr(source, "KafkaAdmin", connect)
    return stub


@pytest.fixture
def catalog(tmp_path):
    """PyIceberg's own, with an empty namespace."""
    made = SqlCatalog(
        "c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake"
    )
    made.create_namespace("n")
    yield made
    made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away is told at once: nobody starts it again meanwhile."""
    monkeypatch.setattr(causes, "PATIENCE_SECONDS", 0.1)
