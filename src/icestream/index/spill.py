"""A spill of index entries: those of many data files on their way into runs, in bounded memory."""

from pathlib import Path

from icestream.index.entries import IndexEntries, concat_entries
from icestream.index.merge import RunRef
from icestream.index.sorted_run import RunIdentity, stage_run

AT_ONCE = 1 << 21  # entries in memory, about 90 MB


class EntrySpill:
    """Gathers entries in the order of writing; the last one of a key is the newest."""

    def __init__(self, folder: Path, table_uuid: str, buckets: int, most: int = AT_ONCE) -> None:
        self._folder, self._uuid, self._buckets, self._most = folder, table_uuid, buckets, most
        self._held: list[IndexEntries] = []
        self._count = 0
        self.runs: dict[int, list[RunRef]] = {}  # by bucket, newest first

    def add(self, entries: IndexEntries) -> None:
        """Add entries that hold the numbers of their data files, not counts of paths."""
        self._held.append(entries)
        self._count += len(entries)
        if self._count >= self._most:
            self.flush()

    def flush(self) -> None:
        """Write what is held: a run for each bucket that has entries."""
        if not self._count:
            return
        # Reversed: `newest` keeps the first entry of a key, and the one added last is the newest.
        entries = concat_entries(self._held).take(slice(None, None, -1)).newest()
        self._held, self._count = [], 0
        for bucket, part in entries.by_bucket(self._buckets):
            name = stage_run(self._folder, RunIdentity(self._uuid, bucket, ""), part)
            self.runs.setdefault(bucket, []).insert(0, RunRef(name, len(part)))
