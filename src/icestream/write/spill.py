"""Runs of rows ordered by partition: in memory, or on disk in files without a name."""

import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Protocol

import pyarrow as pa
from numpy.typing import NDArray

from icestream.errors import StorageFailed
from icestream.write.partition import PartitionGrouping

PIECE_BYTES = 1 << 20  # one Arrow message; a reader holds one of each run


class PartitionedRun(Protocol):
    """Rows of many partitions, asked for by partition number in rising order."""

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in pieces; none if it has none in this run."""

    def close(self) -> None:
        """Release memory or disk."""


class MemoryRun:
    """A run of the rows that came last, which never had to leave memory."""

    def __init__(self, rows: pa.RecordBatch, grouping: PartitionGrouping) -> None:
        self._rows, self._grouping = rows, grouping
        self._step = rows_per_piece(rows)

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, gathered from the batch."""
        start, stop = self._grouping.ranges.get(number, (0, 0))
        return pieces(self._rows, self._grouping.order[start:stop], self._step)

    def close(self) -> None:
        """Nothing to release: memory goes with the object."""


class SpilledRun:
    """A run in an Arrow file that has no name, so that even a killed task leaves nothing behind."""

    def __init__(self, rows: pa.RecordBatch, grouping: PartitionGrouping) -> None:
        self._ranges, self._step = grouping.ranges, rows_per_piece(rows)
        self._held: tuple[int, pa.RecordBatch] | None = None
        self._file = unnamed_file()
        try:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with pa.ipc.new_file(self._file, rows.schema, options=options) as out:
                for piece in pieces(rows, grouping.order, self._step):
                    out.write_batch(piece)
            self._reader = pa.ipc.open_file(self._file)
        except OSError as error:
            self.close()
            raise spill_failed(error) from error

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition; asked in rising order, each message is read once."""
        start, stop = self._ranges.get(number, (0, 0))
        while start < stop:
            piece = self._piece(start // self._step)
            offset = start % self._step
            length = min(stop - start, piece.num_rows - offset)
            yield piece.slice(offset, length)
            start += length

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()

    def _piece(self, index: int) -> pa.RecordBatch:
        if self._held is None or self._held[0] != index:
            self._held = (index, self._reader.get_batch(index))
        return self._held[1]


def rows_per_piece(rows: pa.RecordBatch, size: int = PIECE_BYTES) -> int:
    """Return how many rows like these make up about `size` bytes."""
    return max(1, int(size * rows.num_rows // max(1, rows.nbytes)))


def split(rows: pa.RecordBatch, size: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield slices of a batch of about `size` bytes, each with its size in bytes."""
    total = rows.nbytes
    if total <= size:
        yield rows, total
        return
    step = max(1, size * rows.num_rows // total)
    for start in range(0, rows.num_rows, step):
        piece = rows.slice(start, step)
        yield piece, piece.nbytes


def pieces(
    rows: pa.RecordBatch, order: "NDArray[Any] | pa.Array", step: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in another order, without ever holding a second copy of all of them."""
    for start in range(0, len(order), step):
        yield rows.take(pa.array(order[start : start + step]))


def unnamed_file() -> IO[bytes]:
    """Open a file without a name, of which even a killed task leaves nothing.

    Raises StorageFailed.
    """
    try:
        return tempfile.TemporaryFile(prefix="icestream-spill-", dir=_folder())
    except OSError as error:
        raise spill_failed(error) from error


def spill_failed(error: OSError) -> StorageFailed:
    """The error for a file of spilled rows that cannot be written."""
    return StorageFailed(
        f"rows cannot be put aside on disk: {os.strerror(error.errno) if error.errno else error}",
        where=_folder(),
        hint="free space there, or set ICESTREAM_SPILL_DIR to another folder",
    )


def _folder() -> str:
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return os.environ.get("ICESTREAM_SPILL_DIR") or local or tempfile.gettempdir()
