"""Reads position-delete files, and matches them with the data files that they are about.

Files are opened by a function that the caller gives: tasks open them by themselves (`open_file`),
the driver with PyIceberg's FileIO, which has the catalog's settings.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

RowPositions = NDArray[np.int64]
OpenFile = Callable[[str], Any]

_AT_ONCE = 8  # delete files


class Sequenced(Protocol):
    """A file and its sequence number, which says which deletes are about it."""

    @property
    def path(self) -> str:
        """Location of the file, as Iceberg has it."""
        ...

    @property
    def sequence(self) -> int:
        """Iceberg's sequence number of the commit that added the file."""
        ...


@dataclass(frozen=True)
class SequencedFile:
    """Only the path and the sequence number of a file, to send it to a task."""

    path: str
    sequence: int


def deleted_positions(
    open_file: OpenFile, data: Iterable[Sequenced], deletes: Iterable[Sequenced]
) -> dict[str, RowPositions]:
    """Return the deleted positions in these data files, sorted; files without any are left out."""
    sequences = {file.path: file.sequence for file in data}
    parts: dict[str, list[RowPositions]] = {}

    def read(delete: Sequenced) -> list[tuple[str, RowPositions]]:
        # A delete is about files that were there before it, or came with it.
        return [
            (path, positions)
            for path, positions in read_positions(open_file, delete.path)
            if sequences.get(path, delete.sequence + 1) <= delete.sequence
        ]

    with ThreadPoolExecutor(_AT_ONCE) as pool:  # most of it is waiting for storage
        for by_file in pool.map(read, deletes):
            for path, positions in by_file:
                parts.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(arrays)) for path, arrays in parts.items()}


def read_positions(open_file: OpenFile, path: str) -> Iterator[tuple[str, RowPositions]]:
    """Yield the data files that a position-delete file names, with the positions it deletes."""
    with open_file(path) as stream:
        table = pq.read_table(stream, columns=["file_path", "pos"])
    coded = table.column("file_path").combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    positions = table.column("pos").to_numpy()[order]
    bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
    for code, data_path in enumerate(coded.dictionary.to_pylist()):
        yield data_path, positions[bounds[code] : bounds[code + 1]]


def count_positions(open_file: OpenFile, path: str) -> tuple[pa.Array, NDArray[np.int64]]:
    """Return the data files that a position-delete file names, and how many rows of each."""
    with open_file(path) as stream:
        column = pq.read_table(stream, columns=["file_path"]).column("file_path")
    counted = pc.value_counts(column.combine_chunks())
    return counted.field("values"), counted.field("counts").to_numpy()


def live_mask(deleted: RowPositions | None, start: int, count: int) -> NDArray[np.bool_] | None:
    """Return a mask of the live rows among `count` rows from `start` on; None: all are live."""
    if deleted is None:
        return None
    first, last = np.searchsorted(deleted, [start, start + count])
    if first == last:
        return None
    is_live = np.ones(count, dtype=bool)
    is_live[deleted[first:last] - start] = False
    return is_live
