"""Iceberg's own actions: manifests are rewritten, and orphan files found, by them.

They run in the driver's JVM on a session of their own, in one task at a time. What an action
commits goes through our TableOperations, which try once: commit/attempt.py.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from icestream.commit.attempt import ActionOperations
from icestream.commit.java_catalog import IcebergTables
from icestream.maintain.action import Action, ActionResult, Ending, GaveWay

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # Few rows, and the stream wants the other cores.
    "spark.sql.shuffle.partitions": "1",
    # What an action copies its session from must have it already, or the copy does not.
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
        turn: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self._tables = tables
        self._turn = turn
        self._jvm: Any = spark.sparkContext._jvm
        self._session: Any = spark.newSession()._jsparkSession
        for key, value in _SETTINGS.items():
            self._session.conf().set(key, value)

    def actions(self) -> Any:
        """Iceberg's actions, on a session that is the calling thread's from now on."""
        self._jvm.org.apache.spark.sql.SparkSession.setActiveSession(self._session)
        return self._jvm.org.apache.iceberg.spark.actions.SparkActions.get(self._session)

    def rewrite_manifests(self, action: Action, options: Mapping[str, str]) -> ActionResult:
        """Write manifests anew, fewer and each of few partitions."""
        name = action.table
        offer = ActionOperations(self._tables.load(name).base, lambda: self._turn(name))
        try:
            table = self._jvm.org.apache.iceberg.BaseTable(offer, name)
            rewrite = self.actions().rewriteManifests(table)
            for key, value in options.items():
                rewrite = rewrite.option(key, value)
            try:
                found = rewrite.execute()
            except Py4JJavaError as failure:
                if offer.offered is None:
                    raise _as_gave_way(failure) from None
                made = offer.offered.currentSnapshot().snapshotId()
                if offer.reload().snapshot(made) is None:
                    raise GaveWay(f"the commit was refused: {offer.failure}") from None
                return ActionResult(action, Ending.DONE)
            before, after = list(found.rewrittenManifests()), list(found.addedManifests())
            return ActionResult(
                action,
                Ending.DONE if before else Ending.NOTHING,
                files_before=len(before),
                files_after=len(after),
                bytes_before=sum(each.length() for each in before),
                bytes_after=sum(each.length() for each in after),
            )
        finally:
            offer.release()


def _as_gave_way(failure: Exception) -> Exception:
    """Conflicts are to be expected beside other writers; anything else is a failure."""
    cause = failure.java_exception if isinstance(failure, Py4JJavaError) else None
    while cause is not None:
        kind = cause.getClass().getSimpleName()
        if kind in ("ValidationException", "CommitFailedException"):
            return GaveWay(str(cause.getMessage()).splitlines()[0])
        cause = cause.getCause()
    return failure
