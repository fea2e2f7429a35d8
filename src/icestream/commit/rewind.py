"""The commit of a rewind: an empty snapshot on top of an older one, and the marker with it.

The branch gets a new snapshot, never the old one itself: a run that still commits from what it
loaded before must find another base than it planned with.
"""

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
)

from icestream.positions import Positions
from icestream.tables.commits import summary
from icestream.tables.marker import Marker, property_name

REWOUND_FROM = "icestream.rewound-from"  # in the summary: the snapshot that was left


@dataclass(frozen=True)
class RewindCommit:
    """What the rewind of one table commits."""

    left: int  # the snapshot that is current, and must still be
    target: int  # the snapshot whose rows the table gets again
    positions: Positions  # of the marker at that snapshot
    marker: Marker  # the new one


def commit_rewind(catalog: Catalog, table: Table, rewind: RewindCommit) -> None:
    """Commit by one compare-and-set from the planned snapshot; raises what the catalog raises."""
    metadata, marker = table.metadata, rewind.marker
    target = metadata.snapshot_by_id(rewind.target)
    assert target is not None, "the plan was made from this metadata"
    properties = target.summary.additional_properties if target.summary else {}
    snapshot = Snapshot(
        snapshot_id=metadata.new_snapshot_id(),
        parent_snapshot_id=target.snapshot_id,
        sequence_number=metadata.next_sequence_number(),
        manifest_list=_copied_list(table, target, marker.commit_id),
        summary=Summary(
            Operation.APPEND,
            **{key: value for key, value in properties.items() if key.startswith("total-")},
            **summary(marker, rewind.positions, 0),
            **{REWOUND_FROM: str(rewind.left)},
        ),
        schema_id=metadata.current_schema_id,
    )
    main = metadata.refs[MAIN_BRANCH]
    catalog.commit_table(
        table,
        (
            AssertTableUUID(uuid=metadata.table_uuid),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=rewind.left),
        ),
        (
            AddSnapshotUpdate(snapshot=snapshot),
            SetSnapshotRefUpdate(
                ref_name=MAIN_BRANCH,
                type=SnapshotRefType.BRANCH,
                snapshot_id=snapshot.snapshot_id,
                max_ref_age_ms=main.max_ref_age_ms,
                max_snapshot_age_ms=main.max_snapshot_age_ms,
                min_snapshots_to_keep=main.min_snapshots_to_keep,
            ),
            SetPropertiesUpdate(updates={property_name(marker.pipeline): marker.to_json()}),
        ),
    )


def _copied_list(table: Table, target: Snapshot, commit_id: str) -> str:
    """Copy the manifest list: expiry of `target` deletes its list, and both name its manifests."""
    name = f"snap-{target.snapshot_id}-{commit_id}.avro"
    path = table.location_provider().new_metadata_location(name)
    with table.io.new_input(target.manifest_list).open() as source:
        content = source.read()
    with table.io.new_output(path).create() as copy:
        copy.write(content)
    return path
