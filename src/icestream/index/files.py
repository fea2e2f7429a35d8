"""File lists: which number stands for which data file. A number is given once and never again.

The whole is a few lists, as a bucket is a few runs: a commit adds a short one, and they are
merged by the same rule, so that a table of many files costs no commit a list of all of them.
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
_SLACK, _CHUNKS = 1000, 64  # rows of files that are gone, and pieces, that are put up with
_SCHEMA = pa.schema([("number", pa.uint32()), ("path", pa.large_string())])  # null path: removed


@dataclass(frozen=True)
class FileListRef:
    """A list as a manifest names it."""

    name: str
    rows: int
    crc: int


@dataclass(frozen=True)
class NumberedFiles:
    """The live data files: their numbers, sorted, and rows in which to find their paths."""

    numbers: NDArray[np.uint32]
    rows: pa.Table  # some may be of files that are gone

    def path(self, number: int) -> str:
        """The path of a live file."""
        at = int(np.searchsorted(self.numbers, number))
        if at == len(self.numbers) or self.numbers[at] != number:
            raise KeyError(number)
        (place,) = np.flatnonzero(_numbers(self.rows) == number)
        found: str = self.rows.column("path")[int(place)].as_py()
        return found

    @cached_property
    def by_path(self) -> dict[str, int]:
        """Numbers by path."""
        rows = self._pruned().rows
        return dict(zip(rows.column("path").to_pylist(), _numbers(rows).tolist(), strict=True))

    def with_changes(self, added: Mapping[str, int], removed: Sequence[int]) -> "NumberedFiles":
        """These files without some, and with others."""
        new = np.fromiter(added.values(), dtype=np.uint32, count=len(added))
        numbers = np.concatenate([self.numbers, new])
        kept = np.sort(numbers[~np.isin(numbers, np.array(removed, dtype=np.uint32))])
        found = NumberedFiles(kept, pa.concat_tables([self.rows, _list_rows(added, ())]))
        wasteful = found.rows.num_rows > 2 * len(kept) + _SLACK
        return found._pruned() if wasteful or found.rows[0].num_chunks > _CHUNKS else found

    def _pruned(self) -> "NumberedFiles":
        live = np.isin(_numbers(self.rows), self.numbers)
        return NumberedFiles(self.numbers, self.rows.filter(pa.array(live)).combine_chunks())


def append_list(
    folder: Path, lists: Sequence[FileListRef], added: Mapping[str, int], removed: Sequence[int]
) -> tuple[FileListRef, ...]:
    """Write a change down; → the lists as they are then, newest first."""
    if not added and not removed:
        return tuple(lists)
    count = len(added) + len(removed)
    joined = merge_count([count, *(each.rows for each in lists)])
    old = lists[: max(0, joined - 1)]
    rows = pa.concat_tables([_list_rows(added, removed), *(_read(folder, each) for each in old)])
    if old:
        rows = _without_pairs(rows, whole=len(old) == len(lists))
    return (_write(folder, rows), *lists[len(old) :])


def load_files(folder: Path, lists: Sequence[FileListRef], *, again: bool = True) -> NumberedFiles:
    """Read what is live after all lists; not `again`: those that were read before are kept."""
    read = _read if again else _read_once
    rows = pa.concat_tables([_SCHEMA.empty_table(), *(read(folder, each) for each in lists)])
    gone = rows.column("path").is_null()
    removed = _numbers(rows.filter(gone))
    rows = rows.filter(pc.invert(gone)) if len(removed) else rows
    numbers = _numbers(rows)
    return NumberedFiles(np.sort(numbers[~np.isin(numbers, removed)]), rows)


def _without_pairs(rows: pa.Table, whole: bool) -> pa.Table:
    """Drop files that came and went; a removal of something older stays until all is joined."""
    numbers = _numbers(rows)
    gone = rows.column("path").is_null().to_numpy()
    added, removed = numbers[~gone], numbers[gone]
    kept = np.where(gone, ~np.isin(numbers, added) & (not whole), ~np.isin(numbers, removed))
    return rows.filter(pa.array(kept))


def _list_rows(added: Mapping[str, int], removed: Sequence[int]) -> pa.Table:
    numbers = pa.array([*added.values(), *removed], pa.uint32())
    paths = pa.array([*added, *(None for _ in removed)], pa.large_string())
    return pa.table([numbers, paths], schema=_SCHEMA)


def _numbers(rows: pa.Table) -> NDArray[np.uint32]:
    found: NDArray[np.uint32] = rows.column("number").to_numpy()
    return found


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


_read_once = lru_cache(maxsize=16)(_read)  # in a task: the long list stays, a short one comes
