"""The executor's side of a batch after the shuffle: all changes of some keys, or gathered rows."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa

from icestream.batch.decode_task import REPORTS, Report, TableTask, reported
from icestream.batch.quarantine import Aside
from icestream.batch.row_layout import quarantined
from icestream.batch.shuffle import Pile
from icestream.commit.refusals import partitions_refusal
from icestream.errors import IcestreamError
from icestream.failpoints import failpoint
from icestream.upsert.apply import Applier
from icestream.upsert.changes import Changes
from icestream.write.partition import Scattered

_MEMORY = 128 << 20


@dataclass(frozen=True)
class ApplyTask:
    """Picklable; Spark calls it once per task, with blocks that are sorted by table and group."""

    pipeline: str
    tables: Mapping[str, TableTask]
    ingested_at: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Apply group after group, and pass on what the tasks before the shuffle had to say."""
        rows: list[tuple[str, str]] = []
        desk: _Desk | _Writer | None = None
        try:
            for table, group, blocks in _groups(batches):
                if group == REPORTS:
                    rows += [(table, text.decode()) for text in blocks]
                    continue
                if desk is None or desk.name != table:
                    rows += desk.finish() if desk else []
                    kind = _Desk if self.tables[table].upsert else _Writer
                    desk = kind(self, table)
                desk.take(group, blocks)
            rows += desk.finish() if desk else []
        except Scattered as found:
            assert desk is not None, "it is what a desk raises"
            refused = partitions_refusal(desk.name, found.count, found.most, found.where)
            rows = [("", json.dumps(refused.facts()))]
        except IcestreamError as failure:
            rows = [("", json.dumps(failure.facts()))]
        finally:
            if desk:
                desk.close()
        yield reported(rows)


def _groups(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, int, list[bytes]]]:
    """Neighbouring blocks of one table and group together."""
    at: tuple[str, int] | None = None
    held: list[bytes] = []
    for batch in batches:
        for row in batch.to_pylist():  # blocks, not records
            here = (row["table"], row["group"])
            if here != at and at is not None:
                yield (*at, held)
                held = []
            at = here
            held.append(row["block"])
    if at is not None:
        yield (*at, held)


class _Writer:
    """Where one task writes the rows of some partitions of one table."""

    def __init__(self, job: ApplyTask, name: str) -> None:
        self.name = name
        self._pile = Pile(job.tables[name].target, _MEMORY)

    def take(self, group: int, blocks: Sequence[bytes]) -> None:
        self._pile.take(blocks)
        failpoint("mid-write")

    def finish(self) -> list[tuple[str, str]]:
        return [(self.name, Report(files=self._pile.finish()).to_json())]

    def close(self) -> None:
        self._pile.close()


class _Desk:
    """Where one task works on one mirror."""

    def __init__(self, job: ApplyTask, name: str) -> None:
        self.name = name
        self._job = job
        table = job.tables[name]
        assert table.upsert is not None, "only changes come this way"
        assert table.upsert.mirror is not None, "and only with a key"
        self._upsert = table.upsert
        attempt = uuid.uuid4().hex[:12]
        self._applier = Applier(table.upsert.mirror, attempt, _MEMORY, job.ingested_at)
        self._aside = Aside(
            table.bad_records, table.quarantine, table.quarantine_floors, f"{attempt}-late"
        )
        self._report = Report()

    def take(self, group: int, blocks: Sequence[bytes]) -> None:
        changes = Changes.from_bytes(blocks)
        buckets, groups = self._upsert.buckets, self._upsert.groups
        mine = [bucket for bucket in range(buckets) if bucket * groups // buckets == group]
        bad = self._applier.apply(changes, mine)
        failpoint("mid-write")
        if bad is not None:
            rows = quarantined(bad, self._job.pipeline, self._job.ingested_at, "apply")
            # They were counted as rows before anybody could know.
            told = Report(landed=-rows.num_rows)
            self._report += replace(told, **self._aside.take(rows))

    def finish(self) -> list[tuple[str, str]]:
        done = self._applier.finish()
        self._report += Report(
            files=done.files,
            quarantine_files=self._aside.finish(),
            dead=(done.dead,) if done.dead else (),
            runs=done.runs,
            gather=done.gather,
        )
        return [(self.name, self._report.to_json())]

    def close(self) -> None:
        self._applier.abort()
        self._aside.abort()
