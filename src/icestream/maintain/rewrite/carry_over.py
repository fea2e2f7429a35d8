"""Carries deletes that were committed during a rewrite over to its new files.

Such deletes name rows of the old files. The snapshot that adds the new files deletes the same rows
there, so that no reader ever sees one of them again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from icestream.maintain.action import GaveWay
from icestream.maintain.rewrite.row_mapping import RowMapping
from icestream.tables.live_files import FileEntry, LiveFiles
from icestream.tables.position_deletes import RowPositions

Read = Callable[[str], Iterator[tuple[str, RowPositions]]]
_MOST_REMOVED = 256  # delete files in one commit: each takes a call to Java while the run waits


@dataclass(frozen=True)
class DanglingDeletes:
    """Delete files to remove with the inputs of a rewrite, as they name no other live data file."""

    removed: tuple[FileEntry, ...]
    pruned: Mapping[str, RowPositions] | None = None  # what is written again, of a single removed


class DeleteCarryOver:
    """Reads the deletes that were committed since a rewrite read its inputs."""

    def __init__(
        self, row_mapping: RowMapping, inputs: Collection[str], planned: LiveFiles, read: Read
    ) -> None:
        self._row_mapping = row_mapping
        self._inputs = frozenset(inputs)
        self._sorted_inputs = sorted(path.encode() for path in inputs)
        self._planned = planned
        self._read = read
        self._known_deletes = set(planned.deletes)
        self._data_files: dict[str, frozenset[str]] = {}  # that a delete file names
        self._deleted: dict[str, list[RowPositions]] = {}  # in the inputs, since they were read

    def unread_count(self, live: LiveFiles) -> int:
        """Count the delete files that were not read yet."""
        return sum(path not in self._known_deletes for path in live.deletes)

    def read_new_deletes(self, live: LiveFiles) -> None:
        """Read the delete files that were added since the last call."""
        for path, file in live.deletes.items():
            if path in self._known_deletes:
                continue
            self._known_deletes.add(path)
            if not file.may_refer_to(self._sorted_inputs):
                continue
            positions = dict(self._read(path))
            self._data_files[path] = frozenset(positions)
            for data_file in self._inputs & positions.keys():
                self._deleted.setdefault(data_file, []).append(positions[data_file])

    def deleted_in_outputs(self) -> dict[str, RowPositions]:
        """Return the rows of the new files that were deleted since the inputs were read."""
        return self._row_mapping.map_positions(
            {path: np.concatenate(positions) for path, positions in self._deleted.items()}
        )

    def dangling(self, live: LiveFiles, carries: bool) -> DanglingDeletes:
        """Find delete files that name no live data file besides the inputs.

        Iceberg lets a rewrite add deletes only where it removes some. If it `carries` any, and all
        delete files name other data files too, the smallest is rewritten without the inputs.
        """
        files = [file for file in live.deletes.values() if file.may_refer_to(self._sorted_inputs)]
        dangling = [file for file in files if self._data_files_of(file) <= self._inputs]
        if dangling or not carries:
            return DanglingDeletes(tuple(dangling[:_MOST_REMOVED]))
        shared = [file for file in files if self._named_data_files(file) & self._inputs]
        if not shared:
            raise GaveWay("deletes were taken back meanwhile")
        smallest = min(shared, key=lambda file: file.records)
        kept = {
            path: np.unique(positions)
            for path, positions in self._read(smallest.path)
            if path in self._data_files_of(smallest) - self._inputs
        }
        return DanglingDeletes((smallest,), kept)

    def _data_files_of(self, file: FileEntry) -> frozenset[str]:
        """Return the data files that a delete file names, as far as they may still be live."""
        named = self._named_data_files(file)
        if file.path not in self._planned.deletes:
            return named  # it is newer than our list of data files
        return named & self._planned.data.keys()

    def _named_data_files(self, file: FileEntry) -> frozenset[str]:
        if file.only_data_file is not None:
            return frozenset([file.only_data_file])
        if file.path not in self._data_files:
            self._data_files[file.path] = frozenset(path for path, _ in self._read(file.path))
        return self._data_files[file.path]
