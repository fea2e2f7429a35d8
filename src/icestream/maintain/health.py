"""The health of a table, from its metadata alone; no JVM, cheap also with 100,000 files."""

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
from icestream.maintain.compaction import CompactionRules, DueGroup
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
_QUARANTINE_FILES = 8  # it is seldom read: waits for so many times the usual number of files
_MANIFEST_BYTES = 8 << 20  # Iceberg's default for `commit.manifest.target-size-bytes`


@dataclass(frozen=True)
class TableHealth:
    """The health of a table at one moment; sizes in bytes, times in seconds."""

    table: str
    at: float
    mirror: bool  # an upsert table
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
    fullest: str  # name of the partition with most files
    compaction_lag: int  # files that compaction should take now, without a budget
    compaction_bytes: int  # in them
    snapshots: int
    snapshot_times: tuple[float, ...] = field(repr=False)  # of those that expiry may take
    oldest_snapshot: float | None  # when it was made
    began: float | None  # when the table was created, about: see `_began`
    commits_per_hour: float
    manifests: int  # of data files
    delete_manifests: int
    manifest_bytes: int  # of data files
    manifest_target: int
    metadata_bytes: int | None
    orphan_files: int  # an estimate from above: see `_estimate_orphans`
    rules: CompactionRules = field(repr=False)
    contents: SnapshotContents = field(repr=False)
    due_groups: Sequence[DueGroup] = field(repr=False)  # of `compaction_lag`, most urgent first

    @property
    def average_bytes(self) -> int:
        """Size of the average data file."""
        return self.bytes // self.data_files if self.data_files else 0

    @property
    def deleted_share(self) -> float:
        """Deleted rows, as a share of all rows."""
        return self.deleted_rows / self.records if self.records else 0.0

    def facts(self) -> dict[str, Any]:
        """As plain data for JSON; keys are stable."""
        internal = ("rules", "contents", "due_groups", "snapshot_times", "manifest_target", "began")
        facts = {name: value for name, value in vars(self).items() if name not in internal}
        return facts | {
            "average_bytes": self.average_bytes,
            "deleted_share": round(self.deleted_share, 4),
            "target_bytes": self.rules.target_bytes,
        }


class HealthReader:
    """Reads the health of tables; keeps what it read of manifests, which never change."""

    def __init__(self, maintenance: MaintenanceOptions) -> None:
        self._maintenance = maintenance
        self._known: dict[str, tuple[ManifestReader, DeleteFileReader]] = {}

    def read(self, name: str, table: Table, now: float | None = None) -> TableHealth:
        """Return the health of a loaded table."""
        now = time.time() if now is None else now
        manifests, deletes = self._known.setdefault(name, (ManifestReader(), DeleteFileReader()))
        current = table.current_snapshot()
        manifest_files = current.manifests(table.io) if current else []
        contents = contents_of(
            manifests.read(table.io, manifest_files),
            _snapshot_times(table.metadata.snapshots),
            _oldest(table.metadata.snapshots) or now,
            _namers(table),
            table.io,
            deletes,
        )
        mirror = KEYS_PROPERTY in table.properties
        options = self._maintenance.rewrite_data_files or {}
        rules = CompactionRules.of(options, table.properties, mirror)
        if name.endswith(QUARANTINE):
            rules = replace(rules, min_input_files=_QUARANTINE_FILES * rules.min_input_files)
        last_look = now - self._maintenance.every.total_seconds()
        due = compaction.due_groups(contents, rules, written_since=last_look)
        return TableHealth(
            table=name,
            at=now,
            mirror=mirror,
            snapshot_id=current.snapshot_id if current else None,
            **_sizes(contents, rules),
            compaction_lag=sum(len(each.group.files) for each in due),
            compaction_bytes=sum(each.group.bytes for each in due),
            **_history(table, now),
            **_manifests(manifest_files, table.properties),
            metadata_bytes=_metadata_bytes(table),
            orphan_files=_estimate_orphans(table.metadata.snapshots),
            rules=rules,
            contents=contents,
            due_groups=due,
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
    recent = sum(snapshot.timestamp_ms / 1000 >= now - _HOUR for snapshot in snapshots)
    span = min(_HOUR, max(60.0, now - oldest)) if oldest is not None else _HOUR
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    return {
        "snapshots": len(snapshots),
        # Expiry keeps what a branch or a tag names.
        "snapshot_times": tuple(
            sorted(s.timestamp_ms / 1000 for s in snapshots if s.snapshot_id not in named)
        ),
        "oldest_snapshot": oldest,
        "began": _began(table),
        "commits_per_hour": round(recent * _HOUR / span, 1),
    }


def _manifests(files: Sequence[ManifestFile], properties: Mapping[str, str]) -> dict[str, Any]:
    data = [manifest for manifest in files if manifest.content == ManifestContent.DATA]
    target = properties.get("commit.manifest.target-size-bytes", "")
    return {
        "manifests": len(data),
        "delete_manifests": len(files) - len(data),
        "manifest_bytes": sum(manifest.manifest_length for manifest in data),
        "manifest_target": int(target) if target.isdecimal() else _MANIFEST_BYTES,
    }


def _oldest(snapshots: Sequence[Snapshot]) -> float | None:
    return min((each.timestamp_ms for each in snapshots), default=0) / 1000 if snapshots else None


def _began(table: Table) -> float | None:
    """Estimate when the table was created, as if commits had always come as fast as now."""
    snapshots = table.metadata.snapshots
    if not snapshots:
        return None
    times = sorted(snapshot.timestamp_ms for snapshot in snapshots)
    if len(times) == 1:  # expired down to the last one; the log of metadata files goes further
        times = sorted({*times, *(entry.timestamp_ms for entry in table.metadata.metadata_log)})
    spacing = (times[-1] - times[0]) / max(1, len(times) - 1)
    oldest_sequence = min(snapshot.sequence_number or 1 for snapshot in snapshots)
    return (times[0] - spacing * (oldest_sequence - 1)) / 1000


def _snapshot_times(snapshots: Sequence[Snapshot]) -> dict[int, SnapshotTime]:
    return {
        snapshot.snapshot_id: SnapshotTime(
            snapshot.timestamp_ms / 1000,
            snapshot.summary is not None and snapshot.summary.operation == Operation.REPLACE,
        )
        for snapshot in snapshots
    }


def _estimate_orphans(snapshots: Sequence[Snapshot]) -> int:
    """Estimate orphan files from above, by the retained snapshots; storage is not listed.

    Each start of a pipeline after the first may have followed a crash with a whole batch staged.
    """
    generations: dict[str, set[str]] = {}
    files, commits = 0, 0
    for snapshot in snapshots:
        facts = snapshot.summary.additional_properties if snapshot.summary else {}
        if (generation := facts.get("icestream.generation")) is None:
            continue
        generations.setdefault(facts.get("icestream.pipeline", ""), set()).add(generation)
        if added := int(facts.get("added-data-files", 0)) + int(facts.get("added-delete-files", 0)):
            files, commits = files + added, commits + 1
    restarts = sum(len(of_pipeline) - 1 for of_pipeline in generations.values())
    return round(restarts * files / commits) if commits else 0


def _metadata_bytes(table: Table) -> int | None:
    """Return the length of metadata.json; None where the catalog does not give access to it."""
    try:
        return len(table.io.new_input(table.metadata_location))
    except (OSError, ValueError):
        return None


def _namers(table: Table) -> dict[int, Namer]:
    schema = table.schema()

    def namer(spec: PartitionSpec) -> Namer:
        types = [
            schema.find_type(f.source_id) if f.source_id in schema.field_ids else None
            for f in spec.fields
        ]
        return lambda values: _name(spec, types, values)

    return {spec_id: namer(spec) for spec_id, spec in table.metadata.specs().items()}


def _name(spec: PartitionSpec, types: Sequence[IcebergType | None], values: Values) -> str:
    """Name a partition for people: `day=2026-11-14/region=eu`; dropped columns as stored."""
    return "/".join(
        f"{f.name}={f.transform.to_human_string(iceberg_type, value) if iceberg_type else value}"
        for f, iceberg_type, value in zip(spec.fields, types, values, strict=True)
    )
