"""The executor's side of a batch after the shuffle: all changes of some keys, or gathered rows."""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import pyarrow as pa

from icestream.batch.quarantine import BadRecordWriter
from icestream.batch.report import (
    REPORTS,
    TASK_OUTPUT,
    StagedChanges,
    TaskReport,
    TaskRequests,
    pack_reports,
)
from icestream.batch.row_layout import quarantine_rows
from icestream.batch.shuffle import GatheredRowWriter, grouped_blocks, unpack
from icestream.batch.table_task import TableTaskInput
from icestream.errors import IcestreamError
from icestream.failpoints import failpoint
from icestream.tables.marker import Counts
from icestream.upsert.apply import ChangeApplier
from icestream.upsert.changes import ChangeBatch
from icestream.write.partition import PartitionLimitExceeded, partitions_refusal

_MEMORY = 128 << 20


@dataclass(frozen=True)
class WriteTask:
    """Picklable; Spark calls it once per task, with blocks that are sorted by table and group."""

    pipeline: str
    tables: Mapping[str, TableTaskInput]
    ingested_at: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write group after group, and pass on what the tasks before the shuffle reported."""
        passed_on: list[dict[str, object]] = []
        reports: dict[str, TaskReport] = {}
        result: dict[str, TaskReport] | IcestreamError = reports
        writer: _TableWriter | None = None
        try:
            for table, group, blocks in grouped_blocks(batches):
                if group == REPORTS:
                    passed_on += [
                        {"table": table, "group": REPORTS, "block": each} for each in blocks
                    ]
                    continue
                if writer is None or writer.name != table:
                    if writer:
                        reports[writer.name] = writer.finish()
                    kind = _MirrorTableWriter if self.tables[table].upsert else _AppendTableWriter
                    writer = kind(self, table)
                writer.process_group(group, blocks)
            if writer:
                reports[writer.name] = writer.finish()
        except PartitionLimitExceeded as limit:
            assert writer is not None, "it is what a writer raises"
            result = partitions_refusal(writer.name, limit.count, limit.most, limit.where)
        except IcestreamError as failure:
            result = failure
        finally:
            if writer:
                writer.abort()
        if result is reports:
            yield pa.RecordBatch.from_pylist(passed_on, schema=TASK_OUTPUT)
        yield pack_reports(result)


class _TableWriter(Protocol):
    """One table's part of a write task."""

    name: str

    def process_group(self, group: int, blocks: Sequence[bytes]) -> None: ...

    def finish(self) -> TaskReport: ...

    def abort(self) -> None: ...


class _AppendTableWriter:
    """Writes the rows of some partitions of one table."""

    def __init__(self, task: WriteTask, name: str) -> None:
        self.name = name
        self._rows = GatheredRowWriter(task.tables[name].target, _MEMORY)

    def process_group(self, group: int, blocks: Sequence[bytes]) -> None:
        self._rows.write_blocks(blocks)
        failpoint("mid-write")

    def finish(self) -> TaskReport:
        return TaskReport(staged=StagedChanges(files=self._rows.finish()))

    def abort(self) -> None:
        self._rows.abort()


class _MirrorTableWriter:
    """One mirror's part of a write task: folds the changes of its key groups.

    Stages rows and index entries, and collects the positions that they delete.
    """

    def __init__(self, task: WriteTask, name: str) -> None:
        self.name = name
        self._task = task
        table = task.tables[name]
        assert table.upsert is not None, "only changes come this way"
        assert table.upsert.mirror is not None, "and only with a key"
        self._upsert = table.upsert
        attempt = uuid.uuid4().hex[:12]
        self._applier = ChangeApplier(table.upsert.mirror, attempt, _MEMORY, task.ingested_at)
        self._bad_records = BadRecordWriter(
            table.bad_records, table.quarantine, table.quarantine_floors, f"{attempt}-late"
        )
        self._report = TaskReport()

    def process_group(self, group: int, blocks: Sequence[bytes]) -> None:
        changes = ChangeBatch.of([unpack(block) for block in blocks])
        buckets, groups = self._upsert.buckets, self._upsert.groups
        own = [bucket for bucket in range(buckets) if bucket * groups // buckets == group]
        bad = self._applier.apply(changes, own)
        failpoint("mid-write")
        if bad is not None:
            rows = quarantine_rows(bad, self._task.pipeline, self._task.ingested_at, "apply")
            # They were counted as landed before anybody could know.
            self._report += TaskReport(Counts(landed=-rows.num_rows))
            self._report += self._bad_records.handle(rows)

    def finish(self) -> TaskReport:
        applied = self._applier.finish()
        staged = StagedChanges(
            files=applied.files,
            quarantine_files=self._bad_records.finish(),
            deleted_positions=(applied.deleted_positions,) if applied.deleted_positions else (),
            index_runs=applied.runs,
        )
        requests = TaskRequests(needs_one_task=applied.needs_one_task)
        return self._report + TaskReport(staged=staged, requests=requests)

    def abort(self) -> None:
        self._applier.abort()
        self._bad_records.abort()
