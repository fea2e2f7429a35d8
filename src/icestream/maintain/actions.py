"""Runs an action of any kind, and returns how it ended: a failure is a result, too."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from icestream.commit.attempt import first_line
from icestream.commit.java_catalog import IcebergTables
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.maintain.action import (
    Action,
    ActionKind,
    ActionResult,
    Ending,
    GaveWay,
    Progress,
    Stopped,
)
from icestream.maintain.expire import expire
from icestream.maintain.gate import GateClosed, MaintenanceGate
from icestream.maintain.iceberg_actions import IcebergActions
from icestream.maintain.orphans import remove_orphans

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from icestream.maintain.rewrite import Rewriter
    from icestream.upsert.indexes import KeyIndexes

_REWRITES = (ActionKind.REWRITE_DATA_FILES, ActionKind.REWRITE_POSITION_DELETE_FILES)
_TARGET = "target-file-size-bytes"


class ActionRunner:
    """Runs the actions on the tables of one pipeline; used by one thread."""

    def __init__(
        self,
        config: MaintenanceOptions,
        spark: "SparkSession",
        tables: IcebergTables,
        open_catalog: "Callable[[], Catalog]",
        gate: MaintenanceGate,
        indexes: "KeyIndexes | None" = None,
    ) -> None:
        self._config = config
        self._spark = spark
        self._tables = tables
        self._open_catalog = open_catalog
        self._gate = gate
        self._indexes = indexes
        self._jvm: Any = spark.sparkContext._jvm
        self._iceberg_actions = IcebergActions(spark, tables, gate.commit_window)
        self._rewriter: Rewriter | None = None

    def run(self, action: Action, stopped: Stopped, progress: Progress) -> ActionResult:
        """Run an action; never raises."""
        began = time.monotonic()
        try:
            result = self._run(action, stopped, progress)
        except (GaveWay, GateClosed) as reason:
            result = ActionResult(action, Ending.GAVE_WAY, detail=str(reason))
        except Exception as failure:
            is_silent = isinstance(failure, Py4JError) and not isinstance(failure, Py4JJavaError)
            detail = "Spark's Java process does not answer" if is_silent else first_line(failure)
            result = ActionResult(action, Ending.FAILED, detail=detail.strip())
        if stopped() and result.ending in (Ending.FAILED, Ending.GAVE_WAY):
            result = replace(result, ending=Ending.CANCELLED)
        return replace(result, seconds=round(time.monotonic() - began, 3))

    def release_idle(self) -> None:
        """End the idle rewrite process and free its memory."""
        if self._rewriter is not None:
            self._rewriter.release_idle()

    def close(self) -> None:
        """End the rewrite process for good."""
        if self._rewriter is not None:
            self._rewriter.close()

    def _run(self, action: Action, stopped: Stopped, progress: Progress) -> ActionResult:
        config = self._config
        if action.kind in _REWRITES:
            return self._rewrite(action, stopped, progress)
        match action.kind:
            case ActionKind.REWRITE_MANIFESTS:
                options = config.rewrite_manifests or {}
                return self._iceberg_actions.rewrite_manifests(action, options)
            case ActionKind.EXPIRE_SNAPSHOTS if config.expire_snapshots:
                rules = config.expire_snapshots
                return expire(self._jvm, self._tables, action, rules, self._gate.commit_window)
            case ActionKind.REMOVE_ORPHAN_FILES if config.remove_orphan_files:
                age = config.remove_orphan_files.older_than
                actions = self._iceberg_actions.actions()
                return remove_orphans(self._jvm, actions, self._tables, action, age)
        return ActionResult(action, Ending.NOTHING, detail="not for this table")

    def _rewrite(self, action: Action, stopped: Stopped, progress: Progress) -> ActionResult:
        if self._rewriter is None:
            from icestream.maintain.rewrite import Rewriter

            target_bytes = (self._config.rewrite_data_files or {}).get(_TARGET)
            self._rewriter = Rewriter(
                self._tables,
                self._open_catalog,
                self._spark,
                self._indexes,
                self._gate,
                int(target_bytes) if target_bytes else None,
            )
        return self._rewriter.rewrite(action, stopped, progress)
