"""Keys: in each snapshot of a mirror, one row for each key."""

from collections.abc import Sequence

import numpy as np
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from icestream.index.keys import Hashes, key_hashes
from icestream.verify.report import Findings
from icestream.verify.scan import batches, tasks


class Keys:
    """The keys of a table's files; files never change, so each is read once."""

    def __init__(self, table: Table, keys: tuple[str, ...]) -> None:
        self._table = table
        self._keys = keys
        self._files: dict[tuple[str, ...], Hashes] = {}

    def check(self, snapshot_id: int, live: Sequence[DataFile], findings: Findings) -> int:
        """Judge one snapshot; → its rows."""
        parts = [np.zeros((0, 2), dtype=np.uint64)]
        for task in tasks(self._table, live, snapshot_id):
            deletes = sorted(file.file_path for file in task.delete_files)
            key = (task.file.file_path, *deletes)
            if key not in self._files:
                self._files[key] = self._read(task)
            parts.append(self._files[key])
        hashes = np.concatenate(parts)
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

    def _read(self, task: FileScanTask) -> Hashes:
        found = [
            key_hashes([batch.column(name) for name in self._keys])
            for batch in batches(self._table, task, self._keys)
        ]
        return np.concatenate([np.zeros((0, 2), dtype=np.uint64), *found])
