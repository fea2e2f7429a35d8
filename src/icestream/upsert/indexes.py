"""Indexes: the key index of each mirror, kept at the snapshot that its table is planned at."""

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
    """One table's index, and where its data files belong."""

    index: KeyIndex
    keys: tuple[str, ...]
    partitions: dict[str, PartitionKey] = field(default_factory=dict)
    location: str = ""  # of the table
    batches: int = 0
    merging: Future[None] | None = None
    announced: dict[str, RewriteIndexUpdate] = field(
        default_factory=dict
    )  # by the id of their rewrite


def _merge_and_tidy(store: KeyIndex, location: str | None) -> None:
    store.merge()
    if location is not None:
        tidy_tombstones(location, time.time_ns() // 1000)


class KeyIndexes:
    """For one run; used by the thread that plans batches and by those that commit."""

    def __init__(
        self,
        folder: Path,
        io: Callable[[str], "FileIO"],
        told: Callable[[str, CatchUpResult], None],
    ) -> None:
        self._folder = folder
        self._io = io
        self._told = told
        self._known: dict[str, _OpenIndex] = {}
        self._merges = ThreadPoolExecutor(1, thread_name_prefix="index-merge")

    def reader_at(self, name: str, state: TableState, keys: Sequence[str]) -> IndexReader:
        """The index of a table as it was seen: as it stands, or brought there first."""
        known = self._known.get(name)
        if known is None or known.keys != tuple(keys):
            store, how = open_or_build(
                self._pyiceberg_table(name, state),
                self._index_folder(name, state),
                keys,
                reached=_committed(state),
            )
            known = self._known[name] = _OpenIndex(
                store, tuple(keys), location=state.metadata.location
            )
            self._told(name, how)
        elif not self._advance_by_own_commits(known, state):
            known = self._follow_table(name, known, state)
        self._merge(known)
        return known.index.reader

    def prepare_commit(self, name: str, commit_id: str, runs: Sequence[str]) -> None:
        """Say what a commit will change, before the table knows of it."""
        self._known[name].index.prepare(commit_id, runs)

    def abandon(self, name: str, commit_id: str) -> None:
        """Forget what was staged for a commit that is not made."""
        if name in self._known:
            self._known[name].index.abandon(commit_id)

    def partition_of(self, name: str, state: TableState) -> Callable[[str], PartitionKey]:
        """Where data files of a table as it was seen belong."""
        known = self._known[name]
        if not state.metadata.is_partitioned:
            only = PartitionKey(state.metadata.spec_id, ())
            return lambda _: only

        def find(path: str) -> PartitionKey:
            if path not in known.partitions:
                known.partitions = partition_keys(self._pyiceberg_table(name, state))
            return known.partitions[path]

        return find

    def add_files(self, name: str, contents: Sequence[str], paths: Sequence[str]) -> None:
        """Remember where new data files belong."""
        places = self._known[name].partitions
        if places:
            places |= {p: PartitionKey.of(text) for p, text in zip(paths, contents, strict=True)}

    def index_staging(self, name: str) -> IndexStaging | None:
        """Where a rewrite of a table stages the entries of its rows; None: nobody asked yet."""
        known = self._known.get(name)
        if known is None:
            return None
        manifest = known.index.manifest
        keys = tuple(manifest.keys.values())
        return IndexStaging(str(known.index.folder), manifest.table_uuid, manifest.buckets, keys)

    def announce_rewrite(self, name: str, move: RewriteIndexUpdate) -> None:
        """Say what a rewrite will change, before the table knows of it; from any thread."""
        if name in self._known:
            self._known[name].announced[move.rewrite_id] = move

    def withdraw_rewrite(self, name: str, rewrite_id: str) -> None:
        """That rewrite will never be."""
        if name in self._known:
            self._known[name].announced.pop(rewrite_id, None)

    def close(self) -> None:
        """Let merges end that are under way."""
        self._merges.shutdown()

    # ------------------------------------------------------------------------------------------

    def _advance_by_own_commits(self, known: _OpenIndex, state: TableState) -> bool:
        """Whether the index is where the table is, perhaps after commits and rewrites of ours."""
        store = known.index
        if not state.ancestors:
            return store.manifest.snapshot_id is None
        way = _snapshots_since(state, store.manifest.snapshot_id)
        if way is None:
            return False
        rewrites = (
            state.metadata.rewrites(each.snapshot_id for each in way) if known.announced else {}
        )
        for each in way:
            pending = store.pending()
            if pending is not None and pending.commit_id == each.commit_id:
                store.confirm(pending.commit_id, each.snapshot_id, each.sequence_number)
            elif not self._apply_rewrite(known, rewrites.get(each.snapshot_id, ""), each):
                return False
        return True

    def _apply_rewrite(self, known: _OpenIndex, rewrite_id: str, to: AncestorSnapshot) -> bool:
        """Go along with a rewrite that was announced."""
        move = known.announced.pop(rewrite_id, None)
        if move is None:
            return False
        store = known.index
        if (left := store.pending()) is not None:  # of a batch that lost against the rewrite
            store.abandon(left.commit_id)
        try:
            store.apply_rewrite(move, to.snapshot_id, to.sequence_number)
        except IndexDamaged:
            return False  # its runs are gone: the table still tells what it did
        if known.partitions:
            told = zip(move.added, move.contents, strict=True)
            known.partitions |= {path: PartitionKey.of(text) for path, text in told}
        return True

    def _follow_table(self, name: str, known: _OpenIndex, state: TableState) -> _OpenIndex:
        table = self._pyiceberg_table(name, state)
        how = follow(known.index, table, reached=_committed(state))
        if isinstance(how, CatchUpResult):
            if how.new or how.changed or how.gone:
                self._told(name, how)
                known.partitions = {}
            return known
        store, rebuilt = open_or_build(
            table, self._index_folder(name, state), known.keys, reached=_committed(state)
        )
        self._told(name, rebuilt)
        made = self._known[name] = _OpenIndex(store, known.keys, location=state.metadata.location)
        return made

    def _merge(self, known: _OpenIndex) -> None:
        """Merge runs in the background, one table at a time."""
        if known.merging is not None and known.merging.done():
            known.merging.result()
            known.merging = None
        if known.merging is None:
            known.batches += 1
            tidy = known.location if known.batches % _TIDY_EVERY == 0 else None
            known.merging = self._merges.submit(_merge_and_tidy, known.index, tidy)

    def _index_folder(self, name: str, state: TableState) -> Path:
        """A folder for each table, also for one that was created again under the same name."""
        safe = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self._folder / f"{safe}-{state.uuid}"

    def _pyiceberg_table(self, name: str, state: TableState) -> "Table":
        """The table as PyIceberg sees it, by the metadata that the batch is planned from."""
        return state.metadata.as_table(name, self._io(state.metadata.location))


def _snapshots_since(state: TableState, start: int | None) -> list[AncestorSnapshot] | None:
    """The snapshots after one, oldest first; None: it is not among those that led here."""
    found: list[AncestorSnapshot] = []
    for each in state.ancestors:
        if each.snapshot_id == start:
            return found[::-1]
        found.append(each)
        if each.parent_id == start:
            return found[::-1]
    return None


def _committed(state: TableState) -> Positions:
    return state.marker.positions if state.marker else {}
