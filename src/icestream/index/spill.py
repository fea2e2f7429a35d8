"""A spill: entries of many data files on their way into runs, in bounded memory."""

import uuid
from pathlib import Path

import numpy as np

from icestream.index.entries import IndexEntries, concat_entries
from icestream.index.keys import bucket_of
from icestream.index.merge import RunRef, run_folder
from icestream.index.sorted_run import RunIdentity, write_run

AT_ONCE = 1 << 21  # entries in memory, about 90 MB


class EntrySpill:
    """Gathers entries in the order of writing; the last one of a key is the newest."""

    def __init__(self, folder: Path, table_uuid: str, buckets: int, most: int = AT_ONCE) -> None:
        self._folder, self._uuid, self._buckets, self._most = folder, table_uuid, buckets, most
        self._held: list[IndexEntries] = []
        self._count = 0
        self.runs: dict[int, list[RunRef]] = {}  # by bucket, newest first

    def add(self, entries: IndexEntries) -> None:
        """Take entries; those with numbers of data files, not counts of paths."""
        self._held.append(entries)
        self._count += len(entries)
        if self._count >= self._most:
            self.flush()

    def flush(self) -> None:
        """Write what is held: a run for each bucket that has any."""
        if not self._count:
            return
        ready = concat_entries(self._held).take(slice(None, None, -1)).newest()
        self._held, self._count = [], 0
        # Sorted by hash, and a bucket is the first bits of it: each is a slice.
        places = bucket_of(ready.hash_hi.reshape(-1, 1), self._buckets)
        bounds = np.searchsorted(places, np.arange(self._buckets + 1))
        for bucket in range(self._buckets):
            part = ready.take(slice(bounds[bucket], bounds[bucket + 1]))
            if len(part):
                name = f"{run_folder(bucket)}/spill-{uuid.uuid4().hex}.run"
                write_run(self._folder / name, RunIdentity(self._uuid, bucket, ""), part)
                self.runs.setdefault(bucket, []).insert(0, RunRef(name, len(part)))
