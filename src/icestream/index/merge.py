"""Merging runs: keeps them few, and writes each key a bounded number of times.

Runs fall into tiers by size, each four times the one before. Four runs of a tier become one.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from icestream.index.bucket import is_live
from icestream.index.disk import damaged
from icestream.index.entries import IndexEntries, concat_entries
from icestream.index.sorted_run import (
    RunIdentity,
    SortedRun,
    SortedRunWriter,
    cut_by_hash,
    open_run,
    run_folder,
)

FAN = 4
KEEP_SECONDS = 7 * 86_400  # an event that is older than its key's deletion and this counts as new
_SMALL_TIERS = 6  # 4**6 = 4096 entries: below that a file costs more than what is in it
_AT_ONCE = 1 << 19  # entries in memory


@dataclass(frozen=True)
class RunRef:
    """A run as an index manifest names it."""

    name: str  # within the index's folder
    entries: int
    numbers: tuple[int, ...] | None = None  # of its data files; None: its entries hold the numbers


@dataclass(frozen=True)
class MergeJob:
    """One merge of runs of a bucket; may be done in any process of this machine."""

    folder: str
    table_uuid: str
    bucket: int
    runs: tuple[RunRef, ...]  # newest first, neighbours
    includes_oldest: bool  # the bucket has no run below these
    live_files: NDArray[np.uint32]
    drop_before: int  # tombstones from before this second may be dropped


@dataclass(frozen=True)
class MergedRun:
    """The run that a merge job wrote; `KeyIndex.install_merged` puts it into the index."""

    job: MergeJob
    run: RunRef
    rows: int  # entries that are rows, not tombstones


def merge_count(sizes: Sequence[int]) -> int:
    """Say how many of the newest runs should become one; 0: none. Sizes are newest first.

    Four runs of a tier are merged together with all that is newer. A run counts for no smaller
    tier than the ones above it. And all are merged once the rest is as large as the oldest.
    """
    if len(sizes) > 1 and _tier(sizes[-1]) and sum(sizes[:-1]) >= sizes[-1]:
        return len(sizes)
    highest, tiers = 0, []
    for size in sizes:
        highest = max(highest, _tier(size))
        tiers.append(highest)
    full = [tier for tier in set(tiers) if tiers.count(tier) >= FAN]
    return sum(tier <= max(full) for tier in tiers) if full else 0


def _tier(entries: int) -> int:
    fourth_power = (max(entries, 1).bit_length() - 1) // 2
    return max(0, fourth_power - _SMALL_TIERS + 1)


def merge(job: MergeJob) -> MergedRun:
    """Merge runs into one that has the newest entry of each key; in bounded memory."""
    folder = Path(job.folder)
    runs = [open_run(folder / ref.name, ref.numbers) for ref in job.runs]
    for run in runs:
        if (run.origin.table_uuid, run.origin.bucket) != (job.table_uuid, job.bucket):
            raise damaged("a run of another bucket", run.path)
        run.verify()
    name = f"{run_folder(job.bucket)}/merged-{uuid.uuid4().hex}.run"
    origin = RunIdentity(job.table_uuid, job.bucket, "")
    rows = 0
    most = sum(len(run) for run in runs)
    with SortedRunWriter(folder / name, origin, most, _shared_constants(runs)) as writer:
        for parts in cut_by_hash(runs, _AT_ONCE):
            entries = concat_entries(parts).newest()
            # Only together with the oldest run: elsewhere an entry of a removed file, or an old
            # tombstone, still hides an older entry of its key below.
            if job.includes_oldest:
                entries = entries.take(_worth_keeping(entries, job))
            rows += int((~entries.tombstone).sum())
            writer.add(entries)
        count = writer.finish()
    return MergedRun(job, RunRef(name, count), rows)


def _worth_keeping(entries: IndexEntries, job: MergeJob) -> NDArray[np.bool_]:
    """Tell which entries are rows of live files or young tombstones."""
    is_young = entries.position >= job.drop_before  # a tombstone's position is its second
    return np.where(entries.tombstone, is_young, is_live(job.live_files, entries.file))


def _shared_constants(runs: Sequence[SortedRun]) -> dict[str, int]:
    """Return the columns that have the same one value in all runs; files are numbered anew."""
    first, *others = [run.constants for run in runs if len(run)] or [runs[0].constants]
    return {
        name: value
        for name, value in first.items()
        if name != "file" and all(other.get(name) == value for other in others)
    }
