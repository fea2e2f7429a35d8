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
    """What becomes of a table, its rate, and a forecast for each commit interval."""

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
    """What a run of a pipeline file would do; `icestream plan --json` prints its fields."""

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
    """Ask source, catalog and event history; a `rate` replaces what was measured."""
    outlook = look_ahead(config)
    rates = TableRates(config, rate, record_bytes)
    tables = outlook.tables
    if rate is not None and not tables:
        tables = _stand_in(config)
    plans = sorted((_table(table, rates) for table in tables), key=_busiest_first)
    return PipelinePlan(
        pipeline=config.name,
        interval=rates.interval,
        compaction=rates.compaction,
        topics=outlook.topics,
        tables=tuple(plans),
        memory=tuple(needs(config.spark, os.cpu_count() or 1, _load(config, outlook.tables))),
        troubles=outlook.troubles,
    )


def _stand_in(config: PipelineConfig) -> tuple[TableOutlook, ...]:
    """For a rate that is given before any table is known: the table of the first rule."""
    rule = next(rule for rule in config.tables if not rule.skip)
    return (TableOutlook(rule.name or "", rule, (), exists=False),)


def _busiest_first(plan: TablePlan) -> tuple[float, str]:
    return (-plan.rate.bytes_per_day if plan.rate else 0.0, plan.table)


def _table(outlook: TableOutlook, rates: TableRates) -> TablePlan:
    rate = rates.of(outlook.table)
    return TablePlan(
        table=outlook.table,
        topics=outlook.topics,
        mode=outlook.rule.mode,
        exists=outlook.exists,
        keys=outlook.keys,
        columns=outlook.columns,
        ddl=outlook.ddl,
        changes=outlook.changes,
        notes=outlook.notes,
        rows=outlook.rows,
        sampled=outlook.sampled,
        rate=rate,
        lines=rates.whiteboard(rate, outlook.rule) if rate else (),
    )


def _load(config: PipelineConfig, tables: Sequence[TableOutlook]) -> RunLoad:
    sizes = [(t.record_bytes, t.sampled) for t in tables if t.record_bytes is not None]
    count = sum(sampled for _, sampled in sizes)
    return RunLoad(
        record_bytes=sum(size * sampled for size, sampled in sizes) / count if count else None,
        laid_out=any(table.rule.partition_by or table.rule.sort_by for table in tables),
        kafka=config.source.type == "kafka",
        maintenance=config.maintenance is not False and config.commit_interval != "once",
        mirrors=[MirrorSize(t.table, t.rows) for t in tables if t.rule.mode == "upsert"],
    )
