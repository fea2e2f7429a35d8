"""Runs pipelines: starts Spark, starts each stream, supervises them, stops at a commit."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
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
    once: bool = False,
    seconds: float | None = None,
    accept_loss: bool = False,
    progress: Callable[..., Any] | None = None,
) -> None:
    """Run until stopped, or until all that is there is committed, or for a time with commits."""
    from icestream.spark import session

    configs = [each.pipeline for each in files]
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
            listen()
            threading.Thread(target=_warm_up, args=(spark,), daemon=True).start()
            try:
                run_on(spark, configs, bus, once, seconds, stop, accept_loss)
            finally:
                with suppress(Exception):  # it may be the one that died
                    spark.stop()


def run_on(
    spark: "SparkSession",
    configs: Sequence[PipelineConfig],
    bus: EventBus,
    once: bool = False,
    seconds: float | None = None,
    stop: threading.Event | None = None,
    accept_loss: bool = False,
) -> None:
    """Run pipelines on a session that somebody else owns."""
    stop = stop or threading.Event()
    watched: list[SupervisedPipeline] = []
    reason = "stopped"
    with ExitStack() as stack:
        for config in configs:
            bus.join(_history_listener(config, stack))
        begun = threading.Event()
        bus.join(lambda event: begun.set() if isinstance(event, TableCommitted) else None)
        try:
            for config in configs:
                if not stop.is_set():
                    watched.append(SupervisedPipeline(spark, config, bus, once, accept_loss))
            reason = _supervise(watched, stop, seconds, begun)
        finally:
            # Asking all before waiting for any: each may be in the middle of a batch.
            for each in watched:
                each.ask_to_stop()
            for each in watched:
                each.stop(reason)
    for each in watched:
        if each.failure is not None:
            raise each.failure


class SupervisedPipeline:
    """A pipeline over its restarts: a run that breaks is begun again, after a wait, for a while."""

    def __init__(
        self,
        spark: "SparkSession",
        config: PipelineConfig,
        bus: EventBus,
        once: bool,
        accept_loss: bool,
    ) -> None:
        self._spark = spark
        self._config = config
        self._bus = bus
        self._once = once
        self._patience = RestartPolicy()
        self._runs: list[str] = []
        self._due: float | None = None  # when the next try begins
        self.failure: IcestreamError | None = None
        bus.join(self._on_event)
        # The first start is no restart: who mistyped an address wants to know now.
        self._run: PipelineRun | None = pipeline_run.start_run(
            spark, config, bus, once, accept_loss, self._runs
        )

    @property
    def drained(self) -> bool:
        """Whether all that was there is committed."""
        return self._run is not None and self._run.drained.is_set()

    def poll(self, now: float) -> bool:
        """Deal with a broken run, begin a due one; → whether it is worth going on."""
        if self._run is None:
            if self._due is not None and now >= self._due:
                self._restart(now)
        elif self._run.broken:
            broken, self._run = self._run, None
            broken.stop()
            self._retry_or_give_up(broken.failure, broken.pipeline.run_id, broken.stuck_on, now)
        return self.failure is None

    def ask_to_stop(self) -> None:
        """No batch begins any more."""
        if self._run:
            self._run.stopping = True

    def stop(self, reason: str) -> None:
        """Wait for the commit of the batch under way, then end."""
        if self._run:
            self._run.stop()
            self._run.emit_end(self._bus, reason)
            if isinstance(self._run.failure, IcestreamError):
                self.failure = self._run.failure
        elif self.failure is None:  # stopped while it waited for its next try
            self._bus.emit(RunStopped(self._config.name, "", reason))
        self._run = None

    def _restart(self, now: float) -> None:
        self._due = None
        try:
            # What was lost by now was not meant by `--accept-loss` when we were started.
            self._run = pipeline_run.start_run(
                self._spark, self._config, self._bus, self._once, False, self._runs
            )
        except IcestreamError as failure:
            self._retry_or_give_up(failure, "", None, now)
        except Exception as failure:
            # In Spark's or Java's own words: another try is as good as after a broken batch.
            self._retry_or_give_up(failures.unknown_failure(self._config, failure), "", None, now)

    def _retry_or_give_up(
        self, failure: BaseException | None, run_id: str, stuck_on: str | None, now: float
    ) -> None:
        assert isinstance(failure, IcestreamError), "a run that broke was explained at its end"
        wait = self._patience.next_delay(failure, now)
        if wait is not None:
            self._due = now + wait
            self._bus.emit(
                RunRestarting(
                    self._config.name, run_id, self._patience.failures, wait, str(failure), stuck_on
                )
            )
            return
        tries = self._patience.failures
        self.failure = (
            failure if tries == 1 else _final_error(self._config, failure, tries, stuck_on)
        )
        self._bus.emit(
            RunFailed(self._config.name, run_id, str(self.failure), type(self.failure).__name__)
        )

    def _on_event(self, event: Event) -> None:
        if isinstance(event, TableCommitted) and event.pipeline == self._config.name:
            self._patience.reset()


def _final_error(
    config: PipelineConfig, failure: IcestreamError, tries: int, stuck_on: str | None
) -> IcestreamError:
    """What is left to say after many tries; a refusal is a refusal after any number of them."""
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
    with suppress(Exception):  # a failure here will show again where it matters
        spark.range(1).mapInArrow(_unchanged, "id long").collect()  # type: ignore[arg-type]


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def _history_listener(config: PipelineConfig, stack: ExitStack) -> Listener:
    """A listener that remembers this pipeline's events until the stack unwinds."""
    history = stack.enter_context(closing(History(Path(config.state_location))))

    def listen(event: Event) -> None:
        if event.pipeline == config.name:
            history(event)

    return listen


def _supervise(
    watched: Sequence[SupervisedPipeline],
    stop: threading.Event,
    seconds: float | None,
    begun: threading.Event,
) -> str:
    """Wait for the end; `seconds` count from the first commit, however long the start takes."""
    left = seconds
    while not stop.wait(_POLL_SECONDS if left is None else min(_POLL_SECONDS, max(left, 0))):
        if left is not None and begun.is_set():
            left -= _POLL_SECONDS
            if left <= 0:
                return "time is up"
        if not all(each.poll(time.monotonic()) for each in watched):
            return "failed"
        if watched and all(each.drained for each in watched):
            return "everything that was there is committed"
    return "stopped by a signal"


def _refuse_conflicts(configs: Sequence[PipelineConfig]) -> None:
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
