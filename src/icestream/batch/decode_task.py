"""The executor's side of a micro-batch: read ▸ route ▸ decode ▸ shape ▸ stage, in one pass.

What comes back to the driver are a few small rows per task: staged files, counts, requests.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.batch.quarantine import BadRecordWriter
from icestream.batch.report import (
    RecordStats,
    StagedChanges,
    TaskReport,
    TaskRequests,
    pack_reports,
)
from icestream.batch.route import route_records
from icestream.batch.row_layout import RowLayout, split_good_and_bad
from icestream.batch.shuffle import PartitionShuffler, blocks_batch, pack
from icestream.batch.table_task import TableTaskInput, UpsertTaskInput
from icestream.errors import IcestreamError
from icestream.failpoints import failpoint
from icestream.formats import IGNORE, DecodedBatch
from icestream.schema import (
    OUR_NAMES,
    NewField,
    merge_new_fields,
    with_new_fields,
)
from icestream.sources import RecordReader
from icestream.tables.arrow import arrow_schema
from icestream.tables.marker import Counts
from icestream.upsert.change_rules import apply_change_rules, order_only_fields
from icestream.upsert.changes import change_batch
from icestream.write.partition import PartitionLimitExceeded, partitions_refusal
from icestream.write.stage import Stager

_MEMORY = 128 << 20  # rows that one task may hold back for sorting, over all its tables
_LEAST_MEMORY = 8 << 20


@dataclass(frozen=True)
class StageTask:
    """Picklable; Spark calls it once per task with the task's Arrow batches."""

    pipeline: str
    reader: RecordReader
    routes: Mapping[str, str]  # topic → table; a topic that is not here goes nowhere
    tables: Mapping[str, TableTaskInput]
    ingested_at: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage everything, then report; some tables' rows go on to the tasks that write them."""
        stagers: dict[str, _TableStager] = {}
        floors = {name: table.floors for name, table in self.tables.items()}
        result: dict[str, TaskReport] | IcestreamError
        table = ""
        try:
            for records in self.reader.read(batches):
                for table, part in route_records(records, self.routes, floors):
                    if table not in stagers:
                        stagers[table] = _TableStager(self, self.tables[table])
                    blocks = list(stagers[table].process(part))
                    if blocks:
                        yield blocks_batch(table, blocks)
            result = {name: stager.finish() for name, stager in stagers.items()}
        except PartitionLimitExceeded as limit:
            result = partitions_refusal(table, limit.count, limit.most, limit.where)
        except IcestreamError as failure:
            result = failure
        finally:
            for stager in stagers.values():
                stager.abort()
        yield pack_reports(result)

    @property
    def shuffles(self) -> bool:
        """Whether changes are shared out by key, or rows by partition."""
        return any(table.upsert or table.shuffle_by_partition for table in self.tables.values())


class _TableStager:
    """One table's part of a stage task: decodes records, stages good rows, counts all of them.

    Bad ones go to BadRecordWriter.
    """

    def __init__(self, job: StageTask, table: TableTaskInput) -> None:
        self._table = table
        self._attempt = uuid.uuid4().hex[:12]
        self._memory = max(_LEAST_MEMORY, _MEMORY // len(job.tables))
        self._good: Stager | None = None
        self._sharer: PartitionShuffler | None = None
        self._bad = BadRecordWriter(
            table.bad_records, table.quarantine, table.quarantine_floors, self._attempt
        )
        schema = Schema.model_validate_json(table.target.schema_json)
        self._data = Schema(*(f for f in schema.fields if f.name not in OUR_NAMES))
        order = table.upsert.terms.sequence_by if table.upsert else ()
        hidden = order_only_fields(order, self._data, table.format)
        self._hidden = tuple(each.name for each in hidden)
        self._data = Schema(*self._data.fields, *hidden)
        self._shape = RowLayout(
            arrow_schema(schema),
            job.pipeline,
            job.ingested_at,
            table.metadata_columns,
        )
        self._report = TaskReport()
        self._stats = RecordStats()
        self._requests = TaskRequests()

    def process(self, records: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:  # noqa: C901 (the way of a batch, in one piece)
        """Decode, shape and stage; if the table must change first, only look for what it lacks.

        → changes by group of keys, where the table is a mirror; or rows by group of partitions.
        """
        if self._requests.new_fields or self._requests.widened:
            self._find_new_fields(records)
            return
        decoded = self._decode(records, self._data)
        oldest, newest = _timestamp_range(records)
        sizes = pc.binary_length(records.column("value"))
        self._stats += RecordStats(
            records=records.num_rows,
            bytes=pc.sum(sizes).as_py() or 0,
            largest=pc.max(sizes).as_py() or 0,
            oldest=oldest,
            newest=newest,
        )
        if wider := self._widened(decoded):
            self._requests += TaskRequests(widened=wider)
            return
        if decoded.new_fields:
            keys = self._key_columns(records)
            self._requests += TaskRequests(new_fields=(decoded.new_fields,), keys=keys)
            return
        count = records.num_rows
        upsert = self._table.upsert
        if not upsert and decoded.changes is not None:
            records, decoded = _events_with_rows(records, decoded)
        if upsert and not upsert.terms.keys:
            self._requests += TaskRequests(keys=self._key_columns(records))
            return
        if upsert and decoded.errors.null_count:
            decoded = apply_change_rules(records, decoded, upsert.terms, self._hidden)
        shaped = split_good_and_bad(records, decoded, self._shape)
        good, bad = shaped.good, shaped.bad
        if upsert and good.num_rows:
            yield from self._change_blocks(records, decoded, good, upsert)
        elif good.num_rows and self._table.shuffle_by_partition:
            self._sharer = self._sharer or PartitionShuffler(self._table.target)
            yield from self._sharer.blocks_by_group(good)
        elif good.num_rows:
            self._good = self._good or Stager(self._table.target, self._attempt, self._memory)
            self._good.write(good)
            failpoint("mid-write")
        # Of a mirror every change counts as landed: many records make one row there.
        handled = count - bad.num_rows
        ignored = 0 if upsert else handled - good.num_rows  # heartbeats and the like
        self._report += TaskReport(Counts(landed=handled - ignored, dropped=ignored))
        if bad.num_rows:
            self._report += self._bad.handle(bad)

    def _decode(self, records: pa.RecordBatch, columns: Schema) -> DecodedBatch:
        table = self._table
        return table.format.decode(records, columns, table.schema_evolution, table.dropped_columns)

    def _widened(self, decoded: DecodedBatch) -> tuple[NewField, ...]:
        """Columns to be made wider; not those whose type was chosen by hand."""
        return tuple(each for each in decoded.widened if each.name not in self._table.declared)

    def _key_columns(self, records: pa.RecordBatch) -> tuple[str, ...]:
        """The key columns as the records have them, for a mirror whose keys are not known yet."""
        upsert = self._table.upsert
        if upsert is None or upsert.terms.keys:
            return ()
        return self._table.format.key_columns(records) or ()

    def _change_blocks(
        self,
        records: pa.RecordBatch,
        decoded: DecodedBatch,
        good: pa.RecordBatch,
        upsert: UpsertTaskInput,
    ) -> Iterator[tuple[int, bytes]]:
        """The good rows with what they do to the mirror, shared out by key."""
        changes = decoded.changes
        assert changes is not None, "judged has seen to it"
        if decoded.errors.null_count < len(records):
            fine = decoded.errors.is_null()
            records, changes = records.filter(fine), changes.filter(fine)
        told = change_batch(records, good, changes, upsert.terms.keys)
        for group, some in told.by_group(upsert.buckets, upsert.groups):
            yield group, pack(some.batch())

    def _find_new_fields(self, records: pa.RecordBatch) -> None:
        """Find what else is new. With the finds so far as columns that is as quick as decoding."""
        known = merge_new_fields(self._requests.new_fields)
        decoded = self._decode(records, with_new_fields(self._data, known))
        new = [decoded.new_fields]
        bad = records.filter(decoded.errors.is_valid())
        if bad.num_rows:  # perhaps only because a type was guessed too narrow
            new.append(self._decode(bad, self._data).new_fields)
        self._requests += TaskRequests(
            new_fields=tuple(fields for fields in new if fields), widened=self._widened(decoded)
        )

    def finish(self) -> TaskReport:
        """Close the files and say what there is."""
        staged = StagedChanges(
            files=tuple(self._good.finish()) if self._good else (),
            quarantine_files=self._bad.finish(),
        )
        return self._report + TaskReport(stats=self._stats, staged=staged, requests=self._requests)

    def abort(self) -> None:
        """Let go of what is still open after an error."""
        if self._good:
            self._good.abort()
        self._bad.abort()


def _events_with_rows(
    records: pa.RecordBatch, decoded: DecodedBatch
) -> tuple[pa.RecordBatch, DecodedBatch]:
    """Of a change feed that is kept as a log: the events that are about a row."""
    assert decoded.changes is not None, "the caller has looked"
    said = pc.not_equal(decoded.changes.op, IGNORE)
    if pc.all(said, min_count=0).as_py():
        return records, decoded
    columns = decoded.columns
    return records.filter(said), replace(
        decoded,
        columns=columns.filter(said) if columns.num_columns else columns,
        errors=decoded.errors.filter(said),
        changes=decoded.changes.filter(said),
    )


def _timestamp_range(records: pa.RecordBatch) -> tuple[int | None, dict[str, int]]:
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
