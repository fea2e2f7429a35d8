"""The executor's side of a batch after the shuffle: all changes of some keys, or gathered rows."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from icestream.batch.quarantine import BadRecordWriter
from icestream.batch.report import TaskReport, reports_batch
from icestream.batch.row_layout import quarantine_rows
from icestream.batch.shuffle import REPORTS, GatheredRowWriter, grouped_blocks
from icestream.batch.table_task import TableTaskInput
from icestream.errors import IcestreamError
from icestream.failpoints import failpoint
from icestream.upsert.apply import ChangeApplier
from icestream.upsert.changes import ChangeBatch
from icestream.write.partition import PartitionLimitExceeded, partitions_refusal

_MEMORY = 128 << 20


@dataclass(frozen=True)
class ApplyTask:
    """Picklable; Spark calls it once per task, with blocks that are sorted by table and group."""

    pipeline: str
    tables: Mapping[str, TableTaskInput]
    ingested_at: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply group after group, and pass on what the tasks before the shuffle had to say."""
        rows: list[tuple[str, str]] = []
        desk: _MirrorTableWriter | _AppendTableWriter | None = None
        try:
            for table, group, blocks in grouped_blocks(batches):
                if group == REPORTS:
                    rows += [(table, text.decode()) for text in blocks]
                    continue
                if desk is None or desk.name != table:
                    rows += desk.finish() if desk else []
                    kind = _MirrorTableWriter if self.tables[table].upsert else _AppendTableWriter
                    desk = kind(self, table)
                desk.process_group(group, blocks)
            rows += desk.finish() if desk else []
        except PartitionLimitExceeded as found:
            assert desk is not None, "it is what a desk raises"
            refused = partitions_refusal(desk.name, found.count, found.most, found.where)
            rows = [("", json.dumps(refused.facts()))]
        except IcestreamError as failure:
            rows = [("", json.dumps(failure.facts()))]
        finally:
            if desk:
                desk.close()
        yield reports_batch(rows)


class _AppendTableWriter:
    """Where one task writes the rows of some partitions of one table."""

    def __init__(self, job: ApplyTask, name: str) -> None:
        self.name = name
        self._pile = GatheredRowWriter(job.tables[name].target, _MEMORY)

    def process_group(self, group: int, blocks: Sequence[bytes]) -> None:
        self._pile.write_blocks(blocks)
        failpoint("mid-write")

    def finish(self) -> list[tuple[str, str]]:
        return [(self.name, TaskReport(files=self._pile.finish()).to_json())]

    def close(self) -> None:
        self._pile.abort()


class _MirrorTableWriter:
    """Where one task works on one mirror."""

    def __init__(self, job: ApplyTask, name: str) -> None:
        self.name = name
        self._job = job
        table = job.tables[name]
        assert table.upsert is not None, "only changes come this way"
        assert table.upsert.mirror is not None, "and only with a key"
        self._upsert = table.upsert
        attempt = uuid.uuid4().hex[:12]
        self._applier = ChangeApplier(table.upsert.mirror, attempt, _MEMORY, job.ingested_at)
        self._aside = BadRecordWriter(
            table.bad_records, table.quarantine, table.quarantine_floors, f"{attempt}-late"
        )
        self._report = TaskReport()

    def process_group(self, group: int, blocks: Sequence[bytes]) -> None:
        changes = ChangeBatch.from_bytes(blocks)
        buckets, groups = self._upsert.buckets, self._upsert.groups
        mine = [bucket for bucket in range(buckets) if bucket * groups // buckets == group]
        bad = self._applier.apply(changes, mine)
        failpoint("mid-write")
        if bad is not None:
            rows = quarantine_rows(bad, self._job.pipeline, self._job.ingested_at, "apply")
            # They were counted as rows before anybody could know.
            told = TaskReport(landed=-rows.num_rows)
            self._report += replace(told, **self._aside.handle(rows))

    def finish(self) -> list[tuple[str, str]]:
        done = self._applier.finish()
        self._report += TaskReport(
            files=done.files,
            quarantine_files=self._aside.finish(),
            deleted_positions=(done.deleted_positions,) if done.deleted_positions else (),
            index_runs=done.runs,
            needs_one_task=done.needs_one_task,
        )
        return [(self.name, self._report.to_json())]

    def close(self) -> None:
        self._applier.abort()
        self._aside.abort()
