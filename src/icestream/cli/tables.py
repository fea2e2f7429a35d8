"""Output of `tables`: a line per table, below them what maintenance would run now and why."""

import time

from humanize import naturalsize

from icestream.cli import output
from icestream.config.model import PipelineConfig
from icestream.maintain.past_actions import past_actions
from icestream.maintain.survey import Survey, survey


def look(config: PipelineConfig) -> Survey:
    """Read the health of a pipeline's tables; past maintenance counts against its budget."""
    now = time.time()
    return survey(config, past_actions(config, now), now)


def show_tables(result: Survey, as_json: bool) -> None:
    """Show the health of tables, within 80 columns, or all that is known of it as JSON."""
    if as_json:
        output.result_json(result.facts())
        return
    output.table(
        ("table", "files", "size", "average", "small", "deleted", "snapshots", "due"),
        [
            (
                health.table,
                health.data_files,
                naturalsize(health.bytes),
                naturalsize(health.average_bytes),
                health.small_files,
                f"{health.deleted_share:.0%}",
                health.snapshots,
                health.compaction_lag,
            )
            for health in result.tables
        ],
    )
    for name in result.missing:
        output.result(f"{name}: not created yet")
    for name, why in result.broken.items():
        output.result(f"{name}: cannot be read: {why}")
    for health in result.tables:
        if health.equality_delete_files:
            output.result(
                f"{health.table}: {health.equality_delete_files:,} equality-delete files of "
                "another program slow every read; `CALL system.rewrite_data_files` removes them"
            )
    if result.switched_off:
        output.result("maintenance is off: `maintenance: false`")
    elif result.actions:
        output.result("maintenance would run now:")
        for action in result.actions:
            output.result(f"  {action.table}: {action.kind}")
            output.result(f"    {action.reason}")
    else:
        output.result("maintenance has nothing to do")
