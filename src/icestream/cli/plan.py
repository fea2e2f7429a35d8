"""Output of `plan`: topics, tables, the forecast for each rate, memory."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import timedelta

from humanize import naturalsize

from icestream.cli import output
from icestream.config.values import format_duration
from icestream.maintain.forecast import Forecast, Rate
from icestream.plan import PipelinePlan, TablePlan, make_plan
from icestream.plan.changes import TableChange
from icestream.plan.memory import MemoryNeed, total

__all__ = ["make_plan", "show_plan"]

_MOST = 5  # tables that are shown whole to people; machines get all
_MOST_TOPICS = 20


def show_plan(plan: PipelinePlan, as_json: bool) -> None:
    """Show a plan section by section, or all of it as JSON."""
    if as_json:
        output.result_json(asdict(plan))
        return
    for text in plan.troubles:
        output.warning(text)
    _show_topics(plan)
    _show_tables(plan)
    _show_rates(plan)
    _show_memory(plan.memory)


def _show_topics(plan: PipelinePlan) -> None:
    output.result("topics")
    for topic in plan.topics[:_MOST_TOPICS]:
        output.result(f"  {topic.topic} → {topic.table or f'nowhere: {topic.why}'}")
    if len(plan.topics) > _MOST_TOPICS:
        output.result(f"  and {len(plan.topics) - _MOST_TOPICS:,} more")
    if not plan.topics:
        output.result("  none is known yet")


def _show_tables(plan: PipelinePlan) -> None:
    for table in plan.tables[:_MOST]:
        output.result("")
        for line in _table_lines(table):
            output.result(line)
    if more := plan.tables[_MOST:]:
        output.result(f"\nand {len(more):,} tables more, {more[0].table} …: --json has all")


def _table_lines(plan: TablePlan) -> Iterator[str]:
    mode = plan.mode + (f" by {', '.join(plan.keys)}" if plan.keys else "")
    state = f"is there, {plan.rows or 0:,} rows" if plan.exists else "would be created"
    sampled = f"; records looked at: {plan.sampled:,}" if plan.sampled else ""
    yield f"{plan.table}: {mode}, {state}{sampled}"
    for statement in plan.ddl:
        yield from (f"  {line}" for line in f"{statement};".splitlines())
    for change in plan.changes:
        yield f"  {_change(change)}"
    if plan.exists and not plan.changes:
        yield "  its columns stay as they are"
    for note in plan.notes:
        yield f"  note: {note}"


def _change(change: TableChange) -> str:
    when = "at the start" if change.when == "start" else "with the first such record"
    match change.kind:
        case "add":
            return f"{when}: add column {change.column} {change.type}"
        case "widen":
            return f"{when}: widen column {change.column} {change.was} → {change.type}"
        case "lay out":
            return f"{when}: lay out, {change.column}"


def _show_rates(plan: PipelinePlan) -> None:
    # Tables of one rate, as with --rate, share one forecast.
    boards: dict[tuple[Rate, tuple[Forecast, ...]], list[str]] = {}
    for table in plan.tables:
        if table.rate is not None:
            boards.setdefault((table.rate, table.lines), []).append(table.table)
    output.result("")
    for (rate, lines), names in list(boards.items())[:_MOST]:
        _show_board(names[0] if len(names) == 1 else "each table", rate, lines, plan)
    if more := list(boards.values())[_MOST:]:
        output.result(f"{len(more)} tables with less are left out: {more[0][0]} …")
    if not boards:
        output.result(
            "rates are not known, as no commits of the last day are remembered here; "
            "say one:\n  icestream plan --rate 5000 --record-bytes 100"
        )
        return
    output.result("fresh: age of the oldest row at its commit; all numbers are for one day")
    if plan.compaction:
        output.result("after: files after compaction; core: share of one that compaction takes")
    else:
        output.result("compaction is off: files stay as they are committed")


def _show_board(name: str, rate: Rate, lines: tuple[Forecast, ...], plan: PipelinePlan) -> None:
    source = f"measured over {rate.measured:,} commits" if rate.measured else "as told"
    digits = 0 if rate.records_per_s >= 10 else 1
    output.result(
        f"{name}: {rate.records_per_s:,.{digits}f} records/s, "
        f"{rate.bytes_per_record:,.0f} bytes each as stored, {source}"
    )
    output.table(
        ("interval", "fresh", "commits", "files", "each", "after", "rewritten", "core"),
        [
            (
                format_duration(timedelta(seconds=line.interval))
                + " ←" * (line.interval == plan.interval),
                output.age(line.freshness),
                round(line.commits),
                round(line.files),
                naturalsize(line.file_bytes),
                round(line.files_after) if plan.compaction else None,
                _rewritten(line) if plan.compaction else None,
                f"{line.core_share:.1%}" if plan.compaction else None,
            )
            for line in lines
        ],
    )


def _show_memory(needs: tuple[MemoryNeed, ...]) -> None:
    about = naturalsize(total(needs), binary=True)
    output.result(f"\nmemory, about {about} with all of it at work")
    for need in needs:
        size = need.memory_bytes if need.disk_bytes is None else need.disk_bytes
        suffix = "" if need.disk_bytes is None else " on disk"
        amount = "grows with its keys"
        if size is not None:
            amount = naturalsize(size, binary=True) + suffix
        output.result(f"  {need.what}: {amount} ({need.kind})")
        output.result(f"    {need.why}")


def _rewritten(line: Forecast) -> str:
    return naturalsize(line.rewritten_bytes) if line.needs_compaction else "nothing"
