"""Compaction, pure: which data files of a table are due to be rewritten, in which groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.errors import ConfigError
from icestream.maintain.action import FileGroup
from icestream.maintain.contents import DataFileColumns, SnapshotContents
from icestream.tables.manifests import Numbers

TARGET_BYTES = 256 << 20
MIN_INPUT_FILES = 8
DELETE_RATIO = 0.3  # as in Iceberg's own action
GROUP_TARGETS = 4  # a group becomes about so many files of the target size
GROUP_RECORDS = 2_000_000  # of a mirror, whose positions and keys are held in memory
_BEING_WRITTEN = 2  # such a partition waits for so many times the usual number of files
_ALWAYS = 64  # files below target / 64 are worth joining whatever is beside them


@dataclass(frozen=True)
class CompactionRules:
    """When files are due: the options of `rewrite_data_files`, with defaults."""

    target_bytes: int = TARGET_BYTES
    small_bytes: int = TARGET_BYTES * 3 // 4
    min_input_files: int = MIN_INPUT_FILES
    delete_ratio: float = DELETE_RATIO
    delete_files: int | None = None  # so many delete files on one data file are too many
    group_bytes: int = TARGET_BYTES * GROUP_TARGETS
    group_records: int | None = None

    @staticmethod
    def of(
        options: Mapping[str, str], properties: Mapping[str, str], mirror: bool
    ) -> "CompactionRules":
        """Read the options; defaults are the table's properties, then ours."""
        default = whole_number(properties, "write.target-file-size-bytes", TARGET_BYTES)
        target = whole_number(options, "target-file-size-bytes", default)
        most = whole_number(options, "max-file-group-size-bytes", target * GROUP_TARGETS)
        return CompactionRules(
            target_bytes=target,
            small_bytes=whole_number(options, "min-file-size-bytes", target * 3 // 4),
            min_input_files=max(2, whole_number(options, "min-input-files", MIN_INPUT_FILES)),
            delete_ratio=_ratio(options, "delete-ratio-threshold", DELETE_RATIO),
            delete_files=whole_number(options, "delete-file-threshold", 0) or None,
            group_bytes=min(most, target * GROUP_TARGETS),
            group_records=GROUP_RECORDS if mirror else None,
        )


@dataclass(frozen=True)
class DueGroup:
    """A file group that is due, and why."""

    group: FileGroup
    small: int  # files that are smaller than `CompactionRules.small_bytes`
    with_deletes: int  # files of which too many rows are deleted
    most_deleted: float  # share of deleted rows in the worst of them
    oldest: float  # when the oldest file was added
    being_written: bool  # rows came to its partition lately


def due_groups(
    contents: SnapshotContents, rules: CompactionRules, written_since: float
) -> list[DueGroup]:
    """Return all groups that are due, the most urgent first.

    Partitions that rows came to after `written_since` count as being written, and come last.
    Within these, files with deleted rows come before files that are only small.
    """
    data = contents.data
    sizes, shares, is_dirty = live_bytes(data), deleted_shares(data), too_deleted(data, rules)
    is_small = (sizes < rules.small_bytes) & ~is_dirty
    written_at = last_writes(contents)
    order = np.argsort(data.partition_numbers, kind="stable")
    bounds = np.searchsorted(data.partition_numbers[order], np.arange(len(contents.partitions) + 1))
    small_counts = np.bincount(data.partition_numbers[is_small], minlength=len(contents.partitions))
    dirty_counts = np.bincount(data.partition_numbers[is_dirty], minlength=len(contents.partitions))
    groups: list[DueGroup] = []
    for partition in np.flatnonzero((small_counts > 1) | (dirty_counts > 0)).tolist():
        files = order[bounds[partition] : bounds[partition + 1]]
        being_written = bool(written_at[partition] >= written_since)
        small = files[is_small[files]]
        small = small[_worth_joining(sizes[small], rules, being_written)]
        small = small[np.argsort(data.added_at[small], kind="stable")]
        dirty = files[is_dirty[files]]
        dirty = dirty[np.argsort(-shares[dirty], kind="stable")]
        # Together: what is left of files with deletes is joined with the small ones.
        files = np.concatenate([dirty, small])
        for part in _split_into_groups(
            files, sizes[files], (data.records - data.deleted)[files], rules
        ):
            if is_dirty[part].any() or len(part) > 1:  # one file alone would only be copied
                groups.append(_due_group(contents, part, is_dirty[part], shares, being_written))
    return sorted(
        groups, key=lambda due: (due.being_written, not due.with_deletes, -len(due.group.files))
    )


def live_bytes(data: DataFileColumns) -> Numbers:
    """Return the size of each file without its deleted rows, about."""
    sizes: Numbers = (data.bytes * (1 - deleted_shares(data))).astype(np.int64)
    return sizes


def too_deleted(data: DataFileColumns, rules: CompactionRules) -> Any:
    """Whether so many rows of a file are deleted that it is rewritten, whatever its size."""
    is_dirty = (data.deleted > 0) & (deleted_shares(data) >= rules.delete_ratio)
    if rules.delete_files is not None:
        is_dirty |= data.delete_files >= rules.delete_files
    return is_dirty


def last_writes(contents: SnapshotContents) -> Any:
    """Return when rows last came to each partition, as far as is known; compaction adds none."""
    data = contents.data
    has_new_rows = ~data.only_rewritten
    times = np.full(len(contents.partitions), -np.inf)
    np.maximum.at(times, data.partition_numbers[has_new_rows], data.added_at[has_new_rows])
    return times


def deleted_shares(data: DataFileColumns) -> Any:
    """Return the deleted rows of each file, as a share of its rows."""
    return data.deleted / np.maximum(1, data.records)


def _worth_joining(sizes: Numbers, rules: CompactionRules, being_written: bool) -> Numbers:
    """Choose small files that are worth joining: enough of them, or enough for a whole file.

    A file is taken only if the smaller ones add up to its own size. So each rewrite at least
    doubles it, and no byte is written more often than it takes to double to the target.
    """
    order = np.argsort(sizes, kind="stable")
    sizes = sizes[order]
    smaller_bytes = np.cumsum(sizes) - sizes
    worth = np.flatnonzero(sizes <= np.maximum(smaller_bytes, rules.target_bytes // _ALWAYS))
    count = int(worth[-1]) + 1 if len(worth) else 0
    enough = rules.min_input_files * (_BEING_WRITTEN if being_written else 1)
    fills_file = count > 1 and int(sizes[:count].sum()) >= rules.target_bytes
    return order[:count] if count >= enough or fills_file else order[:0]


def _split_into_groups(
    files: Numbers, sizes: Numbers, records: Numbers, rules: CompactionRules
) -> list[Numbers]:
    """Cut files into groups within the limits of bytes and rows."""
    groups: list[Numbers] = []
    most_rows = rules.group_records or np.inf
    first, bytes_, rows = 0, 0, 0
    for i, (size, count) in enumerate(zip(sizes.tolist(), records.tolist(), strict=True)):
        if i > first and (bytes_ + size > rules.group_bytes or rows + count > most_rows):
            groups.append(files[first:i])
            first, bytes_, rows = i, 0, 0
        bytes_, rows = bytes_ + size, rows + count
    return [*groups, files[first:]] if len(files) else groups


def _due_group(
    contents: SnapshotContents, files: Numbers, is_dirty: Any, shares: Any, being_written: bool
) -> DueGroup:
    data = contents.data
    partition = contents.partitions[int(data.partition_numbers[files[0]])]
    group = FileGroup(
        partition=partition.name,
        spec_id=partition.spec_id,
        files=tuple(data.paths.take(pa.array(files)).to_pylist()),
        bytes=int(data.bytes[files].sum()),
        records=int(data.records[files].sum()),
        values=partition.values,
        largest=int(data.bytes[files[~is_dirty]].max(initial=0)),
    )
    return DueGroup(
        group=group,
        small=int((~is_dirty).sum()),
        with_deletes=int(is_dirty.sum()),
        most_deleted=float(shares[files].max()),
        oldest=float(data.added_at[files].min()),
        being_written=being_written,
    )


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """Read an option that is a whole number."""
    text = options.get(name)
    if text is None:
        return default
    if not text.isdecimal():
        raise ConfigError(f"`{name}`: expected a whole number, seen `{text}`")
    return int(text)


def _ratio(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise ConfigError(f"`{name}`: expected a share above 0, at most 1, seen `{text}`")
    return value
