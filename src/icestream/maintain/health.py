"""Health: how a table stands, from its metadata alone; no JVM, cheap also with 100,000 files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.types import IcebergType

from icestream.config.options.maintenance import MaintenanceOptions
from icestream.config.route import QUARANTINE
from icestream.maintain import compaction
from icestream.maintain.compaction import CompactionRules
from icestream.maintain.contents import (
    DeleteFileReader,
    Namer,
    SnapshotContents,
    SnapshotTime,
    Values,
    contents_of,
)
from icestream.tables.design import KEYS_PROPERTY
from icestream.tables.manifests import ManifestReader

_HOUR = 3600.0
_SELDOM_READ = 8  # a quarantine waits for so many times the usual number of small files
_MANIFEST_BYTES = 8 << 20  # Iceberg's default for `commit.manifest.target-size-bytes`


@dataclass(frozen=True)
class TableHealth:
    """One table at one moment; sizes in bytes, times in seconds."""

    table: str
    at: float
    mirror: bool  # an upsert table: its rewrite is our own
    snapshot_id: int | None
    data_files: int
    bytes: int
    records: int  # deleted ones included
    small_files: int  # below the size from which compaction leaves a file alone
    delete_files: int
    equality_delete_files: int  # other programs write them
    deleted_rows: int
    worst_deleted: float  # share of deleted rows in the worst data file
    partitions: int
    most_files: int  # in one partition
    fullest: str  # which one
    compaction_lag: int  # files that compaction should take now, were there no budget
    compaction_bytes: int  # in them
    snapshots: int
    snapshot_times: tuple[float, ...] = field(repr=False)  # of those that expiry may take
    oldest_snapshot: float | None  # when it was made
    began: float | None  # when the table was made, about: see `_began`
    commits_per_hour: float
    manifests: int  # of data files
    delete_manifests: int
    manifest_bytes: int  # of data files
    manifest_target: int
    metadata_bytes: int | None
    orphan_files: int  # an estimate from above: see `_orphans`
    rules: CompactionRules = field(repr=False)
    contents: SnapshotContents = field(repr=False)

    @property
    def average_bytes(self) -> int:
        """Size of the average data file."""
        return self.bytes // self.data_files if self.data_files else 0

    @property
    def deleted_share(self) -> float:
        """Deleted rows, as a share of all rows."""
        return self.deleted_rows / self.records if self.records else 0.0

    def facts(self) -> dict[str, Any]:
        """What machines are told; keys are stable."""
        left_out = ("rules", "contents", "snapshot_times", "manifest_target", "began")
        known = {name: value for name, value in vars(self).items() if name not in left_out}
        return known | {
            "average_bytes": self.average_bytes,
            "deleted_share": round(self.deleted_share, 4),
            "target_bytes": self.rules.target_bytes,
        }


class HealthReader:
    """Looks at tables; remembers what cannot change, so that the next look is cheaper."""

    def __init__(self, maintenance: MaintenanceOptions) -> None:
        self._maintenance = maintenance
        self._known: dict[str, tuple[ManifestReader, DeleteFileReader]] = {}

    def read(self, name: str, table: Table, now: float | None = None) -> TableHealth:
        """How a table stands, as it was loaded."""
        now = time.time() if now is None else now
        manifests, deletes = self._known.setdefault(name, (ManifestReader(), DeleteFileReader()))
        current = table.current_snapshot()
        listed = current.manifests(table.io) if current else []
        contents = contents_of(
            manifests.read(table.io, listed),
            _moments(table.metadata.snapshots),
            _oldest(table.metadata.snapshots) or now,
            _namers(table),
            table.io,
            deletes,
        )
        mirror = KEYS_PROPERTY in table.properties
        options = self._maintenance.rewrite_data_files or {}
        rules = CompactionRules.of(options, table.properties, mirror)
        if name.endswith(QUARANTINE):
            rules = replace(rules, min_input_files=_SELDOM_READ * rules.min_input_files)
        hot_since = now - self._maintenance.every.total_seconds()
        due = compaction.due_groups(contents, rules, hot_since)
        return TableHealth(
            table=name,
            at=now,
            mirror=mirror,
            snapshot_id=current.snapshot_id if current else None,
            **_sizes(contents, rules),
            compaction_lag=sum(len(each.group.files) for each in due),
            compaction_bytes=sum(each.group.bytes for each in due),
            **_history(table, now),
            **_manifests(listed, table.properties),
            metadata_bytes=_size_of(table),
            orphan_files=_orphans(table.metadata.snapshots),
            rules=rules,
            contents=contents,
        )


def _sizes(contents: SnapshotContents, rules: CompactionRules) -> dict[str, Any]:
    data = contents.data
    files = np.bincount(data.partition_numbers, minlength=1)
    fullest = int(files.argmax())
    return {
        "data_files": len(data),
        "bytes": int(data.bytes.sum()),
        "records": int(data.records.sum()),
        "small_files": int((data.bytes < rules.small_bytes).sum()),
        "delete_files": len(contents.deletes),
        "equality_delete_files": contents.equality_deletes,
        "deleted_rows": int(data.deleted.sum()),
        "worst_deleted": float(compaction.deleted_shares(data).max(initial=0.0)),
        "partitions": int((files > 0).sum()),
        "most_files": int(files[fullest]),
        "fullest": contents.partitions[fullest].name if len(data) else "",
    }


def _history(table: Table, now: float) -> dict[str, Any]:
    snapshots = table.metadata.snapshots
    oldest = _oldest(snapshots)
    recent = sum(each.timestamp_ms / 1000 >= now - _HOUR for each in snapshots)
    span = min(_HOUR, max(60.0, now - oldest)) if oldest is not None else _HOUR
    named = {each.snapshot_id for each in table.metadata.refs.values()}
    return {
        "snapshots": len(snapshots),
        # What a branch or a tag names stays.
        "snapshot_times": tuple(
            sorted(each.timestamp_ms / 1000 for each in snapshots if each.snapshot_id not in named)
        ),
        "oldest_snapshot": oldest,
        "began": _began(table),
        "commits_per_hour": round(recent * _HOUR / span, 1),
    }


def _manifests(listed: Sequence[ManifestFile], properties: Mapping[str, str]) -> dict[str, Any]:
    data = [each for each in listed if each.content == ManifestContent.DATA]
    target = properties.get("commit.manifest.target-size-bytes", "")
    return {
        "manifests": len(data),
        "delete_manifests": len(listed) - len(data),
        "manifest_bytes": sum(each.manifest_length for each in data),
        "manifest_target": int(target) if target.isdecimal() else _MANIFEST_BYTES,
    }


def _oldest(snapshots: Sequence[Snapshot]) -> float | None:
    return min((each.timestamp_ms for each in snapshots), default=0) / 1000 if snapshots else None


def _began(table: Table) -> float | None:
    """When the table was made, going back from the oldest snapshot as fast as commits come now."""
    snapshots = table.metadata.snapshots
    if not snapshots:
        return None
    times = sorted(each.timestamp_ms for each in snapshots)
    if len(times) == 1:  # expired down to the last one; the log of metadata files goes further
        times = sorted({*times, *(each.timestamp_ms for each in table.metadata.metadata_log)})
    spacing = (times[-1] - times[0]) / max(1, len(times) - 1)
    oldest = min(each.sequence_number or 1 for each in snapshots)
    return (times[0] - spacing * (oldest - 1)) / 1000


def _moments(snapshots: Sequence[Snapshot]) -> dict[int, SnapshotTime]:
    return {
        each.snapshot_id: SnapshotTime(
            each.timestamp_ms / 1000,
            each.summary is not None and each.summary.operation == Operation.REPLACE,
        )
        for each in snapshots
    }


def _orphans(snapshots: Sequence[Snapshot]) -> int:
    """Files that nobody names, at most, as far as the retained snapshots tell; storage is not read.

    Each start of a pipeline after the first may have followed a death with a whole batch staged.
    """
    starts: dict[str, set[str]] = {}
    files, commits = 0, 0
    for each in snapshots:
        told = each.summary.additional_properties if each.summary else {}
        if (generation := told.get("icestream.generation")) is None:
            continue
        starts.setdefault(told.get("icestream.pipeline", ""), set()).add(generation)
        if added := int(told.get("added-data-files", 0)) + int(told.get("added-delete-files", 0)):
            files, commits = files + added, commits + 1
    again = sum(len(each) - 1 for each in starts.values())
    return round(again * files / commits) if commits else 0


def _size_of(table: Table) -> int | None:
    """Length of metadata.json; None where the catalog does not keep one within reach."""
    try:
        return len(table.io.new_input(table.metadata_location))
    except (OSError, ValueError):
        return None


def _namers(table: Table) -> dict[int, Namer]:
    schema = table.schema()

    def namer(spec: PartitionSpec) -> Namer:
        kinds = [
            schema.find_type(each.source_id) if each.source_id in schema.field_ids else None
            for each in spec.fields
        ]
        return lambda values: _named(spec, kinds, values)

    return {number: namer(spec) for number, spec in table.metadata.specs().items()}


def _named(spec: PartitionSpec, kinds: Sequence[IcebergType | None], values: Values) -> str:
    """Partition values for people: `day=2026-11-14/region=eu`; of a dropped column, as stored."""
    return "/".join(
        f"{each.name}={each.transform.to_human_string(kind, value) if kind else value}"
        for each, kind, value in zip(spec.fields, kinds, values, strict=True)
    )
