"""The state of one table at one moment, as the catalog gave it; nothing here needs a JVM."""

from dataclasses import dataclass, field
from typing import Any

from icestream.errors import InternalError
from icestream.tables.commits import Snapshot
from icestream.tables.marker import LocatedMarker, Marker, property_name
from icestream.tables.metadata import Metadata


@dataclass(frozen=True)
class AncestorSnapshot:
    """One snapshot of a table's history: the current one, its parent, and so on."""

    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    commit_id: str | None  # only when this pipeline made it


@dataclass(frozen=True)
class TableState:
    """What the catalog said about one table at one moment."""

    uuid: str
    marker: Marker | None
    ancestors: tuple[AncestorSnapshot, ...]  # newest first, as far as snapshots are retained
    last_sequence: int
    schema_id: int
    base: Any = None  # what a commit compares against; only its catalog looks inside
    metadata: Metadata = field(default=Metadata({}), compare=False, repr=False)

    @property
    def snapshot_ids(self) -> list[int]:
        """Ids of the ancestors, newest first."""
        return [ancestor.snapshot_id for ancestor in self.ancestors]


def table_state(metadata: Metadata, pipeline: str, base: Any = None) -> TableState:
    """Read from a table's metadata what the protocol needs."""
    stored = metadata.properties.get(property_name(pipeline))
    return TableState(
        uuid=metadata.uuid,
        marker=Marker.from_json(stored) if stored else None,
        ancestors=tuple(_ancestor(snapshot, pipeline) for snapshot in metadata.ancestors()),
        last_sequence=metadata.last_sequence,
        schema_id=metadata.schema_id,
        base=base,
        metadata=metadata,
    )


def _ancestor(snapshot: Snapshot, pipeline: str) -> AncestorSnapshot:
    return AncestorSnapshot(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.known_parent,
        sequence_number=snapshot.sequence_number,
        commit_id=snapshot.commit_id if snapshot.pipeline == pipeline else None,
    )


def located_marker(state: TableState) -> LocatedMarker:
    """Return a claimed table's marker, with the location to which its details are relative."""
    if state.marker is None:
        raise InternalError("a table lost its marker right after the claim")
    return LocatedMarker(state.marker, state.metadata.location)
