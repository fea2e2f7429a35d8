"""Tombstone files beside the table: deleted keys, for an index that is built again.

Files under `<table>/_icestream/tombstones/`, named by time and commit. They are written before the
commit is made, so some belong to a commit that never was. A live row always beats them; and each
file says how far its commit would have brought the table. What goes beyond the table's committed
positions belongs to no commit, and speaks of deletes that are yet to come: rows that come before
them must not be taken for old ones.
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
_PACK = 256  # files of single commits that are packed into one
_PACKED = "packed"
_UNTIL = b"icestream.until"  # metadata of a file: commit → positions behind its last records
_MICROS = 1_000_000


@dataclass(frozen=True)
class _TombstoneFile:
    """A tombstone file: its path, and what its name says of it."""

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
    """Write the keys that a commit deletes, before it is made; returns the path, if there are any.

    `until` are the committed positions of the table after the commit.
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
    """Yield tombstones that are not too old, oldest file first; `commits`: only of these commits.

    Where the commits are not known, `reached` are the table's committed positions: tombstones of
    a commit that goes beyond them are left out.
    """
    oldest = now - KEEP_SECONDS * _MICROS
    system, _ = filesystem(location)
    for file in _files(location):
        may_match = commits is None or file.commit_id == _PACKED or file.commit_id in commits
        if file.time < oldest or not may_match:
            continue
        if commits is not None and file.commit_id == _PACKED:
            commit_ids = pq.read_table(file.path, filesystem=system, columns=["commit_id"])
            if not set(commit_ids.column(0).unique().to_pylist()) & set(commits):
                continue
        rows, until = _read(system, file.path)
        is_wanted = rows.column("time").to_numpy() >= oldest
        if commits is not None:
            is_wanted &= np.isin(rows.column("commit_id").to_numpy(), list(commits))
        elif reached is not None:
            beyond = [commit for commit, stop in until.items() if _goes_beyond(stop, reached)]
            is_wanted &= ~np.isin(rows.column("commit_id").to_numpy(), beyond)
        rows = rows.filter(pa.array(is_wanted)).combine_chunks()
        if rows.num_rows:
            yield _entries(rows)


def tidy_tombstones(location: str, now: int) -> int:
    """Pack files of many commits into one, and remove old ones; returns the files removed."""
    system, _ = filesystem(location)
    files = _files(location)
    to_remove = [file for file in files if file.time < now - KEEP_SECONDS * _MICROS]
    single = [file for file in files if file not in to_remove and file.commit_id != _PACKED]
    if len(single) >= _PACK:
        contents = [_read(system, file.path) for file in single]
        rows = pa.concat_tables([table for table, _ in contents])
        until = {commit: stop for _, stops in contents for commit, stop in stops.items()}
        # Named by the youngest, written before the others go: twice is harmless, never is not.
        _write(location, _PACKED, max(file.time for file in single), rows, until)
        to_remove += single
    for file in to_remove:
        system.delete_file(file.path)
    return len(to_remove)


def _entries(rows: pa.Table) -> IndexEntries:
    hashes = np.column_stack([rows.column("hash_hi").to_numpy(), rows.column("hash_lo").to_numpy()])
    seconds = rows.column("time").to_numpy() // _MICROS
    return tombstone_entries(hashes, rows.column("sequence").combine_chunks(), seconds)


def _goes_beyond(stop: Mapping[str, Mapping[str, int]], reached: Positions) -> bool:
    return any(
        position > reached.get(stream, {}).get(int(partition), 0)
        for stream, partitions in stop.items()
        for partition, position in partitions.items()
    )


def _read(system: Any, path: str) -> tuple[pa.Table, dict[str, Any]]:
    """Read the rows of a file, and for each of its commits the positions behind its records."""
    with system.open_input_file(path) as stream:
        rows = pq.read_table(stream)
    until_json = (rows.schema.metadata or {}).get(_UNTIL, b"{}")
    return rows.replace_schema_metadata(None), json.loads(until_json)


def _write(
    location: str, commit_id: str, time: int, rows: pa.Table, until: Mapping[str, Any]
) -> str:
    rows = rows.replace_schema_metadata({_UNTIL: json.dumps(until)})
    system, folder = _open_folder(location)
    system.create_dir(folder, recursive=True)
    path = f"{folder}/{time:020d}-{commit_id}-{uuid.uuid4().hex}.parquet"
    # No reader may see half a file: object stores see to that, a local disk needs a second name.
    is_local = isinstance(system, fs.LocalFileSystem)
    draft = f"{folder}/.{uuid.uuid4().hex}.tmp" if is_local else path
    with system.open_output_stream(draft) as out:
        pq.write_table(rows, out, compression="zstd")
    if is_local:
        system.move(draft, path)
    return path


def _files(location: str) -> list[_TombstoneFile]:
    """List all tombstone files, oldest first; files with another form of name are not ours."""
    system, folder = _open_folder(location)
    files = []
    for info in system.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
        time, _, ids = info.base_name.removesuffix(".parquet").partition("-")
        commit_id, _, attempt = ids.rpartition("-")
        if info.is_file and time.isdigit() and commit_id and attempt:
            files.append(_TombstoneFile(info.path, int(time), commit_id))
    return sorted(files, key=lambda file: (file.time, file.path))


def _open_folder(location: str) -> tuple[Any, str]:
    system, path = filesystem(location)
    return system, f"{path.rstrip('/')}/{FOLDER}"
