"""Sources: contract and registry. A source turns a position range into Kafka-shaped records."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from icestream.plugins import plugin
from icestream.positions import PositionRange, Positions
from icestream.tables.marker import LocatedMarker, Loss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCES = {
    "files": "icestream.sources.files:FilesSource",
    "generator": "icestream.sources.generator:GeneratorSource",
    "kafka": "icestream.sources.kafka.source:KafkaSource",
}


@dataclass(frozen=True)
class StartPositions:
    """Where a table that has no marker yet begins, stored with its claim."""

    positions: Positions
    stream_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LossReport:
    """Positions that a source can no longer give; its streams go on at `resume`, or are deleted."""

    lost: tuple[Loss, ...] = ()
    resume: Positions = field(default_factory=dict)
    stream_ids: Mapping[str, str] = field(default_factory=dict)


class RecordReader(Protocol):
    """Runs in a task: turns what Spark delivered into batches of RECORDS; picklable."""

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the records; raises SourceChanged when the source is not as it was planned."""
        ...


# Called with each batch: its DataFrame, and its number in the offset log.
BatchHandler = Callable[["DataFrame", int], None]


class Query(Protocol):
    """A started stream: as much of Spark's StreamingQuery as a run needs."""

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's names)
        """Whether batches still come."""
        ...

    def exception(self) -> BaseException | None:
        """The error that ended the query, if one did."""
        ...

    def processAllAvailable(self) -> None:  # noqa: N802
        """Return when the source has nothing new; raises the error that ended the query."""
        ...

    def awaitTermination(self) -> bool | None:  # noqa: N802
        """Return when the query has ended; raises the error that ended it."""
        ...

    def stop(self) -> None:
        """Begin no further batch."""
        ...


class Stream(Protocol):
    """What `Source.open` returns: batches from a position on, once it is started."""

    def start(self, name: str, handle: BatchHandler, checkpoint: Path, interval: float) -> Query:
        """Log each batch's end to `checkpoint/offsets/` as Spark does, then hand it over."""
        ...


@dataclass(frozen=True)
class SparkStream:
    """A stream that Spark plans."""

    frame: "DataFrame"
    ends: bool  # at what is there when it starts

    def start(self, name: str, handle: BatchHandler, checkpoint: Path, interval: float) -> Query:
        """Start Spark's foreachBatch."""
        trigger: dict[str, Any] = {"processingTime": f"{int(interval * 1000)} milliseconds"}
        if self.ends:
            trigger = {"availableNow": True}
        return (
            self.frame.writeStream.queryName(name)
            .foreachBatch(handle)
            .option("checkpointLocation", str(checkpoint))
            .trigger(**trigger)
            .start()
        )


# topic → partition → first offset to keep. A topic or partition that is not named is kept whole.
RecordFloors = Mapping[str, Mapping[int, int]]


class Source(ABC):
    """Lives on the driver for one run; the pipeline calls it in this order."""

    reader: RecordReader
    shared_streams: frozenset[str] = frozenset()  # whose positions cover the topics of all tables
    jar_sets: tuple[str, ...] = ()  # of jars.lock.toml, besides core
    java_options: Sequence[str] = ()  # for the JVM that reads it
    ends_by_itself: bool = False  # whether Spark can end the stream at what is there now

    @abstractmethod
    def check(self) -> None:
        """Raise SetupError or Unreachable when the source cannot be read from here."""

    @abstractmethod
    def known_topics(self) -> Sequence[str]:
        """List the topics that are known before anything is read; may be none."""

    @abstractmethod
    def sample(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield about `count` of the first records, without Spark; no position moves."""

    def load_details(self, markers: Sequence[LocatedMarker]) -> None:
        """Load what `store_details` of earlier runs stored; called before any claim.

        Here: nothing, for sources whose positions need nothing besides the marker.
        """
        return

    @abstractmethod
    def resolve_start(self, start: str | datetime) -> StartPositions:
        """Turn `earliest`, `latest` or a time into explicit positions."""

    @abstractmethod
    def open(self, spark: "SparkSession", begin: Positions, scratch: Path, once: bool) -> Stream:
        """Open the stream from `begin` on; with `once` it ends at what is there now."""

    def max_tasks(self, batch: PositionRange, cores: int) -> int | None:
        """How many tasks a range is worth at most; None: one per part that is planned."""
        return None

    def stream_ids(self, streams: Iterable[str]) -> Mapping[str, str]:
        """Return the present identity of streams; a changed one means a re-created topic."""
        return {}

    def losses(self, committed: Positions, known_ids: Mapping[str, str]) -> LossReport:
        """Find what the source can no longer give to a table with these committed positions."""
        return LossReport()

    def stream_of(self, topic: str) -> str:
        """Return the stream whose positions cover this topic."""
        return topic

    @abstractmethod
    def topics(self, batch: PositionRange) -> Sequence[str]:
        """List the topics of which a range may hold records."""

    def record_floors(self, batch: PositionRange, floors: Positions) -> RecordFloors:
        """Turn floors in positions into the first record offset to keep of each partition."""
        return floors

    def store_details(
        self, stop: Positions, location: str, commit_id: str, old: Mapping[str, str]
    ) -> dict[str, str]:
        """Store what a later start needs besides positions, before the commit.

        Returns the details of the marker that name it.
        """
        return {}

    def lag(self, positions: Positions) -> Positions:
        """Count the records behind `positions` per partition, as far as that is cheap."""
        return {}

    def close(self) -> None:
        """Release connections and threads, at the end of a run."""
        return


def source_for(options: Any) -> Source:
    """Make the source that the options of `source:` describe."""
    source: Source = plugin("source", SOURCES, options.type)(options)
    return source
