"""The key index of one table, in a folder on local disk, as the one process that writes it has it.

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
from icestream.index.disk import damaged, write_whole
from icestream.index.files import FOLDER, append_list, load_files
from icestream.index.manifest import IndexManifest, publish
from icestream.index.merge import (
    KEEP_SECONDS,
    MergedRun,
    MergeJob,
    RunRef,
    merge,
    merge_count,
)
from icestream.index.reader import IndexReader
from icestream.index.rewrite_update import RewriteIndexUpdate
from icestream.index.sorted_run import SortedRun, open_run, read_origin, run_folder

_PENDING = "pending.json"
_RUNS = "runs"
_TRIES = 3  # to take over from a process that is still writing


@dataclass(frozen=True)
class IndexUnusable:
    """Why a folder holds no index that may be used: it must be built again."""

    reason: str


@dataclass(frozen=True)
class PendingCommit:
    """What a prepared commit changes: its runs, and the data files that it removes."""

    commit_id: str
    runs: tuple[str, ...]
    removed: tuple[str, ...] = ()


class KeyIndex:
    """The key index of one table; its methods may be called from several threads."""

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
        """A reader of the present state, for tasks."""
        return IndexReader(str(self.folder), self.manifest.name)

    # -- commits -------------------------------------------------------------------------------

    def prepare(self, commit_id: str, runs: Sequence[str], removed: Iterable[str] = ()) -> None:
        """Write down, before the table's commit, which runs belong to it.

        If the process dies after that commit, the next start confirms it (`follow`).
        """
        pending = PendingCommit(commit_id, tuple(runs), tuple(removed))
        write_whole(self.folder / _PENDING, json.dumps(asdict(pending)).encode())

    def pending(self) -> PendingCommit | None:
        """Return the commit that was prepared and neither confirmed nor abandoned."""
        try:
            raw = json.loads((self.folder / _PENDING).read_bytes())
            pending = PendingCommit(raw["commit_id"], tuple(raw["runs"]), tuple(raw["removed"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # A process that died right after the manifest left the note behind: that commit is in.
        return None if pending.commit_id == self.manifest.commit_id else pending

    def confirm(self, commit_id: str, snapshot_id: int, sequence_number: int) -> None:
        """Move to the snapshot of the prepared commit: its runs count from now on."""
        if self.manifest.commit_id == commit_id and self.manifest.snapshot_id == snapshot_id:
            return
        pending = self.pending()
        if pending is None or pending.commit_id != commit_id:
            raise damaged(f"commit {commit_id} was not prepared", self.folder)
        with self._lock:
            added: dict[str, int] = {}
            front = self._numbered_runs(pending.runs, commit_id, added)
            removed = self._file_numbers(pending.removed)
            self.publish_state(front, added, removed, snapshot_id, sequence_number, commit_id)
            (self.folder / _PENDING).unlink(missing_ok=True)
            self._unstage(commit_id, set(pending.runs))

    def apply_rewrite(
        self, update: RewriteIndexUpdate, snapshot_id: int, sequence_number: int
    ) -> None:
        """Move to the snapshot of a rewrite, which follows right after the index's own."""
        with self._lock:
            removed = self._file_numbers(update.removed)
            # All new files, not just those that runs name: the live rows of some may have died.
            added = {path: self.manifest.next_file + n for n, path in enumerate(update.added)}
            front = self._numbered_runs(update.runs, update.origin, added)
            commit_id = self.manifest.commit_id
            self.publish_state(front, added, removed, snapshot_id, sequence_number, commit_id)

    def abandon(self, commit_id: str) -> None:
        """Forget what was staged for a commit that will never be made."""
        pending = self.pending()
        if pending is not None and pending.commit_id == commit_id:
            (self.folder / _PENDING).unlink(missing_ok=True)
        self._unstage(commit_id)

    def _unstage(self, commit_id: str, kept: Collection[str] = ()) -> None:
        """Remove the runs that attempts staged for a commit, except for those in `kept`."""
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
        """Move to a snapshot: put runs in front of the others, add and remove data files."""
        with self._lock:
            old = self.manifest
            runs = [(*front.get(bucket, ()), *refs) for bucket, refs in enumerate(old.runs)]
            new = old.following(
                whole=True,
                snapshot_id=snapshot_id,
                sequence_number=sequence_number,
                commit_id=commit_id,
                next_file=max([old.next_file, *(number + 1 for number in added.values())]),
                lists=append_list(self.folder, old.lists, added, removed),
                runs=tuple(runs),
            )
            old_garbage = set(self._garbage)
            self._publish(new)
            self._garbage -= old_garbage
            if added or removed:
                self.files = self.files.with_changes(added, removed)
        for name in old_garbage:  # whoever read them belonged to the commit that is now done
            (self.folder / name).unlink(missing_ok=True)

    def _file_numbers(self, paths: Sequence[str]) -> list[int]:
        """Return the numbers of live data files; raises IndexDamaged for one that is not known."""
        numbers = self.files.by_path if paths else {}
        if unknown := set(paths) - numbers.keys():
            raise damaged(f"it does not know {min(unknown)}", self.folder)
        return [numbers[path] for path in paths]

    def _numbered_runs(
        self, names: Sequence[str], commit_id: str, added: dict[str, int]
    ) -> dict[int, list[RunRef]]:
        """Return staged runs by bucket; their new data files get the next numbers, in `added`."""
        refs: dict[int, list[RunRef]] = {}
        for name in names:
            path = self.folder / name
            origin, count = read_origin(path)
            expected = (self.manifest.table_uuid, commit_id)
            if (origin.table_uuid, origin.commit_id) != expected or origin.bucket not in range(
                self.manifest.buckets
            ):
                raise damaged("a run of another commit", path)
            for file in origin.paths:
                added.setdefault(file, self.manifest.next_file + len(added))
            numbers = tuple(added[file] for file in origin.paths)
            refs.setdefault(origin.bucket, []).append(RunRef(name, count, numbers))
        return refs

    def _publish(self, new: IndexManifest) -> None:
        publish(self.folder, new)
        self._garbage |= self.manifest.names() - new.names() | {self.manifest.name}
        self.manifest = new

    # -- merging -------------------------------------------------------------------------------

    def due_merges(self) -> list[MergeJob]:
        """Claim the merges that are due; each may run in any process, by `merge.merge`.

        Whoever called this calls `install_merged` for each, or `release_merges`.
        """
        with self._lock:
            jobs = []
            for bucket, runs in enumerate(self.manifest.runs):
                count = merge_count([run.entries for run in runs])
                if count and bucket not in self._merging:
                    self._merging.add(bucket)
                    jobs.append(self._job(bucket, runs[:count], count == len(runs)))
            return jobs

    def _job(self, bucket: int, runs: tuple[RunRef, ...], oldest: bool) -> MergeJob:
        horizon = max(0, int(self._clock()) - KEEP_SECONDS)
        uuid_ = self.manifest.table_uuid
        return MergeJob(str(self.folder), uuid_, bucket, runs, oldest, self.files.numbers, horizon)

    def install_merged(self, merged: MergedRun) -> None:
        """Put a merged run in the place of those it was made of."""
        job = merged.job
        with self._lock:
            buckets = list(self.manifest.runs)
            runs = buckets[job.bucket]
            start = runs.index(job.runs[0])  # newer runs may have come in front meanwhile
            replacement = (merged.run,) if merged.run.entries else ()
            buckets[job.bucket] = (*runs[:start], *replacement, *runs[start + len(job.runs) :])
            self._publish(self.manifest.following(runs=tuple(buckets)))
            self._merging.discard(job.bucket)
        if not merged.run.entries:
            (self.folder / merged.run.name).unlink(missing_ok=True)

    def merge(self) -> int:
        """Do all merges that are due, while lookups and commits go on; returns their number."""
        count = 0
        while jobs := self.due_merges():
            try:
                for job in jobs:
                    self.install_merged(merge(job))
                    count += 1
            finally:
                self.release_merges(jobs)
        return count

    def release_merges(self, jobs: Iterable[MergeJob]) -> None:
        """Let merges that failed, or never began, be tried again."""
        with self._lock:
            self._merging -= {job.bucket for job in jobs}


def open_index(
    folder: Path,
    table_uuid: str,
    key_ids: Sequence[int],
    *,
    clock: Callable[[], float] = time.time,
) -> KeyIndex | IndexUnusable:
    """Take over the index in a folder, after which its former owner can publish no more.

    Reads every run to compare its checksums, and removes files that no state names.
    """
    for _ in range(_TRIES):
        numbers = manifests.numbers(folder)
        if not numbers:
            return IndexUnusable("there is none yet")
        try:
            manifest = manifests.read(folder, manifests.name_of(numbers[0]))
            if reason := _why_unusable(manifest, table_uuid, key_ids):
                return IndexUnusable(reason)
            # Before anything is checked: from here on the former owner's publish fails, so nothing
            # changes under us.
            manifest = manifest.following(owner=uuid.uuid4().hex)
            publish(folder, manifest)
            index = KeyIndex(folder, manifest, clock)
            if index.pending() is None:  # or the note is of a commit that is in
                (folder / _PENDING).unlink(missing_ok=True)
            for run in _all_runs(index):
                run.verify()
            _remove_unreferenced(index)
            return index
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
    """Put an empty index in place of whatever the folder holds.

    It is not `whole`, and so will not be opened again, until its first `publish_state`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = _take_over(folder, table_uuid, keys, buckets)
    for path in folder.iterdir():
        # A merge of a former owner may still be writing: what it leaves is swept at the next start.
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != manifest.name:
            path.unlink(missing_ok=True)
    (folder / FOLDER).mkdir(exist_ok=True)
    for bucket in range(buckets):
        (folder / run_folder(bucket)).mkdir(parents=True, exist_ok=True)
    return KeyIndex(folder, manifest, clock)


def _take_over(
    folder: Path, table_uuid: str, keys: Mapping[str, int], buckets: int
) -> IndexManifest:
    """Publish an empty state under the next number, so that a former owner's publish fails."""
    for _ in range(_TRIES):
        number = max(manifests.numbers(folder), default=0) + 1
        owner = uuid.uuid4().hex
        runs: tuple[tuple[RunRef, ...], ...] = ((),) * buckets
        manifest = IndexManifest(
            number, owner, False, table_uuid, dict(keys), None, 0, None, 0, (), runs
        )
        with suppress(Fenced):
            publish(folder, manifest)
            return manifest
    raise Fenced("another process keeps writing to the key index", where=str(folder))


def _why_unusable(manifest: IndexManifest, table_uuid: str, key_ids: Sequence[int]) -> str | None:
    if not manifest.whole:
        return "it was not finished"
    if manifest.table_uuid != table_uuid:
        return "it belongs to another table"
    if list(manifest.keys.values()) != list(key_ids):
        return f"its key columns are others: {', '.join(manifest.keys)}"
    return None


def _all_runs(index: KeyIndex) -> Iterable[SortedRun]:
    for bucket, refs in enumerate(index.manifest.runs):
        for ref in refs:
            run = open_run(index.folder / ref.name, ref.numbers)
            if (run.origin.table_uuid, run.origin.bucket, len(run)) != (
                index.manifest.table_uuid, bucket, ref.entries,
            ):  # fmt: skip
                raise damaged("a run of another table or bucket", run.path)
            yield run


def _remove_unreferenced(index: KeyIndex) -> None:
    """Remove files that neither the present state nor a prepared commit names."""
    pending = index.pending()
    kept = index.manifest.names() | {index.manifest.name, _PENDING}
    kept |= set(pending.runs if pending else ())
    for path in [*index.folder.glob(f"{_RUNS}/*/*"), *index.folder.glob(f"{FOLDER}/*")]:
        if str(path.relative_to(index.folder)) not in kept:
            path.unlink(missing_ok=True)
    for path in index.folder.iterdir():
        if path.is_file() and path.name not in kept:
            path.unlink(missing_ok=True)
