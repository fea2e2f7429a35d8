"""What a staging task is given and what it returns; both travel between machines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from icestream.tables.metadata import Metadata


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
    """A finished data or delete file that no snapshot names yet."""

    path: str
    records: int
    bytes: int
    content_json: str
    """The DataFile, as Iceberg's `ContentFileParser.fromJson` reads it."""


def stage_target(metadata: Metadata, file_prefix: str) -> StageTarget:
    """Return what a task must know to write data files for a table with this metadata."""
    properties = metadata.properties
    location = properties.get("write.data.path") or metadata.location.rstrip("/") + "/data"
    return StageTarget(
        schema_json=json.dumps(metadata.schema),
        spec_json=json.dumps(metadata.specs[metadata.spec_id]),
        sort_order_json=json.dumps(metadata.sort_order),
        data_location=location,
        file_prefix=file_prefix,
        properties={name: value for name, value in properties.items() if name.startswith("write.")},
    )
