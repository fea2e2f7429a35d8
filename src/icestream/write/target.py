"""What a staging task is given and what it hands back: plain facts that travel between machines."""

from collections.abc import Mapping
from dataclasses import dataclass


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
