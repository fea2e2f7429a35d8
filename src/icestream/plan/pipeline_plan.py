"""The whole plan: topics, tables, their files by the day, and memory."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from icestream.config.model import PipelineConfig
from icestream.maintain.forecast import Forecast, Rate
from icestream.plan.changes import TableChange
from icestream.plan.memory import MemoryNeed, MirrorSize, RunLoad, needs
from icestream.plan.rates import TableRates
from icestream.plan.tables import PlannedColumn, TableOutlook, TopicOutlook, look_ahead


@dataclass(frozen=True)
class TablePlan:
    """What becomes of a table, its rate, and what each interval makes of that."""

    table: str
    topics: tuple[str, ...]
    mode: str
    exists: bool
    keys: tuple[str, ...] | None
    columns: tuple[PlannedColumn, ...]
    ddl: tuple[str, ...]
    changes: tuple[TableChange, ...]
    notes: tuple[str, ...]
    rows: int | None
    sampled: int
    rate: Rate | None
    lines: tuple[Forecast, ...]


@dataclass(frozen=True)
class PipelinePlan:
    """What a run of this file would do."""

    pipeline: str
    interval: float | None  # the pipeline's own, in seconds; None: once
    compaction: bool
    topics: tuple[TopicOutlook, ...]
    tables: tuple[TablePlan, ...]
    memory: tuple[MemoryNeed, ...]
    troubles: tuple[str, ...]  # what could not be looked at, and why


def make_plan(
    config: PipelineConfig, rate: float | None, record_bytes: float | None
) -> PipelinePlan:
    """Look at source, catalog and history; `rate` stands in for what was measured."""
    seen = look_ahead(config)
    rates = TableRates(config, rate, record_bytes)
    tables = seen.tables or _stand_in(config) if rate is not None else seen.tables
    plans = sorted((_table(each, rates) for each in tables), key=_busiest_first)
    return PipelinePlan(
        pipeline=config.name,
        interval=rates.interval,
        compaction=rates.compaction,
        topics=seen.topics,
        tables=tuple(plans),
        memory=tuple(needs(config.spark, os.cpu_count() or 1, _load(config, seen.tables))),
        troubles=seen.troubles,
    )


def _stand_in(config: PipelineConfig) -> tuple[TableOutlook, ...]:
    """For a rate that is told before any table is known: whatever the first rule makes."""
    rule = next(each for each in config.tables if not each.skip)
    return (TableOutlook(rule.name or "", rule, (), exists=False),)


def _busiest_first(plan: TablePlan) -> tuple[float, str]:
    return (-plan.rate.bytes_per_day if plan.rate else 0.0, plan.table)


def _table(seen: TableOutlook, rates: TableRates) -> TablePlan:
    rate = rates.of(seen.table)
    return TablePlan(
        table=seen.table,
        topics=seen.topics,
        mode=seen.rule.mode,
        exists=seen.exists,
        keys=seen.keys,
        columns=seen.columns,
        ddl=seen.ddl,
        changes=seen.changes,
        notes=seen.notes,
        rows=seen.rows,
        sampled=seen.sampled,
        rate=rate,
        lines=rates.whiteboard(rate, seen.rule) if rate else (),
    )


def _load(config: PipelineConfig, tables: Sequence[TableOutlook]) -> RunLoad:
    sizes = [(each.record_bytes, each.sampled) for each in tables if each.record_bytes is not None]
    count = sum(number for _, number in sizes)
    return RunLoad(
        record_bytes=sum(size * number for size, number in sizes) / count if count else None,
        laid_out=any(each.rule.partition_by or each.rule.sort_by for each in tables),
        kafka=config.source.type == "kafka",
        maintenance=config.maintenance is not False and config.commit_interval != "once",
        mirrors=[
            MirrorSize(each.table, each.rows) for each in tables if each.rule.mode == "upsert"
        ],
    )
