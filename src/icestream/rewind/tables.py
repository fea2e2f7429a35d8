"""The tables of a rewind: looked at, planned, and moved one after the other; no JVM."""

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
from icestream.tables.inventory import routed_tables, translate_catalog_errors
from icestream.tables.marker import Counts, property_name
from icestream.tables.metadata import Metadata

_ATTEMPTS = 5  # a run that is still at work may commit between our look and our commit


@dataclass(frozen=True)
class LoadedTable:
    """One table at one moment."""

    table: Table
    history: TableHistory


@dataclass(frozen=True)
class PreparedRewind:
    """A plan, and what carrying it out takes."""

    plan: RewindPlan
    seen: Mapping[str, LoadedTable]
    counts: Mapping[str, Counts]
    generation: int  # above that of every table of the pipeline


def plan_rewind(
    config: PipelineConfig, target: RewindTarget, only: str | None = None
) -> RewindPlan:
    """What a rewind would do; writes nothing. A source that is away becomes a note."""
    with translate_catalog_errors(config.catalog.name):
        ready = _prepare(config, _open(config), target, only)
    try:
        return replace(ready.plan, lost=_losses(config, ready))
    except Unreachable as failure:
        note = f"whether the source still has the records was not checked: {failure.what}"
        return replace(ready.plan, notes=(*ready.plan.notes, note))


def rewind(
    config: PipelineConfig, target: RewindTarget, only: str | None = None, accept_loss: bool = False
) -> RewindPlan:
    """Do it; → what was done. A repetition finishes what a failure has left undone."""
    run_id, tried, first = uuid.uuid4().hex, 0, None
    with translate_catalog_errors(config.catalog.name):
        catalog = _open(config)
        while True:
            ready = _prepare(config, catalog, target, only)
            if first is None:
                first = ready.plan
                if not accept_loss:
                    _refuse_loss(config, ready)
            try:
                _commit_all(config.name, catalog, ready, run_id)
                return replace(first, done=True)
            except (CommitFailedException, CommitStateUnknownException) as failure:
                tried += 1
                if tried == _ATTEMPTS:
                    raise GaveUp(
                        f"pipeline `{config.name}`: {tried} commits failed: "
                        + str(failure).splitlines()[0][:200],
                        hint="stop the pipeline and rewind again: what is done stays done",
                    ) from None
            time.sleep(0.1 * 2**tried)  # what landed all the same is seen by the next look


def _open(config: PipelineConfig) -> Catalog:
    opened = catalog_for(config.catalog)
    opened.check()
    return opened.open()


def _prepare(
    config: PipelineConfig, catalog: Catalog, target: RewindTarget, only: str | None
) -> PreparedRewind:
    """Look at every table of the pipeline and plan those that are to go."""
    names = [name for name, _ in routed_tables(config, catalog)]
    if only is not None and only not in names:
        raise UsageError(
            f"`{only}` is no table of pipeline `{config.name}`",
            hint=f"its tables: {', '.join(names)}; a quarantine goes with its table",
        )
    seen = {
        name: found
        for table in names
        for name in (table, quarantine_name(table))
        if (found := _load_table(config, catalog, name))
    }
    by_offsets = config.source.type != "files"
    plans: dict[str, TableRewind] = {}
    counts: dict[str, Counts] = {}
    for name in _chosen(config, [name for name in names if name in seen], seen, target, only):
        past, bad = seen[name].history, None
        _refuse_version(name, seen[name].table)
        plan = plans[name] = plan_table(past, target)
        if aside := seen.get(quarantine_name(name)):
            _refuse_version(quarantine_name(name), aside.table)
            below = partial(rows_below, aside.table) if by_offsets else None
            along, bad = plan_quarantine(aside.history, past, plan, below)
            plans[along.table], counts[along.table] = along, along.marker.counts
        counts[name] = counts_at(past, plan, bad, by_offsets)
    # A table before its quarantine: one that is ahead, should we die in between, is safe.
    ordered = tuple(plans[name] for name in sorted(plans))
    generation = 1 + max((each.history.marker.generation for each in seen.values()), default=0)
    return PreparedRewind(RewindPlan(config.name, str(target), ordered), seen, counts, generation)


def _load_table(config: PipelineConfig, catalog: Catalog, name: str) -> LoadedTable | None:
    """A table of ours; None if it does not exist or no run has claimed it yet."""
    if not catalog.table_exists(name):
        return None
    table = catalog.load_table(name)
    metadata = Metadata.of(table)
    own = any(snapshot.pipeline == config.name for snapshot in metadata.snapshots)
    if not own and property_name(config.name) not in table.properties:
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
    tables: list[str],
    seen: Mapping[str, LoadedTable],
    target: RewindTarget,
    only: str | None,
) -> list[str]:
    """Every table for a time, unless one is named; for a snapshot the one that has it."""
    if only is not None:
        if only not in seen:
            raise TableRefused(
                f"table `{only}` has no marker of pipeline `{config.name}`",
                hint="no run has claimed it yet: there is nothing to go back to",
            )
        return [only]
    if target.snapshot_id is None:
        if not tables:
            raise TableRefused(
                f"pipeline `{config.name}` has no tables yet",
                hint="there is nothing to go back to",
            )
        return tables
    having = [name for name in seen if target.snapshot_id in seen[name].history.snapshots]
    if not having:
        raise TableRefused(
            f"no table of pipeline `{config.name}` has a snapshot {target.snapshot_id}",
            hint="it may have expired; every engine shows the snapshots of a table",
        )
    if having[0] not in tables:
        raise UsageError(
            f"snapshot {target.snapshot_id} is one of `{having[0]}`",
            hint="a quarantine goes with its table: name a snapshot of that, or a time",
        )
    return having


def _losses(config: PipelineConfig, ready: PreparedRewind) -> tuple[str, ...]:
    """What cannot be read again; a quarantine's records are read for its table."""
    names = {quarantine_name(name) for name in ready.seen}
    return losses_of(
        config,
        [(ready.seen[p.table].history, p) for p in ready.plan.tables if p.table not in names],
    )


def _refuse_loss(config: PipelineConfig, ready: PreparedRewind) -> None:
    try:
        lost = _losses(config, ready)
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


def _commit_all(pipeline: str, catalog: Catalog, ready: PreparedRewind, run_id: str) -> None:
    for plan in ready.plan.moves:
        seen = ready.seen[plan.table]
        ids = (run_id, uuid.uuid4().hex)
        counts = ready.counts[plan.table]
        marker = marker_after_rewind(seen.history, plan.marker, counts, ready.generation, ids)
        rewind = RewindCommit(plan.from_snapshot, plan.to_snapshot, plan.marker.positions, marker)
        commit_rewind(catalog, seen.table, rewind)


def rows_below(table: Table, snapshot_id: int, limit: Positions) -> int:
    """Rows of a quarantine table below these positions."""
    scan = table.scan(snapshot_id=snapshot_id, selected_fields=("topic", "partition", "offset"))
    found = 0
    for batch in scan.to_arrow_batch_reader():
        for (stream, number), at in flat(limit).items():
            own = pc.and_(
                pc.equal(batch.column("topic"), stream), pc.equal(batch.column("partition"), number)
            )
            found += pc.sum(pc.and_(own, pc.less(batch.column("offset"), at))).as_py() or 0
    return found
