"""What a staging task is given and what it hands back: plain facts that travel between machines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icestream.tables.metadata import by_id, current_schema


@dataclass(frozen=True)
class StageTarget:
    """The table to write for, as Iceberg's own JSON, so that a task needs no catalog."""

    schema_json: str
    spec_json: str
    sort_order_json: str
    data_location: str
    """Folder or URI of the data files: `write.data.path`, or the table's location + `/data`."""
    file_prefix: str
    """Begins every file name; carries pipeline, generation and commit id."""
    properties: Mapping[str, str]
    """Table properties: `write.target-file-size-bytes`, `write.parquet.*`, `write.metadata.*`."""


@dataclass(frozen=True)
class StagedFile:
    """One finished data file that no snapshot knows yet."""

    path: str
    records: int
    bytes: int
    content_json: str
    """The DataFile, as Iceberg's `ContentFileParser.fromJson` reads it."""


def stage_target(document: Any, prefix: str) -> StageTarget:
    """What a task must know to write data files for this table."""
    properties = document["properties"]
    location = properties.get("write.data.path") or document["location"].rstrip("/") + "/data"
    spec = by_id(document["partition-specs"], "spec-id", document["default-spec-id"])
    order = by_id(document["sort-orders"], "order-id", document["default-sort-order-id"])
    return StageTarget(
        schema_json=json.dumps(current_schema(document)),
        spec_json=json.dumps(spec),
        sort_order_json=json.dumps(order),
        data_location=location,
        file_prefix=prefix,
        properties={name: value for name, value in properties.items() if name.startswith("write.")},
    )
