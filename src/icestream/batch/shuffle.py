"""The shuffle of a batch: changes of a key to one task, or rows of a partition into one file.

Spark moves blocks and never sees a row: they are Arrow IPC in single binary values. They are
compressed here, not by Spark: Java copies a block half a dozen times and keeps it until it is read,
so small blocks spare it whole garbage collections.

A commit writes a file for each table partition and task. With many partitions and few rows these
files would be tiny, so the rows are shuffled by partition first: batch/decode_task.py cuts them,
batch/write_task.py writes them.
"""

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
from icestream.write.target import StagedFile, StageTarget

GROUPS = 16
_SMALL_FILE = 32 << 20  # bytes: from there on a shuffle costs more than it saves
_WORTHWHILE = 1.5  # files for each partition
_MANY = 4  # partitions: with fewer, too few tasks would write


@dataclass
class FileSpread:
    """How the rows of a table's last commits were spread over partitions and files."""

    files_per_partition: float = 1.0  # files for each partition, when each task wrote its own
    partitions: int = 0
    partition_bytes: float = 0.0  # of one commit, on average

    @property
    def shuffle_pays(self) -> bool:
        """Whether the next batch should be shuffled by partition: many, and tiny files."""
        tiny = self.partition_bytes / self.files_per_partition < _SMALL_FILE
        return self.partitions >= _MANY and self.files_per_partition >= _WORTHWHILE and tiny

    def observe(self, files: Sequence[StagedFile], was_shuffled: bool) -> None:
        """Remember how a commit's files were spread; `shuffle_pays` decides from it."""
        folders = {file.path.rpartition("/")[0] for file in files}
        if not folders:
            return
        self.partitions = len(folders)
        self.partition_bytes = sum(file.bytes for file in files) / len(folders)
        # Shuffled files do not show how far the tasks would have scattered the rows.
        if not was_shuffled:
            self.files_per_partition = len(files) / len(folders)


class PartitionShuffler:
    """Cuts the rows of a task by table partition, for the tasks that write them."""

    def __init__(self, target: StageTarget) -> None:
        schema = stored_columns(Schema.model_validate_json(target.schema_json))
        spec = PartitionSpec.model_validate_json(target.spec_json)
        self._partitioner = Partitioner(schema, spec, most_partitions(target.properties))

    def blocks_by_group(self, rows: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
        """Yield one block per partition group; every task puts a partition into the same group."""
        grouping = self._partitioner.group(rows)
        slices_of_group: dict[int, list[slice]] = {}
        for partition, (start, stop) in grouping.ranges.items():
            folder = self._partitioner.partitions[partition].folder
            group = zlib.crc32(folder.encode()) % GROUPS
            slices_of_group.setdefault(group, []).append(slice(start, stop))
        for group, slices in slices_of_group.items():
            order = np.concatenate([grouping.order[rows_of] for rows_of in slices])
            yield group, pack(rows.take(pa.array(order)))


_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def pack(rows: pa.RecordBatch) -> bytes:
    """Serialize rows as a block: compressed Arrow IPC."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as out:
        out.write_batch(rows)
    block: bytes = sink.getvalue().to_pybytes()
    return block


def unpack(block: bytes) -> pa.Table:
    """Read the rows of a block."""
    with pa.ipc.open_stream(pa.py_buffer(block)) as reader:
        return reader.read_all()


def blocks_batch(table: str, blocks: Sequence[tuple[int, bytes]]) -> pa.RecordBatch:
    """Make the batch that a task hands to the shuffle: a table's blocks, each with its group."""
    rows = [{"table": table, "group": group, "block": block} for group, block in blocks]
    return pa.RecordBatch.from_pylist(rows, schema=TASK_OUTPUT)


def grouped_blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, int, list[bytes]]]:
    """Collect the blocks of each (table, group); the input is sorted by them."""
    current: tuple[str, int] | None = None
    blocks: list[bytes] = []
    for batch in batches:
        for row in batch.to_pylist():  # blocks, not records
            key = (row["table"], row["group"])
            if key != current and current is not None:
                yield (*current, blocks)
                blocks = []
            current = key
            blocks.append(row["block"])
    if current is not None:
        yield (*current, blocks)
