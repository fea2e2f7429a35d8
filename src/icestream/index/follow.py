"""Brings a key index to a snapshot of its table: opens it, follows the table, or builds it anew."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from icestream.errors import IndexDamaged
from icestream.index.bucket import lookup
from icestream.index.build import BUCKETS, IndexBuildStats, build
from icestream.index.key_index import IndexUnusable, KeyIndex, open_index
from icestream.index.keys import bucket_of
from icestream.index.live_rows import IndexedColumns, live_rows
from icestream.index.merge import RunRef
from icestream.index.sorted_run import SortedRun, cut_by_hash, open_run
from icestream.index.spill import EntrySpill
from icestream.index.tombstones import read_tombstones
from icestream.positions import Positions
from icestream.tables.live_files import (
    FileEntry,
    LiveFiles,
    about,
    is_delete,
    opener,
    read_manifests,
)
from icestream.tables.position_deletes import RowPositions, deleted_positions, read_positions

_COMMIT_ID = "icestream.commit-id"
_AT_ONCE = 1 << 19  # entries in memory


@dataclass(frozen=True)
class CatchUpResult:
    """How an index came to the snapshot of its table; logged as `index_followed`."""

    rebuilt: str | None = None  # why it was built anew
    confirmed: str | None = None  # a commit of ours that had landed before the process died
    gone: int = 0  # data files that were removed
    new: int = 0
    changed: int = 0  # data files of which rows were deleted
    rows: int = 0  # that were read
    tombstones: int = 0
    duplicates: int = 0  # new rows whose key another live row has

    def __str__(self) -> str:
        if self.rebuilt is not None:
            return (
                f"rebuilt because {self.rebuilt}: {self.new} files, {self.rows} rows{self._twice}"
            )
        parts = [f"confirmed commit {self.confirmed}"] if self.confirmed else []
        if self.gone or self.new or self.changed:
            parts.append(
                f"followed {self.new} new, {self.changed} changed and {self.gone} removed files, "
                f"{self.rows} rows{self._twice}"
            )
        return "; ".join(parts) or "nothing to follow"

    @property
    def _twice(self) -> str:
        return f", {self.duplicates} of them with a key that is there twice" * bool(self.duplicates)


@dataclass(frozen=True)
class _HistoryPath:
    """The way from the index's snapshot to the target, as far as the metadata still has it."""

    old: Snapshot | None  # the index's snapshot; None: expired
    commits: frozenset[str] | None  # our commits since then; None: some snapshots are expired
    committed: Positions | None = None  # the table's committed positions at the target


@dataclass(frozen=True)
class _FileDifference:
    """What changed in a table's data files, by path, between two snapshots."""

    removed: set[str]
    new: set[str]
    changed: set[str]  # the index knows them, and rows of them were deleted
    to_read: dict[str, FileEntry]  # new and changed ones
    deleted: dict[str, RowPositions]  # in those that are to be read


def open_or_build(
    table: Table,
    folder: Path,
    keys: Sequence[str],
    snapshot: Snapshot | None = None,
    *,
    buckets: int = BUCKETS,
    clock: Callable[[], float] = time.time,
    reached: Positions | None = None,
) -> tuple[KeyIndex, CatchUpResult]:
    """Open the index of a table and bring it to a snapshot, by default the current one.

    Builds it anew if there is none that can follow; `reached` is what `build` says.
    """
    columns = IndexedColumns.of(table.schema(), keys)
    key_ids = list(columns.keys.values())
    index = open_index(folder, str(table.metadata.table_uuid), key_ids, clock=clock)
    if isinstance(index, IndexUnusable):
        reason = index.reason
    elif index.manifest.buckets != buckets:
        reason = f"it has {index.manifest.buckets} buckets, not {buckets}"
    else:
        result = follow(index, table, snapshot, clock=clock, reached=reached)
        if isinstance(result, CatchUpResult):
            return index, result
        reason = result.reason
    index, stats = build(
        table, folder, keys, snapshot, buckets=buckets, clock=clock, reached=reached
    )
    return index, _build_result(reason, stats)


def follow(
    index: KeyIndex,
    table: Table,
    snapshot: Snapshot | None = None,
    *,
    clock: Callable[[], float] = time.time,
    reached: Positions | None = None,
) -> CatchUpResult | IndexUnusable:
    """Bring an open index to a snapshot, by what changed in the table since its own snapshot.

    IndexUnusable: it cannot be brought there, and the caller builds it anew.
    """
    target = snapshot or table.current_snapshot()
    try:
        confirmed = _confirm_pending(index, table, target)
        path = _path_to(index, table, target)
        if isinstance(path, IndexUnusable):
            return path
        if path is None or target is None:
            return CatchUpResult(confirmed=confirmed)
        path = replace(path, committed=reached)
        return _follow(index, table, target, path, confirmed, int(clock() * 1_000_000))
    except IndexDamaged as damage:
        return IndexUnusable(f"{damage.what} ({damage.where})")


def _confirm_pending(index: KeyIndex, table: Table, target: Snapshot | None) -> str | None:
    """Confirm the prepared commit if the table has it right after the index's snapshot.

    The table has it if the process died between the commit and `confirm`; else it is abandoned.
    """
    pending = index.pending()
    if pending is None:
        return None
    for ancestor in ancestors_of(target, table.metadata):
        summary = ancestor.summary.additional_properties if ancestor.summary else {}
        if summary.get(_COMMIT_ID) == pending.commit_id:
            if ancestor.parent_snapshot_id != index.manifest.snapshot_id:
                break
            try:
                sequence = ancestor.sequence_number or 0
                index.confirm(pending.commit_id, ancestor.snapshot_id, sequence)
            except IndexDamaged:
                break  # its runs are gone: the table still tells what it did
            return pending.commit_id
    index.abandon(pending.commit_id)
    return None


def _path_to(
    index: KeyIndex, table: Table, target: Snapshot | None
) -> _HistoryPath | IndexUnusable | None:
    """Find the way from the index's snapshot to the target; None: the index is there already."""
    start_id = index.manifest.snapshot_id
    if (target.snapshot_id if target else None) == start_id:
        return None
    if target is None:
        return IndexUnusable("the table has lost its history")
    commits: set[str] = set()
    oldest = target
    for ancestor in ancestors_of(target, table.metadata):
        if ancestor.snapshot_id == start_id:
            return _HistoryPath(ancestor, frozenset(commits))
        oldest = ancestor
        summary = ancestor.summary.additional_properties if ancestor.summary else {}
        if commit_id := summary.get(_COMMIT_ID):
            commits.add(commit_id)
    # Expired, but not the one after it; or the index was built of a table without snapshots.
    if oldest.parent_snapshot_id == start_id:
        return _HistoryPath(None, frozenset(commits))
    # The retained history reaches back behind the index's snapshot and does not contain it: that
    # one was not expired but rolled back.
    reaches_back = (oldest.sequence_number or 0) <= index.manifest.sequence_number
    if oldest.parent_snapshot_id is None or reaches_back:
        return IndexUnusable("the table was moved back, or its history was replaced")
    return _HistoryPath(None, None)


def _follow(
    index: KeyIndex,
    table: Table,
    target: Snapshot,
    path: _HistoryPath,
    confirmed: str | None,
    now: int,
) -> CatchUpResult | IndexUnusable:
    """Remove files from the index, and read the live rows of those that are new or changed."""
    difference = _difference(index, table, target, path)
    if isinstance(difference, IndexUnusable):
        return difference
    columns = IndexedColumns.of(table.schema(), _key_names(index, table))
    files = sorted(difference.to_read.values(), key=lambda file: file.write_order)
    # A changed file gets a new number: that ends all its old entries, and its live rows enter anew.
    added = {file.path: index.manifest.next_file + n for n, file in enumerate(files)}
    numbers = index.files.by_path
    removed = sorted(numbers[path] for path in difference.removed | difference.changed)
    spill = EntrySpill(index.folder, index.manifest.table_uuid, index.manifest.buckets)
    rows = 0
    for file in files:
        deleted = difference.deleted.get(file.path)
        for entries in live_rows(table.io, file.path, columns, deleted, added[file.path]):
            rows += len(entries)
            spill.add(entries)
    spill.flush()
    live = index.files.with_changes(added, removed).numbers
    duplicates = rows - sum(ref.entries for refs in spill.runs.values() for ref in refs)
    duplicates += sum(
        _count_duplicates(index, bucket, refs, live) for bucket, refs in spill.runs.items()
    )
    tombstone_runs, tombstones = _replay_tombstones(index, table, path, spill.runs, live, now)
    front = {
        bucket: [*spill.runs.get(bucket, ()), *tombstone_runs.get(bucket, ())]
        for bucket in spill.runs.keys() | tombstone_runs.keys()
    }
    sequence = target.sequence_number or 0
    index.publish_state(
        front, added, removed, target.snapshot_id, sequence, index.manifest.commit_id
    )
    counts = len(difference.removed), len(difference.new), len(difference.changed)
    return CatchUpResult(None, confirmed, *counts, rows, tombstones, duplicates)


def _difference(
    index: KeyIndex, table: Table, target: Snapshot, path: _HistoryPath
) -> _FileDifference | IndexUnusable:
    """Compare data files and their deletes; manifests that both snapshots have are not read."""
    manifests = target.manifests(table.io)
    old_manifests = path.old.manifests(table.io) if path.old else []
    shared = {m.manifest_path for m in manifests} & {m.manifest_path for m in old_manifests}
    fresh = read_manifests(table.io, [m for m in manifests if m.manifest_path not in shared])
    known = index.files.by_path
    old_files = set(known)
    if path.old:
        dropped = [m for m in old_manifests if m.manifest_path not in shared and not is_delete(m)]
        old_files = set(read_manifests(table.io, dropped).data)
        if not old_files <= known.keys():
            return IndexUnusable("its list of data files is not that of its snapshot")
    removed = old_files - fresh.data.keys()
    new = fresh.data.keys() - known.keys()
    changed = _files_with_new_deletes(index, table, fresh) - removed
    to_read = _file_entries(table, target, fresh, changed | new)
    deletes = fresh.deletes
    if to_read:
        older = [m for m in manifests if is_delete(m) and m.manifest_path in shared]
        deletes = deletes | read_manifests(table.io, older).deletes
    deleted = deleted_positions(
        opener(table.io), to_read.values(), about(deletes.values(), to_read) if to_read else ()
    )
    return _FileDifference(removed, new, changed, to_read, deleted)


def _files_with_new_deletes(index: KeyIndex, table: Table, fresh: LiveFiles) -> set[str]:
    """Find the data files that the index knows and of which rows were deleted since.

    What was deleted stays deleted while history only goes on, so old deletes need no look, even
    if they were written anew in other files: these keep the sequence numbers that they had.
    """
    paths: set[str] = set()
    for file in fresh.deletes.values():
        if file.sequence > index.manifest.sequence_number:
            paths |= {path for path, _ in read_positions(opener(table.io), file.path)}
    return paths & index.files.by_path.keys()


def _file_entries(
    table: Table, target: Snapshot, fresh: LiveFiles, paths: set[str]
) -> dict[str, FileEntry]:
    """Return what the manifests say about some data files; reads all only if `fresh` lacks one."""
    entries = {path: fresh.data[path] for path in paths if path in fresh.data}
    if len(entries) < len(paths):
        manifests = [m for m in target.manifests(table.io) if not is_delete(m)]
        live = read_manifests(table.io, manifests).data
        entries = {path: live[path] for path in paths if path in live}
    return entries


def _replay_tombstones(
    index: KeyIndex,
    table: Table,
    path: _HistoryPath,
    new_runs: dict[int, list[RunRef]],
    live: NDArray[np.uint32],
    now: int,
) -> tuple[dict[int, list[RunRef]], int]:
    """Write runs of the tombstones of keys that our commits on the path deleted.

    They are read from the files beside the table, and left out for keys that have a live row at
    the target or a later tombstone. Returns the runs by bucket, and the number of tombstones.
    """
    spill = EntrySpill(index.folder, index.manifest.table_uuid, index.manifest.buckets)
    count = 0
    if path.commits is None or path.commits:
        for entries in read_tombstones(table.location(), now, path.commits, path.committed):
            hashes = np.column_stack([entries.hash_hi, entries.hash_lo])
            buckets = bucket_of(hashes, index.manifest.buckets)
            for bucket in np.unique(buckets).tolist():
                in_bucket = buckets == bucket
                tombstones = entries.take(in_bucket)
                runs = _open_runs(index, bucket, new_runs.get(bucket, ()))
                lookups = lookup(runs, live, hashes[in_bucket])
                is_older = lookups.tombstone & (tombstones.sequences.compare(lookups.sequences) < 0)
                kept = tombstones.take(~lookups.hit & ~is_older)
                count += len(kept)
                spill.add(kept)
    spill.flush()
    return spill.runs, count


def _count_duplicates(
    index: KeyIndex, bucket: int, refs: Sequence[RunRef], live: NDArray[np.uint32]
) -> int:
    """Count keys of new runs that have another live row: another writer added them again."""
    runs = _open_runs(index, bucket, refs)
    count = 0
    for older, run in enumerate(runs[: len(refs)], start=1):
        for part in cut_by_hash([run], _AT_ONCE):
            hashes = np.column_stack([part[0].hash_hi, part[0].hash_lo])
            count += int(lookup(runs[older:], live, hashes).hit.sum())
    return count


def _open_runs(index: KeyIndex, bucket: int, new: Sequence[RunRef]) -> list[SortedRun]:
    """Open new runs of a bucket, and behind them those of the index."""
    refs = [*new, *index.manifest.runs[bucket]]
    return [open_run(index.folder / ref.name, ref.numbers) for ref in refs]


def _key_names(index: KeyIndex, table: Table) -> list[str]:
    """Return the key columns by the names that they have now."""
    schema = table.schema()
    return [str(schema.find_column_name(field_id)) for field_id in index.manifest.keys.values()]


def _build_result(reason: str, stats: IndexBuildStats) -> CatchUpResult:
    return CatchUpResult(
        rebuilt=reason,
        new=stats.files,
        rows=stats.rows,
        tombstones=stats.tombstones,
        duplicates=stats.duplicates,
    )
