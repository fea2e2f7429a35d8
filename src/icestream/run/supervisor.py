"""Runs pipelines: starts Spark and each pipeline's run, restarts failed ones, stops at a commit."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icestream.catalogs import catalog_for, spark_conf
from icestream.config.load import LoadedConfig
from icestream.config.model import PipelineConfig
from icestream.errors import ConfigError, GaveUp, IcestreamError
from icestream.events import (
    Event,
    EventBus,
    Listener,
    RunFailed,
    RunRestarting,
    RunStopped,
    TableCommitted,
)
from icestream.observe.history import History
from icestream.run import failures, pipeline_run
from icestream.run.options import RunOptions
from icestream.run.pipeline_run import PipelineRun
from icestream.run.restart_policy import RestartPolicy, is_retryable
from icestream.run.scratch import make_state_folder
from icestream.run.signals import stop_signals
from icestream.sources import source_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_SECONDS = 0.2


def run(
    files: Sequence[LoadedConfig],
    bus: EventBus,
    options: RunOptions,
    progress: Callable[..., Any] | None = None,
) -> None:
    """Start Spark and run pipelines until stopped by a signal, or as `options` say."""
    from icestream.spark import session

    configs = [file.pipeline for file in files]
    _refuse_conflicts(configs)
    settings: dict[str, str] = {}
    for config in configs:
        settings.update({**spark_conf(catalog_for(config.catalog)), **config.spark})
    with stop_signals() as (stop, listen):
        state = make_state_folder(configs[0])
        sources = [source_for(config.source) for config in configs]
        sets = [name for source in sources for name in source.jar_sets]
        flags = [flag for source in sources for flag in source.java_options]
        with failures.translate_disk_errors(state):
            spark = session.start(configs[0].name, state, settings, sets, flags, progress)
            listen()  # Spark's start has taken Ctrl-C for itself
            threading.Thread(target=_warm_up, args=(spark,), daemon=True).start()
            try:
                run_on(spark, configs, bus, options, stop)
            finally:
                with suppress(Exception):  # it may be the one that died
                    spark.stop()


def run_on(
    spark: "SparkSession",
    configs: Sequence[PipelineConfig],
    bus: EventBus,
    options: RunOptions,
    stop: threading.Event | None = None,
) -> None:
    """Run pipelines on a Spark session of the caller; raises what one of them failed with."""
    stop = stop or threading.Event()
    pipelines: list[SupervisedPipeline] = []
    reason = "stopped"
    with ExitStack() as stack:
        for config in configs:
            bus.join(_history_listener(config, stack))
        has_commit = threading.Event()
        bus.join(lambda event: has_commit.set() if isinstance(event, TableCommitted) else None)
        try:
            for config in configs:
                if not stop.is_set():
                    pipelines.append(SupervisedPipeline(spark, config, bus, options))
            reason = _supervise(pipelines, stop, options.seconds, has_commit)
        finally:
            # Ask all before waiting for any: each may be in the middle of a batch.
            for pipeline in pipelines:
                pipeline.ask_to_stop()
            for pipeline in pipelines:
                pipeline.stop(reason)
    for pipeline in pipelines:
        if pipeline.failure is not None:
            raise pipeline.failure


class SupervisedPipeline:
    """A pipeline across its runs: a run that fails is started again, as `RestartPolicy` says."""

    def __init__(
        self,
        spark: "SparkSession",
        config: PipelineConfig,
        bus: EventBus,
        options: RunOptions,
    ) -> None:
        self._spark = spark
        self._config = config
        self._bus = bus
        # What is lost by then was not meant by `--accept-loss` when the user started us.
        self._restart_options = replace(options, accept_loss=False)
        self._restart_policy = RestartPolicy()
        self._run_ids: list[str] = []
        self._restart_at: float | None = None  # on the monotonic clock
        self.failure: IcestreamError | None = None
        bus.join(self._on_event)
        # The first start is no restart: who mistyped an address wants to know now.
        self._run: PipelineRun | None = pipeline_run.start_run(
            spark, config, bus, options, self._run_ids
        )

    @property
    def drained(self) -> bool:
        """With `once`: whether everything at the source is committed."""
        return self._run is not None and self._run.drained.is_set()

    def poll(self, now: float) -> bool:
        """End a failed run and schedule its restart, or start the one that is due.

        Called every 0.2 s. Returns False when the pipeline has failed for good.
        """
        if self._run is None:
            if self._restart_at is not None and now >= self._restart_at:
                self._restart(now)
        elif self._run.broken:
            broken, self._run = self._run, None
            broken.stop()
            self._retry_or_give_up(broken.failure, broken.pipeline.run_id, broken.stuck_on, now)
        return self.failure is None

    def ask_to_stop(self) -> None:
        """Let no further batch begin."""
        if self._run:
            self._run.stopping = True

    def stop(self, reason: str) -> None:
        """Wait for the commit of the batch under way, then end the run and emit how it ended."""
        if self._run:
            self._run.stop()
            self._run.emit_end(self._bus, reason)
            if isinstance(self._run.failure, IcestreamError):
                self.failure = self._run.failure
        elif self.failure is None:  # stopped while it waited for its restart
            self._bus.emit(RunStopped(self._config.name, "", reason))
        self._run = None

    def _restart(self, now: float) -> None:
        self._restart_at = None
        try:
            self._run = pipeline_run.start_run(
                self._spark, self._config, self._bus, self._restart_options, self._run_ids
            )
        except IcestreamError as failure:
            self._retry_or_give_up(failure, "", None, now)
        except Exception as failure:
            # An error of Spark or Java: retried as one that broke a batch.
            self._retry_or_give_up(failures.unknown_failure(self._config, failure), "", None, now)

    def _retry_or_give_up(
        self, failure: BaseException | None, run_id: str, stuck_on: str | None, now: float
    ) -> None:
        assert isinstance(failure, IcestreamError), "`PipelineRun.stop` makes it one"
        name, policy = self._config.name, self._restart_policy
        delay = policy.next_delay(failure, now)
        if delay is not None:
            self._restart_at = now + delay
            self._bus.emit(
                RunRestarting(name, run_id, policy.failures, delay, str(failure), stuck_on)
            )
            return
        tries = policy.failures
        self.failure = (
            failure if tries == 1 else _final_error(self._config, failure, tries, stuck_on)
        )
        self._bus.emit(RunFailed(name, run_id, str(self.failure), type(self.failure).__name__))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TableCommitted) and event.pipeline == self._config.name:
            self._restart_policy.reset()


def _final_error(
    config: PipelineConfig, failure: IcestreamError, tries: int, stuck_on: str | None
) -> IcestreamError:
    """Return the error after several tries; a refusal stays as it is after any number of them."""
    if not is_retryable(failure):
        return failure
    cause = failure.what.removeprefix(f"pipeline `{config.name}`: ")
    return GaveUp(
        f"pipeline `{config.name}`: {tries} tries without a commit: {cause}",
        where=stuck_on or failure.where,
        hint=failure.hint or "nothing is lost, and a restart is safe",
    )


def _warm_up(spark: "SparkSession") -> None:
    """Start the Python workers' daemon while the tables are being claimed."""
    with suppress(Exception):  # a batch would meet the same failure, and report it
        spark.range(1).mapInArrow(_unchanged, "id long").collect()  # type: ignore[arg-type]


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def _history_listener(config: PipelineConfig, stack: ExitStack) -> Listener:
    """Return a listener that stores this pipeline's events until the stack is closed."""
    history = stack.enter_context(closing(History(Path(config.state_location))))

    def listen(event: Event) -> None:
        if event.pipeline == config.name:
            history(event)

    return listen


def _supervise(
    pipelines: Sequence[SupervisedPipeline],
    stop: threading.Event,
    left_s: float | None,
    has_commit: threading.Event,
) -> str:
    """Poll pipelines until all have to stop; returns the reason.

    The seconds that are left count from the first commit, however long the start takes.
    """
    while not stop.wait(_POLL_SECONDS if left_s is None else min(_POLL_SECONDS, max(left_s, 0))):
        if left_s is not None and has_commit.is_set():
            left_s -= _POLL_SECONDS
            if left_s <= 0:
                return "time is up"
        if not all(pipeline.poll(time.monotonic()) for pipeline in pipelines):
            return "failed"
        if pipelines and all(pipeline.drained for pipeline in pipelines):
            return "everything that was there is committed"
    return "stopped by a signal"


def _refuse_conflicts(configs: Sequence[PipelineConfig]) -> None:
    """Raise if pipelines cannot share a Spark session: same name, other catalog or settings."""
    names = [config.name for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError("two of the files have the same pipeline `name`")
    catalogs: dict[str, Any] = {}
    settings: dict[str, str] = {}
    for config in configs:
        if catalogs.setdefault(config.catalog.name, config.catalog) != config.catalog:
            raise ConfigError(
                f"two of the files mean different catalogs by `{config.catalog.name}`",
                hint="give one of them another `catalog.name`, or run them apart",
            )
        for key, value in config.spark.items():
            if settings.setdefault(key, value) != value:
                raise ConfigError(
                    f"two of the files set `{key}` differently", hint="run them apart"
                )
