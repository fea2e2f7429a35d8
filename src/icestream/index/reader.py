"""Reads one exact state of the index in other processes: two names are all that a task needs."""

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
from icestream.index.sorted_run import RunIdentity, SortedRun, cut_by_hash, open_run, stage_run

_AT_ONCE = 1 << 19  # entries in memory


@dataclass(frozen=True)
class IndexReader:
    """Looks keys up in the state that `manifest` names, and stages what comes next."""

    folder: str
    manifest: str

    @property
    def buckets(self) -> int:
        """The number of buckets that the keys are split into."""
        return self._state()[0].buckets

    def lookup(self, bucket: int, hashes: Hashes) -> LookupResult:
        """Look up keys of one bucket; results are in the order of `hashes`."""
        state, files = self._state()
        return lookup(self._runs(state, bucket), files.numbers, hashes)

    def live(self, bucket: int) -> Iterator[IndexEntries]:
        """Yield the entries of all live rows of a bucket, a part at a time."""
        state, files = self._state()
        runs = [run for run in self._runs(state, bucket) if len(run)]
        for parts in cut_by_hash(runs, _AT_ONCE) if runs else ():
            newest = concat_entries(parts).newest()
            has_row = ~newest.tombstone & is_live(files.numbers, newest.file)
            yield newest.take(np.flatnonzero(has_row))

    def path(self, number: int) -> str:
        """Return the path of the data file that a number stands for."""
        return self._state()[1].path(number)

    def stage(
        self, bucket: int, commit_id: str, entries: IndexEntries, paths: Sequence[str] = ()
    ) -> str:
        """Write what a commit will change in a bucket; returns the run's name.

        The driver hands the names to `KeyIndex.prepare`: any number of attempts may stage, only
        those named there count. `file` of the entries counts `paths`, the new data files.
        """
        state, _ = self._state()
        newest = entries.newest()
        if len(newest) != len(entries):
            raise InternalError("a key was staged twice in one commit")
        if (bucket_of(entries.hash_hi.reshape(-1, 1), state.buckets) != bucket).any():
            raise InternalError(f"a key was staged in bucket {bucket}, where it does not belong")
        identity = RunIdentity(state.table_uuid, bucket, commit_id, tuple(paths))
        return stage_run(Path(self.folder), identity, newest)

    def _state(self) -> tuple[IndexManifest, NumberedFiles]:
        try:
            status = Path(self.folder, self.manifest).stat()
        except OSError as failure:
            raise damaged(f"manifest: {failure.strerror}", self.folder) from None
        # The name alone is no key for the cache: if the folder is deleted while this process lives,
        # names begin anew.
        return _load(self.folder, self.manifest, (status.st_ino, status.st_mtime_ns))

    def _runs(self, state: IndexManifest, bucket: int) -> list[SortedRun]:
        folder = Path(self.folder)
        runs = [open_run(folder / ref.name, ref.numbers) for ref in state.runs[bucket]]
        for run in runs:
            if (run.origin.table_uuid, run.origin.bucket) != (state.table_uuid, bucket):
                raise damaged("a run of another table or bucket", run.path)
        return runs


@lru_cache(maxsize=8)  # a task looks up bucket by bucket, and workers live for many tasks
def _load(folder: str, name: str, stamp: tuple[int, int]) -> tuple[IndexManifest, NumberedFiles]:
    state = manifests.read(Path(folder), name)
    return state, load_files(Path(folder), state.lists, again=False)
