"""Indexes: the key index of each mirror, kept at the snapshot that its table is planned at."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.commit.java_catalog import rewrite_ids
from icestream.commit.protocol import Ancestor, TableView
from icestream.index.damage import IndexDamaged
from icestream.index.follow import Followed, catch_up, follow
from icestream.index.key_index import Store
from icestream.index.reader import Reader
from icestream.index.rewrite_update import Move, Shelf
from icestream.index.tombstones import tidy_tombstones
from icestream.tables.marker import Positions
from icestream.upsert.places import places_of
from icestream.write.position_deletes import Place

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table


_TIDY_EVERY = 256  # batches


@dataclass
class _Known:
    """One table's index, and where its data files belong."""

    store: Store
    keys: tuple[str, ...]
    places: dict[str, Place] = field(default_factory=dict)
    location: str = ""  # of the table
    batches: int = 0
    merging: Future[None] | None = None
    moves: dict[str, Move] = field(default_factory=dict)  # by the id of their rewrite


def _in_background(store: Store, location: str | None) -> None:
    store.merge()
    if location is not None:
        tidy_tombstones(location, time.time_ns() // 1000)


class Indexes:
    """For one run; used by the thread that plans batches and by those that commit."""

    def __init__(
        self, folder: Path, io: Callable[[str], "FileIO"], told: Callable[[str, Followed], None]
    ) -> None:
        self._folder = folder
        self._io = io
        self._told = told
        self._known: dict[str, _Known] = {}
        self._merges = ThreadPoolExecutor(1, thread_name_prefix="index-merge")

    def at(self, name: str, view: TableView, keys: Sequence[str]) -> Reader:
        """The index of a table as it was seen: as it stands, or brought there first."""
        known = self._known.get(name)
        if known is None or known.keys != tuple(keys):
            store, how = catch_up(
                self._table(name, view), self._place(name, view), keys, reached=_reached(view)
            )
            known = self._known[name] = _Known(store, tuple(keys), location=_location(view))
            self._told(name, how)
        elif not self._stands(known, view):
            known = self._followed(name, known, view)
        self._merge(known)
        return known.store.reader

    def prepare(self, name: str, commit_id: str, runs: Sequence[str]) -> None:
        """Say what a commit will change, before the table knows of it."""
        self._known[name].store.prepare(commit_id, runs)

    def abandon(self, name: str, commit_id: str) -> None:
        """Forget what was staged for a commit that is not made."""
        if name in self._known:
            self._known[name].store.abandon(commit_id)

    def place_of(self, name: str, view: TableView) -> Callable[[str], Place]:
        """Where data files of a table as it was seen belong."""
        known = self._known[name]
        specs = view.base.document["partition-specs"]
        if not any(spec["fields"] for spec in specs):
            only = Place(view.base.document["default-spec-id"], ())
            return lambda _: only

        def find(path: str) -> Place:
            if path not in known.places:
                known.places = places_of(self._table(name, view))
            return known.places[path]

        return find

    def staged(self, name: str, contents: Sequence[str], paths: Sequence[str]) -> None:
        """Remember where new data files belong."""
        places = self._known[name].places
        if places:
            places |= {p: Place.of(text) for p, text in zip(paths, contents, strict=True)}

    def shelf(self, name: str) -> Shelf | None:
        """Where a rewrite of a table stages the entries of its rows; None: nobody asked yet."""
        known = self._known.get(name)
        if known is None:
            return None
        manifest = known.store.manifest
        keys = tuple(manifest.keys.values())
        return Shelf(str(known.store.folder), manifest.table_uuid, manifest.buckets, keys)

    def moving(self, name: str, move: Move) -> None:
        """Say what a rewrite will change, before the table knows of it; from any thread."""
        if name in self._known:
            self._known[name].moves[move.rewrite_id] = move

    def staying(self, name: str, rewrite_id: str) -> None:
        """That rewrite will never be."""
        if name in self._known:
            self._known[name].moves.pop(rewrite_id, None)

    def close(self) -> None:
        """Let merges end that are under way."""
        self._merges.shutdown()

    # ------------------------------------------------------------------------------------------

    def _stands(self, known: _Known, view: TableView) -> bool:
        """Whether the index is where the table is, perhaps after commits and rewrites of ours."""
        store = known.store
        if not view.lineage:
            return store.manifest.snapshot_id is None
        way = _way(view, store.manifest.snapshot_id)
        if way is None:
            return False
        rewrites = rewrite_ids(view.base.document, way) if known.moves else {}
        for each in way:
            pending = store.pending()
            if pending is not None and pending.commit_id == each.commit_id:
                store.confirm(pending.commit_id, each.snapshot_id, each.sequence_number)
            elif not self._moves(known, rewrites.get(each.snapshot_id, ""), each):
                return False
        return True

    def _moves(self, known: _Known, rewrite_id: str, to: Ancestor) -> bool:
        """Go along with a rewrite that was announced."""
        move = known.moves.pop(rewrite_id, None)
        if move is None:
            return False
        store = known.store
        if (left := store.pending()) is not None:  # of a batch that lost against the rewrite
            store.abandon(left.commit_id)
        try:
            store.move(move, to.snapshot_id, to.sequence_number)
        except IndexDamaged:
            return False  # its runs are gone: the table still tells what it did
        if known.places:
            told = zip(move.added, move.contents, strict=True)
            known.places |= {path: Place.of(text) for path, text in told}
        return True

    def _followed(self, name: str, known: _Known, view: TableView) -> _Known:
        table = self._table(name, view)
        how = follow(known.store, table, reached=_reached(view))
        if isinstance(how, Followed):
            if how.new or how.changed or how.gone:
                self._told(name, how)
                known.places = {}
            return known
        store, rebuilt = catch_up(
            table, self._place(name, view), known.keys, reached=_reached(view)
        )
        self._told(name, rebuilt)
        made = self._known[name] = _Known(store, known.keys, location=_location(view))
        return made

    def _merge(self, known: _Known) -> None:
        """Merge runs in the background, one table at a time."""
        if known.merging is not None and known.merging.done():
            known.merging.result()
            known.merging = None
        if known.merging is None:
            known.batches += 1
            tidy = known.location if known.batches % _TIDY_EVERY == 0 else None
            known.merging = self._merges.submit(_in_background, known.store, tidy)

    def _place(self, name: str, view: TableView) -> Path:
        """A folder for each table, also for one that was created again under the same name."""
        safe = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self._folder / f"{safe}-{view.uuid}"

    def _table(self, name: str, view: TableView) -> "Table":
        """The table as PyIceberg sees it, by the metadata that the batch is planned from."""
        from pyiceberg.table import Table
        from pyiceberg.table.metadata import TableMetadataUtil

        document: Mapping[str, Any] = view.base.document
        metadata = TableMetadataUtil.parse_obj(dict(document))
        return Table(
            identifier=tuple(name.split(".")),
            metadata=metadata,
            metadata_location="",
            io=self._io(_location(view)),
            catalog=None,  # type: ignore[arg-type]
        )


def _way(view: TableView, start: int | None) -> list[Ancestor] | None:
    """The snapshots after one, oldest first; None: it is not among those that led here."""
    found: list[Ancestor] = []
    for each in view.lineage:
        if each.snapshot_id == start:
            return found[::-1]
        found.append(each)
        if each.parent_id == start:
            return found[::-1]
    return None


def _reached(view: TableView) -> Positions:
    return view.marker.positions if view.marker else {}


def _location(view: TableView) -> str:
    return str(view.base.document["location"])
