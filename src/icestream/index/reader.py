"""A reader: one exact state of the index, as small as two names, for tasks in other processes."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from icestream.errors import InternalError
from icestream.index import manifest as manifests
from icestream.index.bucket import LookupResult, is_live, lookup
from icestream.index.disk import damaged
from icestream.index.entries import IndexEntries, concat_entries
from icestream.index.files import NumberedFiles, load_files
from icestream.index.keys import Hashes, bucket_of
from icestream.index.manifest import IndexManifest
from icestream.index.merge import run_folder
from icestream.index.sorted_run import RunIdentity, SortedRun, cut_by_hash, open_run, write_run

_AT_ONCE = 1 << 19  # entries in memory


@dataclass(frozen=True)
class IndexReader:
    """Looks keys up in the state that `manifest` names, and stages what comes next."""

    folder: str
    manifest: str

    @property
    def buckets(self) -> int:
        """How many shares the keys are split into."""
        return self._state()[0].buckets

    def lookup(self, bucket: int, hashes: Hashes) -> LookupResult:
        """Find keys of one bucket."""
        found, files = self._state()
        return lookup(self._runs(found, bucket), files.numbers, hashes)

    def live(self, bucket: int) -> Iterator[IndexEntries]:
        """Give all rows of a bucket that the table has, some at a time."""
        found, files = self._state()
        runs = [run for run in self._runs(found, bucket) if len(run)]
        for parts in cut_by_hash(runs, _AT_ONCE) if runs else ():
            newest = concat_entries(parts).newest()
            there = ~newest.tombstone & is_live(files.numbers, newest.file)
            yield newest.take(np.flatnonzero(there))

    def path(self, number: int) -> str:
        """The data file that a number stands for."""
        return self._state()[1].path(number)

    def stage(
        self, bucket: int, commit_id: str, entries: IndexEntries, paths: Sequence[str] = ()
    ) -> str:
        """Write what a commit will change in a bucket; → the run's name, for `KeyIndex.prepare`.

        `file` of the entries counts `paths`, the new data files. Any number of attempts may stage:
        only the names that are given to the commit count.
        """
        found, _ = self._state()
        ready = entries.newest()
        if len(ready) != len(entries):
            raise InternalError("a key was staged twice in one commit")
        hashes = entries.hash_hi.reshape(-1, 1)
        if (bucket_of(hashes, found.buckets) != bucket).any():
            raise InternalError(f"a key was staged in bucket {bucket}, where it does not belong")
        name = f"{run_folder(bucket)}/{commit_id}-{uuid.uuid4().hex}.run"
        path = Path(self.folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_run(path, RunIdentity(found.table_uuid, bucket, commit_id, tuple(paths)), ready)
        return name

    def _state(self) -> tuple[IndexManifest, NumberedFiles]:
        try:
            there = Path(self.folder, self.manifest).stat()
        except OSError as failure:
            raise damaged(f"manifest: {failure.strerror}", self.folder) from None
        # Names begin anew if the folder is deleted while this process lives.
        return _load(self.folder, self.manifest, (there.st_ino, there.st_mtime_ns))

    def _runs(self, found: IndexManifest, bucket: int) -> list[SortedRun]:
        folder = Path(self.folder)
        runs = [open_run(folder / ref.name, ref.numbers) for ref in found.runs[bucket]]
        for run in runs:
            if (run.origin.table_uuid, run.origin.bucket) != (found.table_uuid, bucket):
                raise damaged("a run of another table or bucket", run.path)
        return runs


@lru_cache(maxsize=8)  # a task looks up bucket by bucket, and workers live for many tasks
def _load(folder: str, name: str, stamp: tuple[int, int]) -> tuple[IndexManifest, NumberedFiles]:
    found = manifests.read(Path(folder), name)
    return found, load_files(Path(folder), found.lists, again=False)
