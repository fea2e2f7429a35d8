"""How the reading verbs show their findings: a table for people, JSON for machines."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import humanize

from icestream.cli import output
from icestream.observe.status import PipelineStatus, TableStatus
from icestream.plan.preview import TablePreview
from icestream.spark.doctor import DoctorCheck
from icestream.spark.jars import JarStatus


def show_checks(checks: Sequence[DoctorCheck], as_json: bool) -> None:
    """The doctor's findings, a line each, the fix below."""
    if as_json:
        output.result_json([asdict(check) for check in checks])
        return
    for check in checks:
        output.result(f"{check.status:<5} {check.name:<10} {check.detail}")
        if check.fix:
            output.result(f"{'':<16} fix: {check.fix}")


def show_jars(found: Sequence[JarStatus], as_json: bool) -> None:
    """The jars and what the cache holds of each."""
    if as_json:
        output.result_json(
            [
                {**asdict(each.jar), "state": each.state, "path": each.path, "detail": each.detail}
                for each in found
            ]
        )
        return
    output.table(
        ("set", "jar", "size", "state", ""),
        [
            (
                each.jar.set,
                each.jar.coordinates,
                humanize.naturalsize(each.jar.size),
                each.state,
                each.detail,
            )
            for each in found
        ],
    )


def show_status(status: PipelineStatus, as_json: bool, partitions: bool = False) -> None:
    """A pipeline's tables, and on request the partitions behind them."""
    if as_json:
        output.result_json(asdict(status))
        return
    run = status.last_run
    if run:
        told = run.get("error") or run.get("reason") or ""
        ago = humanize.naturaldelta(time.time() - run["at"])
        output.result(
            f"{status.pipeline}: {run['kind'].replace('_', ' ')} {ago} ago {told}".rstrip()
        )
    else:
        output.result(f"{status.pipeline}: no run is remembered here")
    if broke := status.restarting:
        output.result(
            f"restarted {broke['attempt']} times without a commit: {broke['error']}"
            + (f"; stuck on {broke['stuck_on']}" if broke["stuck_on"] else "")
        )
    output.table(
        (
            "table",
            "rows",
            "rows/s",
            "lag",
            "behind",
            "fresh",
            "last commit",
            "files",
            "size",
            "quarantined",
            "",
        ),
        [
            (
                each.table,
                each.rows,
                each.rows_per_s,
                each.lag_records,
                _age(each.lag_s) if each.lag_records else None,
                _age(each.freshness_s),
                _age(time.time() - each.last_commit if each.last_commit else None),
                each.data_files,
                humanize.naturalsize(each.bytes),
                each.quarantined,
                "ok" if each.healthy else each.note,
            )
            for each in status.tables
        ],
    )
    for each in status.tables:
        for lost in each.lost:
            output.result(f"{each.table}: given up by --accept-loss: {lost}")
        if partitions and each.partitions:
            _show_partitions(each)


def _show_partitions(table: TableStatus) -> None:
    output.table(
        ("stream", "partition", "position", "lag", "fresh at commit"),
        [
            (
                each.stream,
                each.partition,
                each.position,
                each.lag_records,
                _age(each.freshness_seconds),
            )
            for each in table.partitions
        ],
        title=f"\n{table.table}",
    )


def watch_status(look: Callable[[], PipelineStatus], partitions: bool = False) -> None:
    """Show it again every two seconds until Ctrl-C."""
    try:
        while True:
            now = look()
            output.clear()
            show_status(now, as_json=False, partitions=partitions)
            time.sleep(2)
    except KeyboardInterrupt:
        return


def show_preview(previews: Sequence[TablePreview], as_json: bool) -> None:
    """Rows as they would be written, and what would be set aside."""
    if as_json:
        output.result_json([_as_json(each) for each in previews])
        return
    if not previews:
        output.note("the source has no records that any rule of `tables:` matches")
    for each in previews:
        kind = "exists" if each.exists else "would be created"
        output.result(f"{each.table} ({kind}): {each.good.num_rows} good, {each.bad.num_rows} bad")
        output.table(
            ("column", "type", "first rows"),
            [
                (field.name, str(field.field_type), _samples(each, field.name))
                for field in each.schema.fields
            ],
        )
        for row in each.bad.select(["topic", "offset", "error"]).slice(0, 5).to_pylist():
            output.result(f"  bad: {row['topic']} offset {row['offset']}: {row['error']}")


def _samples(preview: TablePreview, column: str) -> str:
    values = preview.good.column(column).slice(0, 3).to_pylist()
    return ", ".join(str(value)[:40] for value in values)


def _as_json(preview: TablePreview) -> dict[str, Any]:
    return {
        "table": preview.table,
        "exists": preview.exists,
        "columns": {field.name: str(field.field_type) for field in preview.schema.fields},
        "rows": preview.good.to_pylist(),
        "bad": preview.bad.select(["topic", "partition", "offset", "error"]).to_pylist(),
    }


def _age(seconds: float | None) -> str | None:
    """`19s`, `4m`, `3h`, `2d`: short enough for a column."""
    if seconds is None:
        return None
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
