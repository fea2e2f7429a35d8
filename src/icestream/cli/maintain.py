"""`maintain`: maintenance now, in this process; a run of the pipeline may be at work elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from humanize import naturalsize

from icestream.catalogs import catalog_for, spark_conf
from icestream.cli import output
from icestream.config.load import LoadedConfig
from icestream.config.model import PipelineConfig
from icestream.errors import UsageError
from icestream.events import EventBus
from icestream.maintain.action import Action, ActionKind, ActionResult, Ending
from icestream.maintain.past_actions import past_actions
from icestream.maintain.policy import Budget, due_actions
from icestream.maintain.survey import Survey, survey
from icestream.observe import history
from icestream.observe.history import History

if TYPE_CHECKING:
    from icestream.maintain.orphans import OrphanScan
    from icestream.maintain.thread import MaintenanceWorker

# Who asks for maintenance now wants all of it, not the share of time that it has beside a run.
_CANCEL_SECONDS = 0.5
_ALL = Budget(share=1e9, most=1e9, expiry=1e9)
_ASKED = "asked for"
_GIVEN_DAYS = 30
_MOST_NAMES = 20  # of files that are shown to people; machines get all


def due(config: PipelineConfig, table: str | None, kind: ActionKind | None) -> list[Action]:
    """List the actions that are due now, of this table and this kind only if given; no JVM.

    A kind that is asked for runs on each table, whether due or not, but for rewrites.
    """
    now = time.time()
    past = past_actions(config, now)
    surveyed = survey(config, past, now)
    _refuse_unknown(surveyed, table)
    tables = [health for health in surveyed.tables if table in (None, health.table)]
    actions = due_actions(tables, config.maintenance, past, now, _ALL)
    chosen = [action for action in actions if kind in (None, action.kind)]
    if kind is None or config.maintenance is False or not getattr(config.maintenance, kind.value):
        return chosen
    if kind in (ActionKind.REWRITE_DATA_FILES, ActionKind.REWRITE_POSITION_DELETE_FILES):
        return chosen  # of what is healthy there is nothing to rewrite
    due_tables = {action.table for action in chosen}
    others = [health.table for health in tables if health.table not in due_tables]
    return chosen + [Action(name, kind, _ASKED) for name in others]


def run_maintenance(
    loaded: LoadedConfig, actions: Sequence[Action], log_format: str, as_json: bool
) -> bool:
    """Run these actions, show progress, then results. Returns whether none of them failed."""
    from icestream.maintain.gate import MaintenanceGate
    from icestream.maintain.thread import MaintenanceWorker
    from icestream.run.signals import stop_signals

    config = loaded.pipeline
    assert config.maintenance is not False, "nothing is due then"
    results: list[ActionResult] = []
    bus = EventBus()
    with (
        stop_signals() as (stop, listen),
        closing(History(Path(config.state_location))) as event_history,
    ):
        bus.join(event_history)
        with (
            _spark(config, listen) as spark,
            output.maintenance_progress(bus, as_json=log_format == "json"),
        ):
            gate = MaintenanceGate(stopped=stop.is_set)
            worker = MaintenanceWorker(config, config.maintenance, spark, bus, gate, stop.is_set)
            ended = threading.Event()
            watcher = threading.Thread(
                target=_cancel_after_stop, args=(stop, ended, worker), daemon=True
            )
            watcher.start()
            try:
                results = worker.run_actions(actions)
            finally:
                ended.set()
                worker.close()
        called_off = stop.is_set()
    undone = actions[len(results) :]
    results += [ActionResult(action, Ending.CANCELLED) for action in undone]
    show_results(results, as_json)
    if called_off:
        cancelled = sum(result.ending is Ending.CANCELLED for result in results)
        output.note(
            f"stopped: {cancelled} of {len(results)} actions called off; what was committed stays, "
            "what was only written is for remove_orphan_files"
        )
    return not any(result.ending is Ending.FAILED for result in results)


@contextmanager
def _spark(config: PipelineConfig, listen: Callable[[], None]) -> Iterator[Any]:
    """Context manager: a small Spark session; `listen` takes back the signals that Spark takes."""
    from icestream.spark import jars, session

    with output.jar_progress() as progress:
        jars.ensure(jars.CORE, progress=progress)
    output.note("starting Spark …")
    settings = {
        "spark.master": "local[1]",  # the pipeline's run may be on this machine
        **spark_conf(catalog_for(config.catalog)),
        **config.spark,
    }
    # In a folder of its own: the process of a run has the other one open.
    spark = session.start(config.name, Path(config.state_location) / "maintain", settings)
    listen()
    try:
        yield spark
    finally:
        spark.stop()


def _cancel_after_stop(
    stop: threading.Event, ended: threading.Event, worker: "MaintenanceWorker"
) -> None:
    """After Ctrl-C: cancel again and again until all has ended, as a job may begin just then."""
    while not ended.wait(_CANCEL_SECONDS):
        if stop.is_set():
            worker.cancel_jobs()


def show_plan(actions: Sequence[Action], off: bool, as_json: bool) -> None:
    """Show the actions that would run, and why."""
    if as_json:
        due_facts = [_facts(action) for action in actions]
        output.result_json({"maintenance": not off, "due": due_facts})
    elif off:
        output.result("maintenance is off: `maintenance: false`")
    elif not actions:
        output.result("maintenance has nothing to do")
    else:
        facts = [_facts(action) for action in actions]
        rows = [(row["table"], row["action"], row["files"] or "", row["reason"]) for row in facts]
        output.table(("table", "action", "files", "reason"), rows)


def show_orphans(loaded: LoadedConfig, actions: Sequence[Action], as_json: bool) -> None:
    """Show the orphan files that `remove_orphan_files` would remove now; removes nothing."""
    from icestream.commit.java_catalog import java_tables
    from icestream.maintain.gate import MaintenanceGate
    from icestream.maintain.iceberg_actions import IcebergActions
    from icestream.maintain.orphans import scan_orphans
    from icestream.run.signals import stop_signals

    config = loaded.pipeline
    assert config.maintenance is not False, "nothing is due then"
    assert config.maintenance.remove_orphan_files is not False, "nor then"
    age = config.maintenance.remove_orphan_files.older_than
    scans: list[tuple[Action, OrphanScan]] = []
    with stop_signals() as (stop, listen), _spark(config, listen) as spark:
        tables = java_tables(spark, catalog_for(config.catalog), config.name)
        procedures = IcebergActions(
            spark, tables, MaintenanceGate(stopped=stop.is_set).commit_window
        )
        jvm = spark.sparkContext._jvm
        for action in actions:
            if stop.is_set():
                break
            scan = scan_orphans(jvm, procedures.actions(), tables, action.table, age)
            scans.append((action, scan))
    if as_json:
        due_facts = [_facts(action) | _removes(scan) for action, scan in scans]
        output.result_json({"maintenance": True, "due": due_facts})
        return
    for action, scan in scans:
        size = naturalsize(sum(file.bytes for file in scan.removable))
        kept = len(scan.found) - len(scan.removable)
        stay = f"; {kept:,} more stay: they may still be committed, or are too young"
        output.result(
            f"{action.table}: would remove {len(scan.removable):,} files, {size}"
            + stay * bool(kept)
        )
        for file in scan.removable[:_MOST_NAMES]:
            output.result(f"  {file.path}  {naturalsize(file.bytes)}")
        if more := scan.removable[_MOST_NAMES:]:
            output.result(f"  and {len(more):,} more: --json has all")


def _removes(scan: "OrphanScan") -> dict[str, Any]:
    return {
        "files": len(scan.removable),
        "bytes": sum(file.bytes for file in scan.removable),
        "kept": len(scan.found) - len(scan.removable),
        "removes": [
            {"path": file.path, "bytes": file.bytes, "age_seconds": round(file.age_seconds)}
            for file in scan.removable
        ],
    }


def show_results(results: Sequence[ActionResult], as_json: bool) -> None:
    """Show how each action ended."""
    outcomes = [result.facts() for result in results]
    if as_json:
        output.result_json({"results": outcomes})
        return
    _show(outcomes)


def show_history(
    config: PipelineConfig, as_json: bool, table: str | None, kind: ActionKind | None
) -> None:
    """Show past actions, newest last: those beside a run and those of this command."""
    since = time.time() - _GIVEN_DAYS * 86400
    actions = [
        action
        for action in history.maintenance(Path(config.state_location), config.name, since)
        if table in (None, action["table"]) and kind in (None, action["action"])
    ]
    if as_json:
        output.result_json({"pipeline": config.name, "runs": actions})
    elif not actions:
        output.result("no maintenance has run yet, as far as the state folder knows")
    else:
        _show(actions)


def _show(rows: Sequence[dict[str, Any]]) -> None:
    dated = any("at" in row for row in rows)
    output.table(
        (*(("at",) if dated else ()), "table", "action", "", "files", "size", "seconds", "why"),
        [
            (
                *((_moment(row["at"]),) if dated else ()),
                row["table"],
                row["action"],
                row["ending"],
                _change(f"{row['files_before']:,}", f"{row['files_after']:,}"),
                _change(naturalsize(row["bytes_before"]), naturalsize(row["bytes_after"])),
                row["seconds"],
                row["detail"] or row["reason"],
            )
            for row in rows
        ],
    )


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _moment(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds")


def _facts(action: Action) -> dict[str, Any]:
    return {"table": action.table} | action.facts()


def _refuse_unknown(surveyed: Survey, table: str | None) -> None:
    known = [health.table for health in surveyed.tables]
    if table is not None and table not in known:
        raise UsageError(
            f"`{table}` is no table of pipeline `{surveyed.pipeline}`, or not yet",
            hint=f"it has {', '.join(known) or 'none yet'}",
        )
