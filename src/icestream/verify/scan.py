"""Scans: the rows of a snapshot, one data file at a time, deletes applied."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import FileScanTask, Table

from icestream.verify.offsets import OffsetBitmaps

ORIGIN = ("_src_topic", "_src_partition", "_src_offset")
QUARANTINE_ORIGIN = ("topic", "partition", "offset")
UNREADABLE = (OSError, ValueError)  # what a damaged file raises; Arrow's errors are among them


class OriginReader:
    """Reads the origins of rows; a data file never changes, so each is read once."""

    def __init__(self, table: Table, columns: tuple[str, str, str]) -> None:
        self._table = table
        self._columns = columns
        self._files: dict[tuple[str, ...], OffsetBitmaps] = {}

    def of(self, snapshot_id: int, live: Sequence[DataFile]) -> OffsetBitmaps:
        """Return the origins of all rows of a snapshot with these live files."""
        origins = OffsetBitmaps()
        for task in tasks(self._table, live, snapshot_id):
            deletes = sorted(file.file_path for file in task.delete_files)
            key = (task.file.file_path, *deletes)
            if key not in self._files:
                self._files[key] = self._read(task)
            origins.merge(self._files[key])
        return origins

    def _read(self, task: FileScanTask) -> OffsetBitmaps:
        origins = OffsetBitmaps()
        for batch in batches(self._table, task, self._columns):
            origins.add_rows(batch)
        for offsets in origins.sets.values():
            offsets.run_optimize()
        return origins


def tasks(
    table: Table, live: Sequence[DataFile], snapshot_id: int | None = None
) -> list[FileScanTask]:
    """List the data files of a snapshot, each with its deletes; `live` are all of its files."""
    if all(file.content == DataFileContent.DATA for file in live):
        return [FileScanTask(file) for file in live]
    return list(table.scan(snapshot_id=snapshot_id).plan_files())


def batches(table: Table, task: FileScanTask, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """Read the live rows of one data file, in the table's current columns."""
    scan = ArrowScan(table.metadata, table.io, table.schema().select(*columns), AlwaysTrue())
    for batch in scan.to_record_batches([task]):
        yield batch.select(list(columns))
