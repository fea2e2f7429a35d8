"""What tasks did for a table of a batch, added up on the driver."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from icestream.batch.quarantine import FirstBadRecord
from icestream.schema import NewField, dump_new_fields, load_new_fields
from icestream.write.stage import StagedFile


@dataclass(frozen=True)
class TaskReport:
    """What one task, or all of them together, did for one table."""

    read: int = 0
    landed: int = 0
    quarantined: int = 0
    dropped: int = 0
    files: tuple[StagedFile, ...] = ()
    quarantine_files: tuple[StagedFile, ...] = ()
    new_fields: tuple[tuple[NewField, ...], ...] = ()
    first_bad: FirstBadRecord | None = None
    wants_quarantine: bool = False
    oldest: int | None = None  # timestamps of the records, in µs
    newest_by_partition: Mapping[str, int] = field(default_factory=dict)  # by topic/partition
    bytes: int = 0  # of all values
    largest_record: int = 0  # of the largest
    keys: tuple[str, ...] = ()  # of a mirror whose keys nobody has named
    deleted_positions: tuple[Mapping[str, str], ...] = ()  # data file → positions that die, packed
    index_runs: tuple[str, ...] = ()  # of the key index
    needs_one_task: bool = False  # rows of several tasks need each other: one must have them all
    widened: tuple[NewField, ...] = ()  # columns that the source has made wider

    def __add__(self, other: "TaskReport") -> "TaskReport":
        newest = dict(self.newest_by_partition)
        for source, at in other.newest_by_partition.items():
            newest[source] = max(at, newest.get(source, at))
        times = [at for at in (self.oldest, other.oldest) if at is not None]
        return TaskReport(
            self.read + other.read,
            self.landed + other.landed,
            self.quarantined + other.quarantined,
            self.dropped + other.dropped,
            self.files + other.files,
            self.quarantine_files + other.quarantine_files,
            self.new_fields + other.new_fields,
            self.first_bad or other.first_bad,
            self.wants_quarantine or other.wants_quarantine,
            min(times, default=None),
            newest,
            self.bytes + other.bytes,
            max(self.largest_record, other.largest_record),
            self.keys or other.keys,
            self.deleted_positions + other.deleted_positions,
            self.index_runs + other.index_runs,
            self.needs_one_task or other.needs_one_task,
            self.widened + other.widened,
        )

    def to_json(self) -> str:
        """For the way to the driver."""
        plain = asdict(replace(self, new_fields=(), widened=()))
        plain["new_fields"] = [dump_new_fields(seen) for seen in self.new_fields]
        plain["widened"] = dump_new_fields(self.widened)
        return json.dumps(plain)

    @staticmethod
    def from_json(text: str) -> "TaskReport":
        """On the driver."""
        raw: dict[str, Any] = json.loads(text)
        return TaskReport(
            **{
                **raw,
                "files": tuple(StagedFile(**each) for each in raw["files"]),
                "quarantine_files": tuple(StagedFile(**each) for each in raw["quarantine_files"]),
                "new_fields": tuple(tuple(load_new_fields(seen)) for seen in raw["new_fields"]),
                "first_bad": FirstBadRecord(**raw["first_bad"]) if raw["first_bad"] else None,
                "keys": tuple(raw["keys"]),
                "deleted_positions": tuple(raw["deleted_positions"]),
                "index_runs": tuple(raw["index_runs"]),
                "widened": tuple(load_new_fields(raw["widened"])),
            }
        )


_REPORT = pa.schema([("table", pa.string()), ("report", pa.string())])


def reports_batch(rows: Sequence[tuple[str, str]]) -> pa.RecordBatch:
    """What a task yields: a table's name and a report, or no name and an error."""
    return pa.RecordBatch.from_pylist(
        [{"table": name, "report": text} for name, text in rows], schema=_REPORT
    )
