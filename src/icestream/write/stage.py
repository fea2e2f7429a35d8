"""Stages Arrow batches as data files of an Iceberg table; runs inside a Spark task."""

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from icestream.tables.arrow import arrow_schema
from icestream.write.conform import conform_to, stored_columns
from icestream.write.metrics import leaves
from icestream.write.parquet import MB, DataFileWriter
from icestream.write.partition import OutputPartition, Partitioner, most_partitions
from icestream.write.sort import SortOrder
from icestream.write.spill import (
    MemoryRun,
    PartitionedRun,
    SpilledRun,
    pieces,
    rows_per_piece,
    split,
)
from icestream.write.target import StagedFile, StageTarget

__all__ = ["StageTarget", "StagedFile", "Stager"]

NO_PARTITION = OutputPartition([], "")


class Stager:
    """Writes the rows of one task attempt for one table, in bounded memory.

    Rows of plain tables are written as they come, those of sorted ones in parts of `memory_bytes`.
    Those of partitioned tables wait on disk, in runs ordered by partition, and are written
    partition by partition at the end.
    """

    def __init__(self, target: StageTarget, attempt: str, memory_bytes: int = 128 * MB) -> None:
        self._schema = stored_columns(Schema.model_validate_json(target.schema_json))
        self._arrow = arrow_schema(self._schema)
        self._order = SortOrder.parse(target.sort_order_json)
        spec = PartitionSpec.model_validate_json(target.spec_json)
        self._is_partitioned = bool(spec.fields)
        most = most_partitions(target.properties)
        self._partitioner = Partitioner(self._schema, spec, most)
        plan = leaves(self._schema, self._order, target.properties)
        self._files = DataFileWriter(
            target, attempt, self._schema, spec.spec_id, plan, memory_bytes
        )
        self._memory = memory_bytes
        self._buffer: list[pa.RecordBatch] = []
        self._buffered = 0
        self._runs: list[PartitionedRun] = []

    @property
    def keeps_order(self) -> bool:
        """Whether the files have the rows in the order in which they were given."""
        return not self._is_partitioned and not self._order.fields

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows that have the table's columns; raises PartitionLimitExceeded."""
        if not batch.num_rows:
            return
        batch = conform_to(batch, self._arrow)
        if self.keeps_order:
            self._files.write(batch)
            return
        for piece, size in split(batch, self._memory):
            self._buffer.append(piece)
            self._buffered += size
            if self._buffered >= self._memory:
                self._spill_or_write()

    def finish(self) -> list[StagedFile]:
        """Write what is still held; returns the finished files."""
        if self._buffer and not self._is_partitioned:
            self._write_sorted(self._take_buffer(), NO_PARTITION)
        elif self._buffer:
            rows = self._take_buffer()
            self._runs.append(MemoryRun(rows, self._partitioner.group(rows)))
        for number, partition in enumerate(self._partitioner.partitions):
            self._write_partition(number, partition)
        self._files.end()
        self._close_runs()
        return self._files.staged

    def abort(self) -> None:
        """Close files and release memory; staged files stay, as orphans that no snapshot names."""
        self._buffer = []
        self._close_runs()
        self._files.abort()

    def _spill_or_write(self) -> None:
        rows = self._take_buffer()
        if self._is_partitioned:
            self._runs.append(SpilledRun(rows, self._partitioner.group(rows)))
        else:
            self._write_sorted(rows, NO_PARTITION)

    def _take_buffer(self) -> pa.RecordBatch:
        rows = pa.concat_batches(self._buffer)
        self._buffer, self._buffered = [], 0
        return rows

    def _write_partition(self, number: int, partition: OutputPartition) -> None:
        """Write the rows of a partition from all runs; each sorted file is sorted by itself."""
        held: list[pa.RecordBatch] = []
        size = 0
        if not self._order.fields:
            self._files.begin(partition, 0)
        for run in self._runs:
            for piece in run.read(number):
                if not self._order.fields:
                    self._files.write(piece)
                    continue
                held.append(piece)
                size += piece.nbytes
                if size >= self._memory:
                    self._write_sorted(pa.concat_batches(held), partition)
                    held, size = [], 0
        if held:
            self._write_sorted(pa.concat_batches(held), partition)

    def _write_sorted(self, rows: pa.RecordBatch, partition: OutputPartition) -> None:
        self._files.begin(partition, self._order.order_id)
        order = self._order.indices(rows, self._schema)
        for piece in pieces(rows, order, rows_per_piece(rows, self._files.row_group)):
            self._files.write(piece)

    def _close_runs(self) -> None:
        for run in self._runs:
            run.close()
        self._runs = []
