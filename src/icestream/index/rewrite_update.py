"""What a rewrite of data files changes in the key index, staged before its commit.

    stage_runs (in a task) ▸ drop_rows (deleted meanwhile) ▸ the commit ▸ KeyIndex.apply_rewrite

Runs are searched newest first. These come in front of all others, so they may name only rows that
are live in the rewrite's snapshot: a row that was replaced meanwhile has a newer entry below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icestream.index.entries import IndexEntries
from icestream.index.sorted_run import RunIdentity, open_run, read_origin, stage_run


@dataclass(frozen=True)
class IndexStaging:
    """What a rewrite task must know of a table's key index to stage entries for it."""

    folder: str
    table_uuid: str
    buckets: int
    keys: tuple[int, ...]  # field ids


@dataclass(frozen=True)
class RewriteIndexUpdate:
    """What a rewrite changes in the index; applied once its snapshot is in the table."""

    rewrite_id: str  # in the snapshot's summary
    origin: str  # of its runs
    runs: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # data files
    added: tuple[str, ...] = ()
    contents: tuple[str, ...] = ()  # the added data files as Iceberg's JSON


def stage_runs(
    staging: IndexStaging, origin: str, entries: IndexEntries, paths: Sequence[str]
) -> list[str]:
    """Write entries of new rows, given in the order of writing; returns the names of the runs.

    `file` of the entries counts `paths`, the new data files.
    """
    # Reversed: `newest` keeps the first entry of a key, and the row written last is the newest.
    newest = entries.take(slice(None, None, -1)).newest()
    return [
        stage_run(
            Path(staging.folder),
            RunIdentity(staging.table_uuid, bucket, origin, tuple(paths)),
            part,
        )
        for bucket, part in newest.by_bucket(staging.buckets)
    ]


def drop_rows(
    staging: IndexStaging,
    runs: Sequence[str],
    sizes: Mapping[str, int],
    deleted: Mapping[str, NDArray[np.int64]],
) -> list[str]:
    """Write runs again without the rows at deleted positions; returns the names to use instead.

    `sizes` are the numbers of rows of the new data files. A run that loses no row keeps its name.
    """
    # The rows of all files are numbered through: one mask for all of them.
    firsts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    is_deleted = np.zeros(sum(sizes.values()), dtype=bool)
    for path, positions in deleted.items():
        is_deleted[firsts[path] + positions] = True
    folder, names = Path(staging.folder), []
    for name in runs:
        origin, _ = read_origin(folder / name)
        entries = open_run(folder / name, range(len(origin.paths))).entries
        starts = np.array([firsts[path] for path in origin.paths])
        is_kept = ~is_deleted[starts[entries.file] + entries.position]
        if is_kept.all():
            names.append(name)
        elif is_kept.any():
            names.append(stage_run(folder, origin, entries.take(is_kept)))
    return names


def remove_runs(staging: IndexStaging, runs: Sequence[str]) -> None:
    """Remove runs that no commit will name."""
    for name in runs:
        Path(staging.folder, name).unlink(missing_ok=True)
