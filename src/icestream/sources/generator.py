"""Source `generator`: a small shop that makes page events and order changes."""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.positions import PositionRange, Positions
from icestream.sources import Source, StartPositions, Stream
from icestream.sources.shop import ORDERS_EVERY, make
from icestream.tables.marker import LocatedMarker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STEP = 20_000  # records made at a time in a task


class GeneratorSource(Source):
    """The driver's side; a stream's identity is its seed and the moment it began."""

    def __init__(self, options: Any) -> None:
        self._topics: tuple[str, ...] = tuple(options.topics)
        self._rows: int | None = options.rows
        self._rate: int | None = options.rate
        self._seed: int = options.seed
        self._max_records: int = options.max_records_per_commit
        self._began_ms = int(time.time() * 1000)
        self.reader: ShopReader = ShopReader(options.malformed)

    def check(self) -> None:
        """Nothing to check: the records are made here."""

    def known_topics(self) -> Sequence[str]:
        """List the configured topics."""
        return self._topics

    def sample(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the first records of each topic."""
        stop = max(1, count // len(self._topics))
        for topic in self._topics:
            yield make(
                topic, 0, stop, self._seed, self._began_ms, self._rate, self.reader.malformed
            )

    def resolve_start(self, start: str | datetime) -> StartPositions:
        """Start at 0 of each topic, whatever `start` says."""
        return StartPositions(
            {topic: {0: 0} for topic in self._topics}, self.stream_ids(self._topics)
        )

    def load_details(self, markers: Sequence[LocatedMarker]) -> None:
        """Go on with the clock that the first run started."""
        for located in markers:
            for identity in located.marker.stream_ids.values():
                self._began_ms = int(identity.partition("@")[2])

    def open(self, spark: "SparkSession", begin: Positions, scratch: Path, once: bool) -> Stream:
        """Open a stream whose planner goes on at `begin`."""
        from icestream.sources.planned import PlannedStream

        settings: dict[str, Any] = {
            "topics": self._topics,
            "rows": self._rows,
            "rate": self._rate,
            "seed": self._seed,
            "began_ms": self._began_ms,
            "begin": {topic: offsets[0] for topic, offsets in begin.items()},
            "max_records": self._max_records,
            "tasks": spark.sparkContext.defaultParallelism,
            "once": once,
        }
        return PlannedStream(spark, partial(ShopPlanner, **settings))

    def stream_ids(self, streams: Iterable[str]) -> Mapping[str, str]:
        """Identify the streams by seed and beginning: with another seed all records differ."""
        return dict.fromkeys(streams, f"{self._seed}@{self._began_ms}")

    def topics(self, batch: PositionRange) -> Sequence[str]:
        """List the topics of a range."""
        return [topic for topic in self._topics if topic in batch.stop]

    def lag(self, positions: Positions) -> Positions:
        """Count the records that are due by now."""
        due = available(self._rows, self._rate, self._began_ms)
        if due is None:
            return {}
        return {
            topic: {0: max(0, share(topic, self._topics, due) - partitions.get(0, 0))}
            for topic, partitions in positions.items()
        }


class ShopPlanner:
    """Runs in the stream's thread: decides how many records are due by now."""

    def __init__(
        self,
        topics: Sequence[str],
        rows: int | None,
        rate: int | None,
        seed: int,
        began_ms: int,
        begin: Mapping[str, int],
        max_records: int,
        tasks: int,
        once: bool,
    ) -> None:
        self._topics = topics
        self._rows, self._rate = rows, rate
        self._seed, self._began_ms = seed, began_ms
        self._next = {topic: begin.get(topic, 0) for topic in topics}
        self._first = dict(self._next)
        self._max_records = max_records
        self._tasks = tasks
        self._end = available(rows, rate, began_ms) if once else None
        if once and self._end is None:
            self._end = sum(self._next.values()) + max_records

    def initial_positions(self) -> Positions:
        """Return the positions at which the tables begin or go on."""
        return {topic: {0: position} for topic, position in self._first.items()}

    def latest_positions(self) -> Positions:
        """Go on to what is due, by one commit's worth at most, shared by what each topic lacks."""
        due = self._end
        if due is None:
            due = available(self._rows, self._rate, self._began_ms)
        if due is None:
            due = sum(self._next.values()) + self._max_records
        lacking = {
            topic: max(0, share(topic, self._topics, due) - position)
            for topic, position in self._next.items()
        }
        total = max(1, sum(lacking.values()))
        room = self._max_records
        for topic, count in lacking.items():
            step = min(count, room, -(-count * self._max_records // total))
            self._next[topic] += step
            room -= step
        return {topic: {0: position} for topic, position in self._next.items()}

    def work_orders(self, start: Positions, stop: Positions) -> Sequence[str]:
        """Cut each topic's range into as many pieces as there are task slots."""
        orders = []
        mixed = len(self._topics) > 1
        for topic, partitions in stop.items():
            low, high = start.get(topic, {}).get(0, 0), partitions[0]
            pieces = min(self._tasks, max(1, (high - low) // _STEP))
            edges = [low + (high - low) * n // pieces for n in range(pieces + 1)]
            orders += [
                json.dumps([topic, first, end, self._seed, self._began_ms, self._rate, mixed])
                for first, end in pairwise(edges)
                if end > first
            ]
        return orders


@dataclass(frozen=True)
class ShopReader:
    """Runs in a task: makes the records of ranges."""

    malformed: float = 0.0  # this share of the records is cut off in the middle

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Make the records of each work order, some at a time."""
        for batch in batches:
            for order in batch.column("work").to_pylist():
                topic, low, high, seed, began_ms, rate, mixed = json.loads(order)
                for first in range(low, high, _STEP):
                    end = min(high, first + _STEP)
                    yield make(topic, first, end, seed, began_ms, rate, self.malformed, mixed)


def available(rows: int | None, rate: int | None, began_ms: int) -> int | None:
    """Count the records that are due now; None: as many as anyone wants."""
    if rate is None:
        return rows
    due = int((time.time() - began_ms / 1000) * rate)
    return due if rows is None else min(rows, due)


def share(topic: str, topics: Sequence[str], total: int) -> int:
    """How many of `total` records belong to this topic."""
    if len(topics) == 1:
        return total
    orders = total // ORDERS_EVERY
    return orders if topic == "order_changes" else total - orders
