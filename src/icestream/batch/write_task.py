"""The task after the shuffle: applies changes to mirrors, or writes rows by partition."""

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
from icestream.batch.shuffle import grouped_blocks, unpack
from icestream.batch.table_task import TableTaskInput
from icestream.errors import IcestreamError
from icestream.failpoints import failpoint
from icestream.tables.marker import Counts
from icestream.upsert.apply import ChangeApplier
from icestream.upsert.changes import ChangeBatch
from icestream.write.partition import PartitionLimitExceeded, partitions_refusal
from icestream.write.stage import Stager

_MEMORY = 128 << 20


@dataclass(frozen=True)
class WriteTask:
    """Writes shuffled blocks, sorted by table and group; picklable, called once per Spark task."""

    pipeline: str
    tables: Mapping[str, TableTaskInput]
    ingested_at: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write group after group, and pass on the reports of the tasks before the shuffle."""
        passed_on: list[dict[str, object]] = []
        reports: dict[str, TaskReport] = {}
        result: dict[str, TaskReport] | IcestreamError = reports
        writer: _TableWriter | None = None
        try:
            for table, group, blocks in grouped_blocks(batches):
                if group == REPORTS:
                    passed_on += [
                        {"table": table, "group": REPORTS, "block": block} for block in blocks
                    ]
                    continue
                if writer is None or writer.name != table:
                    if writer:
                        reports[writer.name] = writer.finish()
                    is_mirror = self.tables[table].upsert is not None
                    writer = (_MirrorTableWriter if is_mirror else _AppendTableWriter)(self, table)
                writer.process_group(group, blocks)
            if writer:
                reports[writer.name] = writer.finish()
        except PartitionLimitExceeded as limit:
            assert writer is not None, "only writers raise it"
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
    """Writes the rows of some partitions of an append table."""

    def __init__(self, task: WriteTask, name: str) -> None:
        self.name = name
        self._stager = Stager(task.tables[name].target, uuid.uuid4().hex[:12], _MEMORY)

    def process_group(self, group: int, blocks: Sequence[bytes]) -> None:
        for block in blocks:
            for batch in unpack(block).to_batches():
                self._stager.write(batch)
        failpoint("mid-write")

    def finish(self) -> TaskReport:
        return TaskReport(staged=StagedChanges(files=tuple(self._stager.finish())))

    def abort(self) -> None:
        self._stager.abort()


class _MirrorTableWriter:
    """One mirror's part of a write task: folds the changes of its key groups.

    Stages rows and index entries, and collects the positions that they delete.
    """

    def __init__(self, task: WriteTask, name: str) -> None:
        self.name = name
        self._task = task
        table = task.tables[name]
        assert table.upsert is not None, "only changes of mirrors are shuffled by key"
        assert table.upsert.mirror is not None, "and only when the keys are known"
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
        own_buckets = [bucket for bucket in range(buckets) if bucket * groups // buckets == group]
        bad = self._applier.apply(changes, own_buckets)
        failpoint("mid-write")
        if bad is not None:
            rows = quarantine_rows(bad, self._task.pipeline, self._task.ingested_at, "apply")
            # The task before the shuffle counted them as landed: only the fold shows they are bad.
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
