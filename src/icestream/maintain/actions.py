"""Actions: carries one out, whatever its kind, and says how it ended. Nothing escapes from here."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

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
    """What maintenance can do to the tables of one pipeline; used by one thread."""

    def __init__(
        self,
        config: MaintenanceOptions,
        spark: "SparkSession",
        tables: IcebergTables,
        open_catalog: "Callable[[], Catalog]",
        turns: MaintenanceGate,
        indexes: "KeyIndexes | None" = None,
    ) -> None:
        self._config = config
        self._spark = spark
        self._tables = tables
        self._open_catalog = open_catalog
        self._turns = turns
        self._indexes = indexes
        self._jvm: Any = spark.sparkContext._jvm
        self._procedures = IcebergActions(spark, tables, turns.commit_window)
        self._rewriter: Rewriter | None = None

    def run(self, action: Action, stopped: Stopped, progress: Progress) -> ActionResult:
        """Do it; a failure is a result, too."""
        began = time.monotonic()
        try:
            result = self._run(action, stopped, progress)
        except (GaveWay, GateClosed) as reason:
            result = ActionResult(action, Ending.GAVE_WAY, detail=str(reason))
        except Exception as failure:
            result = ActionResult(action, Ending.FAILED, detail=_first_line(failure))
        if stopped() and result.ending in (Ending.FAILED, Ending.GAVE_WAY):
            result = replace(result, ending=Ending.CANCELLED)
        return replace(result, seconds=round(time.monotonic() - began, 3))

    def release_idle(self) -> None:
        """There is nothing to do for a while."""
        if self._rewriter is not None:
            self._rewriter.release_idle()

    def close(self) -> None:
        """Let go of what a rewrite holds."""
        if self._rewriter is not None:
            self._rewriter.close()

    def _run(self, action: Action, stopped: Stopped, progress: Progress) -> ActionResult:
        config = self._config
        if action.kind in _REWRITES:
            return self._rewrite(action, stopped, progress)
        match action.kind:
            case ActionKind.REWRITE_MANIFESTS:
                options = config.rewrite_manifests or {}
                return self._procedures.rewrite_manifests(action, options)
            case ActionKind.EXPIRE_SNAPSHOTS if config.expire_snapshots:
                rules = config.expire_snapshots
                return expire(self._jvm, self._tables, action, rules, self._turns.commit_window)
            case ActionKind.REMOVE_ORPHAN_FILES if config.remove_orphan_files:
                age = config.remove_orphan_files.older_than
                actions = self._procedures.actions()
                return remove_orphans(self._jvm, actions, self._tables, action, age)
        return ActionResult(action, Ending.NOTHING, detail="not for this table")

    def _rewrite(self, action: Action, stopped: Stopped, progress: Progress) -> ActionResult:
        if self._rewriter is None:
            from icestream.maintain.rewrite import Rewriter

            told = (self._config.rewrite_data_files or {}).get(_TARGET)
            self._rewriter = Rewriter(
                self._tables,
                self._open_catalog,
                self._spark,
                self._indexes,
                self._turns,
                int(told) if told else None,
            )
        return self._rewriter.rewrite(action, stopped, progress)


def _first_line(failure: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(failure, Py4JJavaError):
        text = str(failure.java_exception.toString())
    elif isinstance(failure, Py4JError):
        text = "Spark's Java process does not answer"
    else:
        text = f"{type(failure).__name__}: {failure}"
    return text.strip().splitlines()[0]
