"""The plan of a rewind: each table's new snapshot, what it leaves, what is read again; pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from icestream.errors import TableRefused
from icestream.positions import Positions, flat
from icestream.rewind.history import TableHistory, not_among
from icestream.tables.commits import Snapshot
from icestream.tables.marker import Counts, Marker

# Takes a snapshot of a quarantine table and positions; returns how many of its rows are below.
CountBelow = Callable[[int, Positions], int]


@dataclass(frozen=True)
class RewindTarget:
    """What a rewind goes back to: a time, or one snapshot of one table."""

    time_ms: int | None = None
    snapshot_id: int | None = None

    def __str__(self) -> str:
        if self.time_ms is None:
            return f"snapshot {self.snapshot_id}"
        return moment(self.time_ms)


@dataclass(frozen=True)
class PartitionMove:
    """The next position of one partition before and after a rewind; None: the marker has none."""

    stream: str
    partition: int
    before: int | None
    after: int | None


@dataclass(frozen=True)
class TableRewind:
    """One table of the plan: its snapshot, rows and positions before and after."""

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
    """Plan one table; raises TableRefused when it cannot go back there."""
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
    quarantine: TableHistory, table: TableHistory, planned: TableRewind, below: CountBelow | None
) -> tuple[TableRewind, int]:
    """Plan a quarantine with its table. Returns also how many bad records the table then counts.

    It may stay ahead, since its marker only trims, but may never lack a record below the table's
    position: nobody would read that again. `below` counts rows by offset; None: nobody can.
    """
    limit = planned.marker.positions
    base = _last_shared_commit(quarantine, table, planned)
    if base is None:
        note = "its older snapshots have expired: it stays, with bad records that come again"
        retained = sum(commit.records for commit in _commits_with_rows(quarantine))
        expired = max(0, table.marker.counts.quarantined - retained)
        return _plan_to_stay(quarantine, note), (
            below(quarantine.current_id, limit) if below else expired
        )
    unmatched = _unmatched_commits(quarantine, table, base)
    # A batch that was planned again, or died, between its two commits: the table made it later.
    for commit in [c for c in unmatched if _is_within(quarantine, c, limit)]:
        base, unmatched = commit, unmatched[unmatched.index(commit) + 1 :]
    count = quarantine.marker_at(base.snapshot_id).counts.landed
    if not unmatched:
        return _plan(quarantine, _newest_with_rows_of(quarantine, base), []), count
    # The target lies inside such a batch, or before it: only the rows themselves can tell.
    candidates = [base, *unmatched]
    chosen = candidates[-1]
    if below:
        rows = [below(commit.snapshot_id, limit) for commit in candidates]
        count = max(rows)
        chosen = candidates[rows.index(count)]
    notes = [] if chosen is base else ["a run died here: it keeps bad records that come again"]
    return _plan(quarantine, _newest_with_rows_of(quarantine, chosen), notes), count


def counts_at(
    past: TableHistory, plan: TableRewind, quarantined: int | None, by_offsets: bool
) -> Counts:
    """Return the counts at the plan's snapshot, as far as known: summaries count no bad records.

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
    width = sum(stop - start.get(key, 0) for key, stop in flat(then.positions).items())
    room = max(0, width - counts.landed - counts.quarantined)
    return replace(counts, dropped=min(counts.dropped, room))


def moment(at_ms: int) -> str:
    """Format a time for people, with the milliseconds that snapshots have."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _snapshot_at(past: TableHistory, time_ms: int) -> tuple[int, list[str]]:
    """Find the ancestor of the current snapshot that the table had at a time, with notes on it."""
    ancestors = past.ancestors(past.current_id)
    then = next((snapshot for snapshot in ancestors if snapshot.at_ms <= time_ms), None)
    if then and past.own_commits(then.snapshot_id):
        return then.snapshot_id, []
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
    after, before = past.ancestors(snapshot_id), past.ancestors(past.current_id)
    left_behind, regained = not_among(before, after), not_among(after, before)
    _refuse_others(past, [*left_behind, *regained], snapshot_id)
    all_notes = [*notes, *_foreign_notes(left_behind)]
    own = past.own_commits(past.current_id)
    is_at_marker = bool(own) and own[0].commit_id == past.marker.commit_id
    same_rows = then.positions == past.marker.positions and not any(
        snapshot.operation != "replace" and (snapshot.number("added-records") or _deletes(snapshot))
        for snapshot in (*left_behind, *regained)
    )
    if not is_at_marker:
        all_notes.append("somebody has rolled it back by hand: its position follows")
    return TableRewind(
        table=past.table,
        changes=not (is_at_marker and same_rows),
        from_snapshot=past.current_id,
        to_snapshot=snapshot_id,
        to_commit=then.commit_id,
        to_time_ms=past.snapshots[snapshot_id].at_ms,
        rows_before=past.marker.counts.landed,
        rows_after=then.counts.landed,
        snapshots_left=len(left_behind),
        positions=_partition_moves(past.marker.positions, then.positions),
        notes=tuple(all_notes),
        marker=then,
    )


def _plan_to_stay(past: TableHistory, note: str) -> TableRewind:
    """Plan that a table stays, with its marker, even if none of its own commits is retained."""
    if past.knows_marker_at(past.current_id):
        return _plan(past, past.current_id, [note])
    current, rows = past.snapshots[past.current_id], past.marker.counts.landed
    return TableRewind(
        table=past.table,
        changes=False,
        from_snapshot=past.current_id,
        to_snapshot=past.current_id,
        to_commit=past.marker.commit_id,
        to_time_ms=current.at_ms,
        rows_before=rows,
        rows_after=rows,
        snapshots_left=0,
        positions=_partition_moves(past.marker.positions, past.marker.positions),
        notes=(note,),
        marker=past.marker,
    )


def _refuse_others(past: TableHistory, crossed: Sequence[Snapshot], snapshot_id: int) -> None:
    """Refuse to remove another pipeline's rows: its marker would stay as it is."""
    others = {snapshot.pipeline for snapshot in crossed} - {None, past.pipeline}
    if others:
        raise TableRefused(
            f"table `{past.table}` cannot go back to snapshot {snapshot_id}: "
            f"pipeline `{sorted(filter(None, others))[0]}` has written to it since",
            hint="its rows would be lost to it; choose a later snapshot",
        )


def _foreign_notes(left_behind: Sequence[Snapshot]) -> list[str]:
    foreign = [s for s in left_behind if s.pipeline is None and s.operation != "replace"]
    if not foreign:
        return []
    added = sum(snapshot.number("added-records") for snapshot in foreign)
    deleted = sum(_deletes(snapshot) for snapshot in foreign)
    note = f"{len(foreign)} snapshots of others are left behind and NOT made again"
    return [f"{note}: {added} rows added, {deleted} deleted"]


def _deletes(snapshot: Snapshot) -> int:
    keys = ("deleted-records", "added-position-deletes", "added-equality-deletes")
    return sum(snapshot.number(key) for key in keys)


def _last_shared_commit(
    quarantine: TableHistory, table: TableHistory, planned: TableRewind
) -> Snapshot | None:
    """Find the quarantine's last commit of a batch that the table has then, by its commit id."""
    with_rows = {commit.commit_id: commit for commit in _commits_with_rows(quarantine)}
    own = table.own_commits(planned.to_snapshot)
    for commit in own:
        if shared := with_rows.get(commit.commit_id):
            return shared if quarantine.knows_marker_at(shared.snapshot_id) else None
    # Nothing bad came since the oldest commit that is retained: what is older lies below it.
    oldest = own[-1].snapshot_id
    bound = table.marker_at(oldest) if table.knows_marker_at(oldest) else planned.marker
    commits = quarantine.own_commits(quarantine.current_id)
    return next((c for c in commits if _is_within(quarantine, c, bound.positions)), None)


def _is_within(quarantine: TableHistory, commit: Snapshot, limit: Positions) -> bool:
    """Whether a quarantine's positions at a commit are nowhere above the limit."""
    if not quarantine.knows_marker_at(commit.snapshot_id):
        return False
    positions = flat(quarantine.marker_at(commit.snapshot_id).positions)
    bounds = flat(limit)
    return all(position <= bounds.get(key, 0) for key, position in positions.items())


def _unmatched_commits(
    quarantine: TableHistory, table: TableHistory, base: Snapshot
) -> list[Snapshot]:
    """List quarantine commits after `base` without a table commit of the same id.

    A run died, or planned the batch again, between the two.
    """
    table_commits = {snapshot.commit_id for snapshot in table.snapshots.values()}
    unmatched = []
    for commit in _commits_with_rows(quarantine):
        since_base: list[Snapshot] = []
        for ancestor in quarantine.own_commits(commit.snapshot_id):
            if ancestor.snapshot_id == base.snapshot_id:
                if not any(c.commit_id in table_commits for c in since_base if c.records):
                    unmatched.append(commit)
                break
            since_base.append(ancestor)
    return [commit for commit in unmatched if commit.snapshot_id != base.snapshot_id]


def _newest_with_rows_of(past: TableHistory, commit: Snapshot) -> int:
    """Find the newest snapshot in the table's history with no more rows than at `commit`."""
    own = past.own_commits(past.current_id)
    ids = [snapshot.snapshot_id for snapshot in own]
    if commit.snapshot_id not in ids:
        return commit.snapshot_id
    later = [snapshot for snapshot in own[: ids.index(commit.snapshot_id)] if snapshot.records]
    before = later[-1].parent_id if later else past.current_id
    assert before is not None, "an older commit is on the way"
    return before


def _commits_with_rows(past: TableHistory) -> list[Snapshot]:
    """List this pipeline's retained commits that added rows, oldest first."""
    own = [s for s in past.snapshots.values() if s.pipeline == past.pipeline and s.records]
    return sorted(own, key=lambda snapshot: snapshot.at_ms)


def _partition_moves(now: Positions, then: Positions) -> tuple[PartitionMove, ...]:
    before, after = flat(now), flat(then)
    return tuple(
        PartitionMove(*key, before.get(key), after.get(key)) for key in sorted({*before, *after})
    )
