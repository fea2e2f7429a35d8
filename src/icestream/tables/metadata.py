"""Iceberg's metadata JSON: schema, partition spec, sort order, snapshots."""

from typing import Any


def by_id(entries: Any, key: str, wanted: int) -> Any:
    """The entry of a list in the metadata whose id is `wanted`."""
    return next(each for each in entries if each[key] == wanted)


def current_fields(document: Any) -> list[str]:
    """Top-level column names of the current schema in Iceberg's metadata JSON."""
    return [field["name"] for field in current_schema(document)["fields"]]


def current_schema(document: Any) -> Any:
    """The current schema in Iceberg's metadata JSON."""
    return by_id(document["schemas"], "schema-id", document["current-schema-id"])


def has_no_layout_or_data(document: Any) -> bool:
    """Never laid out and without data: the first batch may still decide the layout."""
    laid_out = document["default-spec-id"] or document["default-sort-order-id"]
    current = document.get("current-snapshot-id")
    newest = [each for each in document.get("snapshots", ()) if each["snapshot-id"] == current]
    files = newest[0].get("summary", {}).get("total-data-files", "0") if newest else "0"
    return (
        not laid_out
        and files == "0"
        and not any(each["fields"] for each in document["partition-specs"])
    )
