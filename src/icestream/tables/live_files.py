"""Files: the live data and delete files of a snapshot, from manifests that are each read once."""

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    read_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from icestream.errors import TableRefused
from icestream.tables.arrow import PATH_ID
from icestream.tables.metadata import Metadata
from icestream.tables.partition_values import PartitionKey, partition_key, partition_types

if TYPE_CHECKING:
    from pyiceberg.table import Table


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

    def all_files(self, metadata: Metadata) -> SnapshotFiles:
        """All files of the current snapshot."""
        return self._listed(metadata, True)

    def delete_files(self, metadata: Metadata) -> SnapshotFiles:
        """The delete files of the current snapshot only: far fewer."""
        return self._listed(metadata, False)

    def _listed(self, metadata: Metadata, data: bool) -> SnapshotFiles:
        if data in self._last and self._last[data].snapshot_id == metadata.snapshot_id:
            return self._last[data]
        snapshot = metadata.current
        if snapshot is None or snapshot.manifest_list is None:
            raise TableRefused("the table is empty")
        found = SnapshotFiles(snapshot.snapshot_id, snapshot.sequence_number)
        manifests = list(read_manifest_list(self._io.new_input(snapshot.manifest_list)))
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
        raise TableRefused("the table has equality deletes, written by another program")
    if file.file_format != FileFormat.PARQUET:
        raise TableRefused(f"{file.file_path} is not a Parquet file")
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


def partition_key_of(metadata: Metadata, file: FileEntry) -> PartitionKey:
    """The partition of a file, in Iceberg's JSON."""
    schema = Schema.model_validate(metadata.schema)
    told = metadata.specs[file.spec_id]
    try:
        kinds = partition_types(PartitionSpec.model_validate(told), schema)
    except ValueError as failure:
        raise TableRefused(f"partition spec {file.spec_id} cannot be resolved: {failure}") from None
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


@dataclass
class LiveFiles:
    """Files of some manifests: data files by path, and position-delete files."""

    data: dict[str, ManifestEntry] = field(default_factory=dict)
    deletes: list[ManifestEntry] = field(default_factory=list)


def read_manifests(io: FileIO, manifests: Iterable[ManifestFile]) -> LiveFiles:
    """Read manifests; what the index cannot follow is refused here."""
    found = LiveFiles()
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(io):
            file = entry.data_file
            if file.content == DataFileContent.EQUALITY_DELETES:
                raise TableRefused(
                    "the table has equality deletes, written by another program",
                    where=file.file_path,
                    hint="remove them first: `CALL system.rewrite_data_files` with "
                    "`delete-file-threshold => 1`, and upsert by one program only",
                )
            if file.file_format != FileFormat.PARQUET:
                raise TableRefused(
                    f"upserts need Parquet files with position deletes, this is "
                    f"{file.file_format.name.lower()}",
                    where=file.file_path,
                    hint="rewrite the table as format version 2 with Parquet files",
                )
            if file.content == DataFileContent.DATA:
                found.data[file.file_path] = entry
            else:
                found.deletes.append(entry)
    return found


def is_delete(manifest: ManifestFile) -> bool:
    """Whether a manifest lists delete files."""
    return bool(manifest.content == ManifestContent.DELETES)


def write_order(entry: ManifestEntry) -> tuple[int, str]:
    """Data files in the order in which they were written."""
    return entry.sequence_number or 0, entry.data_file.file_path


def partition_keys(table: "Table") -> dict[str, PartitionKey]:
    """Where each live data file belongs."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    specs = table.metadata.specs()
    kinds = {number: partition_types(spec, table.schema()) for number, spec in specs.items()}
    found: dict[str, PartitionKey] = {}
    for path, entry in read_manifests(table.io, snapshot.manifests(table.io)).data.items():
        file = entry.data_file
        found[path] = partition_key(file.spec_id, file.partition, kinds[file.spec_id])
    return found
