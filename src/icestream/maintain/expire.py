"""Expiry: which snapshots go (pure), and Iceberg's own expiry of them, deletes in the driver."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from py4j.protocol import Py4JJavaError

from icestream.commit.attempt import ActionOperations
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.protocol import MarkerStatus, marker_status
from icestream.commit.table_state import TableState
from icestream.config.options.maintenance import ExpireSnapshots
from icestream.maintain.action import Action, ActionResult, Ending
from icestream.tables.metadata import Metadata

_ATTEMPTS = 5
_WAIT = 0.2
_DELETES_AT_ONCE = 2  # the stream's files are on the same storage


def why_not_yet(state: TableState) -> str | None:
    """Why expiry has to wait, if it has: the marker must say what the snapshots say.

    Snapshots are what tells a table that was moved back from one that was not; of a table that
    contradicts its marker none may go before somebody has looked.
    """
    stand = marker_status(state)
    if stand is MarkerStatus.OURS:
        return None
    if stand is MarkerStatus.NEW:
        return "the table has no marker of this pipeline"
    return f"the table is {stand.value}: its marker and its snapshots disagree"


def expire_before(metadata: Metadata, rules: ExpireSnapshots, now_ms: int) -> int | None:
    """Snapshots from before this moment go; None: there are none to go.

    `retain_last` ones always stay; more than `max_snapshots` go however young they are.
    """
    snapshots, named = metadata.snapshots, metadata.named_snapshots
    times = sorted((snapshot.at_ms for snapshot in snapshots), reverse=True)
    if not times:
        return None
    moment = now_ms - int(rules.older_than.total_seconds() * 1000)
    most = max(rules.max_snapshots, rules.retain_last)
    if len(times) > most:
        moment = max(moment, times[most - 1])
    if len(times) > rules.retain_last:
        moment = min(moment, times[rules.retain_last - 1])
    else:
        return None
    removed = any(
        snapshot.at_ms < moment and snapshot.snapshot_id not in named for snapshot in snapshots
    )
    return moment if removed else None


def expire(
    jvm: Any,
    tables: IcebergTables,
    action: Action,
    rules: ExpireSnapshots,
    turn: Callable[[str], AbstractContextManager[None]],
) -> ActionResult:
    """Take the snapshots that are due out of the table, then remove what only they named."""
    name, refused = action.table, ""
    pool = jvm.java.util.concurrent.Executors.newFixedThreadPool(_DELETES_AT_ONCE)
    try:
        for attempt in range(1, _ATTEMPTS + 1):
            state = tables.load(name)
            before = state.metadata.snapshot_count
            if why := why_not_yet(state):
                return ActionResult(action, Ending.GAVE_WAY, before, before, detail=why)
            moment = expire_before(state.metadata, rules, time.time_ns() // 1_000_000)
            if moment is None:
                return ActionResult(action, Ending.NOTHING, before, before, attempts=attempt)
            offer = ActionOperations(state.base, lambda: turn(name), after="snapshots-expired")
            try:
                table = jvm.org.apache.iceberg.BaseTable(offer, name)
                expiry = table.expireSnapshots().expireOlderThan(moment)
                expiry = expiry.retainLast(rules.retain_last).executeDeleteWith(pool)
                expiry.planWith(pool).commit()
            except Py4JJavaError as failure:
                if offer.offered is None:
                    raise
                refused = offer.failure or str(failure)
            else:
                left = before if offer.offered is None else offer.offered.snapshots().size()
                ending = Ending.DONE if left < before else Ending.NOTHING
                return ActionResult(action, ending, before, left, attempts=attempt)
            finally:
                offer.release()
            # If it is in all the same, the next look finds nothing to do; the files that it
            # left are orphans.
            time.sleep(_WAIT * attempt)
        return ActionResult(
            action, Ending.GAVE_WAY, before, before, attempts=attempt, detail=refused
        )
    finally:
        pool.shutdown()
