"""The policy of maintenance, pure: which actions are due by the health of tables, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from icestream.config.options.maintenance import (
    ExpireSnapshots,
    MaintenanceOptions,
    RemoveOrphanFiles,
)
from icestream.maintain.action import Action, ActionKind, Ending, FileGroup
from icestream.maintain.compaction import DueGroup, whole_number
from icestream.maintain.health import TableHealth
from icestream.maintain.rewrite_speed import PastAction, RewriteSpeed, rewrite_speed

_SLACK = 0.1  # expiry waits for a tenth more than it should keep, else it would run at every look
_MOST_SLACK = 0.5  # with so many more it runs even if it has run just before
_MANIFESTS = 100  # Iceberg merges them itself from this number, as far as commits allow
_FEWER_MANIFESTS = 4  # a rewrite must leave at most one of so many
_DELETE_FILES = 10  # too many to read with the average data file of a partition
_ORPHANS_EVERY = 86400.0
_WINDOW = 3600.0  # over which the share of maintenance is kept
_BEHIND = 4  # looks' worth of work waiting: take the larger share


@dataclass(frozen=True)
class Budget:
    """How much of one core maintenance may take, over time."""

    share: float = 0.25
    most: float = 0.5  # when it is far behind
    expiry: float = 0.02  # of one table: with a commit a second, some are due at every look


def due_actions(
    tables: Sequence[TableHealth],
    maintenance: MaintenanceOptions | bool,
    past: Sequence[PastAction],
    now: float,
    budget: Budget | None = None,
) -> list[Action]:
    """Return the actions that are due, in order; all tables share the budget."""
    if not isinstance(maintenance, MaintenanceOptions):
        return []
    rewrites = maintenance.rewrite_data_files is not False
    due_groups = {health.table: health.due_groups if rewrites else () for health in tables}
    speed = rewrite_speed(past)
    waiting = sum(speed.cost(due.group) for groups in due_groups.values() for due in groups)
    budget = budget or Budget()
    seconds = allowed_seconds(maintenance, past, waiting, now, budget)
    actions: list[Action] = []
    for health in tables:
        just_expired = _just_expired(health.table, past, now, budget)
        actions += _expiry(health, maintenance.expire_snapshots, now, just_expired)
    chosen = _within_budget(due_groups, seconds, speed)
    for health in tables:
        if groups := chosen[health.table]:
            actions.append(_rewrite_action(health.table, groups, now))
        actions += _delete_files(health, maintenance, groups)
    for health in tables:
        actions += _manifests(health, maintenance)
        actions += _orphans(health, maintenance.remove_orphan_files, past, now)
    return actions


def allowed_seconds(
    maintenance: MaintenanceOptions,
    past: Sequence[PastAction],
    waiting: float,
    now: float,
    budget: Budget,
) -> float:
    """Return the seconds that rewrites may take now, if all that is due takes `waiting`.

    At most two looks' worth at a time, so that it comes in small pieces; and over an hour no more
    than the share, whatever single actions took.
    """
    every = maintenance.every.total_seconds()
    share = budget.most if waiting > _BEHIND * budget.share * every else budget.share
    window = max(_WINDOW, 10 * every)
    spent = sum(action.seconds for action in past if action.at >= now - window)
    return max(0.0, min(2 * share * every, share * (window + every) - spent))


def _within_budget(
    due_groups: Mapping[str, Sequence[DueGroup]], seconds: float, speed: RewriteSpeed
) -> dict[str, list[DueGroup]]:
    """Choose what the budget allows: tables take turns, the one with the most files first.

    A group that is larger than any budget is chosen alone: it would wait for ever.
    """
    files = {name: sum(len(due.group.files) for due in due_groups[name]) for name in due_groups}
    names = sorted(due_groups, key=lambda name: -files[name])
    chosen: dict[str, list[DueGroup]] = {name: [] for name in due_groups}
    seconds_left = seconds
    for turn in zip_longest(*(due_groups[name] for name in names)):
        for name, due in zip(names, turn, strict=True):
            if due is None:
                continue
            cost = speed.cost(due.group)
            if seconds_left <= 0 or (cost > seconds_left and seconds_left < seconds):
                return chosen
            chosen[name].append(due)
            seconds_left -= cost
    return chosen


def _rewrite_action(table: str, due: Sequence[DueGroup], now: float) -> Action:
    groups = tuple(each.group for each in due)
    small, with_deletes = sum(each.small for each in due), sum(each.with_deletes for each in due)
    parts = []
    if with_deletes:
        worst = max(each.most_deleted for each in due if each.with_deletes)
        share = f"up to {worst:.0%} of their" if with_deletes > 1 else f"{worst:.0%} of its"
        parts.append(f"{_count(with_deletes, 'file')} with {share} rows deleted")
    if small:
        parts.append(f"{_count(small, 'small file')}")
    age = _age(now - min(each.oldest for each in due))
    reason = f"{' and '.join(parts)}{_where(groups)}, oldest {age}"
    return Action(table, ActionKind.REWRITE_DATA_FILES, reason, groups)


def _delete_files(
    health: TableHealth, maintenance: MaintenanceOptions, rewritten: Sequence[DueGroup]
) -> list[Action]:
    """Merge delete files of partitions whose average data file is read with many of them.

    Not where data files are `rewritten` anyway.
    """
    deletes, data = health.contents.deletes, health.contents.data
    options = maintenance.rewrite_position_delete_files
    if options is False or not len(deletes):
        return []
    many = max(2, whole_number(options, "min-input-files", _DELETE_FILES))
    count = len(health.contents.partitions)
    skipped = {(due.group.spec_id, due.group.values) for due in rewritten}
    has_deletes = data.delete_files > 0
    reads = np.bincount(data.partition_numbers, weights=data.delete_files, minlength=count)
    files = np.bincount(data.partition_numbers[has_deletes], minlength=count)
    shared = np.bincount(deletes.partition_numbers[deletes.shared], minlength=count)
    per_file = np.maximum(reads / np.maximum(1, files), shared)
    groups = []
    for number in np.flatnonzero(per_file >= many).tolist():
        partition = health.contents.partitions[number]
        indices = np.flatnonzero(deletes.partition_numbers == number)
        if len(indices) < 2 or (partition.spec_id, partition.values) in skipped:
            continue
        groups.append(
            FileGroup(
                partition=partition.name,
                spec_id=partition.spec_id,
                files=tuple(deletes.paths.take(indices).to_pylist()),
                bytes=int(deletes.bytes[indices].sum()),
                records=int(deletes.records[indices].sum()),
                values=partition.values,
            )
        )
    if not groups:
        return []
    total = sum(len(group.files) for group in groups)
    reason = f"{total:,} delete files{_where(groups)}, up to {per_file.max():.0f} read with a file"
    return [Action(health.table, ActionKind.REWRITE_POSITION_DELETE_FILES, reason, tuple(groups))]


def _just_expired(table: str, past: Sequence[PastAction], now: float, budget: Budget) -> bool:
    runs = (action for action in reversed(past) if action.kind is ActionKind.EXPIRE_SNAPSHOTS)
    last = next((action for action in runs if action.table == table), None)
    return last is not None and 0 <= now - last.at < last.seconds / budget.expiry


def _expiry(
    health: TableHealth, rule: ExpireSnapshots | bool, now: float, just_expired: bool
) -> list[Action]:
    if not isinstance(rule, ExpireSnapshots) or not health.snapshot_times:
        return []
    older_than, keep = rule.older_than.total_seconds(), max(rule.retain_last, rule.max_snapshots)
    removable = min(len(health.snapshot_times), health.snapshots - rule.retain_last)
    old = min(removable, sum(time < now - older_than for time in health.snapshot_times))
    oldest = now - health.snapshot_times[0]
    slack = _MOST_SLACK if just_expired else _SLACK
    if health.snapshots > keep and health.snapshots - keep >= slack * keep:
        reason = f"{health.snapshots:,} snapshots, {keep:,} of them may stay"
    elif just_expired or old <= 0:
        return []
    elif old >= _SLACK * health.snapshots or oldest > 2 * older_than:
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
    """Look for orphan files once a day, if the table is old enough to have removable ones."""
    if not isinstance(rule, RemoveOrphanFiles) or health.began is None:
        return []
    if now - health.began < rule.older_than.total_seconds():
        return []
    runs = [
        action.at
        for action in past
        if action.table == health.table
        and action.kind is ActionKind.REMOVE_ORPHAN_FILES
        and action.ending in (Ending.DONE, Ending.NOTHING)
    ]
    if runs and now - max(runs) < _ORPHANS_EVERY:
        return []
    last = f"last looked for {_age(now - max(runs))} ago" if runs else "never looked for"
    reason = f"files that no snapshot names, {last}"
    return [Action(health.table, ActionKind.REMOVE_ORPHAN_FILES, reason)]


def _where(groups: Sequence[FileGroup]) -> str:
    names = {group.partition for group in groups}
    if len(names) > 1:
        return f" in {len(names):,} partitions"
    (only,) = names
    return f" in {only}" if only else ""


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _age(seconds: float) -> str:
    """Format a duration for people: `9 min`, `3 h`, `2 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size or (seconds >= size and seconds % size == 0):
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
