"""A sorted run: entries of one bucket in one file, written once, read by mapping it into memory.

    magic ▸ columns, each at a multiple of 64 bytes ▸ footer (JSON) ▸ its size, its CRC, magic

A column whose values are all the same is not stored: the footer holds the value.
"""

import json
import mmap
import os
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
_PIECE = 1 << 20  # bytes that `SortedRun.verify` reads at a time


@dataclass(frozen=True)
class RunIdentity:
    """What the footer says of a run: its table, bucket and commit. Checked before a run is used."""

    table_uuid: str
    bucket: int
    commit_id: str
    paths: tuple[str, ...] = ()  # data files that `file` counts; none: it holds their numbers


class SortedRunWriter:
    """Writes a run piece by piece; it gets its name only once it is whole and on disk."""

    def __init__(
        self, path: Path, origin: RunIdentity, most: int, same: Mapping[str, int] | None = None
    ) -> None:
        """Make room for `most` entries; columns in `same` have this value in all of them."""
        self._path, self._origin = path, origin
        self._draft = path.with_name(f".{path.name}.tmp")
        self._same = dict(same or {})
        self._offsets: dict[str, int] = {}
        self._sums = dict.fromkeys(COLUMNS, 0)
        self._entries = 0
        end = _ALIGNED
        for name, dtype in COLUMNS.items():
            if name not in self._same:
                self._offsets[name] = end
                end = _round_up(end + most * dtype.itemsize)
        self._end = end
        with writing(path):
            self._fd = os.open(self._draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._write(_MAGIC, 0)

    def add(self, entries: IndexEntries) -> None:
        """Write the next entries, which all sort after those before."""
        for name, column in entries.columns():
            if name in self._same:
                continue
            dtype = COLUMNS[name]
            data: Any = np.ascontiguousarray(column, dtype=dtype).view(np.uint8)
            self._write(data, self._offsets[name] + self._entries * dtype.itemsize)
            self._sums[name] = zlib.crc32(data, self._sums[name])
        self._entries += len(entries)

    def finish(self) -> int:
        """Write the footer and give the file its name; returns the number of entries."""
        columns = {
            name: {"same": self._same[name]}
            if name in self._same
            else {"at": self._offsets[name], "crc": self._sums[name]}
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

    def _write(self, data: Any, offset: int) -> None:
        unwritten = memoryview(data)
        with writing(self._path):
            while len(unwritten):
                count = os.pwrite(self._fd, unwritten, offset)
                unwritten, offset = unwritten[count:], offset + count

    def __enter__(self) -> "SortedRunWriter":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        failure: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)
        self._draft.unlink(missing_ok=True)


@dataclass(frozen=True)
class SortedRun:
    """An open run: its columns are arrays over the mapped file, read as they are touched."""

    path: Path
    origin: RunIdentity
    entries: IndexEntries
    checksums: Mapping[str, tuple[int, int]] = field(repr=False)  # column → offset and CRC
    constants: Mapping[str, int] = field(repr=False)
    file_numbers: NDArray[np.uint32] | None = None  # of `origin.paths`, which `file` counts

    def __len__(self) -> int:
        return len(self.entries)

    def find(self, hi: NDArray[np.uint64], lo: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the row of each key's entry, or -1; sorted keys are found much faster."""
        entries = self.entries
        rows = np.full(len(hi), -1, dtype=np.int64)
        candidates = np.searchsorted(entries.hash_hi, hi)
        open_keys = np.flatnonzero(candidates < len(entries))
        while len(open_keys):
            open_keys = open_keys[entries.hash_hi[candidates[open_keys]] == hi[open_keys]]
            is_match = entries.hash_lo[candidates[open_keys]] == lo[open_keys]
            rows[open_keys[is_match]] = candidates[open_keys[is_match]]
            open_keys = open_keys[~is_match]  # other keys share their first 64 bits: the next entry
            candidates[open_keys] += 1
            open_keys = open_keys[candidates[open_keys] < len(entries)]
        return rows

    def at(self, rows: "NDArray[Any] | slice") -> IndexEntries:
        """Return the entries of some rows, with the file numbers of the whole index."""
        entries = self.entries.take(rows)
        if self.file_numbers is None:
            return entries
        return replace(entries, file=self.file_numbers[entries.file])

    def verify(self) -> None:
        """Compare all columns with their checksums; raises IndexDamaged."""
        # Read, not mapped: pages of a mapping that are touched count as memory of the process.
        with self.path.open("rb") as file:
            for name, (start, expected) in self.checksums.items():
                file.seek(start)
                bytes_left, checksum = len(self) * COLUMNS[name].itemsize, 0
                while bytes_left:
                    piece = file.read(min(bytes_left, _PIECE))
                    if not piece:
                        raise damaged(f"`{name}` ends early", self.path)
                    checksum, bytes_left = zlib.crc32(piece, checksum), bytes_left - len(piece)
                if checksum != expected:
                    raise damaged(f"`{name}` has another checksum", self.path)


def run_folder(bucket: int) -> str:
    """Return where the runs of a bucket are, within the index's folder."""
    return f"runs/{bucket:04d}"


def stage_run(folder: Path, origin: RunIdentity, entries: IndexEntries) -> str:
    """Write sorted entries as a run with a name of its own; returns its name within `folder`.

    Runs of a commit begin with its id, by which `KeyIndex` removes those of abandoned commits.
    """
    name = f"{run_folder(origin.bucket)}/{origin.commit_id or 'spill'}-{uuid.uuid4().hex}.run"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_run(folder / name, origin, entries)
    return name


def write_run(path: Path, origin: RunIdentity, entries: IndexEntries) -> int:
    """Write sorted entries as one run; returns how many."""
    with SortedRunWriter(path, origin, len(entries), _constant_columns(entries)) as writer:
        writer.add(entries)
        return writer.finish()


def open_run(path: Path, numbers: Sequence[int] | None = None) -> SortedRun:
    """Map a run; the footer is checked here, the columns by `SortedRun.verify`.

    `numbers` are those of the data files that the footer names; raises IndexDamaged.
    """
    mapped = _map(path)
    footer = _footer(path, mapped)
    try:
        count = int(footer["entries"])
        origin = _origin(footer)
        columns: dict[str, NDArray[Any]] = {}
        sums: dict[str, tuple[int, int]] = {}
        same: dict[str, int] = {}
        for name, dtype in COLUMNS.items():
            column = footer["columns"][name]
            if "same" in column:
                same[name] = column["same"]
                value = np.array(column["same"], dtype=dtype)
                columns[name] = np.ndarray((count,), dtype, value, strides=(0,))
            else:
                sums[name] = (column["at"], column["crc"])
                columns[name] = np.frombuffer(mapped, dtype, count, column["at"])
    except (KeyError, TypeError, ValueError) as failure:
        raise damaged(f"footer: {failure}", path) from None
    if origin.paths and len(numbers or ()) != len(origin.paths):
        raise damaged("its data files have no numbers", path)
    file_numbers = np.array(numbers, dtype=np.uint32) if origin.paths else None
    return SortedRun(path, origin, IndexEntries(**columns), sums, same, file_numbers)


def read_origin(path: Path) -> tuple[RunIdentity, int]:
    """Read from a run's footer which run it is, and how many entries it has."""
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
    """Read the footer; raises IndexDamaged unless it begins where it says and nothing follows."""
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
    """Return the columns with only one value, which are not stored."""
    return {
        name: int(column[0]) if len(column) else 0
        for name, column in entries.columns()
        if len(column) == 0 or bool((column == column[0]).all())
    }


def cut_by_hash(runs: Sequence[SortedRun], most: int) -> Iterator[list[IndexEntries]]:
    """Cut runs at the same hashes, into parts of about `most` entries of all runs together."""
    longest = max(runs, key=len).entries.hash_hi
    share = most * len(longest) // max(1, sum(len(run) for run in runs))
    cuts = longest[:: max(1, share)][1:]
    bounds = [[0, *np.searchsorted(run.entries.hash_hi, cuts).tolist(), len(run)] for run in runs]
    for part in range(len(cuts) + 1):
        yield [
            run.at(slice(*ends[part : part + 2])) for run, ends in zip(runs, bounds, strict=True)
        ]


def _round_up(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
