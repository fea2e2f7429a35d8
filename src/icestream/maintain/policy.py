"""Policy: pure, from the health of tables to what maintenance should do now, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from icestream.config.options.maintenance import (
    ExpireSnapshots,
    MaintenanceOptions,
    RemoveOrphanFiles,
)
from icestream.maintain import compaction
from icestream.maintain.action import Action, ActionKind, Ending, FileGroup
from icestream.maintain.compaction import DueGroup, whole_number
from icestream.maintain.health import TableHealth
from icestream.maintain.rewrite_speed import PastAction, RewriteSpeed, rewrite_speed

_SLACK = 0.1  # expiry waits for a tenth more than it should keep, else it would run at every look
_MOST_SLACK = 0.5  # it rests between two runs, but for that many more it does not
_MANIFESTS = 100  # Iceberg joins them itself from this number, as far as commits allow
_FEWER_MANIFESTS = 4  # a rewrite must leave at most one of so many
_DELETE_FILES = 10  # read with the average data file of a partition: too many
_ORPHANS_EVERY = 86400.0
_WINDOW = 3600.0  # over which the share of maintenance is kept
_BEHIND = 4  # looks' worth of work waiting: take the larger share


@dataclass(frozen=True)
class Budget:
    """How much of one core maintenance may take, over time."""

    share: float = 0.25
    most: float = 0.5  # when it is far behind
    expiry: float = 0.02  # of one table: with a commit a second, there is something at every look


def due_actions(
    tables: Sequence[TableHealth],
    maintenance: MaintenanceOptions | bool,
    past: Sequence[PastAction],
    now: float,
    budget: Budget | None = None,
) -> list[Action]:
    """What to do now, in this order; the budget is shared by all tables."""
    if not isinstance(maintenance, MaintenanceOptions):
        return []
    dues = {each.table: _rewrites(each, maintenance, now) for each in tables}
    pace = rewrite_speed(past)
    waiting = sum(pace.cost(due.group) for some in dues.values() for due in some)
    budget = budget or Budget()
    left = allowed_seconds(maintenance, past, waiting, now, budget)
    actions: list[Action] = []
    for each in tables:
        rests = _just_expired(each.table, past, now, budget)
        actions += _expiry(each, maintenance.expire_snapshots, now, rests)
    taken = _within_budget(dues, left, pace)
    for each in tables:
        if some := taken[each.table]:
            actions.append(_rewrite_action(each.table, some, now))
        actions += _delete_files(each, maintenance, some)
    for each in tables:
        actions += _manifests(each, maintenance)
        actions += _orphans(each, maintenance.remove_orphan_files, past, now)
    return actions


def allowed_seconds(
    maintenance: MaintenanceOptions,
    past: Sequence[PastAction],
    waiting: float,
    now: float,
    budget: Budget,
) -> float:
    """Seconds that rewrites may take now, where all that is waiting would take `waiting`.

    At most two looks' worth at a time, so that it comes in small pieces; and over an hour no more
    than the share, whatever single actions took.
    """
    every = maintenance.every.total_seconds()
    share = budget.most if waiting > _BEHIND * budget.share * every else budget.share
    window = max(_WINDOW, 10 * every)
    spent = sum(each.seconds for each in past if each.at >= now - window)
    return max(0.0, min(2 * share * every, share * (window + every) - spent))


def _rewrites(health: TableHealth, maintenance: MaintenanceOptions, now: float) -> list[DueGroup]:
    if maintenance.rewrite_data_files is False:
        return []
    hot_since = now - maintenance.every.total_seconds()
    return compaction.due_groups(health.contents, health.rules, hot_since)


def _within_budget(
    dues: Mapping[str, Sequence[DueGroup]], left: float, pace: RewriteSpeed
) -> dict[str, list[DueGroup]]:
    """What the budget allows, in turns, the table with the most files first.

    A group that is larger than any budget is taken alone: it would wait for ever.
    """
    waiting = sorted(dues, key=lambda name: -sum(len(each.group.files) for each in dues[name]))
    taken: dict[str, list[DueGroup]] = {name: [] for name in dues}
    whole = left
    for turn in zip_longest(*(dues[name] for name in waiting)):
        for name, due in zip(waiting, turn, strict=True):
            if due is None:
                continue
            cost = pace.cost(due.group)
            if left <= 0 or (cost > left and left < whole):
                return taken
            taken[name].append(due)
            left -= cost
    return taken


def _rewrite_action(table: str, dues: Sequence[DueGroup], now: float) -> Action:
    groups = tuple(each.group for each in dues)
    small, dirty = (sum(getattr(each, name) for each in dues) for name in ("small", "with_deletes"))
    parts = []
    if dirty:
        worst = max(each.most_deleted for each in dues if each.with_deletes)
        share = f"up to {worst:.0%} of their" if dirty > 1 else f"{worst:.0%} of its"
        parts.append(f"{_count(dirty, 'file')} with {share} rows deleted")
    if small:
        parts.append(f"{_count(small, 'small file')}")
    age = _age(now - min(each.oldest for each in dues))
    reason = f"{' and '.join(parts)}{_where(groups)}, oldest {age}"
    return Action(table, ActionKind.REWRITE_DATA_FILES, reason, groups)


def _delete_files(
    health: TableHealth, maintenance: MaintenanceOptions, taken: Sequence[DueGroup]
) -> list[Action]:
    """Partitions whose data files are each read with many delete files; not those of `taken`."""
    deletes, data = health.contents.deletes, health.contents.data
    options = maintenance.rewrite_position_delete_files
    if options is False or not len(deletes):
        return []
    many = max(2, whole_number(options, "min-input-files", _DELETE_FILES))
    number = len(health.contents.partitions)
    busy = {(each.group.spec_id, each.group.values) for each in taken}
    touched = data.delete_files > 0
    reads = np.bincount(data.partition_numbers, weights=data.delete_files, minlength=number)
    per_file = reads / np.maximum(1, np.bincount(data.partition_numbers[touched], minlength=number))
    per_file = np.maximum(per_file, np.bincount(deletes.places[deletes.shared], minlength=number))
    groups = []
    for place in np.flatnonzero(per_file >= many).tolist():
        partition = health.contents.partitions[place]
        some = np.flatnonzero(deletes.places == place)
        if len(some) < 2 or (partition.spec_id, partition.values) in busy:
            continue
        groups.append(
            FileGroup(
                partition=partition.name,
                spec_id=partition.spec_id,
                files=tuple(deletes.paths.take(some).to_pylist()),
                bytes=int(deletes.bytes[some].sum()),
                records=int(deletes.records[some].sum()),
                values=partition.values,
            )
        )
    if not groups:
        return []
    files = sum(len(each.files) for each in groups)
    reason = f"{files:,} delete files{_where(groups)}, up to {per_file.max():.0f} read with a file"
    return [Action(health.table, ActionKind.REWRITE_POSITION_DELETE_FILES, reason, tuple(groups))]


def _just_expired(table: str, past: Sequence[PastAction], now: float, budget: Budget) -> bool:
    runs = (each for each in reversed(past) if each.kind is ActionKind.EXPIRE_SNAPSHOTS)
    last = next((each for each in runs if each.table == table), None)
    return last is not None and 0 <= now - last.at < last.seconds / budget.expiry


def _expiry(
    health: TableHealth, rule: ExpireSnapshots | bool, now: float, rests: bool
) -> list[Action]:
    if not isinstance(rule, ExpireSnapshots) or not health.snapshot_times:
        return []
    older_than, keep = rule.older_than.total_seconds(), max(rule.retain_last, rule.max_snapshots)
    may_go = min(len(health.snapshot_times), health.snapshots - rule.retain_last)
    old = min(may_go, sum(at < now - older_than for at in health.snapshot_times))
    oldest = now - health.snapshot_times[0]
    slack = _MOST_SLACK if rests else _SLACK
    if health.snapshots > keep and health.snapshots - keep >= slack * keep:
        reason = f"{health.snapshots:,} snapshots, {keep:,} of them may stay"
    elif not rests and old > 0 and (old >= _SLACK * health.snapshots or oldest > 2 * older_than):
        reason = f"{_count(old, 'snapshot')} older than {_age(older_than)}, oldest {_age(oldest)}"
    else:
        return []
    return [Action(health.table, ActionKind.EXPIRE_SNAPSHOTS, reason)]


def _manifests(health: TableHealth, maintenance: MaintenanceOptions) -> list[Action]:
    few = max(1, round(health.manifest_bytes / health.manifest_target))
    if (
        maintenance.rewrite_manifests is False
        or health.manifests <= _MANIFESTS
        or health.manifests < _FEWER_MANIFESTS * few
    ):
        return []
    reason = f"{health.manifests:,} manifests for {health.data_files:,} data files"
    return [Action(health.table, ActionKind.REWRITE_MANIFESTS, reason)]


def _orphans(
    health: TableHealth, rule: RemoveOrphanFiles | bool, past: Sequence[PastAction], now: float
) -> list[Action]:
    """Once a day, for a table that is old enough to have files that may go."""
    if not isinstance(rule, RemoveOrphanFiles) or health.began is None:
        return []
    if now - health.began < rule.older_than.total_seconds():
        return []
    runs = [
        each.at
        for each in past
        if each.table == health.table
        and each.kind is ActionKind.REMOVE_ORPHAN_FILES
        and each.ending in (Ending.DONE, Ending.NOTHING)
    ]
    if runs and now - max(runs) < _ORPHANS_EVERY:
        return []
    last = f"last looked for {_age(now - max(runs))} ago" if runs else "never looked for"
    reason = f"files that no snapshot names, {last}"
    return [Action(health.table, ActionKind.REMOVE_ORPHAN_FILES, reason)]


def _where(groups: Sequence[FileGroup]) -> str:
    names = {each.partition for each in groups}
    if len(names) > 1:
        return f" in {len(names):,} partitions"
    (only,) = names
    return f" in {only}" if only else ""


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _age(seconds: float) -> str:
    """`9 min`, `3 h`, `2 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
