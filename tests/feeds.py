"""Pipelines that read Kafka, for tests: a topic on a real broker, and the lake it goes to."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from icestream.cli.demo.broker import Broker
from icestream.events import TableCommitted
from servers import create_topic, produce, soon

if TYPE_CHECKING:
    from conftest import Lake

TABLE = "shop.events"


@dataclass
class Feed:
    """One pipeline from Kafka; what is not said is the topic's own, into one table."""

    lake: "Lake"
    bootstrap: str
    topic: str

    def configure(
        self,
        source: dict[str, Any] | None = None,
        tables: Sequence[dict[str, Any]] = ({"name": TABLE},),
        **more: Any,
    ) -> None:
        source = {"type": "kafka", "bootstrap_servers": self.bootstrap, **(source or {})}
        if "topic_pattern" not in source:
            source.setdefault("topics", [self.topic])
        parts = {"name": "p", "source": source, "tables": list(tables), **more}
        self.lake.configure("".join(f"{k}: {json.dumps(v)}\n" for k, v in parts.items()))

    def create(self, partitions: int = 1, topic: str | None = None, **config: object) -> None:
        create_topic(self.bootstrap, topic or self.topic, partitions, **config)

    def put(self, values: Sequence[Any], topic: str | None = None, **more: Any) -> None:
        """Produce; bytes, text and None as they are, anything else as JSON."""
        plain = [v if isinstance(v, bytes | str | None) else json.dumps(v) for v in values]
        produce(self.bootstrap, topic or self.topic, plain, **more)

    def ids(self, table: str = TABLE) -> list[int]:
        return sorted(self.lake.rows(table).column("id").to_pylist())

    def commits(self, table: str = TABLE) -> list[TableCommitted]:
        """Of the run that is under way, or of the last one."""
        return [e for e in self.lake.events if isinstance(e, TableCommitted) and e.table == table]

    def landed(self, count: int, table: str = TABLE, seconds: float = 60) -> bool:
        """Wait until the run under way has brought so many rows in."""
        return soon(lambda: sum(c.landed for c in self.commits(table)) >= count, seconds)

    def positions(self, table: str = TABLE, topic: str | None = None) -> dict[str, int]:
        return self.lake.marker(table)["positions"][topic or self.topic]


def ids(*numbers: int) -> list[dict[str, int]]:
    """Records by their `id`, as in range()."""
    return [{"id": n} for n in range(*numbers)]


@pytest.fixture
def feed(lake: "Lake", broker: Broker) -> Feed:
    return Feed(lake, broker.bootstrap, f"t-{uuid.uuid4().hex[:12]}")
