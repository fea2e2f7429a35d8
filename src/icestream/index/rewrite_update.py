"""Rows that a rewrite of data files has put elsewhere, as runs that wait for its commit.

    stage_runs (in a task) ▸ drop_rows (deleted meanwhile) ▸ the commit ▸ KeyIndex.apply_rewrite

Runs are searched newest first. These come in front of all others, so they may name only rows that
are live in the rewrite's snapshot: a row that was replaced meanwhile has a newer entry below.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icestream.index.entries import IndexEntries
from icestream.index.keys import bucket_of
from icestream.index.merge import run_folder
from icestream.index.sorted_run import RunIdentity, open_run, read_origin, write_run


@dataclass(frozen=True)
class IndexStaging:
    """Where entries of a table's index are staged: what a task must know of it."""

    folder: str
    table_uuid: str
    buckets: int
    keys: tuple[int, ...]  # field ids


@dataclass(frozen=True)
class RewriteIndexUpdate:
    """What a rewrite changes in the index, once its snapshot is the table's."""

    rewrite_id: str  # in the snapshot's summary
    origin: str  # of its runs
    runs: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # data files
    added: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()  # of the added ones, as Iceberg's JSON


def stage_runs(
    shelf: IndexStaging, origin: str, entries: IndexEntries, paths: Sequence[str]
) -> list[str]:
    """Write the entries of new rows, given in the order of writing; `file` counts `paths`."""
    ready = entries.take(slice(None, None, -1)).newest()
    places = bucket_of(ready.hash_hi.reshape(-1, 1), shelf.buckets)
    bounds = np.searchsorted(places, np.arange(shelf.buckets + 1))
    found = []
    for bucket in range(shelf.buckets):
        part = ready.take(slice(bounds[bucket], bounds[bucket + 1]))
        if len(part):
            told = RunIdentity(shelf.table_uuid, bucket, origin, tuple(paths))
            found.append(_write_run(Path(shelf.folder), told, part))
    return found


def drop_rows(
    shelf: IndexStaging,
    runs: Sequence[str],
    sizes: Mapping[str, int],
    dead: Mapping[str, NDArray[np.int64]],
) -> list[str]:
    """The same runs without the rows that died; `sizes` are the rows of each data file."""
    firsts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    gone = np.zeros(sum(sizes.values()), dtype=bool)
    for path, positions in dead.items():
        gone[firsts[path] + positions] = True
    folder, found = Path(shelf.folder), []
    for name in runs:
        origin, _ = read_origin(folder / name)
        entries = open_run(folder / name, range(len(origin.paths))).entries
        starts = np.array([firsts[path] for path in origin.paths])
        left = ~gone[starts[entries.file] + entries.position]
        if left.all():
            found.append(name)
        elif left.any():
            found.append(_write_run(folder, origin, entries.take(left)))
    return found


def remove_runs(shelf: IndexStaging, runs: Sequence[str]) -> None:
    """Forget runs that no commit will name."""
    for name in runs:
        Path(shelf.folder, name).unlink(missing_ok=True)


def _write_run(folder: Path, origin: RunIdentity, entries: IndexEntries) -> str:
    name = f"{run_folder(origin.bucket)}/{origin.commit_id}-{uuid.uuid4().hex}.run"
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    write_run(folder / name, origin, entries)
    return name
