"""Carrying over: what became of rows while they were written anew, as deletes of the new files.

Deletes that arrive are about the old files. The same rows of the new files die in the snapshot
that brings these, so that nobody ever sees one of them again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from icestream.maintain.action import GaveWay
from icestream.maintain.rewrite.row_mapping import RowMapping
from icestream.tables.live_files import FileEntry, LiveFiles
from icestream.tables.position_deletes import RowPositions

Read = Callable[[str], Iterator[tuple[str, RowPositions]]]
_MOST_REMOVED = 256  # delete files in one commit: each takes a call to Java while the stream waits


@dataclass(frozen=True)
class DanglingDeletes:
    """Delete files that have nothing to say any more, or less than before."""

    removed: tuple[FileEntry, ...]
    pruned: Mapping[str, RowPositions] | None = None  # what stays of the last one of them


class DeleteCarryOver:
    """Keeps up with the deletes of a table since the inputs of a rewrite were read."""

    def __init__(
        self, moves: RowMapping, inputs: Collection[str], planned: LiveFiles, read: Read
    ) -> None:
        self._moves = moves
        self._inputs = frozenset(inputs)
        self._wanted = sorted(path.encode() for path in inputs)
        self._planned = planned
        self._read = read
        self._seen = set(planned.deletes)
        self._referred: dict[str, frozenset[str]] = {}  # by delete file
        self._dead: dict[str, list[RowPositions]] = {}

    def unread_count(self, now: LiveFiles) -> int:
        """How many delete files there are that were not read yet."""
        return sum(path not in self._seen for path in now.deletes)

    def read_new_deletes(self, now: LiveFiles) -> None:
        """Read the deletes that have come since the last look."""
        for path, file in now.deletes.items():
            if path in self._seen:
                continue
            self._seen.add(path)
            if not file.may_refer_to(self._wanted):
                continue
            found = dict(self._read(path))
            self._referred[path] = frozenset(found)
            for data_file in self._inputs & found.keys():
                self._dead.setdefault(data_file, []).append(found[data_file])

    def deleted_in_outputs(self) -> dict[str, RowPositions]:
        """Rows of the new files that have died since they were read."""
        return self._moves.map_positions(
            {p: np.concatenate(some) for p, some in self._dead.items()}
        )

    def dangling(self, now: LiveFiles, carries: bool) -> DanglingDeletes:
        """Delete files that are about nothing but the inputs, and files that are gone.

        Iceberg lets a rewrite add deletes only where it removes some. If it `carries` any and all
        delete files are about other data files too, one of them is written anew without the inputs.
        """
        there = [each for each in now.deletes.values() if each.may_refer_to(self._wanted)]
        idle = [each for each in there if self._data_files_of(each) <= self._inputs]
        if idle or not carries:
            return DanglingDeletes(tuple(idle[:_MOST_REMOVED]))
        about = [each for each in there if self._named_data_files(each) & self._inputs]
        if not about:
            raise GaveWay("deletes were taken back meanwhile")
        some = min(about, key=lambda each: each.records)
        kept = {
            path: np.unique(positions)
            for path, positions in self._read(some.path)
            if path in self._data_files_of(some) - self._inputs
        }
        return DanglingDeletes((some,), kept)

    def _data_files_of(self, file: FileEntry) -> frozenset[str]:
        """The data files that a delete file is about, as far as they may still be there."""
        about = self._named_data_files(file)
        if file.path not in self._planned.deletes:
            return about  # it is newer than our list of data files
        return about & self._planned.data.keys()

    def _named_data_files(self, file: FileEntry) -> frozenset[str]:
        if file.only_data_file is not None:
            return frozenset([file.only_data_file])
        if file.path not in self._referred:
            self._referred[file.path] = frozenset(path for path, _ in self._read(file.path))
        return self._referred[file.path]
