"""Builds a key index anew: from the live rows of the table and from the tombstones beside it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icestream.errors import InternalError
from icestream.index.entries import LARGEST
from icestream.index.key_index import KeyIndex, create_index
from icestream.index.live_rows import IndexedColumns, live_rows
from icestream.index.merge import KEEP_SECONDS, MergeJob, RunRef, merge
from icestream.index.sorted_run import open_run
from icestream.index.spill import EntrySpill
from icestream.index.tombstones import read_tombstones
from icestream.positions import Positions
from icestream.tables.live_files import LiveFiles, about, opener, read_manifests
from icestream.tables.position_deletes import deleted_positions

BUCKETS = 16


@dataclass(frozen=True)
class IndexBuildStats:
    """Counts of what went into an index that was built."""

    files: int
    rows: int
    duplicates: int  # rows whose key another live row has: the index holds the one written last
    tombstones: int


def build(
    table: Table,
    folder: Path,
    keys: Sequence[str],
    snapshot: Snapshot | None = None,
    *,
    buckets: int = BUCKETS,
    clock: Callable[[], float] = time.time,
    reached: Positions | None = None,
) -> tuple[KeyIndex, IndexBuildStats]:
    """Build the index from all live rows of a snapshot, by default the current one.

    `reached` are the table's committed positions there: tombstones of a batch that goes beyond
    them are passed over, as that batch was never committed.
    """
    columns = IndexedColumns.of(table.schema(), keys)
    snapshot = snapshot or table.current_snapshot()
    files = read_manifests(table.io, snapshot.manifests(table.io)) if snapshot else LiveFiles()
    if len(files.data) > LARGEST:
        raise InternalError("more data files than the index can number")
    index = create_index(folder, str(table.metadata.table_uuid), columns.keys, buckets, clock)
    spill = EntrySpill(folder, index.manifest.table_uuid, buckets)
    now = int(clock() * 1_000_000)
    # Tombstones first: some belong to no commit, so every live row counts as newer.
    for entries in read_tombstones(table.location(), now, reached=reached):
        spill.add(entries)
    deletes = about(files.deletes.values(), files.data)
    deleted = deleted_positions(opener(table.io), files.data.values(), deletes)
    numbers: dict[str, int] = {}
    rows = 0
    for number, file in enumerate(sorted(files.data.values(), key=lambda file: file.write_order)):
        numbers[file.path] = number
        positions = deleted.pop(file.path, None)
        for entries in live_rows(table.io, file.path, columns, positions, number):
            rows += len(entries)
            spill.add(entries)
    spill.flush()
    runs, row_entries = _merge_spilled(index, spill, numbers, now)
    index.publish_state(
        runs,
        numbers,
        (),
        snapshot.snapshot_id if snapshot else None,
        (snapshot.sequence_number or 0) if snapshot else 0,
        None,
    )
    tombstones = sum(ref.entries for refs in runs.values() for ref in refs) - row_entries
    return index, IndexBuildStats(len(numbers), rows, rows - row_entries, tombstones)


def _merge_spilled(
    index: KeyIndex, spill: EntrySpill, numbers: dict[str, int], now: int
) -> tuple[dict[int, list[RunRef]], int]:
    """Merge the spilled runs of each bucket into one; returns these, and their number of rows."""
    live = np.arange(len(numbers), dtype=np.uint32)
    horizon = now // 1_000_000 - KEEP_SECONDS
    runs: dict[int, list[RunRef]] = {}
    rows = 0
    for bucket, refs in spill.runs.items():
        if len(refs) == 1:
            runs[bucket] = refs
            rows += int((~open_run(index.folder / refs[0].name).entries.tombstone).sum())
            continue
        uuid = index.manifest.table_uuid
        job = MergeJob(str(index.folder), uuid, bucket, tuple(refs), True, live, horizon)
        merged = merge(job)
        runs[bucket] = [merged.run]
        rows += merged.rows
        for ref in refs:
            (index.folder / ref.name).unlink()
    return runs, rows
