"""Lists the live data and delete files of a snapshot; reads each manifest once."""

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
from icestream.tables.position_deletes import OpenFile

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
    # Of a delete file: the lowest and the highest path of the data files that it is about.
    lower: bytes | None = None
    upper: bytes | None = None

    @property
    def write_order(self) -> tuple[int, str]:
        """A sort key that puts data files in the order in which they were written."""
        return self.sequence, self.path

    @property
    def table_partition(self) -> tuple[int, str]:
        """The file's partition, to compare; as text, because NaN does not equal itself."""
        return self.spec_id, repr(self.partition)

    @property
    def only_data_file(self) -> str | None:
        """The one data file that a delete file is about, if it is about one."""
        if self.lower is None or self.lower != self.upper:
            return None
        return self.lower.decode()

    def may_refer_to(self, paths: Sequence[bytes]) -> bool:
        """Tell whether a delete file can be about one of these (sorted) data files."""
        if self.lower is None or self.upper is None:
            return bool(paths)
        index = bisect_left(paths, self.lower)
        return index < len(paths) and paths[index] <= self.upper


@dataclass
class LiveFiles:
    """The live files of a snapshot, or of some of its manifests, by path."""

    data: dict[str, FileEntry] = field(default_factory=dict)
    deletes: dict[str, FileEntry] = field(default_factory=dict)  # position deletes
    snapshot_id: int | None = None
    sequence: int = 0


class SnapshotFileLister:
    """Lists the files of one table; keeps what it read of manifests while a snapshot has them."""

    def __init__(self, io: FileIO) -> None:
        self._io = io
        self._known: dict[str, list[FileEntry]] = {}
        self._last: dict[bool, LiveFiles] = {}  # with data files, and without

    def all_files(self, metadata: Metadata) -> LiveFiles:
        """List all files of the current snapshot."""
        return self._listed(metadata, True)

    def delete_files(self, metadata: Metadata) -> LiveFiles:
        """List only the delete files of the current snapshot, which reads far fewer manifests."""
        return self._listed(metadata, False)

    def _listed(self, metadata: Metadata, data: bool) -> LiveFiles:
        if data in self._last and self._last[data].snapshot_id == metadata.snapshot_id:
            return self._last[data]
        snapshot = metadata.current
        if snapshot is None or snapshot.manifest_list is None:
            raise TableRefused("the table is empty")
        manifests = list(read_manifest_list(self._io.new_input(snapshot.manifest_list)))
        known = {manifest.manifest_path for manifest in manifests} & self._known.keys()
        self._known = {path: self._known[path] for path in known}
        files = read_manifests(
            self._io, [m for m in manifests if data or is_delete(m)], self._known
        )
        files.snapshot_id, files.sequence = snapshot.snapshot_id, snapshot.sequence_number
        self._last[data] = files
        return files


def read_manifests(
    io: FileIO,
    manifests: Iterable[ManifestFile],
    known: dict[str, list[FileEntry]] | None = None,
) -> LiveFiles:
    """Read the entries of manifests; `known` has those of manifests that were read before."""
    known = {} if known is None else known
    files = LiveFiles()
    for manifest in manifests:
        path = manifest.manifest_path
        if path not in known:
            known[path] = [_file(entry) for entry in manifest.fetch_manifest_entry(io)]
        into = files.deletes if is_delete(manifest) else files.data
        into.update((file.path, file) for file in known[path])
    return files


def is_delete(manifest: ManifestFile) -> bool:
    """Tell whether a manifest lists delete files."""
    return bool(manifest.content == ManifestContent.DELETES)


def _file(entry: ManifestEntry) -> FileEntry:
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
            f"{file.file_path} is not a Parquet file, but {file.file_format.name.lower()}",
            hint="rewrite the table as format version 2 with Parquet files",
        )
    return FileEntry(
        file.file_path,
        file.spec_id,
        tuple(file.partition[index] for index in range(len(file.partition))),
        entry.sequence_number or 0,
        file.record_count,
        file.file_size_in_bytes,
        (file.lower_bounds or {}).get(PATH_ID),
        (file.upper_bounds or {}).get(PATH_ID),
    )


def opener(io: FileIO) -> OpenFile:
    """Return a function that opens a table's files, with what the catalog says of its storage."""
    return lambda path: io.new_input(path).open()


def about(deletes: Iterable[FileEntry], paths: Iterable[str]) -> list[FileEntry]:
    """Return the delete files that can be about one of these data files, by their bounds."""
    sorted_paths = sorted(path.encode() for path in paths)
    return [file for file in deletes if file.may_refer_to(sorted_paths)]


def partition_key_of(metadata: Metadata, file: FileEntry) -> PartitionKey:
    """Return the partition of a file; raises TableRefused if its spec cannot be resolved."""
    schema = Schema.model_validate(metadata.schema)
    spec_json = metadata.specs[file.spec_id]
    try:
        types = partition_types(PartitionSpec.model_validate(spec_json), schema)
    except ValueError as failure:
        raise TableRefused(f"partition spec {file.spec_id} cannot be resolved: {failure}") from None
    return partition_key(file.spec_id, file.partition, types)


def removed_file_json(file: FileEntry, partition: PartitionKey, content: str) -> str:
    """Return Iceberg's JSON of a file to remove; `content` is `data` or `position-deletes`."""
    return json.dumps(
        {
            "spec-id": file.spec_id,
            "content": content,
            "file-path": file.path,
            "file-format": "parquet",
            "partition": list(partition.partition),
            "file-size-in-bytes": file.size,
            "record-count": file.records,
        }
    )


def partition_keys(table: "Table") -> dict[str, PartitionKey]:
    """Return the partition of each live data file, by path."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    specs = table.metadata.specs()
    types = {spec_id: partition_types(spec, table.schema()) for spec_id, spec in specs.items()}
    files = read_manifests(table.io, snapshot.manifests(table.io)).data
    return {
        path: partition_key(file.spec_id, file.partition, types[file.spec_id])
        for path, file in files.items()
    }
