"""The key indexes of a run's mirrors, each kept at the snapshot that its table is planned from."""

import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from icestream.commit.table_state import AncestorSnapshot, TableState
from icestream.errors import IndexDamaged
from icestream.index.follow import CatchUpResult, follow, open_or_build
from icestream.index.key_index import KeyIndex
from icestream.index.reader import IndexReader
from icestream.index.rewrite_update import IndexStaging, RewriteIndexUpdate
from icestream.index.tombstones import tidy_tombstones
from icestream.positions import Positions
from icestream.tables.live_files import partition_keys
from icestream.tables.partition_values import PartitionKey

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table


_TIDY_EVERY = 256  # batches


@dataclass
class _OpenIndex:
    """One table's open key index, and the partitions of its data files."""

    index: KeyIndex
    keys: tuple[str, ...]
    partitions: dict[str, PartitionKey] = field(default_factory=dict)  # by data file
    location: str = ""  # of the table
    batches: int = 0
    merging: Future[None] | None = None
    announced: dict[str, RewriteIndexUpdate] = field(default_factory=dict)  # by rewrite id


def _merge_and_tidy(index: KeyIndex, location: str | None) -> None:
    index.merge()
    if location is not None:
        tidy_tombstones(location, time.time_ns() // 1000)


class KeyIndexes:
    """Opens and updates the key indexes of one run.

    Used by the thread that plans batches, and by those that commit batches and rewrites.
    """

    def __init__(
        self,
        folder: Path,
        io: Callable[[str], "FileIO"],
        on_followed: Callable[[str, CatchUpResult], None],
    ) -> None:
        self._folder = folder
        self._io = io
        self._on_followed = on_followed
        self._open: dict[str, _OpenIndex] = {}
        self._merges = ThreadPoolExecutor(1, thread_name_prefix="index-merge")

    def reader_at(self, name: str, state: TableState, keys: Sequence[str]) -> IndexReader:
        """Return a reader of the index at the snapshot of `state`; it is brought there first."""
        opened = self._open.get(name)
        if opened is None or opened.keys != tuple(keys):
            opened = self._open_or_build(name, state, keys)
        elif not self._advance_by_own_commits(opened, state):
            opened = self._follow_table(name, opened, state)
        self._merge(opened)
        return opened.index.reader

    def prepare_commit(self, name: str, commit_id: str, runs: Sequence[str]) -> None:
        """Write down, before the table's commit, which staged runs belong to it."""
        self._open[name].index.prepare(commit_id, runs)

    def abandon(self, name: str, commit_id: str) -> None:
        """Forget what was staged for a commit that is not made."""
        if name in self._open:
            self._open[name].index.abandon(commit_id)

    def partition_of(self, name: str, state: TableState) -> Callable[[str], PartitionKey]:
        """Return a function that gives the partition of a live data file, for its deletes."""
        opened = self._open[name]
        if not state.metadata.is_partitioned:
            unpartitioned = PartitionKey(state.metadata.spec_id, ())
            return lambda _: unpartitioned

        def find(path: str) -> PartitionKey:
            if path not in opened.partitions:
                opened.partitions = partition_keys(self._pyiceberg_table(name, state))
            return opened.partitions[path]

        return find

    def add_files(self, name: str, contents: Sequence[str], paths: Sequence[str]) -> None:
        """Remember the partitions of new data files, if those of the others were read already."""
        _add_partitions(self._open[name], contents, paths)

    def index_staging(self, name: str) -> IndexStaging | None:
        """Return what a rewrite task needs to stage entries for the key index.

        None: this run has no index of the table open. It will then follow the rewrite's commit by
        reading its files.
        """
        opened = self._open.get(name)
        if opened is None:
            return None
        manifest = opened.index.manifest
        keys = tuple(manifest.keys.values())
        return IndexStaging(str(opened.index.folder), manifest.table_uuid, manifest.buckets, keys)

    def announce_rewrite(self, name: str, move: RewriteIndexUpdate) -> None:
        """Announce a rewrite before its commit; from any thread.

        The next batch finds its id in the table's history and updates the index by `move`, without
        reading a file.
        """
        if name in self._open:
            self._open[name].announced[move.rewrite_id] = move

    def withdraw_rewrite(self, name: str, rewrite_id: str) -> None:
        """Withdraw an announced rewrite, once no attempt of it can be committed any more."""
        if name in self._open:
            self._open[name].announced.pop(rewrite_id, None)

    def close(self) -> None:
        """Wait for merges that are under way; no more of them begin."""
        self._merges.shutdown()

    # ------------------------------------------------------------------------------------------

    def _open_or_build(self, name: str, state: TableState, keys: Sequence[str]) -> _OpenIndex:
        """Open a table's index anew, or build it, at the snapshot of `state`."""
        index, result = open_or_build(
            self._pyiceberg_table(name, state),
            self._index_folder(name, state),
            keys,
            reached=_committed(state),
        )
        opened = _OpenIndex(index, tuple(keys), location=state.metadata.location)
        self._open[name] = opened
        self._on_followed(name, result)
        return opened

    def _advance_by_own_commits(self, opened: _OpenIndex, state: TableState) -> bool:
        """Bring the index to the table's snapshot by our own commits and announced rewrites.

        False: other snapshots lie between, so the index must follow the table.
        """
        index = opened.index
        if not state.ancestors:
            return index.manifest.snapshot_id is None
        snapshots = _snapshots_since(state, index.manifest.snapshot_id)
        if snapshots is None:
            return False
        ids = [snapshot.snapshot_id for snapshot in snapshots]
        rewrites = state.metadata.rewrites(ids) if opened.announced else {}
        # Oldest first: commits of batches and announced rewrites may alternate.
        for snapshot in snapshots:
            pending = index.pending()
            if pending is not None and pending.commit_id == snapshot.commit_id:
                index.confirm(pending.commit_id, snapshot.snapshot_id, snapshot.sequence_number)
            elif not self._apply_rewrite(opened, rewrites.get(snapshot.snapshot_id, ""), snapshot):
                return False
        return True

    def _apply_rewrite(
        self, opened: _OpenIndex, rewrite_id: str, snapshot: AncestorSnapshot
    ) -> bool:
        """Update the index by an announced rewrite; False: it was not announced, or cannot be."""
        update = opened.announced.pop(rewrite_id, None)
        if update is None:
            return False
        index = opened.index
        if (pending := index.pending()) is not None:  # of a batch that lost against the rewrite
            index.abandon(pending.commit_id)
        try:
            index.apply_rewrite(update, snapshot.snapshot_id, snapshot.sequence_number)
        except IndexDamaged:
            return False  # its runs are gone: the table still tells what it did
        _add_partitions(opened, update.contents, update.added)
        return True

    def _follow_table(self, name: str, opened: _OpenIndex, state: TableState) -> _OpenIndex:
        """Follow what others did to the table, or build the index anew where that fails."""
        result = follow(opened.index, self._pyiceberg_table(name, state), reached=_committed(state))
        if not isinstance(result, CatchUpResult):
            return self._open_or_build(name, state, opened.keys)
        if result.new or result.changed or result.gone:
            self._on_followed(name, result)
            opened.partitions = {}
        return opened

    def _merge(self, opened: _OpenIndex) -> None:
        """Merge runs in the background, one table at a time; raises what the last merge raised."""
        if opened.merging is not None and opened.merging.done():
            opened.merging.result()
            opened.merging = None
        if opened.merging is None:
            opened.batches += 1
            tidy = opened.location if opened.batches % _TIDY_EVERY == 0 else None
            opened.merging = self._merges.submit(_merge_and_tidy, opened.index, tidy)

    def _index_folder(self, name: str, state: TableState) -> Path:
        """Return the folder of a table's index: a new one if the table was created again."""
        name_hash = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self._folder / f"{name_hash}-{state.uuid}"

    def _pyiceberg_table(self, name: str, state: TableState) -> "Table":
        """Return PyIceberg's table for the metadata that the batch is planned from."""
        return state.metadata.as_table(name, self._io(state.metadata.location))


def _snapshots_since(state: TableState, start: int | None) -> list[AncestorSnapshot] | None:
    """Return the ancestors after a snapshot, oldest first; None: it is not known to be one."""
    snapshots: list[AncestorSnapshot] = []
    for snapshot in state.ancestors:
        if snapshot.snapshot_id == start:
            return snapshots[::-1]
        snapshots.append(snapshot)
        if snapshot.parent_id == start:
            return snapshots[::-1]
    return None


def _add_partitions(opened: _OpenIndex, contents: Sequence[str], paths: Sequence[str]) -> None:
    # Only to what was read before: an empty dict means that nobody has needed partitions yet.
    if opened.partitions:
        pairs = zip(paths, contents, strict=True)
        opened.partitions |= {path: PartitionKey.of(content) for path, content in pairs}


def _committed(state: TableState) -> Positions:
    return state.marker.positions if state.marker else {}
