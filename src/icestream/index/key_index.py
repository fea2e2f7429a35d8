"""The store: the index of one table in a folder on local disk, as its one writer sees it.

    reader ▸ (tasks look up and stage) ▸ prepare ▸ the table's commit ▸ confirm, or abandon

`confirm` moves the index to the commit's snapshot. If the process dies between the table's commit
and `confirm`, what was prepared tells the next start which runs belong to that commit.
"""

import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from icestream.errors import Fenced, IndexDamaged
from icestream.index import manifest as manifests
from icestream.index.bucket import LookupResult
from icestream.index.disk import damaged, write_whole
from icestream.index.files import FOLDER, append_list, load_files
from icestream.index.keys import Hashes
from icestream.index.manifest import IndexManifest, publish
from icestream.index.merge import (
    KEEP_SECONDS,
    MergedRun,
    MergeJob,
    RunRef,
    merge,
    merge_count,
    run_folder,
)
from icestream.index.reader import IndexReader
from icestream.index.rewrite_update import RewriteIndexUpdate
from icestream.index.sorted_run import SortedRun, open_run, read_origin

_PENDING = "pending.json"
_RUNS = "runs"
_TRIES = 3  # to take over from a process that is still writing


@dataclass(frozen=True)
class IndexUnusable:
    """There is no index that may be used, and why."""

    reason: str


@dataclass(frozen=True)
class PendingCommit:
    """What a commit under way will change: its runs, and the data files that it removes."""

    commit_id: str
    runs: tuple[str, ...]
    removed: tuple[str, ...] = ()


class KeyIndex:
    """One process's index of one table; its methods may be called from several threads."""

    def __init__(
        self, folder: Path, manifest: IndexManifest, clock: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.files = load_files(folder, manifest.lists)
        self._clock = clock
        self._lock = threading.RLock()
        self._garbage: set[str] = set()  # no longer named, but a task may still be reading it
        self._merging: set[int] = set()

    @property
    def reader(self) -> IndexReader:
        """The present state, for tasks."""
        return IndexReader(str(self.folder), self.manifest.name)

    def lookup(self, bucket: int, hashes: Hashes) -> LookupResult:
        """Find keys of one bucket."""
        return self.reader.lookup(bucket, hashes)

    # -- commits -------------------------------------------------------------------------------

    def prepare(self, commit_id: str, runs: Sequence[str], removed: Iterable[str] = ()) -> None:
        """Say what a commit consists of, before the table knows of it."""
        pending = PendingCommit(commit_id, tuple(runs), tuple(removed))
        write_whole(self.folder / _PENDING, json.dumps(asdict(pending)).encode())

    def pending(self) -> PendingCommit | None:
        """The commit that was prepared and neither confirmed nor abandoned."""
        try:
            raw = json.loads((self.folder / _PENDING).read_bytes())
            found = PendingCommit(raw["commit_id"], tuple(raw["runs"]), tuple(raw["removed"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # A process that died right after the manifest left the note behind: that commit is in.
        return None if found.commit_id == self.manifest.commit_id else found

    def confirm(self, commit_id: str, snapshot_id: int, sequence_number: int) -> None:
        """The prepared commit is in the table, in this snapshot: its runs count from now on."""
        if self.manifest.commit_id == commit_id and self.manifest.snapshot_id == snapshot_id:
            return
        pending = self.pending()
        if pending is None or pending.commit_id != commit_id:
            raise damaged(f"commit {commit_id} was not prepared", self.folder)
        with self._lock:
            added: dict[str, int] = {}
            front: dict[int, list[RunRef]] = {}
            for name in pending.runs:
                bucket, ref = self._numbered_run(name, commit_id, added)
                front.setdefault(bucket, []).append(ref)
            known = self.files.by_path if pending.removed else {}
            if unknown := set(pending.removed) - known.keys():
                raise damaged(f"it does not know {min(unknown)}", self.folder)
            removed = [known[path] for path in pending.removed]
            self.publish_state(front, added, removed, snapshot_id, sequence_number, commit_id)
            (self.folder / _PENDING).unlink(missing_ok=True)
            self._unstage(commit_id, set(pending.runs))

    def apply_rewrite(
        self, move: RewriteIndexUpdate, snapshot_id: int, sequence_number: int
    ) -> None:
        """A rewrite of data files is in the table, in this snapshot, right after the index's."""
        with self._lock:
            known = self.files.by_path if move.removed else {}
            if unknown := set(move.removed) - known.keys():
                raise damaged(f"it does not know {min(unknown)}", self.folder)
            first = self.manifest.next_file
            added = {path: first + at for at, path in enumerate(move.added)}
            front: dict[int, list[RunRef]] = {}
            for name in move.runs:
                bucket, ref = self._numbered_run(name, move.origin, added)
                front.setdefault(bucket, []).append(ref)
            removed = [known[path] for path in move.removed]
            commit_id = self.manifest.commit_id
            self.publish_state(front, added, removed, snapshot_id, sequence_number, commit_id)

    def abandon(self, commit_id: str) -> None:
        """The commit will never be: forget what was staged for it."""
        pending = self.pending()
        if pending is not None and pending.commit_id == commit_id:
            (self.folder / _PENDING).unlink(missing_ok=True)
        self._unstage(commit_id)

    def _unstage(self, commit_id: str, kept: Collection[str] = ()) -> None:
        """Remove what attempts staged for a commit, except for what it consists of."""
        kept = {*kept, *self.manifest.names()}  # it may be in, and only the note of it be left
        for path in (self.folder / _RUNS).glob(f"*/{commit_id}-*"):
            if str(path.relative_to(self.folder)) not in kept:
                path.unlink(missing_ok=True)

    def publish_state(
        self,
        front: Mapping[int, Sequence[RunRef]],
        added: Mapping[str, int],
        removed: Sequence[int],
        snapshot_id: int | None,
        sequence_number: int,
        commit_id: str | None,
    ) -> None:
        """Move to a snapshot: runs in front of the others, data files that came and went."""
        with self._lock:
            old = self.manifest
            runs = [(*front.get(at, ()), *there) for at, there in enumerate(old.runs)]
            new = old.following(
                whole=True,
                snapshot_id=snapshot_id,
                sequence_number=sequence_number,
                commit_id=commit_id,
                next_file=max([old.next_file, *(number + 1 for number in added.values())]),
                lists=append_list(self.folder, old.lists, added, removed),
                runs=tuple(runs),
            )
            before = set(self._garbage)
            self._publish(new)
            self._garbage -= before
            if added or removed:
                self.files = self.files.with_changes(added, removed)
        for name in before:  # whoever read them belonged to the commit that is now done
            (self.folder / name).unlink(missing_ok=True)

    def _numbered_run(self, name: str, commit_id: str, added: dict[str, int]) -> tuple[int, RunRef]:
        """A staged run and its bucket; data files that are new get the next numbers."""
        path = self.folder / name
        origin, count = read_origin(path)
        expected = (self.manifest.table_uuid, commit_id)
        if (origin.table_uuid, origin.commit_id) != expected or origin.bucket not in range(
            self.manifest.buckets
        ):
            raise damaged("a run of another commit", path)
        for each in origin.paths:
            added.setdefault(each, self.manifest.next_file + len(added))
        return origin.bucket, RunRef(name, count, tuple(added[each] for each in origin.paths))

    def _publish(self, new: IndexManifest) -> None:
        publish(self.folder, new)
        self._garbage |= self.manifest.names() - new.names() | {self.manifest.name}
        self.manifest = new

    # -- merging -------------------------------------------------------------------------------

    def due_merges(self) -> list[MergeJob]:
        """Merges that are due and not under way; each may run in any process (`merge.merge`)."""
        with self._lock:
            found = []
            for bucket, runs in enumerate(self.manifest.runs):
                count = merge_count([run.entries for run in runs])
                if count and bucket not in self._merging:
                    self._merging.add(bucket)
                    found.append(self._job(bucket, runs[:count], count == len(runs)))
            return found

    def _job(self, bucket: int, runs: tuple[RunRef, ...], oldest: bool) -> MergeJob:
        horizon = max(0, int(self._clock()) - KEEP_SECONDS)
        uuid_ = self.manifest.table_uuid
        return MergeJob(str(self.folder), uuid_, bucket, runs, oldest, self.files.numbers, horizon)

    def install_merged(self, merged: MergedRun) -> None:
        """Put a merged run in the place of those it was made of."""
        job = merged.job
        with self._lock:
            runs = self.manifest.runs[job.bucket]
            at = runs.index(job.runs[0])
            rest = runs[at + len(job.runs) :]
            new = (*runs[:at], merged.run, *rest) if merged.run.entries else (*runs[:at], *rest)
            every = list(self.manifest.runs)
            every[job.bucket] = new
            self._publish(self.manifest.following(runs=tuple(every)))
            self._merging.discard(job.bucket)
        if not merged.run.entries:
            (self.folder / merged.run.name).unlink(missing_ok=True)

    def merge(self) -> int:
        """Do all merges that are due, here and now; → how many. Lookups and commits may go on."""
        done = 0
        while jobs := self.due_merges():
            try:
                for job in jobs:
                    self.install_merged(merge(job))
                    done += 1
            finally:
                self.release_merges(jobs)
        return done

    def release_merges(self, jobs: Iterable[MergeJob]) -> None:
        """Merges that failed, or never began, may be tried again."""
        with self._lock:
            self._merging -= {job.bucket for job in jobs}


def open_index(
    folder: Path,
    table_uuid: str,
    key_ids: Sequence[int],
    *,
    check: bool = True,
    clock: Callable[[], float] = time.time,
) -> KeyIndex | IndexUnusable:
    """Take over the index in a folder; `check` reads every run and compares its checksums.

    A process that had it before can publish no more. What no state names is swept away.
    """
    for _ in range(_TRIES):
        found = manifests.numbers(folder)
        if not found:
            return IndexUnusable("there is none yet")
        try:
            manifest = manifests.read(folder, manifests.name_of(found[0]))
            if reason := _why_unusable(manifest, table_uuid, key_ids):
                return IndexUnusable(reason)
            mine = manifest.following(owner=uuid.uuid4().hex)
            publish(folder, mine)
            store = KeyIndex(folder, mine, clock)
            if store.pending() is None:  # or the note is of a commit that is in
                (folder / _PENDING).unlink(missing_ok=True)
            for run in _all_runs(store):
                if check:
                    run.verify()
            _remove_unreferenced(store)
            return store
        except IndexDamaged as damage:
            return IndexUnusable(f"{damage.what} ({damage.where})")
        except Fenced:
            continue  # its former owner published at this very moment
    return IndexUnusable("another process keeps writing to it")


def create_index(
    folder: Path,
    table_uuid: str,
    keys: Mapping[str, int],
    buckets: int,
    clock: Callable[[], float] = time.time,
) -> KeyIndex:
    """An empty index in place of whatever is there; it counts from its first `advance` on."""
    folder.mkdir(parents=True, exist_ok=True)
    first = _take_over(folder, table_uuid, keys, buckets)
    for path in folder.iterdir():
        # A merge of a former owner may still be writing: what it leaves is swept at the next start.
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != first.name:
            path.unlink(missing_ok=True)
    (folder / FOLDER).mkdir(exist_ok=True)
    for bucket in range(buckets):
        (folder / run_folder(bucket)).mkdir(parents=True, exist_ok=True)
    return KeyIndex(folder, first, clock)


def _take_over(
    folder: Path, table_uuid: str, keys: Mapping[str, int], buckets: int
) -> IndexManifest:
    """Take a folder over by the next number, so that a former owner finds it taken."""
    for _ in range(_TRIES):
        number = max(manifests.numbers(folder), default=0) + 1
        owner = uuid.uuid4().hex
        runs: tuple[tuple[RunRef, ...], ...] = ((),) * buckets
        first = IndexManifest(
            number, owner, False, table_uuid, dict(keys), None, 0, None, 0, (), runs
        )
        with suppress(Fenced):
            publish(folder, first)
            return first
    raise Fenced("another process keeps writing to the key index", where=str(folder))


def _why_unusable(manifest: IndexManifest, table_uuid: str, key_ids: Sequence[int]) -> str | None:
    if not manifest.whole:
        return "it was not finished"
    if manifest.table_uuid != table_uuid:
        return "it belongs to another table"
    if list(manifest.keys.values()) != list(key_ids):
        return f"its key columns are others: {', '.join(manifest.keys)}"
    return None


def _all_runs(store: KeyIndex) -> Iterable[SortedRun]:
    for bucket, refs in enumerate(store.manifest.runs):
        for ref in refs:
            run = open_run(store.folder / ref.name, ref.numbers)
            if (run.origin.table_uuid, run.origin.bucket, len(run)) != (
                store.manifest.table_uuid, bucket, ref.entries,
            ):  # fmt: skip
                raise damaged("a run of another table or bucket", run.path)
            yield run


def _remove_unreferenced(store: KeyIndex) -> None:
    """Remove what neither the present state nor a prepared commit names."""
    pending = store.pending()
    kept = store.manifest.names() | {store.manifest.name, _PENDING}
    kept |= set(pending.runs if pending else ())
    for path in [*store.folder.glob(f"{_RUNS}/*/*"), *store.folder.glob(f"{FOLDER}/*")]:
        if str(path.relative_to(store.folder)) not in kept:
            path.unlink(missing_ok=True)
    for path in store.folder.iterdir():
        if path.is_file() and path.name not in kept:
            path.unlink(missing_ok=True)
