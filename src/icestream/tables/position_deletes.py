"""Position deletes of a table: read, and matched with the data files that they are about."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry

from icestream.tables.arrow import PATH_ID
from icestream.tables.manifests import Numbers
from icestream.tables.storage import filesystem

RowPositions = NDArray[np.int64]


def deleted_positions(
    io: FileIO, deletes: Iterable[ManifestEntry], data: Mapping[str, ManifestEntry]
) -> dict[str, RowPositions]:
    """Positions that are deleted in these data files, sorted."""
    found: dict[str, list[RowPositions]] = {}
    wanted = sorted(path.encode() for path in data)
    for entry in deletes:
        if not _may_concern(entry, wanted):
            continue
        for path, positions in read_deletes(io, entry):
            hit = data.get(path)
            # A delete is about files that were there before it, or came with it.
            if hit is not None and (hit.sequence_number or 0) <= (entry.sequence_number or 0):
                found.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}


def read_deletes(io: FileIO, entry: ManifestEntry) -> Iterator[tuple[str, RowPositions]]:
    """Give the positions in a position-delete file, data file by data file."""
    with io.new_input(entry.data_file.file_path).open() as stream:
        yield from positions_in(stream)


def positions_in(stream: Any) -> Iterator[tuple[str, RowPositions]]:
    """Give the positions in an open position-delete file, data file by data file."""
    table = pq.read_table(stream, columns=["file_path", "pos"])
    coded = table.column("file_path").combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    positions = table.column("pos").to_numpy()[order]
    bounds = np.searchsorted(codes[order], np.arange(len(coded.dictionary) + 1))
    for number, path in enumerate(coded.dictionary.to_pylist()):
        yield path, positions[bounds[number] : bounds[number + 1]]


def _may_concern(entry: ManifestEntry, wanted: Sequence[bytes]) -> bool:
    """Whether a delete file can be about these (sorted) data files, as its bounds tell."""
    if not wanted:
        return False
    lower = (entry.data_file.lower_bounds or {}).get(PATH_ID)
    upper = (entry.data_file.upper_bounds or {}).get(PATH_ID)
    if lower is None or upper is None:
        return True
    at = bisect_left(wanted, lower)
    return at < len(wanted) and wanted[at] <= upper


_AT_ONCE = 8  # delete files


@dataclass(frozen=True)
class SequencedFile:
    """A file, and the sequence number that says which deletes are about it."""

    path: str
    sequence: int


def deleted_in(
    inputs: Sequence[SequencedFile], deletes: Sequence[SequencedFile]
) -> dict[str, RowPositions]:
    """Positions that are deleted in these data files, sorted."""
    since = {each.path: each.sequence for each in inputs}
    found: dict[str, list[RowPositions]] = {}

    def read(file: SequencedFile) -> list[tuple[str, RowPositions]]:
        # A delete is about files that were there before it, or came with it.
        return [
            (path, positions)
            for path, positions in read_positions(file.path)
            if path in since and since[path] <= file.sequence
        ]

    with ThreadPoolExecutor(_AT_ONCE) as pool:  # most of it is waiting for storage
        for some in pool.map(read, deletes):
            for path, positions in some:
                found.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}


def read_positions(path: str) -> Iterator[tuple[str, RowPositions]]:
    """Give what a position-delete file deletes, data file by data file."""
    system, name = filesystem(path)
    with system.open_input_file(name) as stream:
        yield from positions_in(stream)


def read_deleted_paths(io: FileIO, path: str) -> tuple[pa.Array, Numbers]:
    """The data files that a position-delete file names, and how many rows of each."""
    with io.new_input(path).open() as stream:
        column = pq.read_table(stream, columns=["file_path"]).column("file_path")
    counted = pc.value_counts(column.combine_chunks())
    return counted.field("values"), counted.field("counts").to_numpy()
