"""The task that decodes and stages a batch: read ▸ route ▸ decode ▸ lay out ▸ stage, in one pass.

The driver gets a few small rows per task: staged files, counts, requests.
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
from icestream.batch.row_layout import RowLayout, split_good_and_bad
from icestream.batch.shuffle import PartitionShuffler, blocks_batch, pack
from icestream.batch.split_records import route_records
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
    """Decodes and stages records of all tables; picklable, called once per Spark task."""

    pipeline: str
    reader: RecordReader
    routes: Mapping[str, str]  # topic → table; a topic that is not here goes nowhere
    tables: Mapping[str, TableTaskInput]
    ingested_at: datetime

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stage all records, then report; rows to be shuffled go on to `WriteTask` as blocks."""
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
        """Whether the job needs a shuffle: changes by key, or rows by table partition."""
        return any(table.upsert or table.shuffle_by_partition for table in self.tables.values())


class _TableStager:
    """One table's part of a stage task: decodes records, stages good rows, counts both.

    Bad records go to `BadRecordWriter`.
    """

    def __init__(self, task: StageTask, table: TableTaskInput) -> None:
        self._table = table
        self._attempt = uuid.uuid4().hex[:12]
        self._memory = max(_LEAST_MEMORY, _MEMORY // len(task.tables))
        self._good: Stager | None = None
        self._shuffler: PartitionShuffler | None = None
        self._bad = BadRecordWriter(
            table.bad_records, table.quarantine, table.quarantine_floors, self._attempt
        )
        schema = Schema.model_validate_json(table.target.schema_json)
        self._data = Schema(*(f for f in schema.fields if f.name not in OUR_NAMES))
        order = table.upsert.terms.sequence_by if table.upsert else ()
        hidden = order_only_fields(order, self._data, table.format)
        self._hidden = tuple(field.name for field in hidden)
        self._data = Schema(*self._data.fields, *hidden)
        self._layout = RowLayout(
            arrow_schema(schema), task.pipeline, task.ingested_at, table.metadata_columns
        )
        self._report = TaskReport()
        self._stats = RecordStats()
        self._requests = TaskRequests()

    def process(self, records: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:  # noqa: C901 (the way of a batch, in one piece)
        """Decode, lay out and stage; if the table must change first, only find what it lacks.

        Yields blocks to shuffle: a mirror's changes by key group, or rows by partition group.
        """
        if self._requests.new_fields or self._requests.widened:
            # The batch will be planned again: find all new fields now, so that once is enough.
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
        rows = split_good_and_bad(records, decoded, self._layout)
        good, bad = rows.good, rows.bad
        if upsert and good.num_rows:
            yield from self._change_blocks(records, decoded, good, upsert)
        elif good.num_rows and self._table.shuffle_by_partition:
            self._shuffler = self._shuffler or PartitionShuffler(self._table.target)
            yield from self._shuffler.blocks_by_group(good)
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
        """Return columns to be widened; not those whose type the pipeline file declares."""
        declared = self._table.declared
        return tuple(field for field in decoded.widened if field.name not in declared)

    def _key_columns(self, records: pa.RecordBatch) -> tuple[str, ...]:
        """Return the key columns that the records name, for a mirror whose keys are not known."""
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
        """Yield the changes that good rows make to the mirror, as one block per key group."""
        changes = decoded.changes
        assert changes is not None, "`apply_change_rules` has set them"
        if decoded.errors.null_count < len(records):
            is_good = decoded.errors.is_null()
            records, changes = records.filter(is_good), changes.filter(is_good)
        batch = change_batch(records, good, changes, upsert.terms.keys)
        for group, part in batch.by_group(upsert.buckets, upsert.groups):
            yield group, pack(part.batch())

    def _find_new_fields(self, records: pa.RecordBatch) -> None:
        """Note further new fields; with those found so far as columns it costs one decoding."""
        found = merge_new_fields(self._requests.new_fields)
        decoded = self._decode(records, with_new_fields(self._data, found))
        new = [decoded.new_fields]
        bad = records.filter(decoded.errors.is_valid())
        if bad.num_rows:  # perhaps only because a type was guessed too narrow
            new.append(self._decode(bad, self._data).new_fields)
        self._requests += TaskRequests(
            new_fields=tuple(fields for fields in new if fields), widened=self._widened(decoded)
        )

    def finish(self) -> TaskReport:
        """Close the files and return the report of this table."""
        staged = StagedChanges(
            files=tuple(self._good.finish()) if self._good else (),
            quarantine_files=self._bad.finish(),
        )
        return self._report + TaskReport(stats=self._stats, staged=staged, requests=self._requests)

    def abort(self) -> None:
        """After an error or at the end: close files and free memory."""
        if self._good:
            self._good.abort()
        self._bad.abort()


def _events_with_rows(
    records: pa.RecordBatch, decoded: DecodedBatch
) -> tuple[pa.RecordBatch, DecodedBatch]:
    """Keep the events that concern a row, for an append table that logs a change feed."""
    assert decoded.changes is not None, "the caller checks it"
    has_row = pc.not_equal(decoded.changes.op, IGNORE)
    if pc.all(has_row, min_count=0).as_py():
        return records, decoded
    columns = decoded.columns
    return records.filter(has_row), replace(
        decoded,
        columns=columns.filter(has_row) if columns.num_columns else columns,
        errors=decoded.errors.filter(has_row),
        changes=decoded.changes.filter(has_row),
    )


def _timestamp_range(records: pa.RecordBatch) -> tuple[int | None, dict[str, int]]:
    """Return the oldest timestamp of one topic's records, and the newest per partition."""
    topic, partitions = records.column("topic")[0], records.column("partition")
    times = records.column("timestamp").cast(pa.int64())
    oldest, newest = pc.min_max(times).as_py().values()
    if newest is None:
        return None, {}
    first, last = pc.min_max(partitions).as_py().values()
    if first == last:  # the usual case: Kafka's partitions come one after the other
        return oldest, {f"{topic}/{first}": newest}
    table = pa.table({"partition": partitions, "time": times})
    grouped = table.group_by("partition").aggregate([("time", "max")]).to_pylist()
    return oldest, {
        f"{topic}/{row['partition']}": row["time_max"]
        for row in grouped
        if row["time_max"] is not None
    }
