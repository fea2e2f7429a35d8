"""Tables as their health sees them, made of numbers."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from icestream.config.options.maintenance import MaintenanceOptions
from icestream.maintain import compaction
from icestream.maintain.compaction import CompactionRules
from icestream.maintain.contents import (
    DataFileColumns,
    DeleteFileColumns,
    SnapshotContents,
    TablePartition,
)
from icestream.maintain.health import TableHealth

NOW = 1_800_000_000.0
MB = 1 << 20
DAY = 86400.0


@dataclass(frozen=True)
class File:
    """A data file; ages in seconds."""

    size: float = 1.0  # MB
    age: float = 3600.0
    place: str = ""
    records: int = 1000
    deleted: int = 0
    delete_files: int = 0
    moved: bool = False


def files(count, **facts):
    return [File(**facts)] * count


def contents(data, deletes=(), shared=False):
    """`deletes`: partitions of the delete files."""
    names = list(dict.fromkeys([*(each.place for each in data), *deletes]))
    return SnapshotContents(
        partitions=tuple(TablePartition(0, (name,), name) for name in names),
        data=DataFileColumns(
            paths=pa.array([f"f{at}" for at in range(len(data))], pa.string()),
            bytes=np.array([int(each.size * MB) for each in data], dtype=np.int64),
            records=np.array([each.records for each in data], dtype=np.int64),
            deleted=np.array([each.deleted for each in data], dtype=np.int64),
            delete_files=np.array([each.delete_files for each in data], dtype=np.int64),
            added_at=np.array([NOW - each.age for each in data], dtype=np.float64),
            only_rewritten=np.array([each.moved for each in data], dtype=np.bool_),
            partition_numbers=np.array([names.index(each.place) for each in data], dtype=np.int64),
        ),
        deletes=DeleteFileColumns(
            paths=pa.array([f"d{at}" for at in range(len(deletes))], pa.string()),
            bytes=np.full(len(deletes), 1000, dtype=np.int64),
            records=np.full(len(deletes), 5, dtype=np.int64),
            partition_numbers=np.array([names.index(each) for each in deletes], dtype=np.int64),
            shared=np.full(len(deletes), shared, dtype=np.bool_),
        ),
    )


def health(
    data=(), deletes=(), rules=None, table="shop.orders", mirror=False, shared=False, **facts
):
    """A table in perfect health but for what is told."""
    held = contents(data, deletes, shared)
    rules = rules or CompactionRules.of({}, {}, mirror)
    due = compaction.due_groups(held, rules, NOW - 300)
    known = {
        "table": table,
        "at": NOW,
        "mirror": mirror,
        "snapshot_id": 1,
        "data_files": len(data),
        "bytes": int(held.data.bytes.sum()),
        "records": int(held.data.records.sum()),
        "small_files": int((held.data.bytes < rules.small_bytes).sum()),
        "delete_files": len(deletes),
        "equality_delete_files": 0,
        "deleted_rows": int(held.data.deleted.sum()),
        "worst_deleted": 0.0,
        "partitions": len(held.partitions),
        "most_files": len(data),
        "fullest": "",
        "compaction_lag": sum(len(each.group.files) for each in due),
        "compaction_bytes": sum(each.group.bytes for each in due),
        "snapshots": 1,
        "snapshot_times": (),
        "oldest_snapshot": NOW - 60,
        "began": NOW - 60,
        "commits_per_hour": 60.0,
        "manifests": 1,
        "delete_manifests": 0,
        "manifest_bytes": 10_000,
        "manifest_target": 8 * MB,
        "metadata_bytes": 10_000,
        "orphan_files": 0,
        "rules": rules,
        "contents": held,
        "due_groups": due,
    }
    return TableHealth(**{**known, **facts})


def snapshots(count, spacing, keep=1):
    """Facts of a table with so many snapshots, the newest of which a branch names."""
    times = tuple(sorted(NOW - at * spacing for at in range(keep, count)))
    oldest = NOW - (count - 1) * spacing
    return {"snapshots": count, "snapshot_times": times, "oldest_snapshot": oldest}


def maintenance(**options):
    return MaintenanceOptions.model_validate(options)
