"""Building: the index made anew from the table and from the tombstones beside it."""

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
    """What went into an index."""

    files: int
    rows: int
    duplicates: int  # rows whose key another live row has: the one written last is known
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
    """Read the keys of all live rows of a snapshot, by default the current one.

    `reached` is how far the table has come there: deletes beyond that are not yet.
    """
    columns = IndexedColumns.of(table.schema(), keys)
    snapshot = snapshot or table.current_snapshot()
    found = read_manifests(table.io, snapshot.manifests(table.io)) if snapshot else LiveFiles()
    if len(found.data) > LARGEST:
        raise InternalError("more data files than the index can number")
    store = create_index(folder, str(table.metadata.table_uuid), columns.keys, buckets, clock)
    spill = EntrySpill(folder, store.manifest.table_uuid, buckets)
    now = int(clock() * 1_000_000)
    buried = 0
    # First, so that every row is newer.
    for entries in read_tombstones(table.location(), now, reached=reached):
        buried += len(entries)
        spill.add(entries)
    deletes = about(found.deletes.values(), found.data)
    deleted = deleted_positions(opener(table.io), found.data.values(), deletes)
    numbers: dict[str, int] = {}
    rows = 0
    for number, file in enumerate(sorted(found.data.values(), key=lambda file: file.write_order)):
        numbers[file.path] = number
        gone = deleted.pop(file.path, None)
        for entries in live_rows(table.io, file.path, columns, gone, number):
            rows += len(entries)
            spill.add(entries)
    spill.flush()
    front, known = _merge_spilled(store, spill, numbers, now)
    store.publish_state(
        front,
        numbers,
        (),
        snapshot.snapshot_id if snapshot else None,
        (snapshot.sequence_number or 0) if snapshot else 0,
        None,
    )
    tombs = sum(ref.entries for refs in front.values() for ref in refs) - known
    return store, IndexBuildStats(len(numbers), rows, rows - known, tombs)


def _merge_spilled(
    store: KeyIndex, spill: EntrySpill, numbers: dict[str, int], now: int
) -> tuple[dict[int, list[RunRef]], int]:
    """The runs of each bucket as one, and how many rows they know."""
    live = np.arange(len(numbers), dtype=np.uint32)
    horizon = now // 1_000_000 - KEEP_SECONDS
    front: dict[int, list[RunRef]] = {}
    known = 0
    for bucket, refs in spill.runs.items():
        if len(refs) == 1:
            front[bucket] = refs
            known += int((~open_run(store.folder / refs[0].name).entries.tombstone).sum())
            continue
        uuid = store.manifest.table_uuid
        job = MergeJob(str(store.folder), uuid, bucket, tuple(refs), True, live, horizon)
        merged = merge(job)
        front[bucket] = [merged.run]
        known += merged.rows
        for ref in refs:
            (store.folder / ref.name).unlink()
    return front, known
