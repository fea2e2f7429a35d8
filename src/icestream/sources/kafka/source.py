"""Source `kafka`: Spark's own Kafka source delivers the records from the tables' positions on."""

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.config.kafka import added, jvm_flags
from icestream.errors import TopicMissing, Unreachable
from icestream.positions import PositionRange, Positions
from icestream.sources import LossReport, Source, SparkStream, StartPositions
from icestream.sources.kafka.client import KafkaAdmin
from icestream.sources.kafka.loss import LogBounds, losses
from icestream.sources.kafka.watch import EndOffsetWatcher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EARLIEST = -2  # as Spark spells it in `startingOffsets`
_RECORDS_PER_TASK = 50_000
_FETCH_MEMORY = 256 << 20
_SMALLEST_FETCH, _LARGEST_FETCH = 128 << 10, 8 << 20
_OUTAGE_SECONDS = 60.0  # a run that reads already waits so long for brokers, as Spark does
_PAUSE_SECONDS = 0.5


class KafkaSource(Source):
    """The driver's side; a stream is a topic, its identity the topic id."""

    jar_sets = ("kafka",)
    ends_by_itself = True

    def __init__(self, options: Any) -> None:
        self._names: tuple[str, ...] | None = options.topics
        self._pattern = re.compile(options.topic_pattern) if options.topic_pattern else None
        self._bootstrap: str = options.bootstrap_servers
        self._options: Mapping[str, str] = options.options
        self._max_records: int = options.max_records_per_commit
        # Debezium's headers tell the key that a row had before.
        self._headers = "headers" in options.include or options.format.type == "debezium"
        self._ends: EndOffsetWatcher | None = None
        self.reader = KafkaRecordReader()
        self.java_options: Sequence[str] = jvm_flags(self._options)

    @cached_property
    def _cluster(self) -> KafkaAdmin:
        """Connect at the first question: some callers only ask which jars the source needs."""
        return KafkaAdmin(self._bootstrap, self._options)

    def check(self) -> None:
        """Raise unless the brokers answer, let this user in, and have the topics."""
        if self._names is None:
            self._cluster.names()
            return
        topics = self._cluster.describe(self._names)
        if missing := [name for name in self._names if name not in topics]:
            raise TopicMissing(
                f"topic `{missing[0]}` does not exist"
                + (f", nor do {len(missing) - 1} others" if len(missing) > 1 else ""),
                where=self._bootstrap,
                hint="create it, or correct `source.topics`",
            )
        self._cluster.latest({name: topic.partitions for name, topic in topics.items()})

    def known_topics(self) -> Sequence[str]:
        """List the configured topics, or those that match the pattern by now."""
        if self._names is not None:
            return self._names
        return [name for name in self._cluster.names() if self._reads(name)]

    def sample(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the first records of each topic."""
        return self._cluster.sample(self._cluster.earliest(self._partitions()), count)

    def resolve_start(self, start: str | datetime) -> StartPositions:
        """Turn `start` into the offsets that it means now."""
        partitions = self._partitions()
        if start == "earliest":
            positions = self._cluster.earliest(partitions)
        elif start == "latest":
            positions = self._cluster.latest(partitions)
        else:
            assert isinstance(start, datetime)
            positions = self._cluster.at_time(partitions, start)
        return StartPositions(positions, self.stream_ids(partitions))

    def losses(self, committed: Positions, known_ids: Mapping[str, str]) -> LossReport:
        """Find what the log no longer has; it ends behind its last record, committed or not."""
        ours = {topic: offsets for topic, offsets in committed.items() if self._reads(topic)}
        topics = self._cluster.describe(list(ours))
        partitions = {name: topic.partitions for name, topic in topics.items()}
        log = LogBounds(
            {name: topic.id for name, topic in topics.items()},
            self._cluster.earliest(partitions),
            self._cluster.high_watermark(partitions),
        )
        return losses(ours, known_ids, log)

    def open(
        self, spark: "SparkSession", begin: Positions, scratch: Path, once: bool
    ) -> SparkStream:
        """Open Spark's stream at `begin`; partitions not in it start at their earliest offset."""
        partitions = self._partitions()
        starting = {
            topic: {str(n): begin.get(topic, {}).get(n, _EARLIEST) for n in numbers}
            for topic, numbers in partitions.items()
        }
        self._ends = EndOffsetWatcher(self._cluster, partitions)
        reader = (
            spark.readStream.format("kafka")
            .options(**_tuning(sum(len(numbers) for numbers in partitions.values())))
            .options(**self._options)
            .options(**added(self._options))
            .option("kafka.bootstrap.servers", self._bootstrap)
            .option("startingOffsets", json.dumps(starting) if starting else "earliest")
            .option("failOnDataLoss", "true")
            .option("maxOffsetsPerTrigger", self._max_records)
            .option("includeHeaders", str(self._headers).lower())
        )
        if self._names is not None:
            reader = reader.option("subscribe", ",".join(self._names))
        else:
            assert self._pattern is not None
            reader = reader.option("subscribePattern", java_pattern(self._pattern.pattern))
        # No selection here: it would copy every row once more on its way to the task.
        return SparkStream(reader.load(), ends=once)

    def max_tasks(self, batch: PositionRange, cores: int) -> int:
        """As many as the records are worth: a task and its files cost more than some thousand."""
        return max(1, min(2 * cores, -(-batch.records // _RECORDS_PER_TASK)))

    def stream_ids(self, streams: Iterable[str]) -> Mapping[str, str]:
        """Return topic ids; a deleted topic has none, and neither has one of an old broker."""
        names = list(streams)
        # A run that reads already waits for brokers as Spark does; a start fails within seconds.
        deadline = time.monotonic() + (_OUTAGE_SECONDS if self._ends else 0)
        while True:
            try:
                topics = self._cluster.describe(names)
                return {name: topic.id for name, topic in topics.items() if topic.id}
            except Unreachable:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)

    def topics(self, batch: PositionRange) -> Sequence[str]:
        """List the topics whose positions differ between start and stop."""
        return [t for t, offsets in batch.stop.items() if batch.start.get(t, {}) != offsets]

    def lag(self, positions: Positions) -> Positions:
        """Count the records up to the end of each partition, as of the watcher's last answer."""
        if self._ends is None:
            return {}
        return self._ends.records_behind(positions)

    def close(self) -> None:
        """Stop the watcher and release the connection, if there is one."""
        if self._ends is not None:
            self._ends.close()
        if "_cluster" in vars(self):
            self._cluster.close()

    def _reads(self, topic: str) -> bool:
        if self._names is not None:
            return topic in self._names
        return self._pattern is not None and self._pattern.fullmatch(topic) is not None

    def _partitions(self) -> dict[str, tuple[int, ...]]:
        topics = self._cluster.describe(self.known_topics())
        return {name: topic.partitions for name, topic in topics.items()}


class KafkaRecordReader:
    """Spark's Kafka rows have the shape of RECORDS already, but for a column that nobody needs."""

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch without that column."""
        for batch in batches:
            yield batch.drop_columns(["timestampType"])


def _tuning(partitions: int) -> dict[str, str]:
    """Large fetches, as far as the leftovers of all partitions together fit into memory."""
    fetch = min(_LARGEST_FETCH, max(_SMALLEST_FETCH, _FETCH_MEMORY // max(1, partitions)))
    return {
        "kafka.isolation.level": "read_committed",
        # 500 otherwise, for which every task waits: Spark asks for the log's ends while a fetch
        # at its end is under way, and a broker answers a connection's requests one by one.
        "kafka.fetch.max.wait.ms": "0",
        "kafka.max.poll.records": "10000",
        "kafka.max.partition.fetch.bytes": str(fetch),
        "kafka.fetch.max.bytes": str(_FETCH_MEMORY // 4),
    }


def java_pattern(pattern: str) -> str:
    """Turn a Python pattern into Java's: without group names, and never for Kafka's own topics."""
    plain = re.sub(r"(?<!\\)((?:\\\\)*)\(\?P<\w+>", r"\1(", pattern)
    return f"(?!__)(?:{plain})"
