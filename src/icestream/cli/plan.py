"""`plan`: the whiteboard table, interval → freshness → files → compaction, for each table."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import humanize

from icestream.catalogs import catalog_for
from icestream.cli import output
from icestream.config.model import Pipeline as Config
from icestream.config.options.maintenance import Maintenance
from icestream.config.options.table import TableRule
from icestream.config.values import format_duration
from icestream.errors import UsageError
from icestream.inventory import answering, routed_tables
from icestream.maintain.compaction import Compaction
from icestream.maintain.forecast import DAY, Forecast, Rate, measured, whiteboard
from icestream.maintain.past import past_of
from icestream.maintain.policy import bytes_per_s
from icestream.observe import history
from icestream.route import Router

_BYTES = 100.0  # of a record as stored, if nobody says it: events of a few fields, compressed
_MOST = 5  # tables that are shown to people; machines get all


@dataclass(frozen=True)
class TablePlan:
    """A table's rate, and what each interval makes of it."""

    table: str
    rate: Rate
    lines: tuple[Forecast, ...]


@dataclass(frozen=True)
class Plan:
    """The plans of a pipeline's tables, the busiest first."""

    pipeline: str
    interval: float | None  # the pipeline's own, in seconds; None: once
    compaction: bool
    tables: tuple[TablePlan, ...]


def make_plan(config: Config, rate: float | None, record_bytes: float | None) -> Plan:
    """By rates that were measured in the last day, or by the one that is told."""
    interval = config.commit_interval
    own = interval.total_seconds() if isinstance(interval, timedelta) else None
    options = config.maintenance or Maintenance(rewrite_data_files=False)
    speed = bytes_per_s(past_of(config, time.time()))
    plans = []
    for name, rule, each in _rates(config, rate, record_bytes):
        rules = Compaction.of(
            options.rewrite_data_files or {}, rule.properties, rule.mode == "upsert"
        )
        lines = whiteboard(each, own, rules, options.every.total_seconds(), speed)
        plans.append(TablePlan(name, each, tuple(lines)))
    plans.sort(key=lambda plan: -plan.rate.bytes_per_day)
    return Plan(config.name, own, options.rewrite_data_files is not False, tuple(plans))


def _rates(
    config: Config, rate: float | None, record_bytes: float | None
) -> Sequence[tuple[str, TableRule, Rate]]:
    if rate is not None:
        said = Rate(rate, record_bytes or _BYTES)
        fixed = Router(config).fixed()
        rule = fixed[0].rule if fixed else next(each for each in config.tables if not each.skip)
        return [(fixed[0].table if len(fixed) == 1 else "each table", rule, said)]
    with answering(config.catalog.name):
        tables = routed_tables(config, catalog_for(config.catalog).open())
    state, since = Path(config.state_location), time.time() - DAY
    found = [
        (name, rule, known)
        for name, rule in tables
        if (known := measured(history.commits(state, config.name, name, since)))
    ]
    if not found:
        raise UsageError(
            "no commits of the last day are remembered here, so the rate is not known",
            hint="say it: `icestream plan --rate 5000 --record-bytes 100`",
        )
    return found


def show_plan(plan: Plan, as_json: bool) -> None:
    """The whiteboard, within 80 columns, or for machines."""
    if as_json:
        output.result_json(asdict(plan))
        return
    for each in plan.tables[:_MOST]:
        _show_table(each, plan)
    if left := plan.tables[_MOST:]:
        output.result(f"{len(left)} tables with less are left out: {left[0].table} …")
    output.result("fresh: age of the oldest row at its commit; all numbers are for one day")
    if plan.compaction:
        output.result("after: files after compaction; core: share of one that compaction takes")
    else:
        output.result("compaction is off: files stay as they are committed")


def _show_table(plan: TablePlan, pipeline: Plan) -> None:
    rate = plan.rate
    source = f"measured over {rate.measured:,} commits" if rate.measured else "as told"
    shown = (
        f"{rate.records_per_s:,.0f}" if rate.records_per_s >= 10 else f"{rate.records_per_s:.1f}"
    )
    output.result(
        f"{plan.table}: {shown} records/s, {rate.bytes_per_record:,.0f} bytes each as stored, "
        f"{source}"
    )
    output.table(
        ("interval", "fresh", "commits", "files", "each", "after", "rewritten", "core"),
        [
            (
                format_duration(timedelta(seconds=line.interval))
                + " ←" * (line.interval == pipeline.interval),
                _age(line.freshness),
                round(line.commits),
                round(line.files),
                humanize.naturalsize(line.file_bytes),
                round(line.files_after) if pipeline.compaction else None,
                _rewritten(line) if pipeline.compaction else None,
                f"{line.core_share:.1%}" if pipeline.compaction else None,
            )
            for line in plan.lines
        ],
    )


def _rewritten(line: Forecast) -> str:
    return humanize.naturalsize(line.rewritten_bytes) if line.needs_compaction else "nothing"


def _age(seconds: float) -> str:
    """`61s`, `15m`, `2h`: short enough for a column."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
