"""Tombstones beside the table: deleted keys, for an index that is built again.

Files under `<table>/_icestream/tombstones/`, named by time and commit. They are written before the
commit is made, so some belong to a commit that never was. A row that is there always beats them;
and each file says how far its commit would have brought the table. What goes beyond what the table
has reached is of no commit, and speaks of deletes that are yet to come: rows that come before them
must not be taken for old ones.
"""

import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from icestream.index.entries import IndexEntries, tombstone_entries
from icestream.index.keys import Hashes
from icestream.index.merge import KEEP_SECONDS
from icestream.positions import Positions
from icestream.tables.storage import filesystem

FOLDER = "_icestream/tombstones"
SCHEMA = pa.schema(
    [
        ("hash_hi", pa.uint64()),
        ("hash_lo", pa.uint64()),
        ("sequence", pa.binary()),
        ("time", pa.int64()),  # microseconds since 1970
        ("commit_id", pa.string()),
    ]
)
_PACK = 256  # so many files of single commits become one
_PACKED = "packed"
_UNTIL = b"icestream.until"  # metadata of a file: commit → positions behind its last records
_MICROS = 1_000_000


@dataclass(frozen=True)
class _TombstoneFile:
    """A file, as its name tells."""

    path: str
    time: int
    commit_id: str


def write_tombstones(
    location: str,
    commit_id: str,
    hashes: Hashes,
    sequence: pa.Array | None,
    time: int,
    until: Positions | None = None,
) -> str | None:
    """Write the keys that a commit deletes, before it is made; → the file, if there are any.

    `until` is how far the commit brings the table.
    """
    if not len(hashes):
        return None
    rows = pa.table(
        [
            hashes[:, 0],
            hashes[:, 1],
            pa.nulls(len(hashes), pa.binary()) if sequence is None else sequence.cast(pa.binary()),
            np.full(len(hashes), time),
            pa.repeat(pa.scalar(commit_id), len(hashes)),
        ],
        schema=SCHEMA,
    )
    return _write(location, commit_id, time, rows, {commit_id: until or {}})


def read_tombstones(
    location: str,
    now: int,
    commits: Collection[str] | None = None,
    reached: Positions | None = None,
) -> Iterator[IndexEntries]:
    """Give all that are young enough, oldest file first; `commits`: only those of these.

    Where these are not known, `reached` tells what the table has: no commit that goes beyond it.
    """
    begin = now - KEEP_SECONDS * _MICROS
    system, _ = filesystem(location)
    for file in _files(location):
        named = commits is None or file.commit_id == _PACKED or file.commit_id in commits
        if file.time < begin or not named:
            continue
        if commits is not None and file.commit_id == _PACKED:
            names = pq.read_table(file.path, filesystem=system, columns=["commit_id"])
            if not set(names.column(0).unique().to_pylist()) & set(commits):
                continue
        rows, until = _read(system, file.path)
        wanted = rows.column("time").to_numpy() >= begin
        if commits is not None:
            wanted &= np.isin(rows.column("commit_id").to_numpy(), list(commits))
        elif reached is not None:
            beyond = [name for name, stop in until.items() if _goes_beyond(stop, reached)]
            wanted &= ~np.isin(rows.column("commit_id").to_numpy(), beyond)
        rows = rows.filter(pa.array(wanted)).combine_chunks()
        if rows.num_rows:
            yield _entries(rows)


def tidy_tombstones(location: str, now: int) -> int:
    """Remove files that are too old, and pack those of many commits into one; → files removed."""
    system, _ = filesystem(location)
    files = _files(location)
    old = [file for file in files if file.time < now - KEEP_SECONDS * _MICROS]
    single = [file for file in files if file not in old and file.commit_id != _PACKED]
    if len(single) >= _PACK:
        several = [_read(system, each.path) for each in single]
        rows = pa.concat_tables([each for each, _ in several])
        until = {name: stop for _, some in several for name, stop in some.items()}
        # Named by the youngest, written before the others go: twice is harmless, never is not.
        _write(location, _PACKED, max(each.time for each in single), rows, until)
        old += single
    for file in old:
        system.delete_file(file.path)
    return len(old)


def _entries(rows: pa.Table) -> IndexEntries:
    hashes = np.column_stack([rows.column("hash_hi").to_numpy(), rows.column("hash_lo").to_numpy()])
    seconds = rows.column("time").to_numpy() // _MICROS
    return tombstone_entries(hashes, rows.column("sequence").combine_chunks(), seconds)


def _goes_beyond(stop: Mapping[str, Mapping[str, int]], reached: Positions) -> bool:
    return any(
        at > reached.get(stream, {}).get(int(number), 0)
        for stream, partitions in stop.items()
        for number, at in partitions.items()
    )


def _read(system: Any, path: str) -> tuple[pa.Table, dict[str, Any]]:
    """The rows of a file, and how far each of its commits would have come."""
    with system.open_input_file(path) as opened:
        rows = pq.read_table(opened)
    told = (rows.schema.metadata or {}).get(_UNTIL, b"{}")
    return rows.replace_schema_metadata(None), json.loads(told)


def _write(
    location: str, commit_id: str, time: int, rows: pa.Table, until: Mapping[str, Any]
) -> str:
    rows = rows.replace_schema_metadata({_UNTIL: json.dumps(until)})
    system, path = _at(location)
    system.create_dir(path, recursive=True)
    name = f"{path}/{time:020d}-{commit_id}-{uuid.uuid4().hex}.parquet"
    # A file that is there is whole: object stores see to it, a local disk by a second name.
    local = isinstance(system, fs.LocalFileSystem)
    draft = f"{path}/.{uuid.uuid4().hex}.tmp" if local else name
    with system.open_output_stream(draft) as out:
        pq.write_table(rows, out, compression="zstd")
    if local:
        system.move(draft, name)
    return name


def _files(location: str) -> list[_TombstoneFile]:
    """All files, oldest first; whatever has another kind of name is not ours."""
    system, path = _at(location)
    found = []
    for info in system.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        time, _, rest = info.base_name.removesuffix(".parquet").partition("-")
        commit_id, _, attempt = rest.rpartition("-")
        if info.is_file and time.isdigit() and commit_id and attempt:
            found.append(_TombstoneFile(info.path, int(time), commit_id))
    return sorted(found, key=lambda each: (each.time, each.path))


def _at(location: str) -> tuple[Any, str]:
    system, path = filesystem(location)
    return system, f"{path.rstrip('/')}/{FOLDER}"
