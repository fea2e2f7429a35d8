"""Lines of files as record batches, vectorised; and the cutting of large files at line ends."""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.errors import SourceChanged
from icestream.records import RECORDS
from icestream.sources.ledger import ListedFile, Split

_SPLIT_BYTES = 64 << 20
_CHUNK_BYTES = 12 << 20
_BOM = b"\xef\xbb\xbf"


def cut_into_splits(folder: Path, file: ListedFile, max_lines: int, begin: int = 0) -> list[Split]:
    """Cut a file at line ends; a gzip file stays whole, as it cannot be entered midway."""
    packed = is_packed(file.path)
    splits: list[Split] = []
    start = position = begin
    lines = 0  # since `start`
    last_byte = b"\n"
    _refuse_change(folder, file)
    for chunk in _chunks(folder, file.path, begin):
        line_ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == 10) + 1
        done = 0  # line ends of the chunk that earlier splits have
        while not packed:
            # The first line end at which this split is full, by bytes or by lines.
            by_bytes = int(np.searchsorted(line_ends, start + _SPLIT_BYTES - position))
            index = max(done, min(by_bytes, done + max_lines - lines - 1))
            if index >= len(line_ends):
                break
            stop = position + int(line_ends[index])
            lines += index + 1 - done
            splits.append(Split(file.path, file.size, file.mtime_ns, start, stop, lines))
            start, lines, done = stop, 0, index + 1
        lines += len(line_ends) - done
        position += len(chunk)
        last_byte = chunk[-1:]
    if position > start:
        lines += last_byte != b"\n"
        splits.append(Split(file.path, file.size, file.mtime_ns, start, position, lines))
    return splits


@dataclass(frozen=True)
class LineReader:
    """Runs in a task: reads the records of work orders, which are lists of splits."""

    folder: str

    def read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read each split of each work order."""
        for batch in batches:
            for order in batch.column("work").to_pylist():
                for entry in json.loads(order):
                    yield from self._split(Split(*entry))

    def _split(self, split: Split) -> Iterator[pa.RecordBatch]:
        folder = Path(self.folder)
        _refuse_change(folder, split)
        position = split.start
        for block in _blocks(folder, split):
            yield _records(split, block, position)
            position += len(block)
        _refuse_change(folder, split)  # nor may it have changed while it was read


def is_packed(path: str) -> bool:
    """Whether a file's name says that it is gzip."""
    return path.endswith((".gz", ".gzip"))


def _blocks(folder: Path, split: Split) -> Iterator[bytes]:
    """The split's bytes in pieces that end at line ends."""
    unfinished = b""
    for chunk in _chunks(folder, split.path, split.start, split.stop):
        edge = chunk.rfind(b"\n") + 1
        if not edge:
            unfinished += chunk
            continue
        yield unfinished + chunk[:edge]
        unfinished = chunk[edge:]
    if unfinished:
        yield unfinished


def _records(split: Split, block: bytes, position: int) -> pa.RecordBatch:
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == 10) + 1
    if block[-1:] != b"\n":
        ends = np.append(ends, len(block))
    edges = np.concatenate(([0], ends)).astype(np.int64)
    lines = pa.Array.from_buffers(
        pa.large_binary(), len(ends), [None, pa.py_buffer(edges), pa.py_buffer(block)]
    )
    values = pc.ascii_rtrim(lines.view(pa.large_string()), characters="\r\n")
    offsets = edges[:-1] + position
    if position == 0 and block.startswith(_BOM):
        first = pa.array([values[0].as_buffer().to_pybytes()[len(_BOM) :]], pa.large_binary())
        values = pa.concat_arrays([first, values.view(pa.large_binary())[1:]])
        values = values.view(pa.large_string())
    filled = pc.greater(pc.binary_length(values), 0)  # an empty line is no record
    if not pc.all(filled).as_py():
        values = values.filter(filled)
        offsets = offsets[filled.to_numpy(zero_copy_only=False)]
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(split.path, pa.string()), count),
            pa.repeat(pa.scalar(0, pa.int32()), count),
            pa.array(offsets, pa.int64()),
            pa.repeat(pa.scalar(split.mtime_ns // 1000, pa.timestamp("us", tz="UTC")), count),
            pa.nulls(count, pa.binary()),
            values.view(pa.large_binary()).cast(pa.binary()),
        ],
        schema=RECORDS,
    )


def _chunks(folder: Path, path: str, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    try:
        with _open(folder / path) as file:
            file.seek(start)
            position = start
            while stop is None or position < stop:
                chunk = file.read(min(_CHUNK_BYTES, stop - position) if stop else _CHUNK_BYTES)
                if not chunk:
                    break
                position += len(chunk)
                yield chunk
    except FileNotFoundError:
        raise SourceChanged(
            f"file `{path}` is gone before all of it was read",
            where=f"source folder {folder}",
            hint="put it back: its lines are not in the table yet",
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as failure:
        raise SourceChanged(
            f"file `{path}` is not a whole gzip file: {failure}",
            where=f"source folder {folder}",
            hint="replace it by a good copy, or move it out of the folder",
        ) from None


def _open(file: Path) -> BinaryIO:
    return gzip.open(file) if is_packed(file.name) else file.open("rb")  # type: ignore[return-value]


def _refuse_change(folder: Path, split: Split | ListedFile) -> None:
    try:
        stat = (folder / split.path).stat()
    except FileNotFoundError:
        return  # reading it gives the better message
    if (stat.st_size, stat.st_mtime_ns) != (split.size, split.mtime_ns):
        raise SourceChanged(
            f"file `{split.path}` changed while it was being taken: "
            f"{split.size:,} bytes planned, {stat.st_size:,} now",
            where=f"source folder {folder}",
            hint="files must not change once they are complete: write new data to a new file",
        )
