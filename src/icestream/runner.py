"""Runs pipelines: starts Spark, starts each stream, waits, stops at a commit, cleans up."""

import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from icestream.catalogs import catalog_for, spark_conf
from icestream.commit.committer import IcebergTables
from icestream.config.load import Loaded
from icestream.config.model import Pipeline as Config
from icestream.errors import ConfigError, GaveUp, IcestreamError, InternalError
from icestream.formats import format_for
from icestream.observe.events import Bus, Event, Listener, RunFailed, RunStopped, TableCommitted
from icestream.observe.history import History
from icestream.pipeline import Pipeline
from icestream.sources import Source, source_for
from icestream.sources.planned import planner_failure
from icestream.write.design import declared_design
from icestream.write.table import Builder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_SECONDS = 0.2


class StopRequested(Exception):
    """Raised into Spark when a batch comes up after the stop; nothing was done for it."""


@dataclass
class _Run:
    """One pipeline on its way."""

    config: Config
    pipeline: Pipeline
    source: Source
    scratch: Path
    query: "StreamingQuery | None" = None
    failure: BaseException | None = None
    stopping: bool = False
    refused: bool = False  # a batch came up after the stop and was sent away
    at_work: threading.Lock = field(default_factory=threading.Lock)
    drained: threading.Event = field(default_factory=threading.Event)

    @property
    def broken(self) -> bool:
        """Whether the stream ended though nobody asked it to."""
        query = self.query
        return query is not None and not query.isActive and query.exception() is not None

    def handle(self, frame: "DataFrame", batch_id: int) -> None:
        """Spark's foreachBatch: one batch, or nothing at all once we are stopping."""
        with self.at_work:
            if self.stopping:
                self.refused = True
                raise StopRequested
            try:
                self.pipeline.process(frame, batch_id)
            except BaseException as failure:
                self.failure = failure
                raise


def run(
    files: Sequence[Loaded],
    bus: Bus,
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
        state = Path(configs[0].state_location)
        sources = [source_for(config.source) for config in configs]
        sets = [name for source in sources for name in source.jar_sets]
        flags = [flag for source in sources for flag in source.java_options]
        spark = session.start(configs[0].name, state, settings, sets, flags, progress)
        listen()
        threading.Thread(target=_warm_up, args=(spark,), daemon=True).start()
        try:
            run_on(spark, configs, bus, once, seconds, stop, accept_loss)
        finally:
            spark.stop()


@contextmanager
def stop_signals() -> Iterator[tuple[threading.Event, Callable[[], None]]]:
    """The first Ctrl-C or SIGTERM asks for a stop; a second one takes the process down as it is.

    → the event to wait for, and a call that takes the signals back after Spark has taken them.
    """
    stop = threading.Event()
    kinds = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            for kind in kinds:
                signal.signal(kind, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    def listen() -> None:
        for kind in kinds:
            signal.signal(kind, ask)

    before = {kind: signal.getsignal(kind) for kind in kinds}
    listen()
    try:
        yield stop, listen
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


def run_on(
    spark: "SparkSession",
    configs: Sequence[Config],
    bus: Bus,
    once: bool = False,
    seconds: float | None = None,
    stop: threading.Event | None = None,
    accept_loss: bool = False,
) -> None:
    """Run pipelines on a session that somebody else owns."""
    stop = stop or threading.Event()
    runs: list[_Run] = []
    reason = "stopped"
    with ExitStack() as stack:
        for config in configs:
            bus.join(_history(config, stack))
        begun = threading.Event()
        bus.join(lambda event: begun.set() if isinstance(event, TableCommitted) else None)
        try:
            for config in configs:
                if not stop.is_set():
                    runs.append(_start(spark, config, bus, once, accept_loss))
            reason = _wait(runs, stop, seconds, begun)
        finally:
            # Asking all before waiting for any: each may be in the middle of a batch.
            for each in runs:
                each.stopping = True
            for each in runs:
                _stop(each, bus, reason)
    for each in runs:
        if each.failure is not None:
            raise _explained(each)


def _warm_up(spark: "SparkSession") -> None:
    """Start the Python workers' daemon while the tables are being claimed."""
    with suppress(Exception):  # a failure here will show again where it matters
        spark.range(1).mapInArrow(_pass, "id long").collect()  # type: ignore[arg-type]


def _pass(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def _history(config: Config, stack: ExitStack) -> Listener:
    """A listener that remembers this pipeline's events until the stack unwinds."""
    history = stack.enter_context(closing(History(Path(config.state_location))))

    def listen(event: Event) -> None:
        if event.pipeline == config.name:
            history(event)

    return listen


def _start(spark: "SparkSession", config: Config, bus: Bus, once: bool, accept_loss: bool) -> _Run:
    catalog = catalog_for(config.catalog)
    jvm: Any = spark.sparkContext._jvm
    jvm_catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        catalog.name, dict(catalog.java_properties()), spark._jsc.hadoopConfiguration()
    )
    tables = IcebergTables(jvm, jvm_catalog, config.name)
    record_format = format_for(config.source.format)
    source = source_for(config.source)
    include = getattr(config.source, "include", ())
    pipeline = Pipeline(
        config=config,
        source=source,
        record_format=record_format,
        tables=tables,
        builder=Builder(jvm, jvm_catalog, tables),
        design=lambda name, rule: declared_design(name, rule, record_format, include),
        bus=bus,
    )
    folder = Path(config.state_location) / config.name / "runs"
    scratch = folder / pipeline.run_id
    scratch.mkdir(parents=True)
    each = _Run(config, pipeline, source, scratch)
    once = once or config.commit_interval == "once"
    try:
        frame = pipeline.open(spark, scratch, once, accept_loss)
        _sweep(folder, scratch)
        interval = config.commit_interval
        wait = 0.0 if once or not isinstance(interval, timedelta) else interval.total_seconds()
        ends = once and source.ends_by_itself
        each.query = (
            frame.writeStream.queryName(f"icestream {config.name} {pipeline.run_id}")
            .foreachBatch(each.handle)
            .option("checkpointLocation", str(scratch / "checkpoint"))
            .trigger(**_trigger(wait, ends))
            .start()
        )
    except BaseException as failure:
        source.close()
        shutil.rmtree(scratch, ignore_errors=True)
        bus.emit(RunFailed(config.name, pipeline.run_id, str(failure), type(failure).__name__))
        raise
    if once:
        threading.Thread(target=_drain, args=(each, ends), daemon=True).start()
    return each


def _trigger(seconds: float, ends: bool) -> dict[str, Any]:
    if ends:
        return {"availableNow": True}
    return {"processingTime": f"{int(seconds * 1000)} milliseconds"}


def _drain(each: _Run, ends: bool) -> None:
    """`once`: wait for Spark's own end, or until a look at the source finds nothing new."""
    assert each.query is not None
    try:
        if ends:
            each.query.awaitTermination()
        else:
            each.query.processAllAvailable()
    except Exception as failure:
        each.failure = each.failure or failure
    each.drained.set()


def _wait(
    runs: Sequence[_Run], stop: threading.Event, seconds: float | None, begun: threading.Event
) -> str:
    """Wait for the end; `seconds` count from the first commit, however long the start takes."""
    left = seconds
    while not stop.wait(_POLL_SECONDS if left is None else min(_POLL_SECONDS, max(left, 0))):
        if left is not None and begun.is_set():
            left -= _POLL_SECONDS
            if left <= 0:
                return "time is up"
        if runs and all(each.drained.is_set() for each in runs):
            return "everything that was there is committed"
        if any(each.broken for each in runs):
            return "failed"
    return "stopped by a signal"


def _stop(each: _Run, bus: Bus, reason: str) -> None:
    """Let the batch under way reach its commit, then end the stream."""
    query = each.query
    with each.at_work:
        pass  # not held on to: Spark may be waiting with a batch that `handle` will send away
    if query is not None:
        if each.failure is None and not each.refused:
            each.failure = query.exception()
        query.stop()
    try:
        if each.failure is None:
            each.pipeline.close()
    except BaseException as failure:
        each.failure = failure
    run_id = each.pipeline.run_id
    name = each.config.name
    if each.failure is None:
        bus.emit(RunStopped(name, run_id, reason))
    else:
        error = _explained(each)
        bus.emit(RunFailed(name, run_id, str(error), type(error).__name__))
    each.source.close()
    shutil.rmtree(each.scratch, ignore_errors=True)


def _explained(each: _Run) -> IcestreamError:
    """The failure in our own words; what Spark says of it is in the log."""
    failure = each.failure
    if isinstance(failure, IcestreamError):
        return failure
    planned = planner_failure(each.scratch)
    if isinstance(planned, IcestreamError):
        each.failure = planned
        return planned
    if isinstance(lost := each.pipeline.diagnose(), IcestreamError):
        each.failure = lost
        return lost
    logs = Path(each.config.state_location) / "logs"
    text = str(failure).strip().splitlines()
    first = text[0] if text else type(failure).__name__
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / "failures.log").open("a") as log:
        traceback.print_exception(failure, file=log)
    ours = not type(failure).__module__.startswith(("pyspark", "py4j"))
    kind = InternalError if ours else GaveUp
    each.failure = kind(
        f"pipeline `{each.config.name}`: {type(failure).__name__}: {first}",
        where=str(logs),
        hint="nothing is lost; the logs have the details, and a restart is safe",
    )
    return each.failure


def _sweep(folder: Path, keep: Path) -> None:
    """Remove scratch of earlier runs: they are over, or fenced by our claim."""
    for old in folder.iterdir():
        if old != keep:
            shutil.rmtree(old, ignore_errors=True)


def _refuse_conflicts(configs: Sequence[Config]) -> None:
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
