"""A snapshot of ours: the summary that a commit writes, and what can be read from it later."""

from collections.abc import Iterable, Mapping
from typing import Any

from icestream.positions import Positions
from icestream.tables.marker import Marker, compact_json


def summary(marker: Marker, before: Positions, records: int) -> dict[str, str]:
    """The snapshot summary: the ids, and the partitions that moved since `before`."""
    moved = {
        stream: changed
        for stream, partitions in marker.positions.items()
        if (
            changed := {
                number: at
                for number, at in partitions.items()
                if before.get(stream, {}).get(number) != at
            }
        )
    }
    entries = {
        "icestream.pipeline": marker.pipeline,
        "icestream.commit-id": marker.commit_id,
        "icestream.previous-commit-id": marker.previous_commit_id,
        "icestream.sequence": str(marker.sequence),
        "icestream.generation": str(marker.generation),
        "icestream.offsets": compact_json(moved),
        "icestream.records": str(records),
    }
    if marker.watermark_ms is not None:
        entries["icestream.watermark"] = str(marker.watermark_ms)
    return {name: value for name, value in entries.items() if value is not None}


FORGOTTEN = -1  # stands for a parent that nobody knows any more


def parent_of(snapshot: Mapping[str, Any]) -> int | None:
    """The snapshot before one, in Iceberg's JSON; None: it began the table's history.

    PyIceberg's expiry makes a snapshot forget the parent that it removes. A compaction has had one
    all the same, and so has whoever counts more in the table than it added.
    """
    known: int | None = snapshot.get("parent-snapshot-id")
    if known is not None:
        return known
    notes = snapshot.get("summary") or {}
    more = any(
        int(notes.get(f"total-{what}", 0)) > int(notes.get(f"added-{what}", 0))
        for what in ("records", "data-files")
    )
    return FORGOTTEN if more or notes.get("operation") == "replace" else None


REWRITE_ID = "icestream.rewrite-id"  # in the summary of a rewrite, which has no commit id


def rewrites_among(document: Mapping[str, Any], snapshot_ids: Iterable[int]) -> dict[int, str]:
    """Which of these snapshots are rewrites of ours: snapshot id → rewrite id."""
    wanted = set(snapshot_ids)
    return {
        each["snapshot-id"]: each["summary"][REWRITE_ID]
        for each in document.get("snapshots", ())
        if each["snapshot-id"] in wanted and REWRITE_ID in each.get("summary", {})
    }
