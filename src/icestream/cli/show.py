"""Output of `doctor`, `jars`, `status` and `preview`: a table for people, JSON for machines."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from humanize import naturaldelta, naturalsize

from icestream.cli import output
from icestream.observe.status import PipelineStatus, TableStatus
from icestream.plan.preview import TablePreview
from icestream.spark.doctor import DoctorCheck
from icestream.spark.jars import JarStatus


def show_checks(checks: Sequence[DoctorCheck], as_json: bool) -> None:
    """Show each check of this machine in a line, with its fix below."""
    if as_json:
        output.result_json([asdict(check) for check in checks])
        return
    for check in checks:
        output.result(f"{check.status:<5} {check.name:<10} {check.detail}")
        if check.fix:
            output.result(f"{'':<16} fix: {check.fix}")


def show_jars(jars: Sequence[JarStatus], as_json: bool) -> None:
    """Show the jars and what the cache holds of each."""
    if as_json:
        output.result_json(
            [
                {**asdict(jar.jar), "state": jar.state, "path": jar.path, "detail": jar.detail}
                for jar in jars
            ]
        )
        return
    rows = [
        (jar.jar.set, jar.jar.coordinates, naturalsize(jar.jar.size), jar.state, jar.detail)
        for jar in jars
    ]
    output.table(("set", "jar", "size", "state", ""), rows)


def show_status(status: PipelineStatus, as_json: bool, partitions: bool = False) -> None:
    """Show a pipeline's last run and its tables, on request with their source partitions."""
    if as_json:
        output.result_json(asdict(status))
        return
    run = status.last_run
    if run:
        why = run.get("error") or run.get("reason") or ""
        ago = naturaldelta(time.time() - run["at"])
        output.result(
            f"{status.pipeline}: {run['kind'].replace('_', ' ')} {ago} ago {why}".rstrip()
        )
    else:
        output.result(f"{status.pipeline}: no run is remembered here")
    if restart := status.restarting:
        output.result(
            f"restarted {restart['attempt']} times without a commit: {restart['error']}"
            + (f"; stuck on {restart['stuck_on']}" if restart["stuck_on"] else "")
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
                table.table,
                table.rows,
                table.rows_per_s,
                table.lag_records,
                output.age(table.lag_s) if table.lag_records else None,
                output.age(table.freshness_s),
                output.age(time.time() - table.last_commit if table.last_commit else None),
                table.data_files,
                naturalsize(table.bytes),
                table.quarantined,
                "ok" if table.healthy else table.note.partition(":")[0],
            )
            for table in status.tables
        ],
    )
    for table in status.tables:
        if ":" in table.note:  # too long for its column
            output.result(f"{table.table}: {table.note}")
        for lost in table.lost:
            output.result(f"{table.table}: given up by --accept-loss: {lost}")
        if partitions and table.partitions:
            _show_partitions(table)


def _show_partitions(table: TableStatus) -> None:
    rows = [
        (p.stream, p.partition, p.position, p.lag_records, output.age(p.freshness_seconds))
        for p in table.partitions
    ]
    columns = ("stream", "partition", "position", "lag", "fresh at commit")
    output.table(columns, rows, title=f"\n{table.table}")


def watch_status(read_status: Callable[[], PipelineStatus], partitions: bool = False) -> None:
    """Read and show a pipeline's status every two seconds, until Ctrl-C."""
    try:
        while True:
            status = read_status()
            output.clear()
            show_status(status, as_json=False, partitions=partitions)
            time.sleep(2)
    except KeyboardInterrupt:
        return


def show_preview(previews: Sequence[TablePreview], as_json: bool) -> None:
    """Show rows as they would be written, and the bad records with their reasons."""
    if as_json:
        output.result_json([_as_json(preview) for preview in previews])
        return
    if not previews:
        output.note("the source has no records that any rule of `tables:` matches")
    for preview in previews:
        state = "exists" if preview.exists else "would be created"
        good, bad = preview.good.num_rows, preview.bad.num_rows
        output.result(f"{preview.table} ({state}): {good} good, {bad} bad")
        output.table(
            ("column", "type", "first rows"),
            [
                (field.name, str(field.field_type), _samples(preview, field.name))
                for field in preview.schema.fields
            ],
        )
        for row in preview.bad.select(["topic", "offset", "error"]).slice(0, 5).to_pylist():
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
