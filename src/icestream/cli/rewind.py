"""Output of `rewind`: a line per table, its partitions below, then the command that does it."""

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from icestream.cli import output
from icestream.errors import UsageError
from icestream.rewind.plan import RewindPlan, RewindTarget, TableRewind, moment


def target_of(to_time: str | None, to_snapshot: int | None) -> RewindTarget:
    """Read the target from the options; a time without a zone is UTC, as in pipeline files."""
    if (to_time is None) == (to_snapshot is None):
        raise UsageError(
            "rewind needs one target", hint="say `--to-time TIME` or `--to-snapshot ID`"
        )
    if to_time is None:
        return RewindTarget(snapshot_id=to_snapshot)
    try:
        time = datetime.fromisoformat(to_time)
    except ValueError:
        raise UsageError(
            f"`{to_time}` is no time", hint="write it as 2026-01-31T12:00:00Z"
        ) from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    return RewindTarget(time_ms=int(time.timestamp() * 1000))


def say_again(file: Path, to_time: str | None, to_snapshot: int | None, table: str | None) -> str:
    """The `rewind` command with these options but without `--yes`, for people to copy."""
    words = ["icestream", "rewind", str(file)]
    words += ["--to-time", to_time] if to_time else ["--to-snapshot", str(to_snapshot)]
    return shlex.join([*words, "--table", table] if table else words)


def show_rewind(plan: RewindPlan, as_json: bool, again: str) -> None:
    """Show the plan, or what was done; `again` is the command without its `--yes`."""
    if as_json:
        output.result_json(_facts(plan))
        return
    output.table(
        ("table", "", "snapshot", "of", "rows before", "after", "snapshots left behind"),
        [
            (
                table.table,
                _summary(plan, table),
                str(table.to_snapshot),
                moment(table.to_time_ms),
                table.rows_before,
                table.rows_after,
                table.snapshots_left,
            )
            for table in plan.tables
        ],
    )
    for table in plan.moves:
        _show_positions(table)
    for table in plan.tables:
        for text in table.notes:
            output.result(f"note: {table.table}: {text}")
    for text in plan.notes:
        output.result(f"note: {text}")
    for text in plan.lost:
        output.result(f"LOST: {text}: the source cannot give it again")
    if not plan.moves:
        output.result(f"{plan.pipeline}: nothing to do, every table is there already")
    elif plan.done:
        output.result(f"{plan.pipeline}: rewound to {plan.target}; the next run goes on from there")
    else:
        output.result("nothing was changed; a run that is at work meanwhile would end with exit 3")
        output.result(f"to do it: {again}{' --accept-loss' if plan.lost else ''} --yes")


def _summary(plan: RewindPlan, table: TableRewind) -> str:
    if not table.changes:
        return "stays"
    return "went to" if plan.done else "goes to"


def _show_positions(table: TableRewind) -> None:
    rows = [
        (m.stream, m.partition, m.before, m.after, max(0, (m.before or 0) - (m.after or 0)))
        for m in table.positions
    ]
    columns = ("stream", "partition", "position before", "after", "read again")
    output.table(columns, rows, title=f"\n{table.table}")


def _facts(plan: RewindPlan) -> dict[str, Any]:
    return {
        "pipeline": plan.pipeline,
        "target": plan.target,
        "done": plan.done,
        "tables": [
            {
                "table": table.table,
                "moves": table.changes,
                "from_snapshot": table.from_snapshot,
                "to_snapshot": table.to_snapshot,
                "to_commit": table.to_commit,
                "to_time": moment(table.to_time_ms),
                "rows_before": table.rows_before,
                "rows_after": table.rows_after,
                "snapshots_left": table.snapshots_left,
                "positions": [asdict(move) for move in table.positions],
                "notes": list(table.notes),
            }
            for table in plan.tables
        ],
        "lost": list(plan.lost),
        "notes": list(plan.notes),
    }
