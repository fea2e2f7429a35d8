"""How `tables` shows its findings: a line per table, below it what would run now and why."""

import time

import humanize

from icestream.cli import output
from icestream.config.model import PipelineConfig
from icestream.maintain.past_actions import past_actions
from icestream.maintain.survey import Survey, survey


def look(config: PipelineConfig) -> Survey:
    """The tables now; what maintenance did so far is in its budget."""
    now = time.time()
    return survey(config, past_actions(config, now), now)


def show_tables(found: Survey, as_json: bool) -> None:
    """Health for people, within 80 columns, or for machines."""
    if as_json:
        output.result_json(found.facts())
        return
    output.table(
        ("table", "files", "size", "average", "small", "deleted", "snapshots", "due"),
        [
            (
                each.table,
                each.data_files,
                _size(each.bytes),
                _size(each.average_bytes),
                each.small_files,
                f"{each.deleted_share:.0%}",
                each.snapshots,
                each.compaction_lag,
            )
            for each in found.tables
        ],
    )
    for name in found.missing:
        output.result(f"{name}: not created yet")
    for name, why in found.broken.items():
        output.result(f"{name}: cannot be read: {why}")
    for each in found.tables:
        if each.equality_delete_files:
            output.result(
                f"{each.table}: {each.equality_delete_files:,} equality-delete files of another "
                "program slow every read; `CALL system.rewrite_data_files` removes them"
            )
    if found.switched_off:
        output.result("maintenance is off: `maintenance: false`")
    elif found.actions:
        output.result("maintenance would run now:")
        for action in found.actions:
            output.result(f"  {action.table}: {action.kind}")
            output.result(f"    {action.reason}")
    else:
        output.result("maintenance has nothing to do")


def _size(number: int) -> str:
    return humanize.naturalsize(number, format="%.0f" if number < 1000 else "%.1f")
