"""A stand for pipelines: real tasks, key indexes and Iceberg commits, but no stream of Spark's.

Records are handed over batch by batch, cut wherever a test wants. A task runs where it is called,
so that a batch costs a tenth of what it does as a Spark job.
"""

import gc
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from icestream.catalogs import catalog_for, spark_conf
from icestream.config.model import PipelineConfig
from icestream.events import Event, EventBus
from icestream.pipeline import Pipeline
from icestream.run.assemble import build_pipeline
from icestream.run.scratch import make_scratch
from icestream.sources import LossReport, StartPositions

TASKS = 3


class Frame:
    """As much of a DataFrame as a batch needs: partitions of Arrow batches."""

    def __init__(self, spark: Any, partitions: Sequence[Sequence[pa.RecordBatch]]) -> None:
        self.sparkSession = spark
        self._partitions = partitions

    def coalesce(self, count: int) -> "Frame":
        return self

    def mapInArrow(self, task: Any, kind: Any) -> "Frame":  # noqa: N802
        return Frame(self.sparkSession, [list(task(iter(each))) for each in self._partitions])

    def repartitionById(self, width: int, column: Any) -> "Frame":  # noqa: N802
        rows = [row for part in self._partitions for batch in part for row in batch.to_pylist()]
        schema = next(batch.schema for part in self._partitions for batch in part)
        parts: list[list[dict[str, Any]]] = [[] for _ in range(width)]
        for row in rows:
            parts[row["group"] % width].append(row)
        return Frame(
            self.sparkSession, [[pa.RecordBatch.from_pylist(part, schema)] for part in parts]
        )

    def sortWithinPartitions(self, *names: str) -> "Frame":  # noqa: N802
        order = [(name, "ascending") for name in names]
        return Frame(self.sparkSession, [[b.sort_by(order) for b in p] for p in self._partitions])

    def collect(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for p in self._partitions for b in p for row in b.to_pylist()]


class AsIs:
    """Records are what they are."""

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches


@dataclass
class Captured:
    """A source of records that are all there already; positions are offsets, as in Kafka."""

    topics_: Sequence[str]
    reader: AsIs = field(default_factory=AsIs)
    shared_streams: frozenset[str] = frozenset()
    jar_sets: tuple[str, ...] = ()
    java_options: Sequence[str] = ()
    ends_by_itself: bool = True

    def check(self) -> None: ...

    def known_topics(self) -> Sequence[str]:
        return self.topics_

    def load_details(self, markers: Any) -> None: ...

    def resolve_start(self, start: Any) -> StartPositions:
        return StartPositions({topic: {0: 0} for topic in self.topics_})

    def open(self, spark: Any, begin: Any, scratch: Path, once: bool) -> None: ...

    def max_tasks(self, batch: Any, cores: int) -> int:
        return TASKS

    def stream_ids(self, streams: Any) -> dict[str, str]:
        return {}

    def losses(self, reached: Any, known_ids: Any) -> LossReport:
        return LossReport()

    def stream_of(self, topic: str) -> str:
        return topic

    def topics(self, batch: Any) -> list[str]:
        return [t for t, at in batch.stop.items() if at != batch.start.get(t, {0: 0})]

    def record_floors(self, batch: Any, floors: Any) -> Any:
        return floors

    def store_details(self, stop: Any, location: str, commit_id: str, old: Any) -> dict[str, str]:
        return {}

    def lag(self, reached: Any) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


class Stand:
    """One pipeline over some topics; `take` is one micro-batch."""

    def __init__(self, spark: Any, folder: Path, topics: Sequence[str], facts: Any) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self._spark = spark
        self._topics = topics
        facts = {
            "name": "p",
            "catalog": {"type": "local", "name": "stand", "warehouse": str(folder / "lake")},
            "state_location": str(folder / "state"),
            "maintenance": False,
            **facts,
        }
        facts["source"] = {
            "type": "kafka",
            "bootstrap_servers": "nowhere:1",
            "topics": list(topics),
            **facts.get("source", {}),
        }
        self.config = PipelineConfig.model_validate(facts, context={"folder": str(folder)})
        self._pipeline: Pipeline | None = None
        gc.collect()  # catalogs of stands before this one: their connections are in cycles
        self.start()

    def start(self) -> None:
        """Begin a run, as after a crash: nothing of the one before is told to stop."""
        if self._pipeline is not None:
            self._pipeline.shut_down()  # threads end with a process, and this is still ours
        self._batch = 0
        bus = EventBus()
        bus.join(self.events.append)
        source = Captured(self._topics)
        self._pipeline, _ = build_pipeline(self._spark, self.config, bus, source)
        claimed = self._pipeline.claim()
        scratch = make_scratch(self.folder / "runs", claimed.generation, self._pipeline.run_id)
        self._pipeline.open(self._spark, claimed, scratch, once=True)
        self._log = scratch / "checkpoint" / "offsets"
        self._log.mkdir(parents=True)
        self._at = {topic: dict(at) for topic, at in claimed.start.items()}

    def take(self, records: pa.RecordBatch) -> None:
        """Bring a batch in; its records follow those before, topic by topic."""
        for row in records.select(["topic", "offset"]).to_pylist():
            self._at[row["topic"]] = {0: row["offset"] + 1}
        log = self._log / str(self._batch)
        log.write_text(f"v1\n{{}}\n{json.dumps(self._at)}\n")
        # Several tasks, in no order: whichever is first, the result is the same.
        parts = [records.filter(_every(TASKS, at, len(records))) for at in range(TASKS)]
        frame = Frame(self._spark, [[part] for part in parts[::-1]])
        self._pipeline.process(frame, self._batch)  # type: ignore[arg-type]
        self._batch += 1

    def compact(self, table: str) -> None:
        """Somebody else's compaction, by plain SQL."""
        every = "map('rewrite-all', 'true')"
        self.sql(f"CALL stand.system.rewrite_data_files(table => '{table}', options => {every})")

    def sql(self, text: str) -> list[Any]:
        """Somebody else's statement, in a session of its own."""
        session = self._spark.newSession()
        for key, value in spark_conf(catalog_for(self.config.catalog)).items():
            session.conf.set(key, value)
        return list(session.sql(text).collect())


def _every(width: int, first: int, count: int) -> pa.BooleanArray:
    return pa.array([at % width == first for at in range(count)])
