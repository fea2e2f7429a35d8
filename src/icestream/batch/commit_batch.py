"""Commits what is staged for a table: bad records to its quarantine first, then the rows."""

import time
from collections.abc import Mapping, Sequence

from icestream import events
from icestream.batch.report import TaskReport
from icestream.batch.table_batch import TableBatch
from icestream.commit.port import AddedFiles
from icestream.commit.protocol import CommitOutcome
from icestream.commit.steps import BatchStep
from icestream.commit.table_commits import TableCommitter
from icestream.errors import InternalError
from icestream.events import EventBus
from icestream.failpoints import failpoint
from icestream.positions import PositionRange, describe_range
from icestream.sources import Source
from icestream.tables.design import quarantine_name
from icestream.tables.marker import Counts
from icestream.write.partition import most_partitions, partitions_refusal
from icestream.write.staged import changed_or_missing, discard
from icestream.write.target import StagedFile


class BatchCommitter:
    """Commits one table's part of a batch; used by one thread per table."""

    def __init__(self, committer: TableCommitter, source: Source, bus: EventBus) -> None:
        self._committer = committer
        self._source = source
        self._bus = bus

    def commit(
        self,
        batch: TableBatch,
        report: TaskReport,
        stage_seconds: float,
        deletes: Sequence[StagedFile] = (),
    ) -> bool:
        """Commit what is staged. False: table or files have changed; the batch is planned again."""
        staged = report.staged
        new_files = [*staged.files, *staged.quarantine_files, *deletes]
        if not self._staged_files_exist(batch.name, new_files):
            return False
        check_report(batch, report)
        if not report.stats.records:
            # No record of the range was for this table. Its marker follows later, by
            # `commit_consumed`: at least hourly and at a clean stop.
            return True
        # The newest timestamp of the slowest partition: up to there the table is complete.
        watermark = min((time_us // 1000 for time_us in report.stats.newest.values()), default=None)
        began = time.monotonic()
        # Bad records first. A crash in between repeats the range, and the bad records that are
        # there already are trimmed.
        if staged.quarantine_files and batch.quarantine:
            if not self._commit_quarantine(batch, staged.quarantine_files, watermark):
                return False
            failpoint("quarantine-committed")
        files = AddedFiles(
            [file.content_json for file in staged.files],
            report.counts.landed,
            [file.content_json for file in deletes],
            base_only=batch.index is not None,
        )
        step = BatchStep(
            batch.range, batch.commit_id, batch.stream_ids, files, report.counts, watermark
        )
        attempts = self._committer.commit_files(batch.name, batch.state, step)
        if attempts is None:
            return False
        self._committer.note_commit(batch.name, batch.state)
        if staged.quarantine_files and batch.quarantine:
            self._committer.note_commit(quarantine_name(batch.name), batch.quarantine)
        batch.table.marker_written_at = time.monotonic()
        self._emit_committed(
            batch, report, deletes, attempts, stage_seconds, time.monotonic() - began
        )
        return True

    def _commit_quarantine(
        self, batch: TableBatch, files: Sequence[StagedFile], watermark: int | None
    ) -> bool:
        assert batch.quarantine is not None, "nothing is staged for a table that is not there"
        records = sum(file.records for file in files)
        added = AddedFiles([file.content_json for file in files], records)
        counts = Counts(landed=records)
        step = BatchStep(batch.range, batch.commit_id, batch.stream_ids, added, counts, watermark)
        name = quarantine_name(batch.name)
        return self._committer.commit_files(name, batch.quarantine, step) is not None

    def _staged_files_exist(self, name: str, files: Sequence[StagedFile]) -> bool:
        """Check, just before the commit, that staged files exist with their length."""
        missing = changed_or_missing(files)
        if missing:
            pipeline, outcome = self._committer.claim.pipeline, CommitOutcome.RESTAGE.value
            reason = f"{len(missing)} staged files are gone before their commit: {missing[0]}"
            self._bus.emit(events.CommitRetried(pipeline, name, 0, outcome, reason))
        return not missing

    def _emit_committed(
        self,
        batch: TableBatch,
        report: TaskReport,
        deletes: Sequence[StagedFile],
        attempts: int,
        stage_seconds: float,
        commit_seconds: float,
    ) -> None:
        now = time.time()
        stats, files = report.stats, [*report.staged.files, *deletes]
        partitions = self._partitions(batch.range, stats.newest, now)
        lagging = [partition for partition in partitions if partition.lag_records]
        self._bus.emit(
            events.TableCommitted(
                pipeline=self._committer.claim.pipeline,
                table=batch.name,
                commit_id=batch.commit_id,
                sequence=batch.state.marker.sequence + 1 if batch.state.marker else 1,
                landed=report.counts.landed,
                quarantined=report.counts.quarantined,
                dropped=report.counts.dropped,
                files=len(files),
                bytes=sum(file.bytes for file in files),
                stage_seconds=round(stage_seconds, 3),
                commit_seconds=round(commit_seconds, 3),
                attempts=attempts,
                freshness_seconds=_seconds_since(max(stats.newest.values(), default=None), now),
                latency_seconds=_seconds_since(stats.oldest, now),
                lag_records=sum(partition.lag_records or 0 for partition in lagging),
                lag_seconds=max(
                    (partition.freshness_seconds or 0.0 for partition in lagging), default=0.0
                ),
                partitions=partitions,
            )
        )

    def _partitions(
        self, batch: PositionRange, newest: Mapping[str, int], now: float
    ) -> tuple[events.PartitionState, ...]:
        lag = self._source.lag(batch.stop)
        return tuple(
            events.PartitionState(
                stream,
                partition,
                position,
                lag.get(stream, {}).get(partition),
                _seconds_since(newest.get(f"{stream}/{partition}"), now),
            )
            for stream, partitions in batch.stop.items()
            for partition, position in partitions.items()
        )


def check_report(batch: TableBatch, report: TaskReport) -> None:
    """Raise if a staged batch must not be committed: counts differ, or too many partitions."""
    if report.stats.records != report.counts.read:
        raise InternalError(
            f"table `{batch.name}`: {report.stats.records} records in, {report.counts.read} out",
            where=describe_range(batch.range),
            hint="nothing was committed; please report this",
        )
    # Each task has kept to the limit by itself; together they may exceed it.
    staged = report.staged
    folders = sorted({file.path.rpartition("/")[0] for file in staged.files})
    limit = most_partitions(batch.state.metadata.properties)
    if len(folders) > limit:
        discard([*staged.files, *staged.quarantine_files])
        where = f"from {folders[0]} to {folders[-1]}"
        raise partitions_refusal(batch.name, len(folders), limit, where)


def _seconds_since(timestamp_us: int | None, now: float) -> float | None:
    """Seconds from a timestamp in µs to now."""
    return None if timestamp_us is None else round(now - timestamp_us / 1e6, 3)
