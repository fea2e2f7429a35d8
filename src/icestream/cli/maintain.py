"""`maintain`: maintenance now, in a process of its own; the stream may be running elsewhere."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import humanize

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
    from icestream.maintain.orphans import OrphanFile

# Who asks for it now wants all of it, not a share of the time.
_ALL = Budget(share=1e9, most=1e9, expiry=1e9)
_ASKED = "asked for"
_GIVEN_DAYS = 30
_MOST_NAMES = 20  # of files that are shown to people; machines get all


def due(config: PipelineConfig, table: str | None, kind: ActionKind | None) -> list[Action]:
    """What there is to do now, of this table and this kind; no JVM."""
    now = time.time()
    past = past_actions(config, now)
    found = survey(config, past, now)
    _refuse_unknown(found, table)
    tables = [each for each in found.tables if table in (None, each.table)]
    actions = due_actions(tables, config.maintenance, past, now, _ALL)
    chosen = [each for each in actions if kind in (None, each.kind)]
    if kind is None or config.maintenance is False or not getattr(config.maintenance, kind.value):
        return chosen
    if kind in (ActionKind.REWRITE_DATA_FILES, ActionKind.REWRITE_POSITION_DELETE_FILES):
        return chosen  # of what is healthy there is nothing to rewrite
    there = {each.table for each in chosen}
    return chosen + [Action(each.table, kind, _ASKED) for each in tables if each.table not in there]


def run_maintenance(
    loaded: LoadedConfig, actions: Sequence[Action], log_format: str, as_json: bool
) -> bool:
    """Do it, show how far it is, then what came of it; → whether nothing failed."""
    from icestream.maintain.gate import MaintenanceGate
    from icestream.maintain.thread import MaintenanceWorker
    from icestream.run.signals import stop_signals

    config = loaded.pipeline
    assert config.maintenance is not False, "nothing is due then"
    results: list[ActionResult] = []
    bus = EventBus()
    with (
        stop_signals() as (stop, listen),
        closing(History(Path(config.state_location))) as remembered,
    ):
        bus.join(remembered)
        with (
            _spark(config, listen) as spark,
            output.maintenance_progress(bus, as_json=log_format == "json"),
        ):
            turns = MaintenanceGate(stopped=stop.is_set)
            crew = MaintenanceWorker(config, config.maintenance, spark, bus, turns, stop.is_set)
            ended = threading.Event()
            watcher = threading.Thread(target=_call_off, args=(stop, ended, crew), daemon=True)
            watcher.start()
            try:
                results = crew.run_actions(actions)
            finally:
                ended.set()
                crew.close()
        called_off = stop.is_set()
    undone = actions[len(results) :]
    results += [ActionResult(each, Ending.CANCELLED) for each in undone]
    show_results(results, as_json)
    if called_off:
        left = sum(each.ending is Ending.CANCELLED for each in results)
        output.note(
            f"stopped: {left} of {len(results)} actions called off; what was committed stays, "
            "what was only written is for remove_orphan_files"
        )
    return not any(each.ending is Ending.FAILED for each in results)


@contextmanager
def _spark(config: PipelineConfig, listen: Callable[[], None]) -> Iterator[Any]:
    """A small session; `listen` takes the signals back that Spark takes."""
    from icestream.spark import jars, session

    with output.jar_progress() as progress:
        jars.ensure(jars.CORE, progress=progress)
    output.note("starting Spark …")
    settings = {
        "spark.master": "local[1]",  # the stream may be on this machine
        **spark_conf(catalog_for(config.catalog)),
        **config.spark,
    }
    # In a folder of its own: the stream's process has the other one open.
    spark = session.start(config.name, Path(config.state_location) / "maintain", settings)
    listen()
    try:
        yield spark
    finally:
        spark.stop()


def _call_off(stop: threading.Event, ended: threading.Event, crew: Any) -> None:
    """After Ctrl-C, until nothing runs any more: a job may have begun just then."""
    while not ended.wait(0.5):
        if stop.is_set():
            crew.call_off()


def show_plan(actions: Sequence[Action], off: bool, as_json: bool) -> None:
    """What would run, and why."""
    if as_json:
        output.result_json({"maintenance": not off, "due": [_facts(each) for each in actions]})
    elif off:
        output.result("maintenance is off: `maintenance: false`")
    elif not actions:
        output.result("maintenance has nothing to do")
    else:
        output.table(
            ("table", "action", "files", "reason"),
            [
                (
                    each.table,
                    each.kind.value,
                    sum(len(group.files) for group in each.groups) or "",
                    each.reason,
                )
                for each in actions
            ],
        )


def show_orphans(loaded: LoadedConfig, actions: Sequence[Action], as_json: bool) -> None:
    """What a removal of orphans would remove now, file by file; removes nothing."""
    from icestream.commit.java_catalog import java_tables
    from icestream.maintain.gate import MaintenanceGate
    from icestream.maintain.iceberg_actions import IcebergActions
    from icestream.maintain.orphans import OrphanScan, scan_orphans
    from icestream.run.signals import stop_signals

    config = loaded.pipeline
    assert config.maintenance is not False, "nothing is due then"
    assert config.maintenance.remove_orphan_files is not False, "nor then"
    age = config.maintenance.remove_orphan_files.older_than
    found: list[tuple[Action, OrphanScan]] = []
    with stop_signals() as (stop, listen), _spark(config, listen) as spark:
        tables = java_tables(spark, catalog_for(config.catalog), config.name)
        procedures = IcebergActions(
            spark, tables, MaintenanceGate(stopped=stop.is_set).commit_window
        )
        jvm = spark.sparkContext._jvm
        for action in actions:
            if stop.is_set():
                break
            look = scan_orphans(jvm, procedures.actions(), tables, action.table, age)
            found.append((action, look))
    if as_json:
        told = [_facts(action) | _removes(look.removable, look.found) for action, look in found]
        output.result_json({"maintenance": True, "due": told})
        return
    for action, look in found:
        size = _size(sum(each.bytes for each in look.removable))
        kept = len(look.found) - len(look.removable)
        stay = f"; {kept:,} more stay: they may still be committed, or are too young"
        output.result(
            f"{action.table}: would remove {len(look.removable):,} files, {size}"
            + stay * bool(kept)
        )
        for each in look.removable[:_MOST_NAMES]:
            output.result(f"  {each.path}  {_size(each.bytes)}")
        if more := look.removable[_MOST_NAMES:]:
            output.result(f"  and {len(more):,} more: --json has all")


def _removes(goes: "Sequence[OrphanFile]", found: "Sequence[OrphanFile]") -> dict[str, Any]:
    return {
        "files": len(goes),
        "bytes": sum(each.bytes for each in goes),
        "kept": len(found) - len(goes),
        "removes": [
            {"path": each.path, "bytes": each.bytes, "age_seconds": round(each.age_seconds)}
            for each in goes
        ],
    }


def show_results(results: Sequence[ActionResult], as_json: bool) -> None:
    """What came of each."""
    if as_json:
        output.result_json({"results": [_outcome(each) for each in results]})
        return
    _show([_outcome(each) for each in results])


def show_history(
    config: PipelineConfig, as_json: bool, table: str | None, kind: ActionKind | None
) -> None:
    """What maintenance did, newest last; of a run beside the stream and of this command."""
    since = time.time() - _GIVEN_DAYS * 86400
    found = [
        each
        for each in history.maintenance(Path(config.state_location), config.name, since)
        if table in (None, each["table"]) and kind in (None, each["action"])
    ]
    if as_json:
        output.result_json({"pipeline": config.name, "runs": found})
    elif not found:
        output.result("no maintenance has run yet, as far as the state folder knows")
    else:
        _show(found)


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
                _change(_size(row["bytes_before"]), _size(row["bytes_after"])),
                row["seconds"],
                row["detail"] or row["reason"],
            )
            for row in rows
        ],
    )


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _size(number: int) -> str:
    return humanize.naturalsize(number, format="%.0f" if number < 1000 else "%.1f")


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _facts(action: Action) -> dict[str, Any]:
    return {
        "table": action.table,
        "action": action.kind.value,
        "reason": action.reason,
        "groups": len(action.groups),
        "files": sum(len(each.files) for each in action.groups),
        "bytes": sum(each.bytes for each in action.groups),
    }


def _outcome(result: ActionResult) -> dict[str, Any]:
    return {
        "table": result.action.table,
        "action": result.action.kind.value,
        "reason": result.action.reason,
        "ending": result.ending.value,
        "files_before": result.files_before,
        "files_after": result.files_after,
        "bytes_before": result.bytes_before,
        "bytes_after": result.bytes_after,
        "seconds": result.seconds,
        "attempts": result.attempts,
        "detail": result.detail,
    }


def _refuse_unknown(found: Survey, table: str | None) -> None:
    known = [each.table for each in found.tables]
    if table is not None and table not in known:
        raise UsageError(
            f"`{table}` is no table of pipeline `{found.pipeline}`, or not yet",
            hint=f"it has {', '.join(known) or 'none yet'}",
        )
