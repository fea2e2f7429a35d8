"""Keys: in each snapshot of a mirror there is one row for each key."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import FileScanTask, Table

from icestream.index.keys import Hashes, key_hashes
from icestream.verify.report import TableFindings
from icestream.verify.scan import batches, tasks

_NONE = np.zeros((0, 2), dtype=np.uint64)
_POSITIONS = ["file_path", "pos"]


class KeyChecker:
    """Reads the keys of a table's files; files never change, so each is read once."""

    def __init__(self, table: Table, keys: tuple[str, ...]) -> None:
        self._table = table
        self._keys = keys
        self._files: dict[tuple[str, ...], Hashes] = {}
        self._deletes: dict[str, Mapping[str, NDArray[np.int64]]] = {}

    def check(self, snapshot_id: int, live: Sequence[DataFile], findings: TableFindings) -> int:
        """Check one snapshot. Returns how many rows it has."""
        per_file = [self._live_keys(task) for task in tasks(self._table, live, snapshot_id)]
        hashes = np.concatenate([_NONE, *per_file])
        distinct = len(np.unique(hashes, axis=0))
        if distinct < len(hashes):
            findings.add(
                "rows",
                "key-twice",
                f"one row for each {', '.join(self._keys)}",
                f"{len(hashes)} rows of {distinct} keys",
                snapshot_id=snapshot_id,
                records=len(hashes) - distinct,
                harm="duplicated",
            )
        return len(hashes)

    def _live_keys(self, task: FileScanTask) -> Hashes:
        """Return the keys of a data file's rows that no delete file names."""
        path, deletes = task.file.file_path, task.delete_files
        if not all(_has_positions(file) for file in deletes):
            return self._read(task, *sorted(file.file_path for file in deletes))
        # Deletes are read apart: a data file is read once, however they differ between snapshots.
        hashes = self._read(FileScanTask(task.file))
        is_live = np.ones(len(hashes), dtype=bool)
        for file in deletes:
            if (positions := self._deleted_positions(file).get(path)) is not None:
                is_live[positions] = False
        return hashes if is_live.all() else hashes[is_live]

    def _read(self, task: FileScanTask, *deletes: str) -> Hashes:
        key = (task.file.file_path, *deletes)
        if key not in self._files:
            hashes = [
                key_hashes([batch.column(name) for name in self._keys])
                for batch in batches(self._table, task, self._keys)
            ]
            self._files[key] = np.concatenate([_NONE, *hashes])
        return self._files[key]

    def _deleted_positions(self, file: DataFile) -> Mapping[str, NDArray[np.int64]]:
        """Return the row positions that a delete file names, by data file."""
        if file.file_path not in self._deletes:
            with self._table.io.new_input(file.file_path).open() as opened:
                self._deletes[file.file_path] = _by_file(pq.read_table(opened, columns=_POSITIONS))
        return self._deletes[file.file_path]


def _has_positions(file: DataFile) -> bool:
    is_position_delete = file.content == DataFileContent.POSITION_DELETES
    return is_position_delete and file.file_format == FileFormat.PARQUET


def _by_file(rows: pa.Table) -> dict[str, NDArray[np.int64]]:
    paths = rows.column("file_path").combine_chunks().dictionary_encode()
    codes: NDArray[Any] = paths.indices.to_numpy()
    positions: NDArray[np.int64] = rows.column("pos").to_numpy()
    return {path: positions[codes == n] for n, path in enumerate(paths.dictionary.to_pylist())}
