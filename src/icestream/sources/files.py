"""Source `files`: lines of the files in a growing folder, plain or gzip.

A file is taken once its size and time held over two listings, and is immutable from then on.
Records carry the file's path (relative to the folder) as topic and the byte offset as offset.
"""

import json
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from icestream.errors import SetupError, SourceChanged
from icestream.positions import PositionRange, Positions
from icestream.sources import RecordFloors, Source, StartPositions, Stream
from icestream.sources import ledger as ledgers
from icestream.sources.ledger import Ledger, ListedFile, Split
from icestream.sources.lines import LineReader, cut_into_splits, is_packed
from icestream.spark.offset_log import translate_missing_log
from icestream.tables.marker import LocatedMarker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAM = "files"  # the one stream, with the one partition 0: a count of ledger entries
_SETTLE_SECONDS = 1.0  # between the two listings that must agree
_EVERYTHING = 2**63 - 1
_PASSED = 0  # lines of an entry that `start` passed over: it may still grow, nobody reads it


class FilesSource(Source):
    """The driver's side: knows the ledger, stores it with each commit."""

    shared_streams = frozenset({STREAM})

    def __init__(self, options: Any) -> None:
        self._folder = Path(options.path)
        self._pattern: str = options.pattern
        self._max_records: int = options.max_records_per_commit
        self._ledger = Ledger()
        self._shared = False  # other tables stand somewhere in the ledger already
        self._log: LedgerLog | None = None
        self._reading = threading.Lock()
        self.reader = LineReader(str(self._folder))

    def check(self) -> None:
        """The folder can be listed."""
        if not self._folder.is_dir():
            raise SetupError(
                f"source folder `{self._folder}` does not exist",
                hint="create it, or set `source.path`",
            )

    def known_topics(self) -> Sequence[str]:
        """Paths become known as they are listed."""
        return ()

    def sample(self, count: int) -> Iterator[pa.RecordBatch]:
        """The first lines of the oldest files, whether they are complete or not."""
        self.check()
        files = sorted(_listing(self._folder, self._pattern), key=lambda one: one.mtime_ns)
        for file in files:
            whole = Split(file.path, file.size, file.mtime_ns, 0, file.size, 0)
            order = json.dumps([astuple(whole)])
            for records in self.reader.read(iter([pa.record_batch({"work": [order]})])):
                yield records.slice(0, count)
                count -= records.num_rows
                if count <= 0:
                    return

    def load_details(self, markers: Sequence[LocatedMarker]) -> None:
        """Gather the ledger from the position lists of the tables."""
        restored = [
            ledgers.restore_ledger(
                each.location,
                each.marker.details.get("ledger"),
                _entry_count(each.marker.positions),
            )
            for each in markers
        ]
        self._ledger = ledgers.longest_ledger(restored)
        self._shared = bool(restored)

    def resolve_start(self, start: str | datetime) -> StartPositions:
        """`latest` and times pass over older files; beside other tables, over what those took."""
        self.check()
        if start == "earliest":
            return StartPositions(_as_positions(0))
        limit = None if isinstance(start, str) else int(start.timestamp() * 1e9)
        if not self._shared:
            self._ledger.extend(
                Split(seen.path, seen.size, seen.mtime_ns, 0, seen.size, _PASSED)
                for seen in _listing(self._folder, self._pattern)
                if limit is None or seen.mtime_ns < limit
            )
            return StartPositions(_as_positions(len(self._ledger)))
        old = [limit is None or split.mtime_ns < limit for split in self._ledger.splits]
        return StartPositions(_as_positions([*old, False].index(False)))

    def open(self, spark: "SparkSession", begin: Positions, scratch: Path, once: bool) -> Stream:
        """Let the planner go on from there, with what was taken so far."""
        from icestream.sources.planned import PlannedStream

        self.check()
        self._log = LedgerLog(scratch / "ledger.jsonl")
        self._log.append(self._ledger.splits)
        self._log.read()
        settings: dict[str, Any] = {
            "folder": str(self._folder),
            "pattern": self._pattern,
            "log": str(self._log.file),
            "begin": _entry_count(begin),
            "max_records": self._max_records,
            "tasks": spark.sparkContext.defaultParallelism,
            "once": once,
        }
        return PlannedStream(spark, partial(FilesPlanner, **settings))

    def stream_of(self, topic: str) -> str:
        """One ledger covers all paths."""
        return STREAM

    def topics(self, batch: PositionRange) -> Sequence[str]:
        """The paths in the range."""
        return list(dict.fromkeys(split.path for split in self._between(batch)))

    def record_floors(self, batch: PositionRange, floors: Positions) -> RecordFloors:
        """Entries of the range below the floor are in already: keep what follows them."""
        done = _entry_count(floors) - _entry_count(batch.start)
        entries = self._between(batch)
        taken = {split.path: {0: split.stop} for split in entries[:done]}
        behind = {split.path for split in entries[done:]}
        return {path: at if path in behind else {0: _EVERYTHING} for path, at in taken.items()}

    def store_details(
        self, stop: Positions, location: str, commit_id: str, old: Mapping[str, str]
    ) -> dict[str, str]:
        """The position list, beside the table, named by the commit."""
        count = _entry_count(stop)
        self._catch_up(count)
        return {
            "ledger": ledgers.store_list(
                self._ledger, count, location, commit_id, old.get("ledger")
            )
        }

    def lag(self, positions: Positions) -> Positions:
        """Lines in the entries behind `positions`."""
        self._catch_up(None)
        return _as_positions(
            sum(split.lines for split in self._ledger.splits[_entry_count(positions) :])
        )

    def close(self) -> None:
        """Nothing is open."""

    def _between(self, batch: PositionRange) -> list[Split]:
        stop = _entry_count(batch.stop)
        self._catch_up(stop)
        return self._ledger.splits[_entry_count(batch.start) : stop]

    def _catch_up(self, count: int | None) -> None:
        """Read what the planner has added since, in its own thread."""
        with self._reading:  # tables land in threads of their own
            if self._log and (count is None or len(self._ledger) < count):
                self._ledger.extend(self._log.read())


class FilesPlanner:
    """Runs in the stream's thread: lists the folder, cuts files, hands out splits."""

    def __init__(
        self,
        folder: str,
        pattern: str,
        log: str,
        begin: int,
        max_records: int,
        tasks: int,
        once: bool,
    ) -> None:
        self._folder = Path(folder)
        self._pattern = pattern
        self._log = LedgerLog(Path(log))
        self._splits = self._log.read()
        self._taken: dict[str, tuple[int, int] | None] = {
            split.path: (split.size, split.mtime_ns) if split.lines != _PASSED else None
            for split in self._splits
        }
        self._begin = begin
        self._position = begin
        self._max_records = max_records
        self._tasks = tasks
        self._once = once
        self._looked: Mapping[str, ListedFile] = {}
        self._looked_at: float | None = None
        self._finished = False
        self._recut_unfinished()

    def initial_positions(self) -> Positions:
        """Where the tables stand."""
        return _as_positions(self._begin)

    def latest_positions(self) -> Positions:
        """As many whole splits as fit into one commit, at least one if there is any."""
        self._list_folder()
        room = self._max_records
        while self._position < len(self._splits):
            lines = self._splits[self._position].lines
            if lines > room and room < self._max_records:
                break
            room -= lines
            self._position += 1
        return _as_positions(self._position)

    def work_orders(self, start: Positions, stop: Positions) -> Sequence[str]:
        """Neighbouring splits together, as many groups as there are task slots."""
        splits = [
            astuple(split) for split in self._splits[_entry_count(start) : _entry_count(stop)]
        ]
        groups = min(self._tasks, len(splits))
        edges = [round(len(splits) * each / groups) for each in range(groups + 1)] if groups else []
        return [json.dumps(splits[low:high]) for low, high in pairwise(edges)]

    def _list_folder(self) -> None:
        if self._finished:
            return
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < _SETTLE_SECONDS:
            return
        self._take_stable_files()
        if self._once:
            time.sleep(_SETTLE_SECONDS)  # `once` cannot leave the second listing to a later batch
            self._take_stable_files()
            self._finished = True

    def _take_stable_files(self) -> None:
        seen = {each.path: each for each in _listing(self._folder, self._pattern)}
        for each in seen.values():
            self._refuse_change(each)
        settled = [
            each
            for each in seen.values()
            if each.path not in self._taken and self._looked.get(each.path) == each
        ]
        for each in sorted(settled, key=lambda one: (one.mtime_ns, one.path)):
            self._append_splits(cut_into_splits(self._folder, each, self._max_records))
            self._taken[each.path] = (each.size, each.mtime_ns)
        self._looked, self._looked_at = seen, time.monotonic()

    def _recut_unfinished(self) -> None:
        """Cut again what the run before had cut and not committed of the files it had begun."""
        last = {split.path: split for split in self._splits}
        for split in last.values():
            if split.lines != _PASSED and split.stop < split.size and not is_packed(split.path):
                seen = ListedFile(split.path, split.size, split.mtime_ns)
                self._append_splits(
                    cut_into_splits(self._folder, seen, self._max_records, split.stop)
                )

    def _append_splits(self, splits: Sequence[Split]) -> None:
        self._log.append(splits)
        self._splits.extend(splits)

    def _refuse_change(self, seen: ListedFile) -> None:
        taken = self._taken.get(seen.path)
        if taken and taken != (seen.size, seen.mtime_ns):
            raise SourceChanged(
                f"file `{seen.path}` changed after it was taken: "
                f"{taken[0]:,} bytes then, {seen.size:,} now",
                where=f"source folder {self._folder}",
                hint="files must not change once they are complete: write new data to a new file",
            )


class LedgerLog:
    """The ledger on its way from the planner to the source: scratch, append only."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read = 0

    def append(self, splits: Sequence[Split]) -> None:
        """Add entries; complete before the batch of the new position begins."""
        with translate_missing_log(self.file), self.file.open("a") as out:
            out.write("".join(json.dumps(astuple(split)) + "\n" for split in splits))

    def read(self) -> list[Split]:
        """The entries since the last call; one that is still being written is left for the next."""
        with translate_missing_log(self.file), self.file.open("rb") as log:
            log.seek(self._read)
            lines = log.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        return [Split(*json.loads(line)) for line in lines.splitlines()]


def _listing(folder: Path, pattern: str) -> list[ListedFile]:
    """Regular files that match, without hidden ones (`.` and `_` in front)."""
    found = []
    for path in folder.glob(pattern):
        name = path.relative_to(folder)
        if any(part.startswith((".", "_")) for part in name.parts):
            continue
        try:
            facts = path.stat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(facts.st_mode) and facts.st_size:
            found.append(ListedFile(name.as_posix(), facts.st_size, facts.st_mtime_ns))
    return found


def _as_positions(count: int) -> Positions:
    return {STREAM: {0: count}}


def _entry_count(positions: Positions) -> int:
    return positions.get(STREAM, {}).get(0, 0)
