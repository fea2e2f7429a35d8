"""The task of a rewrite: writes the live rows of some data files to new ones, in bounded memory.

read ▸ drop deleted rows ▸ conform to the table's columns ▸ write data files and index runs
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from mmap import ACCESS_READ, mmap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id

from icestream.batch.report import pack_reports
from icestream.errors import IcestreamError, StorageFailed
from icestream.index.entries import IndexEntries, concat_entries, row_entries
from icestream.index.keys import key_hashes
from icestream.index.live_rows import SEQUENCE
from icestream.index.rewrite_update import IndexStaging, stage_runs
from icestream.maintain.rewrite.conform import fitted
from icestream.tables.arrow import FIELD_ID, arrow_schema
from icestream.tables.partition_values import PartitionKey, partition_folder, partition_types
from icestream.tables.position_deletes import (
    RowPositions,
    SequencedFile,
    deleted_positions,
    live_mask,
)
from icestream.tables.storage import open_file
from icestream.write.conform import stored_columns
from icestream.write.metrics import leaves
from icestream.write.parquet import DataFileWriter
from icestream.write.partition import OutputPartition
from icestream.write.position_deletes import pack_positions, unpack_positions
from icestream.write.sort import SortOrder
from icestream.write.spill import spill_failed, unnamed_file
from icestream.write.staged import discard
from icestream.write.target import StagedFile, StageTarget

_MEMORY = 64 << 20  # of rows on their way into a file
_BATCH_BYTES, _BATCH_ROWS = 16 << 20, 1 << 16


@dataclass(frozen=True)
class RewriteReport:
    """The files that a task wrote, and the rows that it read."""

    files: tuple[StagedFile, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)  # of each input, with deleted ones
    deleted: Mapping[str, str] = field(default_factory=dict)  # positions in each input, packed
    runs: tuple[str, ...] = ()  # of the key index

    def deleted_positions(self, path: str) -> RowPositions:
        """Return the rows of an input that were deleted when it was read."""
        if path in self.deleted:
            return unpack_positions(self.deleted[path])
        return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class RewriteTask:
    """Rewrites data files; picklable, called once by a task runner, with batches to ignore."""

    target: StageTarget
    partition: PartitionKey  # of the inputs, and so of the outputs
    inputs: tuple[SequencedFile, ...]  # in the order that their rows get
    deletes: tuple[SequencedFile, ...]  # position-delete files that may name them
    origin: str  # in the names of what is staged
    index_staging: IndexStaging | None = None  # None: no index is in use
    sorts: bool = False  # by the table's order; else rows stay in the order of the inputs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files and yield one report: a RewriteReport or an error."""
        for _ in batches:
            pass
        result: dict[str, RewriteReport] | IcestreamError
        try:
            result = {"rewritten": self._rewrite()}
        except IcestreamError as failure:
            result = failure
        except OSError as failure:
            result = StorageFailed(f"data files cannot be rewritten: {failure}")
        yield pack_reports(result)

    def _rewrite(self) -> RewriteReport:
        deleted = deleted_positions(open_file, self.inputs, self.deletes)
        schema = stored_columns(Schema.model_validate_json(self.target.schema_json))
        order = SortOrder.parse(self.target.sort_order_json)
        columns = leaves(schema, order, self.target.properties)
        spec_id = self.partition.spec_id
        out = DataFileWriter(self.target, self.origin, schema, spec_id, columns, _MEMORY)
        out.begin(self._output_partition(schema), order.order_id if self.sorts else 0)
        entries: list[IndexEntries] = []
        counts: dict[str, int] = {}
        rows = self._live_rows(arrow_schema(schema), deleted, counts)
        try:
            for batch in _sorted(rows, schema, order) if self.sorts else rows:
                out.write(batch)
                if self.index_staging:
                    entries.append(_entries(batch, self.index_staging))
            out.end()
        except BaseException:
            out.abort()
            discard(out.staged)
            raise
        runs = self._stage_runs(entries, out.staged)
        inside = {path: part[part < counts[path]] for path, part in deleted.items()}
        return RewriteReport(
            files=tuple(out.staged),
            rows=counts,
            deleted={path: pack_positions(part) for path, part in inside.items() if len(part)},
            runs=tuple(runs),
        )

    def _live_rows(
        self, schema: pa.Schema, deleted: Mapping[str, RowPositions], counts: dict[str, int]
    ) -> Iterator[pa.RecordBatch]:
        """Yield live rows in the table's current columns; `counts` gets all rows of each input."""
        for file in self.inputs:
            counts[file.path] = 0
            for batch, count in _live_batches(file.path, deleted.get(file.path)):
                counts[file.path] += count
                if batch.num_rows:
                    yield fitted(batch, schema)

    def _output_partition(self, schema: Schema) -> OutputPartition:
        """Return the partition of the inputs, with the folder for its files."""
        spec = PartitionSpec.model_validate_json(self.target.spec_json)
        values = list(self.partition.partition)
        parts = zip(spec.fields, partition_types(spec, schema), values, strict=True)
        folders = (partition_folder(f.name, f.transform, type_, v) for f, type_, v in parts)
        return OutputPartition(values, "/".join(folders))

    def _stage_runs(self, entries: list[IndexEntries], files: Sequence[StagedFile]) -> list[str]:
        """Write entries, which are in the order of rows, as runs; files and positions are known."""
        if self.index_staging is None or not entries:
            return []
        merged = concat_entries(entries)
        entries.clear()  # they are large
        counts = [file.records for file in files]
        file_numbers = np.repeat(np.arange(len(files), dtype=np.uint32), counts)
        starts = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
        positions = (np.arange(len(merged)) - starts).astype(np.uint32)
        located = replace(merged, file=file_numbers, position=positions)
        return stage_runs(self.index_staging, self.origin, located, [file.path for file in files])


def _sorted(
    rows: Iterator[pa.RecordBatch], schema: Schema, order: SortOrder
) -> Iterator[pa.RecordBatch]:
    """Yield all rows in the table's sort order; rows wait on disk, only sort keys are in memory."""
    sources = {key.source_id for key in order.fields}
    keys = Schema(*(f for f in schema.fields if sources & index_by_id(Schema(f)).keys()))
    with unnamed_file() as file:
        try:
            with pa.ipc.new_file(file, arrow_schema(schema)) as sink:
                for batch in rows:
                    sink.write_batch(batch)
            file.flush()
        except OSError as error:
            raise spill_failed(error) from error
        # Not closed here: its pages are in use as long as rows of the table are.
        mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
        table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
    if not table.num_rows:
        return
    (key_rows,) = table.select([field.name for field in keys.fields]).combine_chunks().to_batches()
    indices = order.indices(key_rows, keys).to_numpy()
    batches = table.to_batches()
    firsts = np.cumsum([0, *(len(batch) for batch in batches)])
    step = max(1024, min(_BATCH_ROWS, _BATCH_BYTES * table.num_rows // table.nbytes))
    for start in range(0, table.num_rows, step):
        yield _gather(batches, firsts, indices[start : start + step])


def _gather(
    batches: Sequence[pa.RecordBatch], firsts: NDArray[np.int64], indices: NDArray[np.uint64]
) -> pa.RecordBatch:
    """Take rows of several batches by their indices over all of them, in this order."""
    # Batch by batch: `take` on a chunked column of strings would first copy all of it.
    numbers = np.searchsorted(firsts, indices, side="right") - 1
    by_batch = np.argsort(numbers, kind="stable")
    parts = []
    for number in np.unique(numbers).tolist():
        local = indices[numbers == number].astype(np.int64) - firsts[number]
        parts.append(batches[number].take(pa.array(local)))
    (joined,) = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return joined.take(pa.array(np.argsort(by_batch)))


def _live_batches(path: str, deleted: RowPositions | None) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the live rows of a data file in batches, each with its count of all rows."""
    with open_file(path) as stream:
        file = pq.ParquetFile(stream)
        groups = range(file.num_row_groups)
        file_bytes = sum(file.metadata.row_group(i).total_byte_size for i in groups)
        row_bytes = max(1, file_bytes // max(1, file.metadata.num_rows))
        start = 0
        step = max(1024, min(_BATCH_ROWS, _BATCH_BYTES // row_bytes))
        for batch in file.iter_batches(step, use_threads=False):  # the task has one core
            count = batch.num_rows
            is_live = live_mask(deleted, start, count)
            if is_live is not None:
                batch = batch.filter(pa.array(is_live))
            start += count
            yield batch, count


def _entries(batch: pa.RecordBatch, index_staging: IndexStaging) -> IndexEntries:
    """Make index entries of rows; their file and position are set later."""
    indices = {}
    for index, column in enumerate(batch.schema):
        with suppress(KeyError, TypeError):
            indices[int(column.metadata[FIELD_ID])] = index
    keys = [batch.column(indices[field_id]) for field_id in index_staging.keys]
    sequence = batch.column(SEQUENCE) if SEQUENCE in batch.schema.names else None
    return row_entries(key_hashes(keys), 0, np.zeros(batch.num_rows, dtype=np.int64), sequence)
