"""Rewinds tables: load and plan all of them, then commit one after the other; no JVM."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from icestream.catalogs import catalog_for
from icestream.commit.rewind import RewindCommit, commit_rewind
from icestream.config.model import PipelineConfig
from icestream.errors import Gap, GaveUp, TableRefused, Unreachable, UsageError
from icestream.positions import Positions, flat
from icestream.rewind.history import TableHistory, marker_after_rewind, table_history
from icestream.rewind.plan import (
    RewindPlan,
    RewindTarget,
    TableRewind,
    counts_at,
    plan_quarantine,
    plan_table,
)
from icestream.rewind.replay import losses_of
from icestream.tables.design import quarantine_name
from icestream.tables.inventory import first_line, routed_tables, translate_catalog_errors
from icestream.tables.marker import Counts, property_name
from icestream.tables.metadata import Metadata

_ATTEMPTS = 5  # a run that is still at work may commit between our load and our commit


@dataclass(frozen=True)
class LoadedTable:
    """One table as the catalog returned it, and its history."""

    table: Table
    history: TableHistory


@dataclass(frozen=True)
class PreparedRewind:
    """A plan, and what its commits need."""

    plan: RewindPlan
    tables: Mapping[str, LoadedTable]  # of the pipeline, quarantines included, by name
    counts: Mapping[str, Counts]
    generation: int  # above that of every table of the pipeline


def plan_rewind(
    config: PipelineConfig, target: RewindTarget, only: str | None = None
) -> RewindPlan:
    """Plan a rewind; writes nothing. A source that does not answer becomes a note."""
    with translate_catalog_errors(config.catalog.name):
        prepared = _prepare(config, _open(config), target, only)
    try:
        return replace(prepared.plan, lost=_losses(config, prepared))
    except Unreachable as failure:
        note = f"whether the source still has the records was not checked: {failure.what}"
        return replace(prepared.plan, notes=(*prepared.plan.notes, note))


def rewind(
    config: PipelineConfig, target: RewindTarget, only: str | None = None, accept_loss: bool = False
) -> RewindPlan:
    """Rewind tables. Returns what was done; to repeat it finishes what a failure left undone."""
    run_id, attempts, plan = uuid.uuid4().hex, 0, None
    with translate_catalog_errors(config.catalog.name):
        catalog = _open(config)
        while True:
            prepared = _prepare(config, catalog, target, only)
            if plan is None:  # what is reported: a later attempt plans only what is left to do
                plan = prepared.plan
                if not accept_loss:
                    _refuse_loss(config, prepared)
            try:
                _commit_all(config.name, catalog, prepared, run_id)
                return replace(plan, done=True)
            except (CommitFailedException, CommitStateUnknownException) as failure:
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise GaveUp(
                        f"pipeline `{config.name}`: {attempts} commits failed: "
                        f"{first_line(failure)}",
                        hint="stop the pipeline and rewind again: what is done stays done",
                    ) from None
            time.sleep(0.1 * 2**attempts)  # a commit that landed all the same is loaded next time


def _open(config: PipelineConfig) -> Catalog:
    adapter = catalog_for(config.catalog)
    adapter.check()
    return adapter.open()


def _prepare(
    config: PipelineConfig, catalog: Catalog, target: RewindTarget, only: str | None
) -> PreparedRewind:
    """Load every table of the pipeline, and plan those that the target concerns."""
    names = [name for name, _ in routed_tables(config, catalog)]
    if only is not None and only not in names:
        raise UsageError(
            f"`{only}` is no table of pipeline `{config.name}`",
            hint=f"its tables: {', '.join(names)}; a quarantine goes with its table",
        )
    tables = {
        name: loaded
        for table in names
        for name in (table, quarantine_name(table))
        if (loaded := _load_table(config, catalog, name))
    }
    # Of a folder a position counts ledger entries, and `_src_offset` is a byte in a file: rows
    # below a position cannot be counted.
    by_offsets = config.source.type != "files"
    plans: dict[str, TableRewind] = {}
    counts: dict[str, Counts] = {}
    claimed = [name for name in names if name in tables]
    for name in _chosen(config, claimed, tables, target, only):
        past, bad = tables[name].history, None
        _refuse_version(name, tables[name].table)
        plan = plans[name] = plan_table(past, target)
        if quarantine := tables.get(quarantine_name(name)):
            _refuse_version(quarantine_name(name), quarantine.table)
            below = partial(rows_below, quarantine.table) if by_offsets else None
            bad_plan, bad = plan_quarantine(quarantine.history, past, plan, below)
            plans[bad_plan.table], counts[bad_plan.table] = bad_plan, bad_plan.marker.counts
        counts[name] = counts_at(past, plan, bad, by_offsets)
    # A table before its quarantine: one that is ahead, should we die in between, is safe.
    ordered = tuple(plans[name] for name in sorted(plans))
    generations = [loaded.history.marker.generation for loaded in tables.values()]
    plan_of_all = RewindPlan(config.name, str(target), ordered)
    return PreparedRewind(plan_of_all, tables, counts, 1 + max(generations, default=0))


def _load_table(config: PipelineConfig, catalog: Catalog, name: str) -> LoadedTable | None:
    """Load a table; None if it does not exist or no run of this pipeline has claimed it."""
    if not catalog.table_exists(name):
        return None
    table = catalog.load_table(name)
    metadata = Metadata.of(table)
    has_own = any(snapshot.pipeline == config.name for snapshot in metadata.snapshots)
    if not has_own and property_name(config.name) not in table.properties:
        return None
    return LoadedTable(table, table_history(metadata, name, config.name))


def _refuse_version(name: str, table: Table) -> None:
    if table.metadata.format_version > 2:
        raise TableRefused(
            f"table `{name}` has format version {table.metadata.format_version}, "
            "which PyIceberg does not write yet",
            hint="a table of version 2 can go back",
        )


def _chosen(
    config: PipelineConfig,
    names: list[str],
    tables: Mapping[str, LoadedTable],
    target: RewindTarget,
    only: str | None,
) -> list[str]:
    """Choose every table for a time, unless one is named; for a snapshot the one that has it."""
    if only is not None:
        if only not in tables:
            raise TableRefused(
                f"table `{only}` has no marker of pipeline `{config.name}`",
                hint="no run has claimed it yet: there is nothing to go back to",
            )
        return [only]
    if target.snapshot_id is None:
        if not names:
            raise TableRefused(
                f"pipeline `{config.name}` has no tables yet",
                hint="there is nothing to go back to",
            )
        return names
    having = [name for name in tables if target.snapshot_id in tables[name].history.snapshots]
    if not having:
        raise TableRefused(
            f"no table of pipeline `{config.name}` has a snapshot {target.snapshot_id}",
            hint="it may have expired; every engine shows the snapshots of a table",
        )
    if having[0] not in names:
        raise UsageError(
            f"snapshot {target.snapshot_id} is one of `{having[0]}`",
            hint="a quarantine goes with its table: name a snapshot of that, or a time",
        )
    return having


def _losses(config: PipelineConfig, prepared: PreparedRewind) -> tuple[str, ...]:
    """Find what cannot be read again; a quarantine's records are read with those of its table."""
    quarantines = {quarantine_name(name) for name in prepared.tables}
    plans = [plan for plan in prepared.plan.tables if plan.table not in quarantines]
    return losses_of(config, [(prepared.tables[plan.table].history, plan) for plan in plans])


def _refuse_loss(config: PipelineConfig, prepared: PreparedRewind) -> None:
    try:
        lost = _losses(config, prepared)
    except Unreachable as failure:
        raise Unreachable(
            f"whether the source still has the records cannot be told: {failure.what}",
            where=failure.where,
            hint="nothing was changed; `--accept-loss` goes back without asking",
        ) from None
    if lost:
        more = f"; and {len(lost) - 20} more" if len(lost) > 20 else ""
        raise Gap(
            f"pipeline `{config.name}`: the source no longer has all that would be read again",
            where="; ".join(lost[:20]) + more,
            hint="nothing was changed; `--accept-loss` goes back all the same, and those rows "
            "are gone",
        )


def _commit_all(pipeline: str, catalog: Catalog, prepared: PreparedRewind, run_id: str) -> None:
    for plan in prepared.plan.moves:
        loaded = prepared.tables[plan.table]
        ids = (run_id, uuid.uuid4().hex)
        counts = prepared.counts[plan.table]
        marker = marker_after_rewind(loaded.history, plan.marker, counts, prepared.generation, ids)
        rewind = RewindCommit(plan.from_snapshot, plan.to_snapshot, plan.marker.positions, marker)
        commit_rewind(catalog, loaded.table, rewind)


def rows_below(table: Table, snapshot_id: int, limit: Positions) -> int:
    """Count the rows of a quarantine table below these positions."""
    scan = table.scan(snapshot_id=snapshot_id, selected_fields=("topic", "partition", "offset"))
    count = 0
    for batch in scan.to_arrow_batch_reader():
        topics, partitions, offsets = batch.select(["topic", "partition", "offset"]).columns
        for (stream, partition), position in flat(limit).items():
            is_partition = pc.and_(pc.equal(topics, stream), pc.equal(partitions, partition))
            count += pc.sum(pc.and_(is_partition, pc.less(offsets, position))).as_py() or 0
    return count
