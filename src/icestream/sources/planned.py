"""A Spark stream whose planner is ours: Spark moves work orders, tasks make the records.

Spark asks the planner for positions and work orders (small JSON texts) in a helper process; the
fused task turns an order into records right where they are decoded, so that no record crosses the
JVM on its way from a file or a generator.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from icestream.commit.marker import Positions
from icestream.errors import IcestreamError

Answer = TypeVar("Answer")

_FAILURE = "planner-failure.json"


class Planner(Protocol):
    """Decides, away from Spark, what is there and how to cut it; made from JSON settings."""

    def first(self) -> Positions:
        """Where the stream begins."""
        ...

    def latest(self) -> Positions:
        """How far the next batch may go; the same answer again means nothing new."""
        ...

    def orders(self, start: Positions, stop: Positions) -> Sequence[str]:
        """One work order per task."""
        ...


def open_stream(
    spark: SparkSession, planner: str, settings: dict[str, Any], scratch: Path
) -> DataFrame:
    """A streaming DataFrame with one column `work`, planned by `module:Class`."""
    spark.dataSource.register(PlannedSource)
    return (
        spark.readStream.format(PlannedSource.name())
        .option("planner", planner)
        .option("settings", json.dumps(settings))
        .option("scratch", str(scratch))
        .load()
    )


def planner_failure(scratch: Path) -> IcestreamError | None:
    """The planner's own error: Spark hands on no more than its text."""
    file = scratch / _FAILURE
    if not file.exists():
        return None
    return IcestreamError.from_facts(json.loads(file.read_text()))


class PlannedSource(DataSource):
    """The Spark side: options in, a stream reader out."""

    @classmethod
    def name(cls) -> str:
        """The name under which Spark knows it."""
        return "icestream_planned"

    def schema(self) -> str:
        """One work order per row."""
        return "work string"

    def streamReader(self, schema: Any) -> "PlannedReader":  # noqa: N802 (Spark's name)
        """Called in Spark's helper process."""
        return PlannedReader(self.options)


class PlannedReader(DataSourceStreamReader):
    """Passes Spark's questions on to the planner and keeps its errors whole."""

    def __init__(self, options: Any) -> None:
        self._scratch = Path(options["scratch"])
        self._name: str = options["planner"]
        self._settings: str = options["settings"]
        self._made: Planner | None = None

    @property
    def _planner(self) -> Planner:
        """Made when first asked: Spark builds a second reader, only to send its `read` to tasks."""
        if self._made is None:
            module, _, name = self._name.partition(":")
            self._made = getattr(import_module(module), name)(**json.loads(self._settings))
        return self._made

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """The planner's first position."""
        return self._guarded(lambda: as_offset(self._planner.first()))

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The planner's latest position."""
        return self._guarded(lambda: as_offset(self._planner.latest()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One Spark task per work order."""
        return self._guarded(
            lambda: [
                InputPartition(order)
                for order in self._planner.orders(from_offset(start), from_offset(end))
            ]
        )

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Runs in a task: hand the order over."""
        yield (partition.value,)

    def _guarded(self, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except IcestreamError as failure:
            (self._scratch / _FAILURE).write_text(json.dumps(failure.facts()))
            raise


def as_offset(positions: Positions) -> dict[str, Any]:
    """Positions as the JSON object that Spark logs."""
    return {
        stream: {str(number): at for number, at in partitions.items()}
        for stream, partitions in positions.items()
    }


def from_offset(offset: dict[str, Any]) -> Positions:
    """Positions from the JSON object that Spark logged."""
    return {
        stream: {int(number): at for number, at in partitions.items()}
        for stream, partitions in offset.items()
    }
