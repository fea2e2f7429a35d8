"""Indexes: the key index of each mirror, kept at the snapshot that its table is planned at."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.commit.protocol import TableView
from icestream.index.follow import Followed, catch_up, follow
from icestream.index.reader import Reader
from icestream.index.store import Store
from icestream.index.tombstones import tidy_tombstones
from icestream.upsert.deletes import Place
from icestream.upsert.places import places_of

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
            store, how = catch_up(self._table(name, view), self._place(name, view), keys)
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

    def close(self) -> None:
        """Let merges end that are under way."""
        self._merges.shutdown()

    # ------------------------------------------------------------------------------------------

    def _stands(self, known: _Known, view: TableView) -> bool:
        """Whether the index is where the table is, perhaps after a commit of ours."""
        store = known.store
        newest = view.lineage[0] if view.lineage else None
        if newest is None or store.manifest.snapshot_id == newest.snapshot_id:
            return (newest is None) == (store.manifest.snapshot_id is None)
        pending = store.pending()
        ours = pending is not None and pending.commit_id == newest.commit_id
        if not ours or newest.parent_id != store.manifest.snapshot_id:
            return False
        assert pending is not None
        store.confirm(pending.commit_id, newest.snapshot_id, newest.sequence_number)
        return True

    def _followed(self, name: str, known: _Known, view: TableView) -> _Known:
        table = self._table(name, view)
        how = follow(known.store, table)
        if isinstance(how, Followed):
            if how.new or how.changed or how.gone:
                self._told(name, how)
                known.places = {}
            return known
        store, rebuilt = catch_up(table, self._place(name, view), known.keys)
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


def _location(view: TableView) -> str:
    return str(view.base.document["location"])
