"""The executor's side of a micro-batch: read ▸ trim ▸ route ▸ decode ▸ shape ▸ stage, in one pass.

What comes back to the driver are a few rows of JSON per task: staged files, counts, findings.
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.arrow import arrow_schema
from icestream.errors import IcestreamError
from icestream.failpoints import failpoint
from icestream.formats import Decoded, Format
from icestream.schema import (
    METADATA_NAMES,
    NewField,
    Rule,
    dump_new_fields,
    load_new_fields,
    merge_new_fields,
    with_new_fields,
)
from icestream.shape import Shape, split
from icestream.sources import Reader, RecordFloors
from icestream.write.stage import StagedFile, Stager, StageTarget

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_MEMORY = 128 << 20  # rows that one task may hold back for sorting, over all its tables
_LEAST_MEMORY = 8 << 20


@dataclass(frozen=True)
class TableTask:
    """What a task must know of one table."""

    target: StageTarget
    quarantine: StageTarget | None  # None: does not exist yet; a bad record asks for it
    floors: RecordFloors
    quarantine_floors: RecordFloors
    format: Format
    rule: Rule
    bad_records: str
    metadata_columns: bool
    dropped_columns: frozenset[str]


@dataclass(frozen=True)
class Offender:
    """A record that `bad_records: fail` stops at."""

    topic: str
    partition: int
    offset: int
    error: str


@dataclass(frozen=True)
class Report:
    """What one task, or all of them together, did for one table."""

    read: int = 0
    landed: int = 0
    quarantined: int = 0
    dropped: int = 0
    files: tuple[StagedFile, ...] = ()
    quarantine_files: tuple[StagedFile, ...] = ()
    new_fields: tuple[tuple[NewField, ...], ...] = ()
    offender: Offender | None = None
    wants_quarantine: bool = False
    oldest: int | None = None  # timestamps of the records, in µs
    newest: Mapping[str, int] = field(default_factory=dict)  # by topic/partition
    widest: int = 0  # bytes of the largest value

    def __add__(self, other: "Report") -> "Report":
        newest = dict(self.newest)
        for source, at in other.newest.items():
            newest[source] = max(at, newest.get(source, at))
        times = [at for at in (self.oldest, other.oldest) if at is not None]
        return Report(
            self.read + other.read,
            self.landed + other.landed,
            self.quarantined + other.quarantined,
            self.dropped + other.dropped,
            self.files + other.files,
            self.quarantine_files + other.quarantine_files,
            self.new_fields + other.new_fields,
            self.offender or other.offender,
            self.wants_quarantine or other.wants_quarantine,
            min(times, default=None),
            newest,
            max(self.widest, other.widest),
        )

    def to_json(self) -> str:
        """For the way to the driver."""
        plain = asdict(replace(self, new_fields=()))
        plain["new_fields"] = [dump_new_fields(seen) for seen in self.new_fields]
        return json.dumps(plain)

    @staticmethod
    def from_json(text: str) -> "Report":
        """On the driver."""
        raw: dict[str, Any] = json.loads(text)
        return Report(
            **{
                **raw,
                "files": tuple(StagedFile(**each) for each in raw["files"]),
                "quarantine_files": tuple(StagedFile(**each) for each in raw["quarantine_files"]),
                "new_fields": tuple(tuple(load_new_fields(seen)) for seen in raw["new_fields"]),
                "offender": Offender(**raw["offender"]) if raw["offender"] else None,
            }
        )


@dataclass(frozen=True)
class StageTask:
    """Picklable; Spark calls it once per task with the task's Arrow batches."""

    pipeline: str
    reader: Reader
    routes: Mapping[str, str]  # topic → table; a topic that is not here goes nowhere
    tables: Mapping[str, TableTask]
    ingested_at: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage everything, then report."""
        desks: dict[str, _Desk] = {}
        try:
            for records in self.reader.read(batches):
                for table, part in self._routed(records):
                    if table not in desks:
                        desks[table] = _Desk(self, self.tables[table])
                    desks[table].take(part)
            rows = [(name, desk.finish().to_json()) for name, desk in desks.items()]
        except IcestreamError as failure:
            rows = [("", json.dumps(failure.facts()))]
        finally:
            for desk in desks.values():
                desk.close()
        yield pa.RecordBatch.from_pydict(
            {"table": [name for name, _ in rows], "report": [text for _, text in rows]},
            schema=pa.schema([("table", pa.string()), ("report", pa.string())]),
        )

    def _routed(self, records: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The records at or above the floor of the table they belong to."""
        topics = pc.unique(records.column("topic")).to_pylist()
        for topic in topics:
            table = self.routes.get(topic)
            if table is None:
                continue
            of_topic = records
            if len(topics) > 1:
                of_topic = records.filter(pc.equal(records.column("topic"), topic))
            kept = _above(of_topic, self.tables[table].floors.get(topic, {}))
            if kept.num_rows:
                yield table, kept


class _Desk:
    """Where one task works on one table."""

    def __init__(self, job: StageTask, table: TableTask) -> None:
        self._table = table
        self._attempt = uuid.uuid4().hex[:12]
        self._memory = max(_LEAST_MEMORY, _MEMORY // len(job.tables))
        self._good: Stager | None = None
        self._bad: Stager | None = None
        schema = Schema.model_validate_json(table.target.schema_json)
        self._data = Schema(*(f for f in schema.fields if f.name not in METADATA_NAMES))
        self._shape = Shape(
            arrow_schema(schema),
            job.pipeline,
            job.ingested_at,
            table.metadata_columns,
        )
        self._report = Report()

    def take(self, records: pa.RecordBatch) -> None:
        """Decode, shape and stage; if the table must change first, only look for what it lacks."""
        if self._report.new_fields:
            self._look(records)
            return
        decoded = self._decode(records, self._data)
        oldest, newest = _times(records)
        widest = pc.max(pc.binary_length(records.column("value"))).as_py() or 0
        counted = Report(records.num_rows, oldest=oldest, newest=newest, widest=widest)
        if decoded.new_fields:
            self._report += replace(counted, new_fields=(decoded.new_fields,))
            return
        shaped = split(records, decoded, self._shape)
        good, bad = shaped.good, shaped.bad
        if good.num_rows:
            self._good = self._good or Stager(self._table.target, self._attempt, self._memory)
            self._good.write(good)
            failpoint("mid-write")
        counted = replace(counted, landed=good.num_rows)
        self._report += replace(counted, **self._bad_rows(bad)) if bad.num_rows else counted

    def _decode(self, records: pa.RecordBatch, columns: Schema) -> Decoded:
        table = self._table
        return table.format.decode(records, columns, table.rule, table.dropped_columns)

    def _look(self, records: pa.RecordBatch) -> None:
        """Find what else is new. With the finds so far as columns that is as quick as decoding."""
        found = merge_new_fields(self._report.new_fields)
        decoded = self._decode(records, with_new_fields(self._data, found))
        seen = [decoded.new_fields]
        odd = records.filter(decoded.errors.is_valid())
        if odd.num_rows:  # perhaps only because a type was guessed too narrow
            seen.append(self._decode(odd, self._data).new_fields)
        self._report += Report(new_fields=tuple(each for each in seen if each))

    def _bad_rows(self, bad: pa.RecordBatch) -> dict[str, Any]:
        table = self._table
        if table.bad_records == "drop":
            return {"dropped": bad.num_rows}
        if table.bad_records == "fail":
            first = bad.slice(0, 1).select(["topic", "partition", "offset", "error"]).to_pylist()[0]
            return {"offender": Offender(**first), "quarantined": bad.num_rows}
        if table.quarantine is None:
            return {"wants_quarantine": True, "quarantined": bad.num_rows}
        for topic in pc.unique(bad.column("topic")).to_pylist():
            of_topic = bad.filter(pc.equal(bad.column("topic"), topic))
            fresh = _above(of_topic, table.quarantine_floors.get(topic, {}))
            if fresh.num_rows:
                self._bad = self._bad or Stager(table.quarantine, self._attempt, _LEAST_MEMORY)
                self._bad.write(fresh)
        return {"quarantined": bad.num_rows}

    def finish(self) -> Report:
        """Close the files and say what there is."""
        return replace(
            self._report,
            files=tuple(self._good.finish()) if self._good else (),
            quarantine_files=tuple(self._bad.finish()) if self._bad else (),
        )

    def close(self) -> None:
        """Let go of what is still open after an error."""
        for stager in (self._good, self._bad):
            if stager:
                stager.abort()


def report_type() -> "StructType":
    """The columns of what a task yields, for Spark; a text that says so costs it some 6 ms."""
    from pyspark.sql.types import StringType, StructType

    return StructType().add("table", StringType()).add("report", StringType())


def _above(records: pa.RecordBatch, floors: Mapping[int, int]) -> pa.RecordBatch:
    """Records of one topic at or above the floor of their partition."""
    for partition in pc.unique(records.column("partition")).to_pylist() if floors else ():
        floor = floors.get(partition, 0)
        if floor <= 0:
            continue
        below = pc.and_(
            pc.equal(records.column("partition"), partition),
            pc.less(records.column("offset"), floor),
        )
        if pc.any(below).as_py():
            records = records.filter(pc.invert(below))
    return records


def _times(records: pa.RecordBatch) -> tuple[int | None, dict[str, int]]:
    """Of one topic's records: the oldest timestamp, and the newest of each partition."""
    topic, partitions = records.column("topic")[0], records.column("partition")
    times = records.column("timestamp").cast(pa.int64())
    oldest, newest = pc.min_max(times).as_py().values()
    if newest is None:
        return None, {}
    first, last = pc.min_max(partitions).as_py().values()
    if first == last:  # the usual case: Kafka's partitions come one after the other
        return oldest, {f"{topic}/{first}": newest}
    table = pa.table({"partition": partitions, "at": times})
    grouped = table.group_by("partition").aggregate([("at", "max")]).to_pylist()
    return oldest, {
        f"{topic}/{row['partition']}": row["at_max"] for row in grouped if row["at_max"] is not None
    }
