"""Commits of the stream to one table: what commit/protocol.py decides, carried out.

claim_table      claim a table for this run
commit_batch     commit a staged batch: its quarantined records first, then its rows
accept_losses    write down positions that the source can no longer give
commit_consumed  write down consumed positions that had no rows
"""

import time
import uuid
from collections.abc import Mapping, Sequence

from icestream import events, positions
from icestream.batch.report import TaskReport
from icestream.batch.run_tables import RunTable
from icestream.batch.table_batch import TableBatch
from icestream.commit import protocol, retry
from icestream.commit.attempt import CommitBase
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.port import AddedFiles
from icestream.commit.protocol import BatchPlan, Claim, CommitOutcome, MarkerStatus
from icestream.commit.refusals import refusal
from icestream.commit.retry import CommitResult
from icestream.commit.selftest import refuse_unsafe
from icestream.commit.table_state import TableState, located_marker, table_location
from icestream.errors import GaveUp, InternalError
from icestream.events import EventBus
from icestream.failpoints import failpoint
from icestream.positions import PositionRange, describe_range
from icestream.sources import LossReport, Source, StartPositions
from icestream.tables.design import quarantine_name
from icestream.tables.marker import Counts, Marker
from icestream.write.partition import most_partitions, partitions_refusal
from icestream.write.staged import changed_or_missing, discard
from icestream.write.target import StagedFile

_CLOCKS_DIFFER = 60.0  # seconds that Iceberg puts up with


class TableCommitter:
    """Commits for one run; used by one thread per table."""

    def __init__(self, tables: IcebergTables, source: Source, bus: EventBus, claim: Claim) -> None:
        self._tables = tables
        self._source = source
        self._bus = bus
        self.claim = claim
        self._catalog_is_safe = False  # as far as we have asked
        self._sequences: dict[str, int] = {}  # of the last commit of this run, by table

    def owns(self, view: TableState) -> bool:
        """Whether the table carries this run's claim."""
        marker = view.marker
        return marker is not None and (marker.generation, marker.run_id) == (
            self.claim.generation,
            self.claim.run_id,
        )

    def claim_table(self, name: str, view: TableState, start: StartPositions) -> TableState:
        """Claim a table by an empty append from exactly what we saw; → how it is then."""
        allowed = protocol.claim_outcome(view, self.claim)
        if allowed is not CommitOutcome.AGAIN:
            raise refusal(name, allowed.value, view)
        _refuse_an_early_clock(name, view)
        commit_id = uuid.uuid4().hex
        details: Mapping[str, str] = {}
        if view.marker is None and start.positions:
            details = self._source.store_details(
                start.positions, table_location(view), commit_id, {}
            )

        def claimed(seen: TableState) -> Marker:
            # From what is there now: the run before us may have committed since we looked.
            return protocol.marker_of_claim(
                seen, self.claim, commit_id, start.positions, start.stream_ids, details
            )

        def still_ours(seen: TableState) -> CommitOutcome:
            return protocol.claim_outcome(seen, self.claim)

        settled = retry.commit_with_retries(
            self._tables, name, view, claimed, AddedFiles(), retry.backoff, look=still_ours
        )
        self._raise_unless_landed(name, settled)
        failpoint("claimed")
        if not self._catalog_is_safe and not view.ancestors and isinstance(view.base, CommitBase):
            refuse_unsafe(self._tables, name, view.base)
            self._catalog_is_safe = True
        return self._tables.load(name)

    def check_staged_files(self, name: str, files: Sequence[StagedFile]) -> bool:
        """Whether staged files are still there; False is told: the batch must be staged again."""
        gone = changed_or_missing(files)
        if gone:
            reason = f"{len(gone)} staged files are gone before their commit: {gone[0]}"
            again = CommitOutcome.RESTAGE.value
            self._bus.emit(events.CommitRetried(self.claim.pipeline, name, 0, again, reason))
        return not gone

    def commit_batch(
        self,
        work: TableBatch,
        report: TaskReport,
        stage_seconds: float,
        deletes: Sequence[StagedFile] = (),
    ) -> bool:
        """Commit one table's share; False: the table moved, so plan the batch again."""
        counts = Counts(report.landed, report.quarantined, report.dropped)
        self._check_report(work, report, counts)
        if not report.read:
            return True
        watermark = min((at // 1000 for at in report.newest_by_partition.values()), default=None)
        began = time.monotonic()
        if report.quarantine_files and work.quarantine:
            aside = AddedFiles(
                [file.content_json for file in report.quarantine_files],
                sum(file.records for file in report.quarantine_files),
            )
            name, rows = quarantine_name(work.table.name), Counts(landed=aside.records)
            if self._commit_files(name, work.quarantine, work, aside, rows, watermark) is None:
                return False
            failpoint("quarantine-committed")
        append = AddedFiles(
            [file.content_json for file in report.files],
            report.landed,
            [file.content_json for file in deletes],
            base_only=work.index is not None,
        )
        attempts = self._commit_files(work.table.name, work.state, work, append, counts, watermark)
        if attempts is None:
            return False
        self._note_commit(work.table.name, work.state)
        if report.quarantine_files and work.quarantine:
            self._note_commit(quarantine_name(work.table.name), work.quarantine)
        work.table.marker_written_at = time.monotonic()
        now = time.time()
        partitions = self._partitions(work.range, report.newest_by_partition, now)
        waiting = [p for p in partitions if p.lag_records]
        self._bus.emit(
            events.TableCommitted(
                pipeline=self.claim.pipeline,
                table=work.table.name,
                commit_id=work.commit_id,
                sequence=work.state.marker.sequence + 1 if work.state.marker else 1,
                landed=counts.landed,
                quarantined=counts.quarantined,
                dropped=counts.dropped,
                files=len(report.files) + len(deletes),
                bytes=sum(file.bytes for file in (*report.files, *deletes)),
                stage_seconds=round(stage_seconds, 3),
                commit_seconds=round(time.monotonic() - began, 3),
                attempts=attempts,
                freshness_seconds=_seconds_since(
                    max(report.newest_by_partition.values(), default=None), now
                ),
                latency_seconds=_seconds_since(report.oldest, now),
                lag_records=sum(p.lag_records or 0 for p in waiting),
                lag_seconds=max((p.freshness_seconds or 0.0 for p in waiting), default=0.0),
                partitions=partitions,
            )
        )
        return True

    def _partitions(
        self, batch: PositionRange, newest: Mapping[str, int], now: float
    ) -> tuple[events.PartitionState, ...]:
        lag = self._source.lag(batch.stop)
        return tuple(
            events.PartitionState(
                stream,
                number,
                position,
                lag.get(stream, {}).get(number),
                _seconds_since(newest.get(f"{stream}/{number}"), now),
            )
            for stream, partitions in batch.stop.items()
            for number, position in partitions.items()
        )

    def accept_losses(self, name: str, view: TableState, losses: LossReport) -> TableState:
        """Record losses in a table of ours by an empty append; → how it is then."""
        self._refuse_unless_ours(name, view)
        commit_id = uuid.uuid4().hex

        def forgiven(seen: TableState) -> Marker:
            return protocol.marker_after_losses(
                seen, commit_id, losses.lost, losses.resume, losses.stream_ids
            )

        settled = retry.commit_with_retries(
            self._tables, name, view, forgiven, AddedFiles(), retry.backoff
        )
        if (
            settled.outcome is CommitOutcome.RESTAGE
        ):  # its schema changed, which is nothing to us here
            return self.accept_losses(name, self._tables.load(name), losses)
        self._raise_unless_landed(name, settled)
        ranges = tuple(str(loss) for loss in losses.lost)
        self._bus.emit(events.LossAccepted(self.claim.pipeline, table=name, ranges=ranges))
        return self._tables.load(name)

    def commit_consumed(self, table: RunTable) -> None:
        """Write progress without rows into the table, by an empty append from what we see."""
        view = self._tables.load(table.name)
        self._refuse_unless_ours(table.name, view)
        reached = located_marker(view).marker.positions
        if positions.max_positions(reached, table.consumed) != reached:
            batch = PositionRange(reached, table.consumed)
            plan = BatchPlan(protocol.BatchVerdict.COMMIT, {})
            ids = self._source.stream_ids(table.consumed)
            work = TableBatch(table, batch, view, plan, None, uuid.uuid4().hex, ids)
            if self._commit_files(table.name, view, work, AddedFiles(), Counts(), None) is not None:
                self._note_commit(table.name, view)
        table.marker_written_at = time.monotonic()

    def _note_commit(self, name: str, before: TableState) -> None:
        """A commit of ours is in: from now on the table is never behind it."""
        self._sequences[name] = before.marker.sequence + 1 if before.marker else 1

    def _refuse_unless_ours(self, name: str, view: TableState) -> None:
        """Planning has looked at a table with rows; nobody has at a quiet one or a quarantine."""
        stand = protocol.marker_status(view)
        if stand in (MarkerStatus.REWOUND, MarkerStatus.REPLACED):
            raise refusal(name, stand.value, view)
        if not self.owns(view):
            raise refusal(name, CommitOutcome.FENCED.value, view)
        if view.marker and view.marker.sequence < self._sequences.get(name, 0):
            # All in it agrees, but our last commit is gone: the catalog itself went back.
            raise refusal(name, MarkerStatus.REWOUND.value, view)
        _refuse_an_early_clock(name, view)

    def _check_report(self, work: TableBatch, report: TaskReport, counts: Counts) -> None:
        """What must hold after staging and before anything is committed."""
        name = work.table.name
        if report.read != counts.read:
            raise InternalError(
                f"table `{name}`: {report.read} records in, {counts} out",
                where=describe_range(work.range),
                hint="nothing was committed; please report this",
            )
        # Each task has kept to the bound by itself; together they may be over it.
        folders = sorted({file.path.rpartition("/")[0] for file in report.files})
        most = most_partitions(work.state.base.document.get("properties", {}))
        if len(folders) > most:
            discard([*report.files, *report.quarantine_files])
            where = f"from {folders[0]} to {folders[-1]}"
            raise partitions_refusal(name, len(folders), most, where)

    def _commit_files(
        self,
        name: str,
        view: TableState,
        work: TableBatch,
        append: AddedFiles,
        counts: Counts,
        watermark: int | None,
    ) -> int | None:
        """One commit by the protocol; → attempts, or None when the batch must be planned again."""
        self._refuse_unless_ours(name, view)
        old = view.marker.details if view.marker else {}
        stop, commit_id = work.range.stop, work.commit_id
        details = self._source.store_details(stop, table_location(view), commit_id, old)

        def advanced(seen: TableState) -> Marker:
            return protocol.marker_after_batch(
                seen, work.range, commit_id, counts, watermark, details, work.stream_ids
            )

        failpoint("marker-checked")
        settled = retry.commit_with_retries(
            self._tables, name, view, advanced, append, retry.backoff, pinned=append.base_only
        )
        if settled.outcome is CommitOutcome.RESTAGE:
            return None
        self._raise_unless_landed(name, settled)
        return settled.attempts

    def _raise_unless_landed(self, name: str, settled: CommitResult) -> None:
        """Tell of retries; turn anything but success into the right error."""
        if settled.reason:
            self._bus.emit(
                events.CommitRetried(
                    pipeline=self.claim.pipeline,
                    table=name,
                    attempts=settled.attempts,
                    outcome=settled.outcome.value,
                    reason=settled.reason,
                )
            )
        if settled.outcome is CommitOutcome.LANDED:
            return
        if settled.outcome is CommitOutcome.AGAIN:
            raise GaveUp(
                f"table `{name}`: {settled.attempts} commits failed: {settled.reason}",
                hint="nothing is lost; start again when the catalog answers",
            )
        raise refusal(name, settled.outcome.value)


def _refuse_an_early_clock(name: str, view: TableState) -> None:
    """Iceberg takes no snapshot that is older than the newest one by more than a minute."""
    document = view.base.document if isinstance(view.base, CommitBase) else {}
    current = document.get("current-snapshot-id")
    snapshots = reversed(document.get("snapshots", ()))
    made = next((each["timestamp-ms"] for each in snapshots if each["snapshot-id"] == current), 0)
    ahead = made / 1000 - time.time()
    if ahead > _CLOCKS_DIFFER:
        raise GaveUp(
            f"table `{name}`: its newest snapshot is {ahead:,.0f} s ahead of this machine's clock",
            hint="nothing is lost; set the clock right, here or where the others write",
        )


def _seconds_since(at: int | None, now: float) -> float | None:
    """Seconds from a timestamp in µs to now."""
    return None if at is None else round(now - at / 1e6, 3)
