"""File lists: which number stands for which data file. A number is given once and never again.

The live files are spread over a few lists, as a bucket's entries are over runs: a commit adds a
short list, and lists are merged by the same rule. So a commit never writes a list of all files.
"""

import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icestream.index.disk import damaged, write_whole
from icestream.index.merge import merge_count

FOLDER = "files"
_SLACK, _CHUNKS = 1000, 64  # rows of removed files, and Arrow chunks, before `rows` is pruned
_SCHEMA = pa.schema([("number", pa.uint32()), ("path", pa.large_string())])  # null path: removed


@dataclass(frozen=True)
class FileListRef:
    """A file list as an index manifest names it."""

    name: str
    rows: int
    crc: int


@dataclass(frozen=True)
class NumberedFiles:
    """The live data files: their numbers, sorted, and rows in which to find their paths."""

    numbers: NDArray[np.uint32]
    rows: pa.Table  # some may be of removed files

    def path(self, number: int) -> str:
        """Return the path of a live file; raises KeyError for another number."""
        index = int(np.searchsorted(self.numbers, number))
        if index == len(self.numbers) or self.numbers[index] != number:
            raise KeyError(number)
        (row,) = np.flatnonzero(_numbers(self.rows) == number)
        path: str = self.rows.column("path")[int(row)].as_py()
        return path

    @cached_property
    def by_path(self) -> dict[str, int]:
        """The number of each live file, by path."""
        rows = self._pruned().rows
        return dict(zip(rows.column("path").to_pylist(), _numbers(rows).tolist(), strict=True))

    def with_changes(self, added: Mapping[str, int], removed: Sequence[int]) -> "NumberedFiles":
        """Return the live files after a commit that added and removed some."""
        new = np.fromiter(added.values(), dtype=np.uint32, count=len(added))
        numbers = np.concatenate([self.numbers, new])
        kept = np.sort(numbers[~np.isin(numbers, np.array(removed, dtype=np.uint32))])
        files = NumberedFiles(kept, pa.concat_tables([self.rows, _list_rows(added, ())]))
        is_wasteful = files.rows.num_rows > 2 * len(kept) + _SLACK
        return files._pruned() if is_wasteful or files.rows[0].num_chunks > _CHUNKS else files

    def _pruned(self) -> "NumberedFiles":
        is_live = np.isin(_numbers(self.rows), self.numbers)
        return NumberedFiles(self.numbers, self.rows.filter(pa.array(is_live)).combine_chunks())


def append_list(
    folder: Path, lists: Sequence[FileListRef], added: Mapping[str, int], removed: Sequence[int]
) -> tuple[FileListRef, ...]:
    """Write a list of added and removed files; returns the lists of the new state, newest first.

    The new list takes in as many of the newest ones as the merge rule says.
    """
    if not added and not removed:
        return tuple(lists)
    count = len(added) + len(removed)
    joined_count = merge_count([count, *(ref.rows for ref in lists)])
    joined = lists[: max(0, joined_count - 1)]
    rows = pa.concat_tables([_list_rows(added, removed), *(_read(folder, ref) for ref in joined)])
    if joined:
        rows = _without_pairs(rows, whole=len(joined) == len(lists))
    return (_write(folder, rows), *lists[len(joined) :])


def load_files(folder: Path, lists: Sequence[FileListRef], *, again: bool = True) -> NumberedFiles:
    """Read which files are live after all lists; `again=False`: lists come from a cache."""
    read = _read if again else _read_once
    rows = pa.concat_tables([_SCHEMA.empty_table(), *(read(folder, ref) for ref in lists)])
    is_removal = rows.column("path").is_null()
    removed = _numbers(rows.filter(is_removal))
    rows = rows.filter(pc.invert(is_removal)) if len(removed) else rows
    numbers = _numbers(rows)
    return NumberedFiles(np.sort(numbers[~np.isin(numbers, removed)]), rows)


def _without_pairs(rows: pa.Table, whole: bool) -> pa.Table:
    """Drop files that were added and removed; `whole`: no older list is left.

    Else the removal of a file that an older list adds stays.
    """
    numbers = _numbers(rows)
    is_removal = rows.column("path").is_null().to_numpy()
    added, removed = numbers[~is_removal], numbers[is_removal]
    is_kept = np.where(
        is_removal, ~np.isin(numbers, added) & (not whole), ~np.isin(numbers, removed)
    )
    return rows.filter(pa.array(is_kept))


def _list_rows(added: Mapping[str, int], removed: Sequence[int]) -> pa.Table:
    numbers = pa.array([*added.values(), *removed], pa.uint32())
    paths = pa.array([*added, *(None for _ in removed)], pa.large_string())
    return pa.table([numbers, paths], schema=_SCHEMA)


def _numbers(rows: pa.Table) -> NDArray[np.uint32]:
    numbers: NDArray[np.uint32] = rows.column("number").to_numpy()
    return numbers


def _write(folder: Path, rows: pa.Table) -> FileListRef:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, _SCHEMA) as out:
        out.write_table(rows)
    data = sink.getvalue()
    name = f"{FOLDER}/{uuid.uuid4().hex}.arrow"
    write_whole(folder / name, data)
    return FileListRef(name, rows.num_rows, zlib.crc32(data))


def _read(folder: Path, ref: FileListRef) -> pa.Table:
    path = folder / ref.name
    try:
        data = path.read_bytes()
    except OSError as failure:
        raise damaged(str(failure), path) from None
    if zlib.crc32(data) != ref.crc:
        raise damaged("a list of files has another checksum", path)
    return pa.ipc.open_file(data).read_all()


_read_once = lru_cache(maxsize=16)(_read)  # in a task: from state to state most lists stay
