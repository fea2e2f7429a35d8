"""What the catalog said of one table at one moment; nothing here needs a JVM."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icestream.errors import InternalError
from icestream.tables.commits import parent_of
from icestream.tables.marker import LocatedMarker, Marker, property_name


@dataclass(frozen=True)
class AncestorSnapshot:
    """One snapshot on the way back from the table's current one."""

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
    base: Any = None  # the metadata that a commit compares against; opaque here

    @property
    def snapshot_ids(self) -> list[int]:
        """The table's history as far as it is retained, newest first."""
        return [each.snapshot_id for each in self.ancestors]


def table_state(document: Mapping[str, Any], pipeline: str, base: Any = None) -> TableState:
    """What Iceberg's metadata JSON says, in the protocol's words."""
    stored = document.get("properties", {}).get(property_name(pipeline))
    return TableState(
        uuid=document["table-uuid"],
        marker=Marker.from_json(stored) if stored else None,
        ancestors=_ancestors(document, pipeline),
        last_sequence=document.get("last-sequence-number", 0),
        schema_id=document["current-schema-id"],
        base=base,
    )


def _ancestors(document: Mapping[str, Any], pipeline: str) -> tuple[AncestorSnapshot, ...]:
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots", ())}
    found = []
    at: int | None = document.get("current-snapshot-id")
    while at is not None and at in by_id:
        snapshot = by_id[at]
        notes = snapshot.get("summary", {})
        own = notes.get("icestream.pipeline") == pipeline
        found.append(
            AncestorSnapshot(
                snapshot_id=at,
                parent_id=parent_of(snapshot),
                sequence_number=snapshot.get("sequence-number", 0),
                commit_id=notes.get("icestream.commit-id") if own else None,
            )
        )
        at = snapshot.get("parent-snapshot-id")
    return tuple(found)


def located_marker(view: TableState) -> LocatedMarker:
    """A claimed table's marker with the place that its details are relative to."""
    if view.marker is None:
        raise InternalError("a table lost its marker right after the claim")
    return LocatedMarker(view.marker, table_location(view))


def table_location(view: TableState) -> str:
    """The table's location."""
    return str(view.base.document["location"])
