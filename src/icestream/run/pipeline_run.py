"""Running: one pipeline from the start of its stream to the end, in good order or not."""

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
from icestream.run.restart_policy import is_retryable
from icestream.run.scratch import make_scratch
from icestream.sources import Query, Source, source_for
from icestream.spark.ended import exit_code, folder_deleted, spark_ended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StopRequested(Exception):
    """Raised into the stream when a batch comes up after the stop; nothing was done for it."""


@dataclass
class PipelineRun:
    """One pipeline on its way."""

    config: PipelineConfig
    pipeline: Pipeline
    source: Source
    maintenance: MaintenanceThread | None = None
    query: Query | None = None
    failure: BaseException | None = None
    scratch: Path | None = None  # once the tables are claimed
    stopping: bool = False
    batch_turned_away: bool = False  # a batch came up after the stop and was sent away
    batch_lock: threading.Lock = field(default_factory=threading.Lock)
    drained: threading.Event = field(default_factory=threading.Event)

    @property
    def broken(self) -> bool:
        """Whether the stream ended though nobody asked it to."""
        query = self.query
        try:
            return query is not None and not query.isActive and query.exception() is not None
        except (Py4JError, OSError):
            self._mark_spark_ended()
            return True

    @property
    def stuck_on(self) -> str | None:
        """The range of the batch that is under way, or was when the stream broke."""
        batch = self.pipeline.current_range
        return describe_range(batch) if batch else None

    def process_batch(self, frame: "DataFrame", batch_id: int) -> None:
        """One batch, called by the stream as Spark calls foreachBatch; nothing once we stop."""
        with self.batch_lock:
            if self.stopping:
                self.batch_turned_away = True
                raise StopRequested
            try:
                failpoint("batch-begins")
                with self._batch_turn():
                    self.pipeline.process(frame, batch_id)
            except BaseException as failure:
                self.failure = failure
                raise

    def _batch_turn(self) -> AbstractContextManager[None]:
        return self.maintenance.turns.batch() if self.maintenance else nullcontext()

    def stop(self) -> None:
        """Let the batch under way reach its commit, then end the stream and clean up."""
        if self.maintenance:
            self.maintenance.ask_to_stop()
        with self.batch_lock:
            pass  # not held on to: Spark may be waiting with a batch that `handle` sends away
        try:
            if self.query is not None:
                broken = self.query.exception()  # before the stop, which may break Spark's query
                self.query.stop()
                if (
                    self.failure is None and not self.batch_turned_away
                ):  # known only now: no batch comes
                    self.failure = broken
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
        """Leave nothing behind that was for this run alone."""
        self.source.close()
        self.pipeline.shut_down()
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def emit_end(self, bus: EventBus, reason: str) -> None:
        """Say how it ended."""
        name, run_id = self.config.name, self.pipeline.run_id
        if self.failure is None:
            bus.emit(RunStopped(name, run_id, reason))
        else:
            bus.emit(RunFailed(name, run_id, str(self.failure), type(self.failure).__name__))

    def _mark_spark_ended(self) -> SparkEnded:
        """The JVM is gone: nothing can be asked or stopped there any more."""
        query, self.query = self.query, None
        self.failure = ended = spark_ended(self.config, exit_code(DEATH_SECONDS))
        if query is not None:
            with suppress(Py4JError, OSError):  # one of ours has a thread here
                query.stop()
        return ended

    def _as_icestream_error(self, failure: BaseException) -> IcestreamError:
        """The failure in our own words; what Spark says of it is in the log."""
        try:
            reason = self.find_cause(failure)
        except Exception as another:
            if is_connection_loss(another):  # and the failure was the first sign of it
                return self._mark_spark_ended()
            reason = None
        return reason or unknown_failure(self.config, failure)

    def find_cause(self, failure: BaseException) -> IcestreamError | None:
        """What is behind a failure, if we can tell."""
        if isinstance(failure, IcestreamError) and not is_retryable(failure):
            return failure
        deleted = folder_deleted(self.config)
        scratch = self.scratch
        if deleted or (scratch and not scratch.is_dir()):
            # Deleted by hand, or by a run that has fenced this one. A refusal counts for more:
            # whoever starts the run again would take over from the one that has fenced it.
            refused = self.pipeline.explain_failure()
            if refused and not is_retryable(refused):
                return refused
        if deleted:
            return deleted
        if isinstance(failure, IcestreamError):
            return failure
        full = failures.disk_error(failure, Path(self.config.state_location))
        return full or self.pipeline.explain_failure()


def start_run(
    spark: "SparkSession",
    config: PipelineConfig,
    bus: EventBus,
    once: bool,
    accept_loss: bool,
    runs: list[str] | None = None,
) -> PipelineRun:
    """Claim the pipeline's tables and begin its stream; raises what keeps it from that.

    `runs` are those of this process that broke. The new one is added before it claims anything.
    """
    runs = [] if runs is None else runs
    source = source_for(config.source)
    with translate_spark_death(config):
        pipeline, maintenance = build_pipeline(spark, config, bus, source, tuple(runs))
    runs.append(pipeline.run_id)
    folder = Path(config.state_location) / config.name / "runs"
    once = once or config.commit_interval == "once"
    # What ends by itself ends soon: `icestream maintain` is for after that.
    run = PipelineRun(config, pipeline, source, None if once else maintenance)
    ends = once and source.ends_by_itself
    try:
        with translate_spark_death(config):
            claimed = pipeline.claim(accept_loss)
            # After the claim: making it removes the scratch of earlier generations, so this run
            # must own one first.
            run.scratch = make_scratch(folder, claimed.generation, pipeline.run_id)
            stream = pipeline.open(spark, claimed, run.scratch, once)
            name = f"icestream {config.name} {pipeline.run_id}"
            checkpoint = run.scratch / "checkpoint"
            interval = 0.0 if once else _seconds(config)
            run.query = stream.start(name, run.process_batch, checkpoint, interval)
    except BaseException as failure:
        reason = None
        if isinstance(failure, Exception):
            with suppress(Exception):  # no reason is as good as none
                reason = run.find_cause(failure)
        run.clean_up()
        told = reason or failure
        bus.emit(RunFailed(config.name, pipeline.run_id, str(told), type(told).__name__))
        raise told from None
    if once:
        threading.Thread(target=_wait_until_drained, args=(run, ends), daemon=True).start()
    elif run.maintenance:
        run.maintenance.start()
    return run


def _seconds(config: PipelineConfig) -> float:
    """Between the begins of two batches."""
    interval = config.commit_interval
    return interval.total_seconds() if isinstance(interval, timedelta) else 0.0


def _wait_until_drained(run: PipelineRun, ends: bool) -> None:
    """`once`: wait for the stream's own end, or until a look at the source finds nothing new."""
    assert run.query is not None
    try:
        if ends:
            run.query.awaitTermination()
        else:
            run.query.processAllAvailable()
    except BaseException as failure:
        if not run.stopping:  # else `end` asks the stream itself
            run.failure = run.failure or failure
    else:
        run.drained.set()
