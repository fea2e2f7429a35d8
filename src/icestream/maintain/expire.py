"""Expiry of snapshots: which are due (pure), and Iceberg's own expiry of them, in the driver."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError

from icestream.commit.attempt import ActionOperations
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.protocol import MarkerStatus, marker_status
from icestream.commit.table_state import TableState
from icestream.config.options.maintenance import ExpireSnapshots
from icestream.maintain.action import Action, ActionResult, ActionTotals, Ending
from icestream.tables.metadata import Metadata

_ATTEMPTS = 5
_WAIT = 0.2
_FAILPOINT = "snapshots-expired"
_DELETES_AT_ONCE = 2  # the run writes its files to the same storage


def why_not_yet(state: TableState) -> str | None:
    """Return why expiry has to wait, if it has: marker and snapshots must agree.

    Snapshots are what tells a table that was rolled back from one that was not; of a table that
    contradicts its marker none is removed before a user has looked at it.
    """
    status = marker_status(state)
    if status is MarkerStatus.OURS:
        return None
    if status is MarkerStatus.NEW:
        return "the table has no marker of this pipeline"
    return f"the table is {status.value}: its marker and its snapshots disagree"


def expire_before(metadata: Metadata, rules: ExpireSnapshots, now_ms: int) -> int | None:
    """Return the time in ms before which snapshots expire; None: no snapshot is due.

    The last `retain_last` always stay; more than `max_snapshots` expire however young they are.
    """
    snapshots, named = metadata.snapshots, metadata.named_snapshots
    times = sorted((snapshot.at_ms for snapshot in snapshots), reverse=True)
    if not times:
        return None
    before_ms = now_ms - int(rules.older_than.total_seconds() * 1000)
    most = max(rules.max_snapshots, rules.retain_last)
    if len(times) > most:
        before_ms = max(before_ms, times[most - 1])
    if len(times) > rules.retain_last:
        before_ms = min(before_ms, times[rules.retain_last - 1])
    else:
        return None
    removed = any(
        snapshot.at_ms < before_ms and snapshot.snapshot_id not in named for snapshot in snapshots
    )
    return before_ms if removed else None


def expire(
    jvm: Any,
    tables: IcebergTables,
    action: Action,
    rules: ExpireSnapshots,
    window: Callable[[str], AbstractContextManager[None]],
) -> ActionResult:
    """Remove the snapshots that are due, then delete the files that only they named."""
    name, error = action.table, ""
    pool = jvm.java.util.concurrent.Executors.newFixedThreadPool(_DELETES_AT_ONCE)
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            state = tables.load(name)
            before = state.metadata.snapshot_count
            totals = ActionTotals(before, before, attempts=attempt)
            if why := why_not_yet(state):
                return ActionResult(
                    action, Ending.GAVE_WAY, replace(totals, attempts=1), detail=why
                )
            before_ms = expire_before(state.metadata, rules, time.time_ns() // 1_000_000)
            if before_ms is None:
                return ActionResult(action, Ending.NOTHING, totals)
            operations = ActionOperations(state.base, lambda: window(name), after=_FAILPOINT)
            try:
                table = jvm.org.apache.iceberg.BaseTable(operations, name)
                expiry = table.expireSnapshots().expireOlderThan(before_ms)
                expiry = expiry.retainLast(rules.retain_last).executeDeleteWith(pool)
                expiry.planWith(pool).commit()
            except Py4JJavaError as failure:
                if operations.offered is None:
                    raise
                error = operations.failure or str(failure)
            else:
                offered = operations.offered
                after = before if offered is None else offered.snapshots().size()
                ending = Ending.DONE if after < before else Ending.NOTHING
                return ActionResult(action, ending, replace(totals, files_after=after))
            finally:
                operations.release()
            # If the commit was made all the same, the next attempt has nothing to do, and files
            # that only the removed snapshots named are orphans.
            time.sleep(_WAIT * attempt)
        return ActionResult(action, Ending.GAVE_WAY, totals, detail=error)
    finally:
        pool.shutdown()
