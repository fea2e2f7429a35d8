"""Snapshots of a table, and the summary entries of a pipeline's commits.

`summary` writes what the properties of `Snapshot` read: docs/design/exactly-once.md, "The marker".
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from icestream.positions import Positions
from icestream.tables.marker import Marker, compact_json, int_partitions

FORGOTTEN = -1  # stands for a parent that nobody knows any more
PIPELINE = "icestream.pipeline"
COMMIT_ID = "icestream.commit-id"
PREVIOUS_ID = "icestream.previous-commit-id"
SEQUENCE = "icestream.sequence"
GENERATION = "icestream.generation"
OFFSETS = "icestream.offsets"
RECORDS = "icestream.records"
WATERMARK = "icestream.watermark"
REWRITE_ID = "icestream.rewrite-id"


def summary(marker: Marker, before: Positions, records: int) -> dict[str, str]:
    """Return a commit's snapshot summary: its ids, and the positions that moved since `before`."""
    # Only what moved: `verify` takes a chain without a break as proof that each range begins
    # where the last one ended.
    moved = {
        stream: changed
        for stream, partitions in marker.positions.items()
        if (
            changed := {
                partition: position
                for partition, position in partitions.items()
                if before.get(stream, {}).get(partition) != position
            }
        )
    }
    entries = {
        PIPELINE: marker.pipeline,
        COMMIT_ID: marker.commit_id,
        PREVIOUS_ID: marker.previous_commit_id,
        SEQUENCE: str(marker.sequence),
        GENERATION: str(marker.generation),
        OFFSETS: compact_json(moved),
        RECORDS: str(records),
    }
    if marker.watermark_ms is not None:
        entries[WATERMARK] = str(marker.watermark_ms)
    return {name: value for name, value in entries.items() if value is not None}


@dataclass(frozen=True)
class Snapshot:
    """One snapshot of a table, whoever made it."""

    snapshot_id: int
    parent_id: int | None  # as Iceberg has it; see `known_parent`
    sequence_number: int
    at_ms: int
    summary: Mapping[str, str]
    operation: str = "unknown"  # `append`, `overwrite`, `replace` or `delete`
    manifest_list: str | None = None

    @staticmethod
    def of(raw: Mapping[str, Any]) -> "Snapshot":
        """Read a snapshot from Iceberg's JSON."""
        notes = dict(raw.get("summary") or {})
        return Snapshot(
            snapshot_id=raw["snapshot-id"],
            parent_id=raw.get("parent-snapshot-id"),
            sequence_number=raw.get("sequence-number") or 0,
            at_ms=raw.get("timestamp-ms", 0),
            operation=notes.pop("operation", "unknown"),
            summary=notes,
            manifest_list=raw.get("manifest-list"),
        )

    def number(self, key: str) -> int:
        """Return a count of the summary; 0 if it is missing."""
        return int(self.summary.get(key, 0))

    @property
    def known_parent(self) -> int | None:
        """The snapshot before this one; None: it began the table's history.

        FORGOTTEN: PyIceberg's expiry makes a snapshot forget the parent that it removes. It has had
        one if it is a compaction, or if it counts more in the table than it added.
        """
        if self.parent_id is not None:
            return self.parent_id
        has_more = any(
            self.number(f"total-{what}") > self.number(f"added-{what}")
            for what in ("records", "data-files")
        )
        return FORGOTTEN if has_more or self.operation == "replace" else None

    # -- of a pipeline's commit ----------------------------------------------------------------

    @property
    def pipeline(self) -> str | None:
        """Name of the pipeline that made the commit; None: another writer did."""
        return self.summary.get(PIPELINE)

    @property
    def commit_id(self) -> str | None:
        """Id of the pipeline's commit."""
        return self.summary.get(COMMIT_ID)

    @property
    def previous_id(self) -> str | None:
        """Id of the pipeline's commit before; None: this is the claim that it began with."""
        return self.summary.get(PREVIOUS_ID)

    @property
    def records(self) -> int:
        """Number of records that landed with the commit."""
        return self.number(RECORDS)

    @cached_property
    def moved(self) -> Positions:
        """Committed positions of the source partitions that the commit moved."""
        return int_partitions(json.loads(self.summary.get(OFFSETS, "{}")))
