"""The report of a task for one table: what it read, staged and asks for. Reports can be added.

Tasks yield rows of (table, group, block). A report is a row of group `REPORTS` whose block is a
pickled TaskReport, as Spark pickles the task itself; an error is one without a table.
"""

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from icestream.errors import IcestreamError
from icestream.schema import NewField
from icestream.tables.marker import Counts
from icestream.write.target import StagedFile

REPORTS = -1  # as a group: the block is a report and holds no rows
TASK_OUTPUT = pa.schema([("table", pa.string()), ("group", pa.int32()), ("block", pa.binary())])


@dataclass(frozen=True)
class RecordStats:
    """Number, sizes and timestamps of the records that were read."""

    records: int = 0
    bytes: int = 0  # of all values
    largest: int = 0  # bytes of the largest value
    oldest: int | None = None  # timestamps of the records, in µs
    newest: Mapping[str, int] = field(default_factory=dict)  # by topic/partition

    def __add__(self, other: "RecordStats") -> "RecordStats":
        newest = dict(self.newest)
        for partition, timestamp in other.newest.items():
            newest[partition] = max(timestamp, newest.get(partition, timestamp))
        oldest = [time for time in (self.oldest, other.oldest) if time is not None]
        return RecordStats(
            self.records + other.records,
            self.bytes + other.bytes,
            max(self.largest, other.largest),
            min(oldest, default=None),
            newest,
        )


@dataclass(frozen=True)
class StagedChanges:
    """What is staged for the commit: files, deleted positions, runs of the key index."""

    files: tuple[StagedFile, ...] = ()
    quarantine_files: tuple[StagedFile, ...] = ()
    deleted_positions: tuple[Mapping[str, str], ...] = ()  # data file → positions, packed
    index_runs: tuple[str, ...] = ()  # of the key index

    def __add__(self, other: "StagedChanges") -> "StagedChanges":
        return StagedChanges(
            self.files + other.files,
            self.quarantine_files + other.quarantine_files,
            self.deleted_positions + other.deleted_positions,
            self.index_runs + other.index_runs,
        )


@dataclass(frozen=True)
class FirstBadRecord:
    """The bad record at which a batch stops under `bad_records: fail`."""

    topic: str
    partition: int
    offset: int
    error: str


@dataclass(frozen=True)
class TaskRequests:
    """What the driver has to do before the batch can be committed."""

    new_fields: tuple[tuple[NewField, ...], ...] = ()
    widened: tuple[NewField, ...] = ()  # columns that the source has made wider
    keys: tuple[str, ...] = ()  # key columns that the records of a mirror name
    needs_quarantine: bool = False
    needs_one_task: bool = False  # rows of several tasks need each other: one must have them all
    first_bad: FirstBadRecord | None = None

    def __add__(self, other: "TaskRequests") -> "TaskRequests":
        return TaskRequests(
            self.new_fields + other.new_fields,
            self.widened + other.widened,
            self.keys or other.keys,
            self.needs_quarantine or other.needs_quarantine,
            self.needs_one_task or other.needs_one_task,
            self.first_bad or other.first_bad,
        )


@dataclass(frozen=True)
class TaskReport:
    """What one task, or all of them together, did for one table."""

    counts: Counts = field(default_factory=Counts)  # must add up to the records that were read
    stats: RecordStats = field(default_factory=RecordStats)
    staged: StagedChanges = field(default_factory=StagedChanges)
    requests: TaskRequests = field(default_factory=TaskRequests)

    def __add__(self, other: "TaskReport") -> "TaskReport":
        return TaskReport(
            self.counts + other.counts,
            self.stats + other.stats,
            self.staged + other.staged,
            self.requests + other.requests,
        )


def pack_reports(reports: Mapping[str, Any] | IcestreamError) -> pa.RecordBatch:
    """Pack the reports of a task by table, or the error that stopped it, as its last output."""
    # An error is a row and not an exception: Spark would run the task again, and hand on no more
    # than its text.
    if isinstance(reports, IcestreamError):
        blocks = [("", json.dumps(reports.facts()).encode())]
    else:
        blocks = [(name, pickle.dumps(report)) for name, report in reports.items()]
    rows = [{"table": name, "group": REPORTS, "block": block} for name, block in blocks]
    return pa.RecordBatch.from_pylist(rows, schema=TASK_OUTPUT)


def unpack_report(table: str, block: bytes) -> Any:
    """Return the report that `pack_reports` packed into a row; raises a packed error."""
    if not table:
        raise IcestreamError.from_facts(json.loads(block))
    return pickle.loads(block)  # noqa: S301 (by our own tasks)


def add_reports(rows: Iterable[tuple[str, int, bytes]], tables: Iterable[str]) -> dict[str, Any]:
    """Add up the reports of all tasks per table, on the driver; raises a packed error."""
    reports = {name: TaskReport() for name in tables}
    for table, _, block in sorted(
        rows, key=lambda row: (row[0], b"" if row[0] else bytes(row[2]))
    ):  # an error has no table: first
        report = unpack_report(table, bytes(block))
        reports[table] += report
    return reports
