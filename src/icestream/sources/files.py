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
    """The driver's side: knows the ledger and stores it with each commit."""

    shared_streams = frozenset({STREAM})

    def __init__(self, options: Any) -> None:
        self._folder = Path(options.path)
        self._pattern: str = options.pattern
        self._max_records: int = options.max_records_per_commit
        self._ledger = Ledger()
        self._shared = False  # other tables have positions in the ledger already
        self._log: LedgerLog | None = None
        self._reading = threading.Lock()
        self.reader = LineReader(str(self._folder))

    def check(self) -> None:
        """Raise SetupError unless the folder exists."""
        if not self._folder.is_dir():
            raise SetupError(
                f"source folder `{self._folder}` does not exist",
                hint="create it, or set `source.path`",
            )

    def known_topics(self) -> Sequence[str]:
        """None: a topic is a path, known only when the folder is listed."""
        return ()

    def sample(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the first lines of the oldest files, whether those are complete or not."""
        self.check()
        files = _listing(self._folder, self._pattern)
        for file in sorted(files, key=lambda file: file.mtime_ns):
            whole = Split(file.path, file.size, file.mtime_ns, 0, file.size, 0)
            order = json.dumps([astuple(whole)])
            for records in self.reader.read(iter([pa.record_batch({"work": [order]})])):
                yield records.slice(0, count)
                count -= records.num_rows
                if count <= 0:
                    return

    def load_details(self, markers: Sequence[LocatedMarker]) -> None:
        """Read the ledger back from the position lists of the tables."""
        restored = [
            ledgers.restore_ledger(
                located.location,
                located.marker.details.get("ledger"),
                _entry_count(located.marker.positions),
            )
            for located in markers
        ]
        self._ledger = ledgers.longest_ledger(restored)
        self._shared = bool(restored)

    def resolve_start(self, start: str | datetime) -> StartPositions:
        """Pass over older files for `latest` and times; beside other tables, over their entries."""
        self.check()
        if start == "earliest":
            return StartPositions(_as_positions(0))
        limit = None if isinstance(start, str) else int(start.timestamp() * 1e9)
        if not self._shared:
            self._ledger.extend(
                Split(file.path, file.size, file.mtime_ns, 0, file.size, _PASSED)
                for file in _listing(self._folder, self._pattern)
                if limit is None or file.mtime_ns < limit
            )
            return StartPositions(_as_positions(len(self._ledger)))
        # A position is a prefix of the ledger: up to the first entry that is not passed over.
        is_older = [limit is None or split.mtime_ns < limit for split in self._ledger.splits]
        return StartPositions(_as_positions([*is_older, False].index(False)))

    def open(self, spark: "SparkSession", begin: Positions, scratch: Path, once: bool) -> Stream:
        """Open a stream whose planner goes on at `begin`, with the ledger so far."""
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
        """Return the one stream: its ledger covers all paths."""
        return STREAM

    def topics(self, batch: PositionRange) -> Sequence[str]:
        """List the paths in a range."""
        return list(dict.fromkeys(split.path for split in self._between(batch)))

    def record_floors(self, batch: PositionRange, floors: Positions) -> RecordFloors:
        """Drop what lies in entries below the floor, which are in the table already."""
        done = _entry_count(floors) - _entry_count(batch.start)
        entries = self._between(batch)
        taken = {split.path: {0: split.stop} for split in entries[:done]}
        unfinished = {split.path for split in entries[done:]}
        return {
            path: offsets if path in unfinished else {0: _EVERYTHING}
            for path, offsets in taken.items()
        }

    def store_details(
        self, stop: Positions, location: str, commit_id: str, old: Mapping[str, str]
    ) -> dict[str, str]:
        """Store the position list beside the table, in a file named by the commit."""
        count = _entry_count(stop)
        self._catch_up(count)
        old_list = old.get("ledger")
        return {"ledger": ledgers.store_list(self._ledger, count, location, commit_id, old_list)}

    def lag(self, positions: Positions) -> Positions:
        """Count the lines in the entries behind `positions`."""
        self._catch_up(None)
        return _as_positions(
            sum(split.lines for split in self._ledger.splits[_entry_count(positions) :])
        )

    def close(self) -> None:
        """Nothing to release: no file stays open."""

    def _between(self, batch: PositionRange) -> list[Split]:
        stop = _entry_count(batch.stop)
        self._catch_up(stop)
        return self._ledger.splits[_entry_count(batch.start) : stop]

    def _catch_up(self, count: int | None) -> None:
        """Read what the planner, in its own thread, has added to the ledger since."""
        with self._reading:  # tables commit in threads of their own
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
        self._listed: Mapping[str, ListedFile] = {}  # by the last listing, by path
        self._listed_at: float | None = None
        self._finished = False
        self._recut_unfinished()

    def initial_positions(self) -> Positions:
        """Return the position at which the tables begin or go on."""
        return _as_positions(self._begin)

    def latest_positions(self) -> Positions:
        """Add as many whole splits as fit into one commit, at least one if there is any."""
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
        """Group neighbouring splits, into as many groups as there are task slots."""
        splits = self._splits[_entry_count(start) : _entry_count(stop)]
        rows = [astuple(split) for split in splits]
        groups = min(self._tasks, len(rows))
        edges = [round(len(rows) * n / groups) for n in range(groups + 1)] if groups else []
        return [json.dumps(rows[low:high]) for low, high in pairwise(edges)]

    def _list_folder(self) -> None:
        if self._finished:
            return
        now = time.monotonic()
        if self._listed_at is not None and now - self._listed_at < _SETTLE_SECONDS:
            return
        self._take_stable_files()
        if self._once:
            time.sleep(_SETTLE_SECONDS)  # `once` cannot leave the second listing to a later batch
            self._take_stable_files()
            self._finished = True

    def _take_stable_files(self) -> None:
        """Take the files that are new and look the same as in the listing before."""
        files = {file.path: file for file in _listing(self._folder, self._pattern)}
        for file in files.values():
            self._refuse_change(file)
        settled = [
            file
            for file in files.values()
            if file.path not in self._taken and self._listed.get(file.path) == file
        ]
        for file in sorted(settled, key=lambda file: (file.mtime_ns, file.path)):
            self._append_splits(cut_into_splits(self._folder, file, self._max_records))
            self._taken[file.path] = (file.size, file.mtime_ns)
        self._listed, self._listed_at = files, time.monotonic()

    def _recut_unfinished(self) -> None:
        """Cut the rest of files that the run before had begun, and whose rest was not committed."""
        last = {split.path: split for split in self._splits}
        for split in last.values():
            # A gzip file is a single split: committed whole or not at all.
            if split.lines != _PASSED and split.stop < split.size and not is_packed(split.path):
                file = ListedFile(split.path, split.size, split.mtime_ns)
                self._append_splits(
                    cut_into_splits(self._folder, file, self._max_records, split.stop)
                )

    def _append_splits(self, splits: Sequence[Split]) -> None:
        self._log.append(splits)
        self._splits.extend(splits)

    def _refuse_change(self, file: ListedFile) -> None:
        taken = self._taken.get(file.path)
        if taken and taken != (file.size, file.mtime_ns):
            raise SourceChanged(
                f"file `{file.path}` changed after it was taken: "
                f"{taken[0]:,} bytes then, {file.size:,} now",
                where=f"source folder {self._folder}",
                hint="files must not change once they are complete: write new data to a new file",
            )


class LedgerLog:
    """Scratch file by which the planner's thread hands ledger entries to the source."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read = 0

    def append(self, splits: Sequence[Split]) -> None:
        """Add entries; called before the batch that ends behind them begins."""
        with translate_missing_log(self.file), self.file.open("a") as out:
            out.write("".join(json.dumps(astuple(split)) + "\n" for split in splits))

    def read(self) -> list[Split]:
        """Read the entries since the last call; one that is half written waits for the next."""
        with translate_missing_log(self.file), self.file.open("rb") as log:
            log.seek(self._read)
            lines = log.read()
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        return [Split(*json.loads(line)) for line in lines.splitlines()]


def _listing(folder: Path, pattern: str) -> list[ListedFile]:
    """List regular files that match, without empty and hidden ones (`.` or `_` in front)."""
    files = []
    for path in folder.glob(pattern):
        name = path.relative_to(folder)
        if any(part.startswith((".", "_")) for part in name.parts):
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size:
            files.append(ListedFile(name.as_posix(), status.st_size, status.st_mtime_ns))
    return files


def _as_positions(count: int) -> Positions:
    return {STREAM: {0: count}}


def _entry_count(positions: Positions) -> int:
    return positions.get(STREAM, {}).get(0, 0)
