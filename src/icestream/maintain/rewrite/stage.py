"""Staging: the live rows of some data files written anew, in one task, in bounded memory.

read ▸ drop what is deleted ▸ the table's columns ▸ new data files, and entries for the key index.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from mmap import ACCESS_READ, mmap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

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
from icestream.write.spill import unnamed_file
from icestream.write.staged import discard
from icestream.write.target import StagedFile, StageTarget

_MEMORY = 64 << 20  # of rows on their way into a file
_BATCH_BYTES, _BATCH_ROWS = 16 << 20, 1 << 16


@dataclass(frozen=True)
class RewriteReport:
    """What a task wrote, and what it left out."""

    files: tuple[StagedFile, ...] = ()
    rows: Mapping[str, int] = field(default_factory=dict)  # of each input, the dead ones too
    dead: Mapping[str, str] = field(default_factory=dict)  # packed
    runs: tuple[str, ...] = ()

    def deleted_positions(self, path: str) -> RowPositions:
        """What was dead in an input when it was read."""
        if path in self.dead:
            return unpack_positions(self.dead[path])
        return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class RewriteTask:
    """Picklable; called once, where `task_runner.py` says, with batches that do not matter."""

    target: StageTarget
    place: PartitionKey  # of the inputs, and so of the outputs
    inputs: tuple[SequencedFile, ...]  # in the order in which their rows are to be
    deletes: tuple[SequencedFile, ...]  # position-delete files that may be about them
    origin: str  # names what is staged
    shelf: IndexStaging | None = None  # None: no index is in use
    sorts: bool = False  # by the table's order; else rows stay in the order of the inputs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the files and say what they are, or what is wrong."""
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
        dead = deleted_positions(open_file, self.inputs, self.deletes)
        schema = stored_columns(Schema.model_validate_json(self.target.schema_json))
        order = SortOrder.parse(self.target.sort_order_json)
        plan = leaves(schema, order, self.target.properties)
        out = DataFileWriter(self.target, self.origin, schema, self.place.spec_id, plan, _MEMORY)
        out.begin(self._partition(schema), order.order_id if self.sorts else 0)
        entries: list[IndexEntries] = []
        counts: dict[str, int] = {}
        rows = self._live_rows(arrow_schema(schema), dead, counts)
        try:
            for batch in _sorted(rows, schema, order) if self.sorts else rows:
                out.write(batch)
                if self.shelf:
                    entries.append(_entries(batch, self.shelf))
            out.end()
        except BaseException:
            out.abort()
            discard(out.staged)
            raise
        runs = self._staged(entries, out.staged)
        kept = {path: there[there < counts[path]] for path, there in dead.items()}
        return RewriteReport(
            files=tuple(out.staged),
            rows=counts,
            dead={path: pack_positions(there) for path, there in kept.items() if len(there)},
            runs=tuple(runs),
        )

    def _live_rows(
        self, arrow: pa.Schema, dead: Mapping[str, RowPositions], counts: dict[str, int]
    ) -> Iterator[pa.RecordBatch]:
        """Live rows of the inputs in today's columns; `counts` gets all rows of each input."""
        for file in self.inputs:
            counts[file.path] = 0
            for batch, count in _live_batches(file.path, dead.get(file.path)):
                counts[file.path] += count
                if batch.num_rows:
                    yield fitted(batch, arrow)

    def _partition(self, schema: Schema) -> OutputPartition:
        """Where the files go: the folder of the same partition."""
        spec = PartitionSpec.model_validate_json(self.target.spec_json)
        values = list(self.place.partition)
        told = zip(spec.fields, partition_types(spec, schema), values, strict=True)
        names = (
            partition_folder(each.name, each.transform, kind, value) for each, kind, value in told
        )
        return OutputPartition(values, "/".join(names))

    def _staged(self, entries: list[IndexEntries], files: Sequence[StagedFile]) -> list[str]:
        """Entries in the order of rows; where these are is known when the files are."""
        if self.shelf is None or not entries:
            return []
        every = concat_entries(entries)
        entries.clear()  # they are large
        counts = [file.records for file in files]
        numbers = np.repeat(np.arange(len(files), dtype=np.uint32), counts)
        firsts = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
        places = (np.arange(len(every)) - firsts).astype(np.uint32)
        told = replace(every, file=numbers, position=places)
        return stage_runs(self.shelf, self.origin, told, [file.path for file in files])


def _sorted(
    rows: Iterator[pa.RecordBatch], schema: Schema, order: SortOrder
) -> Iterator[pa.RecordBatch]:
    """All rows in a table's order; they wait on disk, and only their keys are in memory."""
    arrow = arrow_schema(schema)
    names = {str(schema.find_column_name(key.source_id)).split(".")[0] for key in order.fields}
    keys = Schema(*(field for field in schema.fields if field.name in names))
    with unnamed_file() as file:
        with pa.ipc.new_file(file, arrow) as sink:
            for batch in rows:
                sink.write_batch(batch)
        file.flush()
        # Not closed by hand: its pages are in use as long as rows of the table are.
        mapped = mmap(file.fileno(), 0, access=ACCESS_READ)
        table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
    if not table.num_rows:
        return
    (of_keys,) = table.select([field.name for field in keys.fields]).combine_chunks().to_batches()
    indices = order.indices(of_keys, keys)
    step = max(1024, min(_BATCH_ROWS, _BATCH_BYTES * table.num_rows // table.nbytes))
    for start in range(0, table.num_rows, step):
        yield from table.take(indices.slice(start, step)).combine_chunks().to_batches()


def _live_batches(path: str, deleted: RowPositions | None) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Give the live rows of a data file, batch by batch, and how many there were with the dead."""
    with open_file(path) as stream:
        file = pq.ParquetFile(stream)
        wide = sum(file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups))
        width = max(1, wide // max(1, file.metadata.num_rows))
        at = 0
        step = max(1024, min(_BATCH_ROWS, _BATCH_BYTES // width))
        for batch in file.iter_batches(step, use_threads=False):  # a slot is one core
            count = batch.num_rows
            is_live = live_mask(deleted, at, count)
            if is_live is not None:
                batch = batch.filter(pa.array(is_live))
            at += count
            yield batch, count


def _entries(batch: pa.RecordBatch, shelf: IndexStaging) -> IndexEntries:
    """What the index knows about these rows, but for where they are."""
    by_id = {}
    for number, each in enumerate(batch.schema):
        with suppress(KeyError, TypeError):
            by_id[int(each.metadata[FIELD_ID])] = number
    keys = [batch.column(by_id[key]) for key in shelf.keys]
    sequence = batch.column(SEQUENCE) if SEQUENCE in batch.schema.names else None
    return row_entries(key_hashes(keys), 0, np.zeros(batch.num_rows, dtype=np.int64), sequence)
