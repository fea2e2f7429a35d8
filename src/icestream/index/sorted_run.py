"""A run: sorted entries of one bucket in one file, written once, read by mapping it into memory.

    magic ▸ columns, each at a multiple of 64 bytes ▸ footer (JSON) ▸ its size, its CRC, magic

A column whose values are all the same is not stored: the footer tells the value.
"""

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icestream.index.disk import damaged, writing
from icestream.index.entries import COLUMNS, IndexEntries

_MAGIC = b"ICEIDX01"
_TAIL = struct.Struct("<II8s")  # size and CRC of the footer, magic
_ALIGNED = 64
_PIECE = 1 << 20


@dataclass(frozen=True)
class RunIdentity:
    """Which run this is; a file that says otherwise is not ours."""

    table_uuid: str
    bucket: int
    commit_id: str
    paths: tuple[str, ...] = ()  # data files that `file` counts; none: it holds their numbers


class SortedRunWriter:
    """Writes a run piece by piece; nobody sees it under its name before it is whole and on disk."""

    def __init__(
        self, path: Path, origin: RunIdentity, most: int, same: Mapping[str, int] | None = None
    ) -> None:
        """Make room for `most` entries; columns in `same` have this value in all of them."""
        self._path, self._origin = path, origin
        self._draft = path.with_name(f".{path.name}.tmp")
        self._same = dict(same or {})
        self._at: dict[str, int] = {}
        self._sums = dict.fromkeys(COLUMNS, 0)
        self._entries = 0
        end = _ALIGNED
        for name, kind in COLUMNS.items():
            if name not in self._same:
                self._at[name] = end
                end = _round_up(end + most * kind.itemsize)
        self._end = end
        with writing(path):
            self._fd = os.open(self._draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._write(_MAGIC, 0)

    def add(self, entries: IndexEntries) -> None:
        """Take the next entries, which all sort after those before."""
        for name, column in entries.columns():
            if name in self._same:
                continue
            kind = COLUMNS[name]
            data: Any = np.ascontiguousarray(column, dtype=kind).view(np.uint8)
            self._write(data, self._at[name] + self._entries * kind.itemsize)
            self._sums[name] = zlib.crc32(data, self._sums[name])
        self._entries += len(entries)

    def finish(self) -> int:
        """Put the run in its place; → how many entries it has."""
        columns = {
            name: {"same": self._same[name]}
            if name in self._same
            else {"at": self._at[name], "crc": self._sums[name]}
            for name in COLUMNS
        }
        footer = json.dumps(
            {
                "version": 1,
                "table_uuid": self._origin.table_uuid,
                "bucket": self._origin.bucket,
                "commit_id": self._origin.commit_id,
                "paths": self._origin.paths,
                "entries": self._entries,
                "at": self._end,
                "columns": columns,
            }
        ).encode()
        self._write(footer + _TAIL.pack(len(footer), zlib.crc32(footer), _MAGIC), self._end)
        with writing(self._path):
            os.fsync(self._fd)
            self._draft.replace(self._path)
        return self._entries

    def _write(self, data: Any, at: int) -> None:
        left = memoryview(data)
        with writing(self._path):
            while len(left):
                written = os.pwrite(self._fd, left, at)
                left, at = left[written:], at + written

    def __enter__(self) -> "SortedRunWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
        self._draft.unlink(missing_ok=True)


@dataclass(frozen=True)
class SortedRun:
    """A run that is open: its columns are arrays over the file, read as they are touched."""

    path: Path
    origin: RunIdentity
    entries: IndexEntries
    checksums: Mapping[str, tuple[int, int]] = field(
        repr=False
    )  # where each column is, and its CRC
    constants: Mapping[str, int] = field(repr=False)
    file_numbers: NDArray[np.uint32] | None = None  # of the files that `file` counts

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Give the place of each key, or -1; sorted keys are found much faster."""
        there = self.entries
        found = np.full(len(hi), -1, dtype=np.int64)
        at = np.searchsorted(there.hash_hi, hi)
        left = np.flatnonzero(at < len(there))
        while len(left):
            left = left[there.hash_hi[at[left]] == hi[left]]
            match = there.hash_lo[at[left]] == lo[left]
            found[left[match]] = at[left[match]]
            left = left[~match]  # other keys that share the first 64 bits
            at[left] += 1
            left = left[at[left] < len(there)]
        return found

    def at(self, places: "NDArray[Any] | slice") -> IndexEntries:
        """The entries at some places, with the numbers that files have in the whole index."""
        some = self.entries.take(places)
        if self.file_numbers is None:
            return some
        values = {name: column for name, column in some.columns() if name != "file"}
        return IndexEntries(file=self.file_numbers[some.file], **values)

    def verify(self) -> None:
        """Read every byte and compare with the checksums; beside the mapping, which stays small."""
        with self.path.open("rb") as file:
            for name, (start, expected) in self.checksums.items():
                file.seek(start)
                left, seen = len(self) * COLUMNS[name].itemsize, 0
                while left:
                    piece = file.read(min(left, _PIECE))
                    if not piece:
                        raise damaged(f"`{name}` ends early", self.path)
                    seen, left = zlib.crc32(piece, seen), left - len(piece)
                if seen != expected:
                    raise damaged(f"`{name}` has another checksum", self.path)


def write_run(path: Path, origin: RunIdentity, entries: IndexEntries) -> int:
    """Write sorted entries as one run."""
    with SortedRunWriter(path, origin, len(entries), _constant_columns(entries)) as writer:
        writer.add(entries)
        return writer.finish()


def open_run(path: Path, numbers: Sequence[int] | None = None) -> SortedRun:
    """Map a run; the footer is checked here, the columns by `Run.verify`."""
    mapped = _map(path)
    footer = _footer(path, mapped)
    try:
        count = int(footer["entries"])
        origin = _origin(footer)
        columns: dict[str, NDArray[Any]] = {}
        sums: dict[str, tuple[int, int]] = {}
        same: dict[str, int] = {}
        for name, kind in COLUMNS.items():
            told = footer["columns"][name]
            if "same" in told:
                same[name] = told["same"]
                one = np.array(told["same"], dtype=kind)
                columns[name] = np.ndarray((count,), kind, one, strides=(0,))
            else:
                sums[name] = (told["at"], told["crc"])
                columns[name] = np.frombuffer(mapped, kind, count, told["at"])
    except (KeyError, TypeError, ValueError) as failure:
        raise damaged(f"footer: {failure}", path) from None
    if origin.paths and len(numbers or ()) != len(origin.paths):
        raise damaged("its data files have no numbers", path)
    known = np.array(numbers, dtype=np.uint32) if origin.paths else None
    return SortedRun(path, origin, IndexEntries(**columns), sums, same, known)


def read_origin(path: Path) -> tuple[RunIdentity, int]:
    """Which run a file is, and how many entries it has."""
    with _map(path) as mapped:
        footer = _footer(path, mapped)
    return _origin(footer), int(footer["entries"])


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as failure:  # an empty file cannot be mapped
        raise damaged(str(failure), path) from None


def _origin(footer: Mapping[str, Any]) -> RunIdentity:
    return RunIdentity(
        footer["table_uuid"], footer["bucket"], footer["commit_id"], tuple(footer["paths"])
    )


def _footer(path: Path, mapped: mmap.mmap) -> dict[str, Any]:
    """The footer, if the file is whole: it stands where it says, and nothing follows."""
    if len(mapped) < len(_MAGIC) + _TAIL.size or mapped[: len(_MAGIC)] != _MAGIC:
        raise damaged("not a run", path)
    size, expected, magic = _TAIL.unpack(mapped[-_TAIL.size :])
    start = len(mapped) - _TAIL.size - size
    text = mapped[start : len(mapped) - _TAIL.size] if start >= len(_MAGIC) else b""
    if magic != _MAGIC or not text or zlib.crc32(text) != expected:
        raise damaged("torn, or not a run", path)
    footer: dict[str, Any] = json.loads(text)
    if footer["version"] != 1 or footer["at"] != start:
        raise damaged("of another version, or cut", path)
    return footer


def _constant_columns(entries: IndexEntries) -> dict[str, int]:
    """Columns with one value, which need no place on disk."""
    return {
        name: int(column[0]) if len(column) else 0
        for name, column in entries.columns()
        if len(column) == 0 or bool((column == column[0]).all())
    }


def cut_by_hash(runs: Sequence[SortedRun], most: int) -> Iterator[list[IndexEntries]]:
    """Cut runs at the same hashes, so that about `most` entries of all of them come at a time."""
    longest = max(runs, key=len).entries.hash_hi
    share = most * len(longest) // max(1, sum(len(run) for run in runs))
    cuts = longest[:: max(1, share)][1:]
    places = [[0, *np.searchsorted(run.entries.hash_hi, cuts).tolist(), len(run)] for run in runs]
    for number in range(len(cuts) + 1):
        yield [
            run.at(slice(place[number], place[number + 1]))
            for run, place in zip(runs, places, strict=True)
        ]


def _round_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
