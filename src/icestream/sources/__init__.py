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
    """What a source can no longer give; the streams concerned go on at `resume` or are gone."""

    lost: tuple[Loss, ...] = ()
    resume: Positions = field(default_factory=dict)
    stream_ids: Mapping[str, str] = field(default_factory=dict)


class RecordReader(Protocol):
    """Runs in a task: what Spark delivered → record batches in the shape of RECORDS; picklable."""

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Raise SourceChanged when the source contradicts what was planned."""
        ...


# Brings one batch in; the number is that of the offset log.
BatchHandler = Callable[["DataFrame", int], None]


class Query(Protocol):
    """A stream on its way, as Spark's StreamingQuery."""

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's names)
        """Whether batches still come."""
        ...

    def exception(self) -> BaseException | None:
        """What ended it, if anything went wrong."""
        ...

    def processAllAvailable(self) -> None:  # noqa: N802
        """Return when nothing new is there; raises what ended it."""
        ...

    def awaitTermination(self) -> bool | None:  # noqa: N802
        """Return when it has ended; raises what ended it."""
        ...

    def stop(self) -> None:
        """No batch begins any more."""
        ...


class Stream(Protocol):
    """What a source opens: batches from a position on, once it is started."""

    def start(self, name: str, handle: BatchHandler, checkpoint: Path, interval: float) -> Query:
        """Log each batch's end to `checkpoint/offsets/` as Spark does, then hand it over."""
        ...


@dataclass(frozen=True)
class SparkStream:
    """A stream that Spark plans."""

    frame: "DataFrame"
    ends: bool  # at what is there when it starts

    def start(self, name: str, handle: BatchHandler, checkpoint: Path, interval: float) -> Query:
        """Spark's foreachBatch."""
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
        """Raise SetupError or Unreachable when it cannot be read from here."""

    @abstractmethod
    def known_topics(self) -> Sequence[str]:
        """Topics that are known before anything is read; may be none."""

    @abstractmethod
    def sample(self, count: int) -> Iterator[pa.RecordBatch]:
        """The first records, read without Spark and without taking anything."""

    def load_details(self, markers: Sequence[LocatedMarker]) -> None:
        """Take up what earlier runs stored in the tables; called before any claim.

        Here: nothing, where positions need nothing besides the marker.
        """
        return

    @abstractmethod
    def resolve_start(self, start: str | datetime) -> StartPositions:
        """Turn `earliest`, `latest` or a time into explicit positions."""

    @abstractmethod
    def open(self, spark: "SparkSession", begin: Positions, scratch: Path, once: bool) -> Stream:
        """The stream from `begin` on; `once` ends at what is there now."""

    def max_tasks(self, batch: PositionRange, cores: int) -> int | None:
        """How many tasks a range is worth at most; None: one per part that is planned."""
        return None

    def stream_ids(self, streams: Iterable[str]) -> Mapping[str, str]:
        """Identity of these streams now; a changed one means a re-created topic."""
        return {}

    def losses(self, committed: Positions, known_ids: Mapping[str, str]) -> LossReport:
        """What the source can no longer give to a table with these committed positions."""
        return LossReport()

    def stream_of(self, topic: str) -> str:
        """The stream whose positions cover this topic."""
        return topic

    @abstractmethod
    def topics(self, batch: PositionRange) -> Sequence[str]:
        """The record topics that a range may hold."""

    def record_floors(self, batch: PositionRange, floors: Positions) -> RecordFloors:
        """Floors in positions → the first record offset to keep, per topic and partition."""
        return floors

    def store_details(
        self, stop: Positions, location: str, commit_id: str, old: Mapping[str, str]
    ) -> dict[str, str]:
        """Store what a later start needs besides positions, before the commit.

        Returns the details of the marker that name it.
        """
        return {}

    def lag(self, positions: Positions) -> Positions:
        """Records behind `positions` per partition, as far as can be told cheaply."""
        return {}

    def close(self) -> None:
        """Let go of connections and threads; the run is over."""
        return


def source_for(options: Any) -> Source:
    """The source that `source:` describes."""
    source: Source = plugin("source", SOURCES, options.type)(options)
    return source
