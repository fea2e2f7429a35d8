"""Iceberg's own actions, by which manifests are rewritten and orphan files found.

They run in the driver's JVM on a Spark session of their own, one task at a time. Their commits go
through our TableOperations, which try once: commit/attempt.py.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from icestream.commit.attempt import ActionOperations
from icestream.commit.java_catalog import IcebergTables
from icestream.maintain.action import Action, ActionResult, ActionTotals, Ending, GaveWay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # Few rows, and the run needs the other cores.
    "spark.sql.shuffle.partitions": "1",
    # An action copies this session: the copy has the setting only if this one has.
    "spark.sql.catalog.default_rewrite_catalog": (
        "org.apache.iceberg.spark.SparkRewriteTableCatalog"
    ),
}


class IcebergActions:
    """Iceberg's actions on the tables of one catalog; used by one thread."""

    def __init__(
        self,
        spark: "SparkSession",
        tables: IcebergTables,
        commit_window: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._tables = tables
        self._commit_window = commit_window
        self._jvm: Any = spark.sparkContext._jvm
        self._session: Any = spark.newSession()._jsparkSession
        for key, value in _SETTINGS.items():
            self._session.conf().set(key, value)

    def actions(self) -> Any:
        """Return Iceberg's actions; their session becomes the calling thread's active one."""
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(self._session)
        return self._jvm.org.apache.iceberg.spark.actions.SparkActions.get(self._session)

    def rewrite_manifests(self, action: Action, options: Mapping[str, str]) -> ActionResult:
        """Rewrite manifests, so that they are fewer and each is about few partitions."""
        name = action.table
        base = self._tables.load(name).base
        operations = ActionOperations(base, lambda: self._commit_window(name))
        try:
            table = self._jvm.org.apache.iceberg.BaseTable(operations, name)
            rewrite = self.actions().rewriteManifests(table)
            for key, value in options.items():
                rewrite = rewrite.option(key, value)
            try:
                result = rewrite.execute()
            except Py4JJavaError as failure:
                if operations.offered is None:
                    raise _as_gave_way(failure) from None
                # Refused, or committed although the answer was lost: the table tells.
                snapshot_id = operations.offered.currentSnapshot().snapshotId()
                if operations.reload().snapshot(snapshot_id) is None:
                    raise GaveWay(f"the commit was refused: {operations.failure}") from None
                return ActionResult(action, Ending.DONE)
            before, after = list(result.rewrittenManifests()), list(result.addedManifests())
            totals = ActionTotals(
                files_before=len(before),
                files_after=len(after),
                bytes_before=sum(manifest.length() for manifest in before),
                bytes_after=sum(manifest.length() for manifest in after),
            )
            return ActionResult(action, Ending.DONE if before else Ending.NOTHING, totals)
        finally:
            operations.release()


def _as_gave_way(failure: Exception) -> Exception:
    """Turn a conflict with another writer into GaveWay; any other failure stays as it is."""
    cause = failure.java_exception if isinstance(failure, Py4JJavaError) else None
    while cause is not None:
        exception_name = cause.getClass().getSimpleName()
        if exception_name in ("ValidationException", "CommitFailedException"):
            return GaveWay(str(cause.getMessage()).splitlines()[0])
        cause = cause.getCause()
    return failure
