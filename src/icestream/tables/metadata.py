"""Typed access to Iceberg's table metadata JSON; nothing else in the project knows its keys.

PyIceberg's own model parses every snapshot anew at each load, and the metadata of a table with a
commit a second grows by one each time. This one looks at the document as it is, when asked.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from icestream.tables.commits import REWRITE_ID, Snapshot

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table


@dataclass(frozen=True, eq=False)
class Metadata:
    """The metadata of one table at one moment."""

    document: Mapping[str, Any]

    @staticmethod
    def of(table: "Table") -> "Metadata":
        """Take the metadata of a table that PyIceberg has loaded."""
        return Metadata(json.loads(table.metadata.model_dump_json(by_alias=True)))

    @property
    def uuid(self) -> str:
        """The table's identity: a table created again under the same name has another."""
        return str(self.document["table-uuid"])

    @property
    def location(self) -> str:
        """The folder or URI below which the table's files are."""
        return str(self.document["location"])

    @property
    def properties(self) -> Mapping[str, str]:
        """Table properties."""
        return self.document.get("properties") or {}

    @property
    def last_sequence(self) -> int:
        """The newest sequence number that was given to a snapshot."""
        return int(self.document.get("last-sequence-number", 0))

    @property
    def schema_id(self) -> int:
        """The id of the current schema."""
        return int(self.document["current-schema-id"])

    @property
    def schema(self) -> Mapping[str, Any]:
        """The current schema."""
        schema: Mapping[str, Any] = _by_id(self.document["schemas"], "schema-id", self.schema_id)
        return schema

    @property
    def columns(self) -> list[str]:
        """Top-level column names of the current schema."""
        return [field["name"] for field in self.schema["fields"]]

    @property
    def spec_id(self) -> int:
        """The id of the current partition spec."""
        return int(self.document["default-spec-id"])

    @property
    def specs(self) -> Mapping[int, Mapping[str, Any]]:
        """All partition specs, by id."""
        return {spec["spec-id"]: spec for spec in self.document["partition-specs"]}

    @property
    def is_partitioned(self) -> bool:
        """Whether any spec, the current one or an older one, has a field."""
        return any(spec["fields"] for spec in self.document["partition-specs"])

    @property
    def sort_order_id(self) -> int:
        """The id of the current sort order; 0: none."""
        return int(self.document["default-sort-order-id"])

    @property
    def sort_order(self) -> Mapping[str, Any]:
        """The current sort order."""
        orders = self.document["sort-orders"]
        order: Mapping[str, Any] = _by_id(orders, "order-id", self.sort_order_id)
        return order

    @property
    def snapshot_id(self) -> int | None:
        """The id of the current snapshot; None: nothing was ever committed."""
        snapshot_id: int | None = self.document.get("current-snapshot-id")
        return None if snapshot_id == -1 else snapshot_id

    @property
    def snapshots(self) -> list[Snapshot]:
        """The retained snapshots in the order of their commits, with those rolled back."""
        return [Snapshot.of(raw) for raw in self._snapshots]

    @property
    def snapshot_count(self) -> int:
        """The number of retained snapshots."""
        return len(self._snapshots)

    @property
    def named_snapshots(self) -> set[int]:
        """Ids of the snapshots that a branch or a tag names."""
        return {ref["snapshot-id"] for ref in (self.document.get("refs") or {}).values()}

    @property
    def current(self) -> Snapshot | None:
        """The current snapshot."""
        return self.snapshot(self.snapshot_id)

    def snapshot(self, snapshot_id: int | None) -> Snapshot | None:
        """Find a retained snapshot by its id."""
        matches = (raw for raw in reversed(self._snapshots) if raw["snapshot-id"] == snapshot_id)
        return next(map(Snapshot.of, matches), None)

    def ancestors(self) -> Iterator[Snapshot]:
        """Yield the current snapshot and its ancestors, newest first, as far as retained."""
        by_id = {raw["snapshot-id"]: raw for raw in self._snapshots}
        snapshot_id = self.snapshot_id
        # By `pop`, so that a ring, which only a damaged file can hold, ends the walk.
        while snapshot_id in by_id:
            snapshot = Snapshot.of(by_id.pop(snapshot_id))
            yield snapshot
            snapshot_id = snapshot.parent_id

    def rewrites(self, snapshot_ids: Iterable[int]) -> dict[int, str]:
        """Return the rewrite ids of those of these snapshots that are our rewrites."""
        ids = set(snapshot_ids)
        return {
            raw["snapshot-id"]: raw["summary"][REWRITE_ID]
            for raw in self._snapshots
            if raw["snapshot-id"] in ids and REWRITE_ID in (raw.get("summary") or {})
        }

    @property
    def has_no_layout_or_data(self) -> bool:
        """True: no layout and no data yet, so the first batch may still decide the layout."""
        current = self.current
        files = current.summary.get("total-data-files", "0") if current else "0"
        has_layout = self.spec_id or self.sort_order_id or self.is_partitioned
        return not has_layout and files == "0"

    def as_table(self, name: str, io: "FileIO") -> "Table":
        """Return PyIceberg's table for this metadata; it has no catalog."""
        from pyiceberg.table import Table
        from pyiceberg.table.metadata import TableMetadataUtil

        return Table(
            identifier=tuple(name.split(".")),
            metadata=TableMetadataUtil.parse_obj(dict(self.document)),
            metadata_location="",
            io=io,
            catalog=None,  # type: ignore[arg-type]
        )

    @property
    def _snapshots(self) -> list[Mapping[str, Any]]:
        return self.document.get("snapshots") or []


def _by_id(entries: Any, key: str, wanted: int) -> Any:
    return next(entry for entry in entries if entry[key] == wanted)
