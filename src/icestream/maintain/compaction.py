"""Compaction: pure, which data files of a table are due to be written anew, and together."""

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
GROUP_TARGETS = 4  # a group makes about so many files of the target size
GROUP_RECORDS = 2_000_000  # of a mirror, whose positions and keys are held in memory
_HOT = 2  # a partition that is being written waits for so many times the usual number of files
_ALWAYS = 64  # files below target / 64 are worth joining whatever is beside them


@dataclass(frozen=True)
class CompactionRules:
    """When files are due, by the options of `rewrite_data_files`."""

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
        """From the options, and the table's own properties where they say nothing."""
        own = whole_number(properties, "write.target-file-size-bytes", TARGET_BYTES)
        target = whole_number(options, "target-file-size-bytes", own)
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
    """A group that is due, and what is wrong with it."""

    group: FileGroup
    small: int  # files that are below the size
    with_deletes: int  # files of which too many rows are deleted
    most_deleted: float  # share of deleted rows in the worst of them
    oldest: float  # when the oldest one came
    being_written: bool  # its partition is being written


def due_groups(
    contents: SnapshotContents, rules: CompactionRules, hot_since: float
) -> list[DueGroup]:
    """All groups that are due, the most urgent first; `hot_since`: written later is being written.

    Partitions at rest come first, the ones being written last; within these, files with deleted
    rows come before files that are only small.
    """
    data = contents.data
    sizes, ratios, dirty = live_bytes(data), deleted_shares(data), too_deleted(data, rules)
    small = (sizes < rules.small_bytes) & ~dirty
    written = last_writes(contents)
    order = np.argsort(data.partition_numbers, kind="stable")
    bounds = np.searchsorted(data.partition_numbers[order], np.arange(len(contents.partitions) + 1))
    smalls = np.bincount(data.partition_numbers[small], minlength=len(contents.partitions))
    dirties = np.bincount(data.partition_numbers[dirty], minlength=len(contents.partitions))
    found: list[DueGroup] = []
    for place in np.flatnonzero((smalls > 1) | (dirties > 0)).tolist():
        some = order[bounds[place] : bounds[place + 1]]
        hot = bool(written[place] >= hot_since)
        joined = some[small[some]]
        joined = joined[_worth_joining(sizes[joined], rules, hot)]
        joined = joined[np.argsort(data.added_at[joined], kind="stable")]
        # What is left of files with deletes is joined with the small ones.
        worst = some[dirty[some]]
        worst = worst[np.argsort(-ratios[worst], kind="stable")]
        files = np.concatenate([worst, joined])
        for part in _split_into_groups(
            files, sizes[files], (data.records - data.deleted)[files], rules
        ):
            if dirty[part].any() or len(part) > 1:  # one file alone would only be copied
                found.append(_due_group(contents, part, dirty[part], ratios, hot))
    return sorted(
        found, key=lambda each: (each.being_written, not each.with_deletes, -len(each.group.files))
    )


def live_bytes(data: DataFileColumns) -> Numbers:
    """What the rows of each file that are left would take."""
    left: Numbers = (data.bytes * (1 - deleted_shares(data))).astype(np.int64)
    return left


def too_deleted(data: DataFileColumns, rules: CompactionRules) -> Any:
    """Whether so many rows of each file are deleted that it is written anew, whatever its size."""
    dirty = (data.deleted > 0) & (deleted_shares(data) >= rules.delete_ratio)
    if rules.delete_files is not None:
        dirty |= data.delete_files >= rules.delete_files
    return dirty


def last_writes(contents: SnapshotContents) -> Any:
    """When rows last came to each partition, as far as is known; compactions bring none."""
    data = contents.data
    found = np.full(len(contents.partitions), -np.inf)
    np.maximum.at(
        found, data.partition_numbers[~data.only_rewritten], data.added_at[~data.only_rewritten]
    )
    return found


def deleted_shares(data: DataFileColumns) -> Any:
    """Deleted rows of each file, as a share of its rows."""
    return data.deleted / np.maximum(1, data.records)


def _worth_joining(sizes: Numbers, rules: CompactionRules, hot: bool) -> Numbers:
    """The small files that are worth joining: enough of them, or enough for a whole file.

    A file is taken only if the smaller ones add up to its own size. So each rewrite at least
    doubles it, and no byte is written more often than it takes to double to the target.
    """
    order = np.argsort(sizes, kind="stable")
    sizes = sizes[order]
    before = np.cumsum(sizes) - sizes
    worth = np.flatnonzero(sizes <= np.maximum(before, rules.target_bytes // _ALWAYS))
    count = int(worth[-1]) + 1 if len(worth) else 0
    enough = rules.min_input_files * (_HOT if hot else 1)
    whole = count > 1 and int(sizes[:count].sum()) >= rules.target_bytes
    return order[:count] if count >= enough or whole else order[:0]


def _split_into_groups(
    files: Numbers, sizes: Numbers, records: Numbers, rules: CompactionRules
) -> list[Numbers]:
    """Cut into groups that are not too large."""
    found: list[Numbers] = []
    most_rows = rules.group_records or np.inf
    first, bytes_, rows = 0, 0, 0
    for at, (size, more) in enumerate(zip(sizes.tolist(), records.tolist(), strict=True)):
        if at > first and (bytes_ + size > rules.group_bytes or rows + more > most_rows):
            found.append(files[first:at])
            first, bytes_, rows = at, 0, 0
        bytes_, rows = bytes_ + size, rows + more
    return [*found, files[first:]] if len(files) else found


def _due_group(
    contents: SnapshotContents, files: Numbers, dirty: Any, ratios: Any, hot: bool
) -> DueGroup:
    data, partition = (
        contents.data,
        contents.partitions[int(contents.data.partition_numbers[files[0]])],
    )
    group = FileGroup(
        partition=partition.name,
        spec_id=partition.spec_id,
        files=tuple(data.paths.take(pa.array(files)).to_pylist()),
        bytes=int(data.bytes[files].sum()),
        records=int(data.records[files].sum()),
        values=partition.values,
        largest=int(data.bytes[files[~dirty]].max(initial=0)),
    )
    return DueGroup(
        group=group,
        small=int((~dirty).sum()),
        with_deletes=int(dirty.sum()),
        most_deleted=float(ratios[files].max()),
        oldest=float(data.added_at[files].min()),
        being_written=hot,
    )


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that counts something."""
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
