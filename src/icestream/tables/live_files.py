"""Files: the live data and delete files of a snapshot, from manifests that are each read once."""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestFile,
    read_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from icestream.commit.table_builder import current_schema
from icestream.index.live_rows import is_delete
from icestream.upsert.places import partition_key, partition_types
from icestream.write.position_deletes import PATH_ID, PartitionKey


class GaveWay(Exception):
    """The rewrite cannot be done as the table is now, and why; nothing has changed."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What a manifest says about a file, as far as a rewrite needs it."""

    path: str
    spec_id: int
    partition: tuple[Any, ...]
    sequence: int
    records: int
    size: int
    # Of a delete file: between which data files, by path, those that it is about are.
    lower: bytes | None = None
    upper: bytes | None = None

    @property
    def table_partition(self) -> tuple[int, str]:
        """Its partition, to compare; as text, for NaN is a partition like others."""
        return self.spec_id, repr(self.partition)

    @property
    def only_data_file(self) -> str | None:
        """The one data file that a delete file is about, if it is about one."""
        one = self.lower is not None and self.lower == self.upper
        return self.lower.decode() if one and self.lower is not None else None

    def may_refer_to(self, wanted: Sequence[bytes]) -> bool:
        """Whether a delete file can be about one of these (sorted) data files."""
        if self.lower is None or self.upper is None:
            return bool(wanted)
        at = bisect_left(wanted, self.lower)
        return at < len(wanted) and wanted[at] <= self.upper


@dataclass(frozen=True)
class SnapshotFiles:
    """The files of one snapshot."""

    snapshot_id: int
    sequence: int
    data: dict[str, FileEntry] = field(default_factory=dict)
    deletes: dict[str, FileEntry] = field(default_factory=dict)


class SnapshotFileLister:
    """Lists the files of one table; what it has read of manifests it keeps while they are used."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._known: dict[str, list[FileEntry]] = {}
        self._last: dict[bool, SnapshotFiles] = {}  # with data files, and without

    def all_files(self, document: Mapping[str, Any]) -> SnapshotFiles:
        """All files of the current snapshot."""
        return self._listed(document, True)

    def delete_files(self, document: Mapping[str, Any]) -> SnapshotFiles:
        """The delete files of the current snapshot only: far fewer."""
        return self._listed(document, False)

    def _listed(self, document: Mapping[str, Any], data: bool) -> SnapshotFiles:
        at = document.get("current-snapshot-id")
        if data in self._last and self._last[data].snapshot_id == at:
            return self._last[data]
        snapshot = next((s for s in document.get("snapshots", ()) if s["snapshot-id"] == at), None)
        if snapshot is None:
            raise GaveWay("the table is empty")
        found = SnapshotFiles(snapshot["snapshot-id"], snapshot["sequence-number"])
        manifests = list(read_manifest_list(self._io.new_input(snapshot["manifest-list"])))
        paths = {manifest.manifest_path for manifest in manifests}
        self._known = {path: files for path, files in self._known.items() if path in paths}
        for manifest in manifests:
            deletes = is_delete(manifest)
            if data or deletes:
                into = found.deletes if deletes else found.data
                into.update((file.path, file) for file in self._read(manifest))
        self._last[data] = found
        return found

    def _read(self, manifest: ManifestFile) -> list[FileEntry]:
        path = manifest.manifest_path
        if path not in self._known:
            entries = manifest.fetch_manifest_entry(self._io)
            self._known[path] = [_file(entry) for entry in entries]
        return self._known[path]


def _file(entry: ManifestEntry) -> FileEntry:
    file = entry.data_file
    if file.content == DataFileContent.EQUALITY_DELETES:
        raise GaveWay("the table has equality deletes, written by another program")
    if file.file_format != FileFormat.PARQUET:
        raise GaveWay(f"{file.file_path} is not a Parquet file")
    return FileEntry(
        file.file_path,
        file.spec_id,
        tuple(file.partition[at] for at in range(len(file.partition))),
        entry.sequence_number or 0,
        file.record_count,
        file.file_size_in_bytes,
        (file.lower_bounds or {}).get(PATH_ID),
        (file.upper_bounds or {}).get(PATH_ID),
    )


def partition_key_of(document: Mapping[str, Any], file: FileEntry) -> PartitionKey:
    """The partition of a file, in Iceberg's JSON."""
    schema = Schema.model_validate(current_schema(document))
    told = next(s for s in document["partition-specs"] if s["spec-id"] == file.spec_id)
    try:
        kinds = partition_types(PartitionSpec.model_validate(told), schema)
    except ValueError as failure:
        raise GaveWay(f"partition spec {file.spec_id} cannot be resolved: {failure}") from None
    return partition_key(file.spec_id, file.partition, kinds)


def removed_file_json(file: FileEntry, place: PartitionKey, content: str) -> str:
    """A file that is to be removed, as Iceberg's JSON: `data` or `position-deletes`."""
    return json.dumps(
        {
            "spec-id": file.spec_id,
            "content": content,
            "file-path": file.path,
            "file-format": "parquet",
            "partition": list(place.partition),
            "file-size-in-bytes": file.size,
            "record-count": file.records,
        }
    )
