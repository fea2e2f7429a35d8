"""Mirrors: what a batch does more for upsert tables: keys, key index, shuffle, position deletes."""

import math
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from icestream import events
from icestream.batch.decode_task import Report, StageTask, Upserting, block_type, report_type
from icestream.batch.write_task import ApplyTask
from icestream.commit.protocol import CommitFailed
from icestream.commit.table_builder import Builder, current_fields, stage_target
from icestream.commit.table_commits import Work
from icestream.config.model import Pipeline as Config
from icestream.events import Bus
from icestream.index.follow import Followed
from icestream.index.rewrite_update import Move, Shelf
from icestream.tables.design import keys_of
from icestream.upsert.apply import Mirror, unpacked
from icestream.upsert.change_rules import Terms
from icestream.upsert.indexes import Indexes
from icestream.write.position_deletes import merged, write_deletes
from icestream.write.stage import StagedFile

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyspark.sql import DataFrame


_COUNTING = ("kafka", "generator")  # sources whose positions count records
_LEAST_RECORDS = 25_000  # that are worth a task of their own
_RECORDS_PER_GROUP = 100_000  # what comes to a group is packed by itself, with all its columns
_BYTES_PER_GROUP = 128 << 20  # a task holds the changes of a group in memory


class Mirrors:
    """The upsert tables of one run."""

    def __init__(
        self,
        config: Config,
        io: Callable[[str], "FileIO"],
        builder: Builder,
        bus: Bus,
        cores: int,
    ) -> None:
        self._pipeline = config.name
        self._cores = cores
        self._builder = builder
        self._bus = bus
        self._indexes = Indexes(
            Path(config.state_location) / config.name / "index", io, self._followed
        )
        self._gathered: set[str] = set()  # tables whose batch is applied by one task
        self._keyless: set[str] = set()
        self._counts = config.source.type in _COUNTING
        self._widest: dict[str, int] = {}  # bytes of the largest record in a table's last batch

    # -- plan ----------------------------------------------------------------------------------

    def planned(self, work: Work) -> Work:
        """Bring the table's key index to the snapshot that the batch is planned from."""
        keys = _keys(work)
        if not keys or not set(keys) <= set(current_fields(work.view.base.document)):
            return replace(work, keys=keys or ())  # the first batch tells, and adds the columns
        index = self._indexes.at(work.table.name, work.view, keys)
        return replace(work, keys=keys, index=index)

    def upserting(self, work: Work, prefix: str) -> Upserting | None:
        """What tasks must know; None: without a key, every record is a row."""
        rule, document = work.table.rule, work.view.base.document
        if _keys(work) == ():
            return None
        terms = Terms(
            keys=work.keys,
            sequence_by=tuple(rule.sequence_by or ()),
            delete_if=rule.apply_as_deletes,
            soft=rule.deletes == "soft",
            truncate=rule.truncate,
        )
        if work.index is None:
            return Upserting(terms)
        gathered = work.table.name in self._gathered
        target = stage_target(document, prefix)
        location = str(document["location"])
        until = work.batch.stop
        mirror = Mirror(target, location, work.keys, work.index, work.commit_id, until, gathered)
        buckets = work.index.buckets
        records = _records(work) if self._counts else None
        widest = self._widest.get(work.table.name)
        groups = 1 if gathered else groups_of(records, widest, buckets, self._cores)
        return Upserting(terms, buckets, groups, mirror)

    # -- stage ---------------------------------------------------------------------------------

    def apply(
        self, frame: "DataFrame", task: StageTask, tasks: int | None
    ) -> Sequence[tuple[str, str]]:
        """Decode, bring the changes of a key together, apply them; → tables and reports."""
        from pyspark.sql import functions as f

        second = ApplyTask(task.pipeline, task.tables, task.ingested_at)
        cores = frame.sparkSession.sparkContext.defaultParallelism
        width = min(cores, tasks or cores)
        blocks = frame.mapInArrow(task, block_type())  # type: ignore[arg-type]
        shared = blocks.repartitionById(width, f.pmod("group", f.lit(width)).cast("int"))
        ordered = shared.sortWithinPartitions("table", "group")
        found = ordered.mapInArrow(second, report_type()).collect()  # type: ignore[arg-type]
        return [(row[0], row[1]) for row in found]

    def prepare(self, work: Work, report: Report) -> bool:
        """Do what the tasks asked for; → whether the batch must be planned again."""
        name = work.table.name
        if _keys(work) is None and (report.keys or not report.new_fields):
            with suppress(CommitFailed):  # somebody was faster: planning again sees what is there
                self._builder.set_keys(work.table.design, work.view.base, report.keys)
            return True
        if report.gather and name not in self._gathered:
            self._gathered.add(name)
            return True
        return False

    # -- land ----------------------------------------------------------------------------------

    def deletes(self, work: Work, report: Report) -> list[StagedFile]:
        """Stage the position deletes of a batch, and say what it will change in the index."""
        self._gathered.discard(work.table.name)
        self._widest[work.table.name] = report.widest
        if work.index is None:
            if work.table.rule.mode == "upsert" and work.table.name not in self._keyless:
                self._keyless.add(work.table.name)
                self._bus.emit(events.KeyMissing(self._pipeline, work.table.name))
            return []
        name, view = work.table.name, work.view
        paths = [file.path for file in report.files]
        self._indexes.staged(name, [file.content_json for file in report.files], paths)
        self._indexes.prepare(name, work.commit_id, report.runs)
        dead = merged({p: unpacked(text) for p, text in part.items()} for part in report.dead)
        if not dead:
            return []
        generation = view.marker.generation if view.marker else 0
        prefix = f"{self._pipeline}-{generation:05d}-{work.commit_id}"
        target = stage_target(view.base.document, prefix)
        place_of = self._indexes.place_of(name, view)
        return write_deletes(dead, place_of, target, uuid.uuid4().hex[:12])

    def abandon(self, work: Work) -> None:
        """Forget what was staged for a batch that is planned again."""
        if work.index is not None:
            self._indexes.abandon(work.table.name, work.commit_id)

    # -- maintenance ---------------------------------------------------------------------------

    def shelf(self, table: str) -> Shelf | None:
        """Where a rewrite stages what it changes in the key index; None: there is none in use."""
        return self._indexes.shelf(table)

    def moving(self, table: str, move: Move) -> None:
        """A rewrite is about to be committed: the index goes along when it sees it in the table."""
        self._indexes.moving(table, move)

    def staying(self, table: str, rewrite_id: str) -> None:
        """It was not committed, and never will be."""
        self._indexes.staying(table, rewrite_id)

    def close(self) -> None:
        """Let work in the background end."""
        self._indexes.close()

    def _followed(self, table: str, how: Followed) -> None:
        self._bus.emit(events.IndexFollowed(self._pipeline, table, str(how)))


def groups_of(records: int | None, widest: int | None, most: int, cores: int) -> int:
    """In how many groups of keys a batch is applied: each costs some milliseconds, however small.

    A power of two, so that tasks share them evenly: as many as there are cores, if the batch is
    worth it, and more where they would be large. What is not known, as of a first batch, counts
    as much.
    """
    if records is None or widest is None:
        return most
    busy = min(cores, records / _LEAST_RECORDS)
    least = max(busy, records / _RECORDS_PER_GROUP, records * widest / _BYTES_PER_GROUP, 1)
    return min(most, 1 << math.ceil(math.log2(least)))


def _records(work: Work) -> int:
    start = work.batch.start
    return sum(
        at - start.get(stream, {}).get(number, 0)
        for stream, partitions in work.batch.stop.items()
        for number, at in partitions.items()
    )


def _keys(work: Work) -> tuple[str, ...] | None:
    return keys_of(work.table.rule, work.view.base.document["properties"])
