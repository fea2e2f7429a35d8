"""Position deletes of a table: read, and matched with the data files that they are about.

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
    """A file, and the sequence number that says which deletes are about it."""

    @property
    def path(self) -> str:
        """Where it is."""
        ...

    @property
    def sequence(self) -> int:
        """Iceberg's sequence number of the commit that brought it."""
        ...


@dataclass(frozen=True)
class SequencedFile:
    """No more than that of a file; picklable."""

    path: str
    sequence: int


def deleted_positions(
    open_file: OpenFile, data: Iterable[Sequenced], deletes: Iterable[Sequenced]
) -> dict[str, RowPositions]:
    """Positions that are deleted in these data files, sorted."""
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
        for named in pool.map(read, deletes):
            for path, positions in named:
                parts.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(some)) for path, some in parts.items()}


def read_positions(open_file: OpenFile, path: str) -> Iterator[tuple[str, RowPositions]]:
    """Give what a position-delete file deletes, data file by data file."""
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
    """The data files that a position-delete file names, and how many rows of each."""
    with open_file(path) as stream:
        column = pq.read_table(stream, columns=["file_path"]).column("file_path")
    counted = pc.value_counts(column.combine_chunks())
    return counted.field("values"), counted.field("counts").to_numpy()


def live_mask(deleted: RowPositions | None, start: int, count: int) -> NDArray[np.bool_] | None:
    """Which of `count` rows from `start` on are live; None: all of them."""
    if deleted is None:
        return None
    first, last = np.searchsorted(deleted, [start, start + count])
    if first == last:
        return None
    mask = np.ones(count, dtype=bool)
    mask[deleted[first:last] - start] = False
    return mask
