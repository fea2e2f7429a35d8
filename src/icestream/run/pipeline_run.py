"""One run of one pipeline: from its claim to the end of its query, stopped or failed."""

import shutil
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from icestream.config.model import PipelineConfig
from icestream.errors import IcestreamError, SparkEnded
from icestream.events import EventBus, RunFailed, RunStopped
from icestream.failpoints import failpoint
from icestream.maintain.thread import MaintenanceThread
from icestream.pipeline import Pipeline
from icestream.positions import describe_range
from icestream.run import failures
from icestream.run.assemble import build_pipeline
from icestream.run.failures import (
    DEATH_SECONDS,
    is_connection_loss,
    translate_spark_death,
    unknown_failure,
)
from icestream.run.options import RunOptions
from icestream.run.restart_policy import is_retryable
from icestream.run.scratch import make_scratch
from icestream.sources import Query, Source, source_for
from icestream.spark.ended import exit_code, folder_deleted, spark_ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StopRequested(Exception):
    """Raised into the query when a batch begins after the stop; nothing was done for it."""


@dataclass
class PipelineRun:
    """A run that was started by `start_run`; the supervisor polls and stops it."""

    config: PipelineConfig
    pipeline: Pipeline
    source: Source
    maintenance: MaintenanceThread | None = None
    query: Query | None = None
    failure: BaseException | None = None
    scratch: Path | None = None  # once the tables are claimed
    stopping: bool = False
    batch_turned_away: bool = False  # a batch began after the stop and was refused
    batch_lock: threading.Lock = field(default_factory=threading.Lock)
    drained: threading.Event = field(default_factory=threading.Event)

    @property
    def broken(self) -> bool:
        """Whether the query ended though nobody asked it to."""
        query = self.query
        try:
            return query is not None and not query.isActive and query.exception() is not None
        except (Py4JError, OSError):
            self._mark_spark_ended()
            return True

    @property
    def stuck_on(self) -> str | None:
        """The range of the batch that is under way, or was when the query failed."""
        batch = self.pipeline.current_range
        return describe_range(batch) if batch else None

    def process_batch(self, frame: "DataFrame", batch_id: int) -> None:
        """Process a batch; called by the query, as foreachBatch. Raises once we stop."""
        with self.batch_lock:
            if self.stopping:
                self.batch_turned_away = True
                raise StopRequested
            try:
                failpoint("batch-begins")
                with self._gate():
                    self.pipeline.process(frame, batch_id)
            except BaseException as failure:
                self.failure = failure
                raise

    def _gate(self) -> AbstractContextManager[None]:
        return self.maintenance.gate.batch() if self.maintenance else nullcontext()

    def stop(self) -> None:
        """Let the batch under way reach its commit, then end the query and clean up."""
        if self.maintenance:
            self.maintenance.ask_to_stop()
        with self.batch_lock:
            pass  # released: Spark may be waiting with a batch that `process_batch` refuses
        try:
            if self.query is not None:
                exception = self.query.exception()  # before the stop, which may cause another
                self.query.stop()
                # Only now no batch can begin any more, so that a refused one is known.
                if self.failure is None and not self.batch_turned_away:
                    self.failure = exception
        except (Py4JError, OSError):
            self._mark_spark_ended()
        if self.maintenance:
            self.maintenance.stop()
        try:
            if self.failure is None:
                self.pipeline.commit_consumed()
        except BaseException as failure:
            self.failure = failure
        if self.failure is not None:
            self.failure = self._as_icestream_error(self.failure)
        self.clean_up()

    def clean_up(self) -> None:
        """Release source, threads and scratch folder of this run."""
        self.source.close()
        self.pipeline.shut_down()
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def emit_end(self, bus: EventBus, reason: str) -> None:
        """Emit `run_stopped` or `run_failed`; the supervisor calls it after `stop`."""
        name, run_id = self.config.name, self.pipeline.run_id
        if self.failure is None:
            bus.emit(RunStopped(name, run_id, reason))
        else:
            bus.emit(RunFailed(name, run_id, str(self.failure), type(self.failure).__name__))

    def _mark_spark_ended(self) -> SparkEnded:
        """Note that the JVM is gone: nothing there can be called or stopped any more."""
        query, self.query = self.query, None
        self.failure = ended = spark_ended(self.config, exit_code(DEATH_SECONDS))
        if query is not None:
            with suppress(Py4JError, OSError):  # the query of a planned source has a thread here
                query.stop()
        return ended

    def _as_icestream_error(self, failure: BaseException) -> IcestreamError:
        """Turn any failure into an error for users; Spark's own text is in the log."""
        try:
            cause = self.find_cause(failure)
        except Exception as another:
            if is_connection_loss(another):  # the failure was the first sign that the JVM is gone
                return self._mark_spark_ended()
            cause = None
        return cause or unknown_failure(self.config, failure)

    def find_cause(self, failure: BaseException) -> IcestreamError | None:
        """Return the error behind a failure, as far as tables, disk and source tell it."""
        if isinstance(failure, IcestreamError) and not is_retryable(failure):
            return failure
        deleted = folder_deleted(self.config)
        scratch = self.scratch
        if deleted or (scratch and not scratch.is_dir()):
            # Deleted by hand, or by a run that has fenced this one. A refusal counts for more: a
            # restart would take the tables from the run that has fenced this one.
            refusal = self.pipeline.explain_failure()
            if refusal and not is_retryable(refusal):
                return refusal
        if deleted:
            return deleted
        if isinstance(failure, IcestreamError):
            return failure
        disk_error = failures.disk_error(failure, Path(self.config.state_location))
        return disk_error or self.pipeline.explain_failure()


def start_run(
    spark: "SparkSession",
    config: PipelineConfig,
    bus: EventBus,
    options: RunOptions,
    run_ids: list[str] | None = None,
) -> PipelineRun:
    """Claim the pipeline's tables and start its query; raises the cause if one of them fails.

    `run_ids` are those of this process that failed. The new one is added before it claims anything.
    """
    run_ids = [] if run_ids is None else run_ids
    source = source_for(config.source)
    with translate_spark_death(config):
        pipeline, maintenance = build_pipeline(spark, config, bus, source, tuple(run_ids))
    run_ids.append(pipeline.run_id)
    folder = Path(config.state_location) / config.name / "runs"
    once = options.once or config.commit_interval == "once"
    # A run with `once` ends soon: `icestream maintain` is for after it.
    run = PipelineRun(config, pipeline, source, None if once else maintenance)
    ends_by_itself = once and source.ends_by_itself
    try:
        with translate_spark_death(config):
            claimed = pipeline.claim(options.accept_loss)
            # After the claim: making it removes the scratch of earlier generations, so this run
            # must own one first.
            run.scratch = make_scratch(folder, claimed.generation, pipeline.run_id)
            stream = pipeline.open(spark, claimed, run.scratch, once)
            name = f"icestream {config.name} {pipeline.run_id}"
            checkpoint = run.scratch / "checkpoint"
            interval = 0.0 if once else _seconds(config)
            run.query = stream.start(name, run.process_batch, checkpoint, interval)
    except BaseException as failure:
        cause = None
        if isinstance(failure, Exception):
            with suppress(Exception):  # then the failure itself is raised
                cause = run.find_cause(failure)
        run.clean_up()
        error = cause or failure
        bus.emit(RunFailed(config.name, pipeline.run_id, str(error), type(error).__name__))
        raise error from None
    if once:
        arguments = (run, ends_by_itself)
        threading.Thread(target=_wait_until_drained, args=arguments, daemon=True).start()
    elif run.maintenance:
        run.maintenance.start()
    return run


def _seconds(config: PipelineConfig) -> float:
    """Return `commit_interval`: seconds between the starts of two batches."""
    interval = config.commit_interval
    return interval.total_seconds() if isinstance(interval, timedelta) else 0.0


def _wait_until_drained(run: PipelineRun, ends_by_itself: bool) -> None:
    """With `once`: wait for the query's own end, or until its source has nothing new."""
    assert run.query is not None
    try:
        if ends_by_itself:
            run.query.awaitTermination()
        else:
            run.query.processAllAvailable()
    except BaseException as failure:
        if not run.stopping:  # else `stop` asks the query for its exception
            run.failure = run.failure or failure
    else:
        run.drained.set()
