"""Stages, drops or reports the bad records of one table, as `bad_records` says."""

import pyarrow as pa
import pyarrow.compute as pc

from icestream.batch.report import FirstBadRecord, TaskReport, TaskRequests
from icestream.batch.split_records import at_or_above
from icestream.sources import RecordFloors
from icestream.tables.marker import Counts
from icestream.write.stage import StagedFile, Stager, StageTarget

_MEMORY = 8 << 20


class BadRecordWriter:
    """Handles the bad records of one table in one task attempt."""

    def __init__(
        self, rule: str, target: StageTarget | None, floors: RecordFloors, attempt: str
    ) -> None:
        self._rule = rule
        self._target = target  # None: does not exist yet; a bad record asks for it
        self._floors = floors
        self._attempt = attempt
        self._stager: Stager | None = None

    def handle(self, bad: pa.RecordBatch) -> TaskReport:
        """Apply `bad_records` to rows in quarantine columns: stage, drop, or report the first."""
        if self._rule == "drop":
            return TaskReport(Counts(dropped=bad.num_rows))
        # Counted though nothing is written: the counts of a report must add up to its records.
        counts = Counts(quarantined=bad.num_rows)
        if self._rule == "fail":
            first = bad.slice(0, 1).select(["topic", "partition", "offset", "error"]).to_pylist()[0]
            return TaskReport(counts, requests=TaskRequests(first_bad=FirstBadRecord(**first)))
        if self._target is None:
            return TaskReport(counts, requests=TaskRequests(needs_quarantine=True))
        for topic in pc.unique(bad.column("topic")).to_pylist():
            of_topic = bad.filter(pc.equal(bad.column("topic"), topic))
            new_rows = at_or_above(of_topic, self._floors.get(topic, {}))
            if new_rows.num_rows:
                self._stager = self._stager or Stager(self._target, self._attempt, _MEMORY)
                self._stager.write(new_rows)
        return TaskReport(counts)

    def finish(self) -> tuple[StagedFile, ...]:
        """Close the files and return them."""
        return tuple(self._stager.finish()) if self._stager else ()

    def abort(self) -> None:
        """After an error or at the end: close files and free memory."""
        if self._stager:
            self._stager.abort()
