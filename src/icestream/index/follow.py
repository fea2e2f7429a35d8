"""Following: bring an index to where its table is, reading as little as the difference takes."""

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
from icestream.index.entries import IndexEntries
from icestream.index.key_index import IndexUnusable, KeyIndex, open_index
from icestream.index.keys import bucket_of
from icestream.index.live_rows import IndexedColumns, live_rows
from icestream.index.merge import RunRef
from icestream.index.sorted_run import cut_by_hash, open_run
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
    """How an index came to where its table is, for the log."""

    rebuilt: str | None = None  # why it was built anew
    confirmed: str | None = None  # a commit of ours that had landed before the process died
    gone: int = 0  # data files that are no longer there
    new: int = 0
    changed: int = 0  # data files of which rows were deleted
    rows: int = 0  # that were read
    tombstones: int = 0
    duplicates: int = 0  # rows that came with a key of which another row is there

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
    """From the snapshot at which the index stands to the one where it should be."""

    old: Snapshot | None  # still in the table's metadata
    commits: frozenset[str] | None  # ours on the way; None: some snapshots are expired
    committed: Positions | None = None  # how far the table has come


@dataclass(frozen=True)
class _FileDifference:
    """Data files by path, between two snapshots."""

    gone: set[str]
    new: set[str]
    changed: set[str]  # known to us, and rows of them were deleted
    read: dict[str, FileEntry]  # new and touched ones
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
    """Open the index of a table, as of a snapshot (by default the current one): follow or build.

    `reached` is how far the table has come there: deletes beyond that are not yet.
    """
    columns = IndexedColumns.of(table.schema(), keys)
    ids = list(columns.keys.values())
    store = open_index(folder, str(table.metadata.table_uuid), ids, clock=clock)
    if isinstance(store, IndexUnusable):
        reason = store.reason
    elif store.manifest.buckets != buckets:
        reason = f"it has {store.manifest.buckets} buckets, not {buckets}"
    else:
        told = follow(store, table, snapshot, clock=clock, reached=reached)
        if isinstance(told, CatchUpResult):
            return store, told
        reason = told.reason
    made, built = build(
        table, folder, keys, snapshot, buckets=buckets, clock=clock, reached=reached
    )
    return made, _build_result(reason, built)


def follow(
    store: KeyIndex,
    table: Table,
    snapshot: Snapshot | None = None,
    *,
    clock: Callable[[], float] = time.time,
    reached: Positions | None = None,
) -> CatchUpResult | IndexUnusable:
    """Bring an open index to a snapshot; Unusable: it cannot get there, build it anew."""
    target = snapshot or table.current_snapshot()
    try:
        confirmed = _confirm_pending(store, table, target)
        way = _path_to(store, table, target)
        if isinstance(way, IndexUnusable):
            return way
        if way is None or target is None:
            return CatchUpResult(confirmed=confirmed)
        way = replace(way, committed=reached)
        return _follow(store, table, target, way, confirmed, int(clock() * 1_000_000))
    except IndexDamaged as damage:
        return IndexUnusable(f"{damage.what} ({damage.where})")


def _confirm_pending(store: KeyIndex, table: Table, target: Snapshot | None) -> str | None:
    """Confirm a commit of ours that landed while nobody could; or forget it, if it did not."""
    pending = store.pending()
    if pending is None:
        return None
    for each in ancestors_of(target, table.metadata):
        summary = each.summary.additional_properties if each.summary else {}
        if summary.get(_COMMIT_ID) == pending.commit_id:
            if each.parent_snapshot_id != store.manifest.snapshot_id:
                break
            try:
                store.confirm(pending.commit_id, each.snapshot_id, each.sequence_number or 0)
            except IndexDamaged:
                break  # its runs are gone: the table still tells what it did
            return pending.commit_id
    store.abandon(pending.commit_id)
    return None


def _path_to(
    store: KeyIndex, table: Table, target: Snapshot | None
) -> _HistoryPath | IndexUnusable | None:
    """How the table got there; None if the index stands there already."""
    at = store.manifest.snapshot_id
    if (target.snapshot_id if target else None) == at:
        return None
    if target is None:
        return IndexUnusable("the table has lost its history")
    commits: set[str] = set()
    last = target
    for each in ancestors_of(target, table.metadata):
        if each.snapshot_id == at:
            return _HistoryPath(each, frozenset(commits))
        last = each
        if each.summary and (own := each.summary.additional_properties.get(_COMMIT_ID)):
            commits.add(own)
    if last.parent_snapshot_id == at:  # expired, and the one after it is there; or no snapshot yet
        return _HistoryPath(None, frozenset(commits))
    passed = (last.sequence_number or 0) <= store.manifest.sequence_number
    if last.parent_snapshot_id is None or passed:
        return IndexUnusable("the table was moved back, or its history was replaced")
    return _HistoryPath(None, None)


def _follow(
    store: KeyIndex,
    table: Table,
    target: Snapshot,
    way: _HistoryPath,
    confirmed: str | None,
    now: int,
) -> CatchUpResult | IndexUnusable:
    """Let go of files that are gone, and read what is new: rows that came, files that lost some."""
    found = _difference(store, table, target, way)
    if isinstance(found, IndexUnusable):
        return found
    columns = IndexedColumns.of(table.schema(), _names(store, table))
    ordered = sorted(found.read.values(), key=lambda file: file.write_order)
    first = store.manifest.next_file
    added = {file.path: first + number for number, file in enumerate(ordered)}
    removed = sorted(store.files.by_path[path] for path in found.gone | found.changed)
    spill = EntrySpill(store.folder, store.manifest.table_uuid, store.manifest.buckets)
    rows = 0
    for file in ordered:
        gone = found.deleted.get(file.path)
        for entries in live_rows(table.io, file.path, columns, gone, added[file.path]):
            rows += len(entries)
            spill.add(entries)
    spill.flush()
    live = store.files.with_changes(added, removed).numbers
    twice = rows - sum(ref.entries for refs in spill.runs.values() for ref in refs)
    twice += sum(
        _count_duplicates(store, bucket, refs, live) for bucket, refs in spill.runs.items()
    )
    buried, tombs = _replay_tombstones(store, table, way, spill.runs, live, now)
    front = {
        bucket: [*spill.runs.get(bucket, ()), *buried.get(bucket, ())]
        for bucket in spill.runs.keys() | buried.keys()
    }
    sequence = target.sequence_number or 0
    store.publish_state(
        front, added, removed, target.snapshot_id, sequence, store.manifest.commit_id
    )
    counts = len(found.gone), len(found.new), len(found.changed)
    return CatchUpResult(None, confirmed, *counts, rows, tombs, twice)


def _difference(
    store: KeyIndex, table: Table, target: Snapshot, way: _HistoryPath
) -> _FileDifference | IndexUnusable:
    """Compare data files and their deletes; manifests that both snapshots have need no look."""
    now = target.manifests(table.io)
    before = way.old.manifests(table.io) if way.old else []
    shared = {each.manifest_path for each in now} & {each.manifest_path for each in before}
    fresh = read_manifests(table.io, [each for each in now if each.manifest_path not in shared])
    mine = store.files.by_path
    were = set(mine)
    if way.old:
        left = [each for each in before if each.manifest_path not in shared]
        were = set(read_manifests(table.io, [each for each in left if not is_delete(each)]).data)
        if not were <= mine.keys():
            return IndexUnusable("its list of data files is not that of its snapshot")
    gone = were - fresh.data.keys()
    new = fresh.data.keys() - mine.keys()
    touched = _touched(store, table, fresh) - gone
    read = _manifest_entries(table, target, fresh, touched | new)
    deletes = fresh.deletes
    if read:
        older = [each for each in now if is_delete(each) and each.manifest_path in shared]
        deletes = deletes | read_manifests(table.io, older).deletes
    deleted = deleted_positions(
        opener(table.io), read.values(), about(deletes.values(), read) if read else ()
    )
    return _FileDifference(gone, new, touched, read, deleted)


def _touched(store: KeyIndex, table: Table, fresh: LiveFiles) -> set[str]:
    """Data files that we know and of which rows were deleted since.

    What was deleted stays deleted while history only goes on, so old deletes need no look, even
    if they were written anew in other files: these keep the sequence numbers that they had.
    """
    found: set[str] = set()
    for file in fresh.deletes.values():
        if file.sequence > store.manifest.sequence_number:
            found |= {path for path, _ in read_positions(opener(table.io), file.path)}
    return found & store.files.by_path.keys()


def _manifest_entries(
    table: Table, target: Snapshot, fresh: LiveFiles, paths: set[str]
) -> dict[str, FileEntry]:
    """What the manifests say about some data files."""
    found = {path: fresh.data[path] for path in paths if path in fresh.data}
    if len(found) < len(paths):
        data = [each for each in target.manifests(table.io) if not is_delete(each)]
        every = read_manifests(table.io, data).data
        found = {path: every[path] for path in paths if path in every}
    return found


def _replay_tombstones(
    store: KeyIndex,
    table: Table,
    way: _HistoryPath,
    front: dict[int, list[RunRef]],
    live: NDArray[np.uint32],
    now: int,
) -> tuple[dict[int, list[RunRef]], int]:
    """Tombstones of our commits on the way, of keys that have no row now."""
    spill = EntrySpill(store.folder, store.manifest.table_uuid, store.manifest.buckets)
    count = 0
    if way.commits is None or way.commits:
        for entries in read_tombstones(table.location(), now, way.commits, way.committed):
            hashes = np.column_stack([entries.hash_hi, entries.hash_lo])
            places = bucket_of(hashes, store.manifest.buckets)
            for bucket in np.unique(places).tolist():
                refs = [*front.get(bucket, ()), *store.manifest.runs[bucket]]
                runs = [open_run(store.folder / ref.name, ref.numbers) for ref in refs]
                some: IndexEntries = entries.take(places == bucket)
                found = lookup(runs, live, hashes[places == bucket])
                older = found.tombstone & (some.sequences.compare(found.sequences) < 0)
                left = some.take(~found.hit & ~older)
                count += len(left)
                spill.add(left)
    spill.flush()
    return spill.runs, count


def _count_duplicates(
    store: KeyIndex, bucket: int, refs: Sequence[RunRef], live: NDArray[np.uint32]
) -> int:
    """How many keys of new runs have another live row: somebody else has written them twice."""
    every = [
        open_run(store.folder / ref.name, ref.numbers)
        for ref in (*refs, *store.manifest.runs[bucket])
    ]
    found = 0
    for at, run in enumerate(every[: len(refs)], 1):
        for part in cut_by_hash([run], _AT_ONCE):
            hashes = np.column_stack([part[0].hash_hi, part[0].hash_lo])
            found += int(lookup(every[at:], live, hashes).hit.sum())
    return found


def _names(store: KeyIndex, table: Table) -> list[str]:
    """The key columns by the names that they have now."""
    schema = table.schema()
    return [str(schema.find_column_name(number)) for number in store.manifest.keys.values()]


def _build_result(reason: str, built: IndexBuildStats) -> CatchUpResult:
    return CatchUpResult(
        rebuilt=reason,
        new=built.files,
        rows=built.rows,
        tombstones=built.tombstones,
        duplicates=built.duplicates,
    )
