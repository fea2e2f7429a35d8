"""The plan of a rewind: where each table goes, what it leaves behind, what is read again; pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from icestream.errors import TableRefused
from icestream.positions import Positions, flat
from icestream.rewind.history import TableHistory, not_among
from icestream.tables.commits import Snapshot
from icestream.tables.marker import Counts, Marker

# (snapshot of a quarantine table, positions) → its rows below them
CountBelow = Callable[[int, Positions], int]


@dataclass(frozen=True)
class RewindTarget:
    """Where to: a moment, or one snapshot of one table."""

    time_ms: int | None = None
    snapshot_id: int | None = None

    def __str__(self) -> str:
        if self.time_ms is None:
            return f"snapshot {self.snapshot_id}"
        return moment(self.time_ms)


@dataclass(frozen=True)
class PartitionMove:
    """The next position of one partition, before and after; None: not known there."""

    stream: str
    partition: int
    before: int | None
    after: int | None


@dataclass(frozen=True)
class TableRewind:
    """One table of the plan."""

    table: str
    changes: bool  # False: it is there already, or cannot go and need not
    from_snapshot: int
    to_snapshot: int
    to_commit: str
    to_time_ms: int  # of that snapshot
    rows_before: int  # that this pipeline has brought in
    rows_after: int
    snapshots_left: int
    positions: tuple[PartitionMove, ...]
    notes: tuple[str, ...]
    marker: Marker  # as it was there


@dataclass(frozen=True)
class RewindPlan:
    """All tables that are to go back, in the order in which they go."""

    pipeline: str
    target: str
    tables: tuple[TableRewind, ...]
    lost: tuple[str, ...] = ()  # what the source can no longer give again
    notes: tuple[str, ...] = ()
    done: bool = False

    @property
    def moves(self) -> tuple[TableRewind, ...]:
        """The tables that change."""
        return tuple(table for table in self.tables if table.changes)


def plan_table(past: TableHistory, target: RewindTarget) -> TableRewind:
    """Where a table goes; raises TableRefused when it cannot."""
    if target.time_ms is not None:
        snapshot_id, notes = _snapshot_at(past, target.time_ms)
    else:
        assert target.snapshot_id is not None, "a target is a time or a snapshot"
        snapshot_id, notes = target.snapshot_id, []
        if snapshot_id not in past.snapshots:
            raise TableRefused(
                f"table `{past.table}` has no snapshot {snapshot_id}",
                hint="it may have expired; every engine shows the snapshots of a table",
            )
    return _plan(past, snapshot_id, notes)


def plan_quarantine(
    aside: TableHistory, table: TableHistory, planned: TableRewind, below: CountBelow | None
) -> tuple[TableRewind, int]:
    """Where a quarantine goes with its table; → also how many bad records the table counts then.

    It may stay ahead, since its marker only trims, but may never lack a record below the table's
    position: nobody would read that again. `below` counts rows by offset; None: nobody can.
    """
    limit = planned.marker.positions
    base = _last_shared_commit(aside, table, planned)
    if base is None:
        note = "its older snapshots have expired: it stays, with bad records that come again"
        at_least = table.marker.counts.quarantined - sum(
            step.records for step in _commits_with_rows(aside)
        )
        counted = below(aside.current_id, limit) if below else max(0, at_least)
        return _plan_to_stay(aside, note), counted
    loose = _unmatched_commits(aside, table, base)
    # A batch that was planned again, or died, between its two commits: the table made it later.
    for step in [each for each in loose if _is_within(aside, each, limit)]:
        base, loose = step, loose[loose.index(step) + 1 :]
    counted = aside.marker_at(base.snapshot_id).counts.landed
    if not loose:
        return _plan(aside, _newest_with_rows_of(aside, base), []), counted
    # The target lies inside such a batch, or before it: only the rows themselves can tell.
    choice = [base, *loose]
    chosen = choice[-1]
    if below:
        rows = [below(step.snapshot_id, limit) for step in choice]
        counted = max(rows)
        chosen = choice[rows.index(counted)]
    notes = [] if chosen is base else ["a run died here: it keeps bad records that come again"]
    return _plan(aside, _newest_with_rows_of(aside, chosen), notes), counted


def counts_at(
    past: TableHistory, plan: TableRewind, quarantined: int | None, by_offsets: bool
) -> Counts:
    """The counts as they were, as far as they are told: a summary counts no bad records.

    Dropped ones are at most as many as today, and no more than the positions leave room for.
    """
    then = plan.marker
    counts = then.counts
    if quarantined is not None:
        counts = replace(counts, quarantined=quarantined)
    if not by_offsets:
        return counts
    first = past.own_commits(plan.to_snapshot)[-1]
    start = flat(first.moved) if first.previous_id is None else {}
    width = sum(at - start.get(place, 0) for place, at in flat(then.positions).items())
    room = max(0, width - counts.landed - counts.quarantined)
    return replace(counts, dropped=min(counts.dropped, room))


def moment(at_ms: int) -> str:
    """A time for people, to the millisecond that snapshots have."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _snapshot_at(past: TableHistory, time_ms: int) -> tuple[int, list[str]]:
    """The snapshot that a table had then, seen from where it is now."""
    way = past.ancestors(past.current_id)
    there = next((step for step in way if step.at_ms <= time_ms), None)
    if there and past.own_commits(there.snapshot_id):
        return there.snapshot_id, []
    own = past.own_commits(past.current_id)
    if own and own[-1].previous_id is None:
        note = "this pipeline came to the table after that: back to its beginning"
        return own[-1].snapshot_id, [note]
    oldest = f"snapshot {own[-1].snapshot_id} of {moment(own[-1].at_ms)}" if own else "none"
    raise TableRefused(
        f"table `{past.table}`: its snapshots of {moment(time_ms)} have expired",
        where=f"oldest commit of this pipeline that is retained: {oldest}",
        hint="choose a later time",
    )


def _plan(past: TableHistory, snapshot_id: int, notes: Sequence[str]) -> TableRewind:
    then = past.marker_at(snapshot_id)
    there, here = past.ancestors(snapshot_id), past.ancestors(past.current_id)
    left, gained = not_among(here, there), not_among(there, here)
    _refuse_others(past, [*left, *gained], snapshot_id)
    told = [*notes, *_foreign(left)]
    own = past.own_commits(past.current_id)
    settled = bool(own) and own[0].commit_id == past.marker.commit_id
    same = then.positions == past.marker.positions and not any(
        step.operation != "replace" and (step.number("added-records") or _deletes(step))
        for step in (*left, *gained)
    )
    if not settled:
        told.append("somebody has rolled it back by hand: its position follows")
    return TableRewind(
        table=past.table,
        changes=not (settled and same),
        from_snapshot=past.current_id,
        to_snapshot=snapshot_id,
        to_commit=then.commit_id,
        to_time_ms=past.snapshots[snapshot_id].at_ms,
        rows_before=past.marker.counts.landed,
        rows_after=then.counts.landed,
        snapshots_left=len(left),
        positions=_partition_moves(past.marker.positions, then.positions),
        notes=tuple(told),
        marker=then,
    )


def _plan_to_stay(past: TableHistory, note: str) -> TableRewind:
    """Where it is, with the marker that it has, even if no commit of ours is retained."""
    if past.knows_marker_at(past.current_id):
        return _plan(past, past.current_id, [note])
    here, rows = past.snapshots[past.current_id], past.marker.counts.landed
    return TableRewind(
        table=past.table,
        changes=False,
        from_snapshot=past.current_id,
        to_snapshot=past.current_id,
        to_commit=past.marker.commit_id,
        to_time_ms=here.at_ms,
        rows_before=rows,
        rows_after=rows,
        snapshots_left=0,
        positions=_partition_moves(past.marker.positions, past.marker.positions),
        notes=(note,),
        marker=past.marker,
    )


def _refuse_others(past: TableHistory, crossed: Sequence[Snapshot], snapshot_id: int) -> None:
    """Another pipeline's rows would go, and its marker would not."""
    others = {step.pipeline for step in crossed if step.pipeline not in (None, past.pipeline)}
    if others:
        raise TableRefused(
            f"table `{past.table}` cannot go back to snapshot {snapshot_id}: "
            f"pipeline `{sorted(filter(None, others))[0]}` has written to it since",
            hint="its rows would be lost to it; choose a later snapshot",
        )


def _foreign(left: Sequence[Snapshot]) -> list[str]:
    theirs = [step for step in left if step.pipeline is None and step.operation != "replace"]
    if not theirs:
        return []
    added = sum(step.number("added-records") for step in theirs)
    deleted = sum(_deletes(step) for step in theirs)
    told = f"{len(theirs)} snapshots of others are left behind and NOT made again"
    return [f"{told}: {added} rows added, {deleted} deleted"]


def _deletes(step: Snapshot) -> int:
    keys = ("deleted-records", "added-position-deletes", "added-equality-deletes")
    return sum(step.number(key) for key in keys)


def _last_shared_commit(
    aside: TableHistory, table: TableHistory, planned: TableRewind
) -> Snapshot | None:
    """The quarantine's last commit for what its table has; both bear the same commit id."""
    filled = {step.commit_id: step for step in _commits_with_rows(aside)}
    way = table.own_commits(planned.to_snapshot)
    for step in way:
        if step.commit_id in filled:
            found = filled[step.commit_id]
            return found if aside.knows_marker_at(found.snapshot_id) else None
    # Nothing bad came since the oldest commit that is retained: what is older lies below it.
    oldest = way[-1].snapshot_id
    bound = table.marker_at(oldest) if table.knows_marker_at(oldest) else planned.marker
    own = aside.own_commits(aside.current_id)
    return next((step for step in own if _is_within(aside, step, bound.positions)), None)


def _is_within(aside: TableHistory, step: Snapshot, limit: Positions) -> bool:
    """Whether a quarantine has seen no more at this commit than these positions."""
    if not aside.knows_marker_at(step.snapshot_id):
        return False
    reached, bound = flat(aside.marker_at(step.snapshot_id).positions), flat(limit)
    return all(at <= bound.get(place, 0) for place, at in reached.items())


def _unmatched_commits(aside: TableHistory, table: TableHistory, base: Snapshot) -> list[Snapshot]:
    """Commits of a quarantine right after `base` that its table, as far as is known, never made."""
    made = {step.commit_id for step in table.snapshots.values()}
    found = []
    for step in _commits_with_rows(aside):
        since: list[Snapshot] = []
        for each in aside.own_commits(step.snapshot_id):
            if each.snapshot_id == base.snapshot_id:
                if not any(one.commit_id in made for one in since if one.records):
                    found.append(step)
                break
            since.append(each)
    return [step for step in found if step.snapshot_id != base.snapshot_id]


def _newest_with_rows_of(past: TableHistory, step: Snapshot) -> int:
    """The newest snapshot of the table's history before rows were added to those of `step`."""
    own = past.own_commits(past.current_id)
    at = next((n for n, each in enumerate(own) if each.snapshot_id == step.snapshot_id), None)
    if at is None:
        return step.snapshot_id
    filled = [each for each in own[:at] if each.records]
    before = filled[-1].parent_id if filled else past.current_id
    assert before is not None, "an older commit is on the way"
    return before


def _commits_with_rows(past: TableHistory) -> list[Snapshot]:
    """Every retained commit of ours that added rows, oldest first."""
    own = [
        step for step in past.snapshots.values() if step.pipeline == past.pipeline and step.records
    ]
    return sorted(own, key=lambda step: step.at_ms)


def _partition_moves(now: Positions, then: Positions) -> tuple[PartitionMove, ...]:
    before, after = flat(now), flat(then)
    return tuple(
        PartitionMove(*place, before.get(place), after.get(place))
        for place in sorted({*before, *after})
    )
