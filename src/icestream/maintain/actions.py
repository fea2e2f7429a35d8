"""Actions: carries one out, whatever its kind, and says how it ended. Nothing escapes from here."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError

from icestream.commit.java_catalog import IcebergTables
from icestream.config.options.maintenance import Maintenance
from icestream.maintain.action import Action, Ending, Kind, Result
from icestream.maintain.expire import expire
from icestream.maintain.gate import NoTurn, Turns
from icestream.maintain.iceberg_actions import TARGET, Gave, Procedures, Progress, Stopped
from icestream.maintain.orphans import remove_orphans
from icestream.tables.design import KEYS_PROPERTY

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from icestream.batch.mirrors import Mirrors
    from icestream.maintain.rewrite import Rewriter

_REWRITES = (Kind.REWRITE_DATA_FILES, Kind.REWRITE_POSITION_DELETE_FILES)
# Options that the policy and our own rewrite understand; any other one is Iceberg's business.
_OWN_OPTIONS = {
    TARGET,
    "min-file-size-bytes",
    "min-input-files",
    "max-file-group-size-bytes",
    "delete-file-threshold",
    "delete-ratio-threshold",
}


class Actions:
    """What maintenance can do to the tables of one pipeline; used by one thread."""

    def __init__(
        self,
        config: Maintenance,
        spark: "SparkSession",
        tables: IcebergTables,
        open_catalog: "Callable[[], Catalog]",
        turns: Turns,
        mirrors: "Mirrors | None" = None,
    ) -> None:
        self._config = config
        self._spark = spark
        self._tables = tables
        self._open_catalog = open_catalog
        self._turns = turns
        self._mirrors = mirrors
        self._jvm: Any = spark.sparkContext._jvm
        self._procedures = Procedures(spark, tables, turns.turn)
        self._rewriter: Rewriter | None = None

    def run(self, action: Action, stopped: Stopped, progress: Progress) -> Result:
        """Do it; a failure is a result, too."""
        began = time.monotonic()
        try:
            result = self._run(action, stopped, progress)
        except (Gave, NoTurn) as reason:
            result = Result(action, Ending.GAVE_WAY, detail=str(reason))
        except Exception as failure:
            result = Result(action, Ending.FAILED, detail=_first_line(failure))
        if stopped() and result.ending in (Ending.FAILED, Ending.GAVE_WAY):
            result = replace(result, ending=Ending.CANCELLED)
        return replace(result, seconds=round(time.monotonic() - began, 3))

    def rest(self) -> None:
        """There is nothing to do for a while."""
        if self._rewriter is not None:
            self._rewriter.rest()

    def close(self) -> None:
        """Let go of what a rewrite holds."""
        if self._rewriter is not None:
            self._rewriter.close()

    def _run(self, action: Action, stopped: Stopped, progress: Progress) -> Result:
        config = self._config
        if action.kind in _REWRITES and self._is_ours(action.table):
            return self._rewrite_ourselves(action, stopped, progress)
        match action.kind:
            case Kind.REWRITE_DATA_FILES:
                options = config.rewrite_data_files or {}
                return self._procedures.rewrite(action, options, stopped, progress)
            case Kind.REWRITE_MANIFESTS:
                options = config.rewrite_manifests or {}
                return self._procedures.rewrite_manifests(action, options)
            case Kind.EXPIRE_SNAPSHOTS if config.expire_snapshots:
                rules = config.expire_snapshots
                return expire(self._jvm, self._tables, action, rules, self._turns.turn)
            case Kind.REMOVE_ORPHAN_FILES if config.remove_orphan_files:
                age = config.remove_orphan_files.older_than
                actions = self._procedures.actions()
                return remove_orphans(self._jvm, actions, self._tables, action, age)
        return Result(action, Ending.NOTHING, detail="not for this table")

    def _is_ours(self, table: str) -> bool:
        """A mirror, or a table without an order of rows: far cheaper than Java's."""
        base = self._tables.load(table).base
        if KEYS_PROPERTY in base.document.get("properties", {}):
            return True
        told = set(self._config.rewrite_data_files or {})
        return told <= _OWN_OPTIONS and not base.document["default-sort-order-id"]

    def _rewrite_ourselves(self, action: Action, stopped: Stopped, progress: Progress) -> Result:
        if self._rewriter is None:
            from icestream.maintain.rewrite import Rewriter

            told = (self._config.rewrite_data_files or {}).get(TARGET)
            self._rewriter = Rewriter(
                self._tables,
                self._open_catalog,
                self._spark,
                self._mirrors,
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
