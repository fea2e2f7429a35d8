"""Maintenance beside a run: a thread that reads the health of its tables and runs due actions.

The run has priority: commits of maintenance wait for the moment between two batches, rewrites use
one core at most, and no failure here is one of the run.
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

_FIRST_LOOK = 60.0  # at most: a start has enough to do, and a short run needs maintenance, too
_LONGEST_BACKOFF = 3600.0  # of an action on a table that keeps failing
_STOP_SECONDS = 60.0
_POLL_SECONDS = 0.2
_SLOT = threading.Lock()  # pipelines of one process share its cores: one action at a time
_CANCEL_EVERY = 1.0
_SHORT_WAIT = 30.0  # until the next look: the rewrite process is kept for it


class ClaimLost(Exception):
    """Raised when another run has claimed a table: maintenance is up to that run now."""


@dataclass
class FailureBackoff:
    """Decides how long an action that failed on a table is not tried again."""

    every: float
    _failures: dict[tuple[str, ActionKind], int] = field(default_factory=dict)
    _until: dict[tuple[str, ActionKind], float] = field(default_factory=dict)

    def is_backing_off(self, action: Action, now: float) -> bool:
        """Whether the action failed on its table not long ago."""
        return now < self._until.get((action.table, action.kind), 0.0)

    def record(self, result: ActionResult, now: float) -> None:
        """Note a result: twice as long after each failure in a row; giving way is no failure."""
        key = result.action.table, result.action.kind
        if result.ending is not Ending.FAILED:
            self._failures.pop(key, None)
            return
        count = self._failures[key] = self._failures.get(key, 0) + 1
        self._until[key] = now + min(_LONGEST_BACKOFF, self.every * 2.0**count)


class MaintenanceWorker:
    """Reads the health of a pipeline's tables and runs actions; used by one thread.

    One per maintenance thread of a run, or per `icestream maintain`.
    """

    def __init__(
        self,
        config: PipelineConfig,
        options: MaintenanceOptions,
        spark: "SparkSession",
        bus: EventBus,
        gate: MaintenanceGate,
        stopped: Callable[[], bool],
        indexes: "KeyIndexes | None" = None,
        run_id: str | None = None,
    ) -> None:
        self._config = config
        self._options = options
        self._bus = bus
        self._stopped = stopped
        self._run_id = run_id  # None: `icestream maintain`, which has no claim
        self._adapter = catalog_for(config.catalog)
        self._catalog: PyCatalog | None = None
        self._health = HealthReader(options)
        # Not the run's: what it caches of a table must not be shared with the run's threads.
        tables = java_tables(spark, self._adapter, config.name)
        self._actions = ActionRunner(options, spark, tables, self._open, gate, indexes)
        self._backoff = FailureBackoff(options.every.total_seconds())
        self._spark = spark
        self._tag = f"icestream-maintenance-{uuid.uuid4().hex}"
        spark.sparkContext.addJobTag(self._tag)  # for jobs of this thread and of those it starts

    def find_due(self) -> list[Action]:
        """Return the actions that are due now; raises ClaimLost, or the catalog's error."""
        now = time.time()
        past = past_actions(self._config, now)
        due = due_actions(self._read_health(now), self._options, past, now)
        return [action for action in due if not self._backoff.is_backing_off(action, now)]

    def run_actions(self, actions: Sequence[Action]) -> list[ActionResult]:
        """Run actions one after the other, until all have ended or a stop is asked for."""
        results: list[ActionResult] = []
        for action in actions:
            while not _SLOT.acquire(timeout=_POLL_SECONDS):
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
        """End the Spark jobs that are under way; called from another thread."""
        with suppress(Exception):  # Spark may be the one that died
            self._spark.sparkContext.cancelJobsWithTag(self._tag)

    def release_idle(self) -> None:
        """End the idle rewrite process and free its memory; called if no action will run soon."""
        self._actions.release_idle()

    def close(self) -> None:
        """Release the rewrite process and the catalog."""
        self._actions.close()
        if self._catalog is not None:
            self._catalog.close()

    def _run_action(self, action: Action) -> ActionResult:
        name, table, kind = self._config.name, action.table, action.kind.value
        self._bus.emit(events.MaintenanceStarted(name, table, kind, action.reason))

        def progress(done: int, total: int) -> None:
            self._bus.emit(events.MaintenanceProgress(name, table, kind, done, total))

        result = self._actions.run(action, self._stopped, progress)
        self._backoff.record(result, time.time())
        self._bus.emit(events.MaintenanceFinished(name, **result.facts()))
        return result

    def _read_health(self, now: float) -> list[TableHealth]:
        """Read the health of each table; a table that cannot be read does not stop the others."""
        tables, failures = [], []
        catalog = self._open()
        for name in table_names(self._config, catalog):
            try:
                table = catalog.load_table(name)
                self._refuse_if_fenced(name, table)
                tables.append(self._health.read(name, table, now))
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
        return tables

    def _refuse_if_fenced(self, name: str, table: "Table") -> None:
        """Raise ClaimLost if another run has claimed the table."""
        text = table.properties.get(property_name(self._config.name))
        # A quarantine is claimed only when it is needed: the claim of its table counts.
        if self._run_id is None or name.endswith(QUARANTINE) or text is None:
            return
        if Marker.from_json(text).run_id != self._run_id:
            raise ClaimLost(name)

    def _open(self) -> "PyCatalog":
        if self._catalog is None:
            self._catalog = self._adapter.open()
        return self._catalog


class MaintenanceThread:
    """The maintenance thread of one run; started after its claim, stopped before the run ends."""

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
        self._worker: MaintenanceWorker | None = None
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self.gate = MaintenanceGate(stopped=self._stop.is_set)

    def start(self) -> None:
        """Start the thread; its first look is within a minute."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let no further action begin, and cancel the jobs that are under way."""
        self._stop.set()
        if self._worker is not None:
            self._worker.cancel_jobs()

    def stop(self) -> None:
        """Stop and wait; an action that does not end in time dies with the process, harmlessly."""
        deadline = time.monotonic() + _STOP_SECONDS
        self.ask_to_stop()
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._thread.join(_CANCEL_EVERY)
            self.ask_to_stop()  # again: a job may have begun just then

    def _run(self) -> None:
        every = self._options.every.total_seconds()
        wait = min(every, _FIRST_LOOK)
        while not self._stop.wait(wait):
            began = time.monotonic()
            try:
                self._worker = self._worker or self._make_worker()
                done = self._worker.run_actions(self._worker.find_due())
                if not done or every > _SHORT_WAIT:
                    self._worker.release_idle()
            except ClaimLost:
                break
            except Exception as failure:
                text = f"{type(failure).__name__}: {failure}".splitlines()[0]
                with suppress(Exception):
                    self._bus.emit(events.MaintenanceFailed(self._config.name, text))
            wait = max(0.0, every - (time.monotonic() - began))
        if self._worker is not None:
            with suppress(Exception):
                self._worker.close()

    def _make_worker(self) -> MaintenanceWorker:
        return MaintenanceWorker(
            self._config,
            self._options,
            self._spark,
            self._bus,
            self.gate,
            self._stop.is_set,
            self._indexes,
            self._run_id,
        )
