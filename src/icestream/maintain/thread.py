"""Beside the stream: looks at the run's tables now and then, and does what their health asks for.

In a thread of its own. The stream has priority: commits wait for their turn between two batches,
rewrites take one task slot, and no failure here is one of the run.
"""

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchTableError

from icestream import events
from icestream.catalogs import catalog_for
from icestream.commit.java_catalog import java_tables
from icestream.config.model import PipelineConfig
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.config.route import QUARANTINE
from icestream.events import EventBus
from icestream.maintain.action import Action, ActionKind, ActionResult, Ending
from icestream.maintain.actions import ActionRunner
from icestream.maintain.gate import MaintenanceGate
from icestream.maintain.health import HealthReader, TableHealth
from icestream.maintain.past_actions import past_actions
from icestream.maintain.policy import due_actions
from icestream.tables.inventory import table_names
from icestream.tables.marker import Marker, property_name

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyCatalog
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

    from icestream.upsert.indexes import KeyIndexes

_FIRST_LOOK = 60.0  # at most: a start has enough to do, and a short run shall be looked after, too
_LONGEST_REST = 3600.0  # of an action on a table that keeps failing
_STOP_SECONDS = 60.0
_LOOK_EVERY = 0.2
_SLOT = threading.Lock()  # pipelines of one process share its cores: one action at a time
_CALL_OFF_EVERY = 1.0
_SHORT_WAIT = 30.0  # until the next look: what runs rewrites is kept for it


class ClaimLost(Exception):
    """Another run has taken a table: maintenance is its business now."""


@dataclass
class FailureBackoff:
    """How long an action that failed on a table is left alone."""

    every: float
    _failures: dict[tuple[str, ActionKind], int] = field(default_factory=dict)
    _until: dict[tuple[str, ActionKind], float] = field(default_factory=dict)

    def is_backing_off(self, action: Action, now: float) -> bool:
        """Whether it failed not long ago."""
        return now < self._until.get((action.table, action.kind), 0.0)

    def record(self, result: ActionResult, now: float) -> None:
        """Twice as long after each failure in a row; giving way is none."""
        key = result.action.table, result.action.kind
        if result.ending is not Ending.FAILED:
            self._failures.pop(key, None)
            return
        count = self._failures[key] = self._failures.get(key, 0) + 1
        self._until[key] = now + min(_LONGEST_REST, self.every * 2.0**count)


class MaintenanceWorker:
    """What looks at the tables of a pipeline and acts on them; used by one thread."""

    def __init__(
        self,
        config: PipelineConfig,
        options: MaintenanceOptions,
        spark: "SparkSession",
        bus: EventBus,
        turns: MaintenanceGate,
        stopped: Callable[[], bool],
        indexes: "KeyIndexes | None" = None,
        run_id: str | None = None,
    ) -> None:
        self._config = config
        self._options = options
        self._bus = bus
        self._stopped = stopped
        self._run_id = run_id  # None: of no run, so of no claim
        self._catalog = catalog_for(config.catalog)
        self._opened: PyCatalog | None = None
        self._health = HealthReader(options)
        # Our own: what it knows of a table is not shared with the stream's threads.
        tables = java_tables(spark, self._catalog, config.name)
        self._actions = ActionRunner(options, spark, tables, self._open, turns, indexes)
        self._rests = FailureBackoff(options.every.total_seconds())
        self._spark = spark
        self._tag = f"icestream-maintenance-{uuid.uuid4().hex}"
        spark.sparkContext.addJobTag(self._tag)  # of this thread's jobs, and of those it begins

    def find_due(self) -> list[Action]:
        """What should be done now; raises Overtaken, or what keeps it from looking."""
        now = time.time()
        due = due_actions(
            self._read_health(now), self._options, past_actions(self._config, now), now
        )
        return [action for action in due if not self._rests.is_backing_off(action, now)]

    def run_actions(self, actions: Sequence[Action]) -> list[ActionResult]:
        """One after the other, until all are done or somebody asks for a stop."""
        results: list[ActionResult] = []
        for action in actions:
            while not _SLOT.acquire(timeout=_LOOK_EVERY):
                if self._stopped():
                    return results
            try:
                if self._stopped():
                    return results
                results.append(self._run_action(action))
            finally:
                _SLOT.release()
        return results

    def cancel_jobs(self) -> None:
        """From another thread: end the jobs that are under way."""
        with suppress(Exception):  # Spark may be the one that died
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def release_idle(self) -> None:
        """Nothing is to be done for a while: give back memory."""
        self._actions.release_idle()

    def close(self) -> None:
        """No thread is left, and no connection."""
        self._actions.close()
        if self._opened is not None:
            self._opened.close()

    def _run_action(self, action: Action) -> ActionResult:
        name, table, kind = self._config.name, action.table, action.kind.value
        self._bus.emit(events.MaintenanceStarted(name, table, kind, action.reason))

        def progress(done: int, total: int) -> None:
            self._bus.emit(events.MaintenanceProgress(name, table, kind, done, total))

        result = self._actions.run(action, self._stopped, progress)
        self._rests.record(result, time.time())
        self._bus.emit(
            events.MaintenanceFinished(
                name,
                table,
                kind,
                action.reason,
                result.ending.value,
                result.files_before,
                result.files_after,
                result.bytes_before,
                result.bytes_after,
                result.seconds,
                result.attempts,
                result.detail,
            )
        )
        return result

    def _read_health(self, now: float) -> list[TableHealth]:
        """Of each table; one that cannot be read keeps the others from nothing."""
        found, failures = [], []
        catalog = self._open()
        for name in table_names(self._config, catalog):
            try:
                table = catalog.load_table(name)
                self._refuse_if_fenced(name, table)
                found.append(self._health.read(name, table, now))
            except NoSuchTableError:
                continue
            except ClaimLost:
                raise
            except Exception as failure:
                failures.append(f"table `{name}`: {type(failure).__name__}: {failure}")
        if failures:
            more = f" (and {len(failures) - 1} more tables)" if len(failures) > 1 else ""
            text = f"{failures[0].splitlines()[0]}{more}"
            self._bus.emit(events.MaintenanceFailed(self._config.name, text))
        return found

    def _refuse_if_fenced(self, name: str, table: "Table") -> None:
        """A quarantine is claimed when it is needed: its table speaks for it."""
        text = table.properties.get(property_name(self._config.name))
        if self._run_id is None or name.endswith(QUARANTINE) or text is None:
            return
        if Marker.from_json(text).run_id != self._run_id:
            raise ClaimLost(name)

    def _open(self) -> "PyCatalog":
        if self._opened is None:
            self._opened = self._catalog.open()
        return self._opened


class MaintenanceThread:
    """The thread of one run; begun after its claim, and stopped before it lets go."""

    def __init__(
        self,
        config: PipelineConfig,
        options: MaintenanceOptions,
        spark: "SparkSession",
        bus: EventBus,
        run_id: str,
        indexes: "KeyIndexes",
    ) -> None:
        self._config = config
        self._options = options
        self._spark = spark
        self._bus = bus
        self._run_id = run_id
        self._indexes = indexes
        self._stop = threading.Event()
        self._crew: MaintenanceWorker | None = None
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self.turns = MaintenanceGate(stopped=self._stop.is_set)

    def start(self) -> None:
        """Begin to look, before long."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Begin nothing, and call off what is under way."""
        self._stop.set()
        if self._crew is not None:
            self._crew.cancel_jobs()

    def stop(self) -> None:
        """Wait for the end; what does not end in time is cut off with the process, harmlessly."""
        deadline = time.monotonic() + _STOP_SECONDS
        self.ask_to_stop()
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(_CALL_OFF_EVERY)
            self.ask_to_stop()  # a job may have begun just then

    def _run(self) -> None:
        every = self._options.every.total_seconds()
        wait = min(every, _FIRST_LOOK)
        while not self._stop.wait(wait):
            began = time.monotonic()
            try:
                self._crew = self._crew or self._make_worker()
                done = self._crew.run_actions(self._crew.find_due())
                if not done or every > _SHORT_WAIT:
                    self._crew.release_idle()
            except ClaimLost:
                break
            except Exception as failure:
                text = f"{type(failure).__name__}: {failure}".splitlines()[0]
                with suppress(Exception):
                    self._bus.emit(events.MaintenanceFailed(self._config.name, text))
            wait = max(0.0, every - (time.monotonic() - began))
        if self._crew is not None:
            with suppress(Exception):
                self._crew.close()

    def _make_worker(self) -> MaintenanceWorker:
        return MaintenanceWorker(
            self._config,
            self._options,
            self._spark,
            self._bus,
            self.turns,
            self._stop.is_set,
            self._indexes,
            self._run_id,
        )
