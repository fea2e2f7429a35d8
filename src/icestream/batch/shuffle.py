"""The shuffle of a batch: changes of a key to one task, or rows of a partition into one file.

Spark moves blocks and never sees a row: they are Arrow IPC in single binary values. They are
compressed here, not by Spark: Java copies a block half a dozen times and keeps it until it is read,
so that small ones spare it whole collections.

A commit writes a file for each partition and task. With many partitions and few rows that is a
heap of tiny files, so the rows go through a shuffle by partition first: batch/decode_task.py cuts
them, batch/write_task.py writes them.
"""

import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from icestream.batch.report import TASK_OUTPUT
from icestream.write.conform import stored_columns
from icestream.write.partition import Partitioner, most_partitions
from icestream.write.stage import StagedFile, Stager, StageTarget

GROUPS = 16
_SMALL_FILE = 32 << 20  # bytes: from there on a shuffle costs more than it saves
_WORTHWHILE = 1.5  # files for each partition
_MANY = 4  # partitions: with fewer, too few tasks would write


@dataclass
class FileSpread:
    """How the rows of a table's last commits were spread over files."""

    files_per_partition: float = 1.0  # files for each partition, when each task wrote its own
    partitions: int = 0
    bytes_each: float = 0.0  # of a partition

    @property
    def shuffle_pays(self) -> bool:
        """Whether the next batch is better brought together first."""
        tiny = self.bytes_each / self.files_per_partition < _SMALL_FILE
        return self.partitions >= _MANY and self.files_per_partition >= _WORTHWHILE and tiny

    def observe(self, files: Sequence[StagedFile], gathered: bool) -> None:
        """Learn from a commit."""
        folders = {file.path.rpartition("/")[0] for file in files}
        if not folders:
            return
        self.partitions = len(folders)
        self.bytes_each = sum(file.bytes for file in files) / len(folders)
        if not gathered:
            self.files_per_partition = len(files) / len(folders)


class PartitionShuffler:
    """Cuts the rows of a task by partition, for the tasks that write them."""

    def __init__(self, target: StageTarget) -> None:
        schema = stored_columns(Schema.model_validate_json(target.schema_json))
        spec = PartitionSpec.model_validate_json(target.spec_json)
        self._partitioner = Partitioner(schema, spec, most_partitions(target.properties))

    def blocks_by_group(self, rows: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """Blocks of rows by group; a partition is in the same group in every task."""
        grouping = self._partitioner.group(rows)
        places: dict[int, list[range]] = {}
        for number, (start, stop) in grouping.ranges.items():
            folder = self._partitioner.partitions[number].folder
            group = zlib.crc32(folder.encode()) % GROUPS
            places.setdefault(group, []).append(range(start, stop))
        for group, ranges in places.items():
            order = np.concatenate([grouping.order[each.start : each.stop] for each in ranges])
            yield group, pack(rows.take(pa.array(order)))


class GatheredRowWriter:
    """Writes rows that were shuffled by partition, so that each partition gets one file."""

    def __init__(self, target: StageTarget, memory: int) -> None:
        self._stager = Stager(target, uuid.uuid4().hex[:12], memory)

    def write_blocks(self, blocks: Sequence[bytes]) -> None:
        """Write what the tasks before the shuffle have cut."""
        for block in blocks:
            for batch in unpack(block).to_batches():
                self._stager.write(batch)

    def finish(self) -> tuple[StagedFile, ...]:
        """Close the files and name them."""
        return tuple(self._stager.finish())

    def abort(self) -> None:
        """Let go of what is still open after an error."""
        self._stager.abort()


_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def pack(rows: pa.RecordBatch) -> bytes:
    """Give rows as a block."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as out:
        out.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpack(block: bytes) -> pa.Table:
    """Give the rows of a block."""
    with pa.ipc.open_stream(pa.py_buffer(block)) as reader:
        return reader.read_all()


def blocks_batch(table: str, blocks: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """What a task hands to the shuffle: blocks of one table, each with its group."""
    rows = [{"table": table, "group": group, "block": block} for group, block in blocks]
    return pa.RecordBatch.from_pylist(rows, schema=TASK_OUTPUT)


def grouped_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, int, list[bytes]]]:
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
