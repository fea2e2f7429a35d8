"""Files: each file that a snapshot refers to exists and is whole; no data file is live twice."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.snapshots import Snapshot

from icestream.verify.report import TableFindings

Answer = TypeVar("Answer")

_AT_ONCE = 8  # object stores answer slowly, but many requests at a time


@dataclass(frozen=True)
class ReferencedFile:
    """A file as Iceberg's metadata describe it."""

    path: str
    kind: str
    size: int | None = None
    records: int | None = None  # only of Parquet files


class FileChecker:
    """Checks the files of one table; one that several snapshots share is checked once."""

    def __init__(self, io: FileIO, deep: bool, findings: TableFindings) -> None:
        self._io = io
        self._deep = deep
        self._findings = findings
        self._sound: dict[str, bool] = {}
        self._entries: dict[str, list[DataFile]] = {}  # by manifest

    @property
    def checked(self) -> int:
        """How many files were checked."""
        return len(self._sound)

    def live_files(self, snapshot: Snapshot) -> list[DataFile] | None:
        """Check all files of a snapshot. Returns its live ones; None if any file is damaged."""
        snapshot_id, path = snapshot.snapshot_id, snapshot.manifest_list
        if not self._check_files([ReferencedFile(path, "manifest list")], snapshot_id):
            return None
        manifests = self._read(partial(snapshot.manifests, self._io), path, snapshot_id)
        if manifests is None:
            return None
        files = [ReferencedFile(m.manifest_path, "manifest", m.manifest_length) for m in manifests]
        if not self._check_files(files, snapshot_id):
            return None
        live: list[DataFile] = []
        for manifest in manifests:
            path = manifest.manifest_path
            if path not in self._entries:
                fetch = partial(manifest.fetch_manifest_entry, self._io)
                entries = self._read(fetch, path, snapshot_id)
                if entries is None:
                    return None
                self._entries[path] = [entry.data_file for entry in entries]
            live += self._entries[path]
        self._check_live_once(live, snapshot_id)
        files = [_referenced(file) for file in live]
        return live if self._check_files(files, snapshot_id) else None

    def _check_live_once(self, live: Sequence[DataFile], snapshot_id: int) -> None:
        data = [file for file in live if file.content == DataFileContent.DATA]
        records = {file.file_path: file.record_count for file in data}
        for path, times in Counter(file.file_path for file in data).items():
            if times > 1:
                self._findings.add(
                    "files",
                    "live-twice",
                    f"{path} once",
                    f"{times} times",
                    snapshot_id=snapshot_id,
                    records=(times - 1) * records[path],
                    harm="duplicated",
                )

    def _check_files(self, files: Sequence[ReferencedFile], snapshot_id: int) -> bool:
        """Check those of the files that were not checked yet. Returns whether all are whole."""
        unchecked = {file.path: file for file in files if file.path not in self._sound}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            faults = list(pool.map(self._fault, unchecked.values()))
        for file, fault in zip(unchecked.values(), faults, strict=True):
            self._sound[file.path] = fault is None
            if fault is not None:
                kind, expected, seen = fault
                where = f"{file.kind} {file.path}"
                self._findings.add(
                    "files", kind, f"{where}{expected}", seen, snapshot_id=snapshot_id
                )
        return all(self._sound[file.path] for file in files)

    def _fault(self, file: ReferencedFile) -> tuple[str, str, str] | None:
        """Check one file. Returns what is wrong: kind, what was expected, what was seen."""
        try:
            size = len(self._io.new_input(file.path))
        except OSError as failure:
            return "missing-file", "", _short(failure)
        if file.size is not None and size != file.size:
            return "size-differs", f", {file.size} bytes", f"{size} bytes"
        if file.records is None:
            return None
        try:
            rows = self._rows(file.path)
        except (OSError, pa.ArrowException) as failure:
            return "unreadable", "", _short(failure)
        if rows != file.records:
            return "records-differ", f", {file.records} records", f"{rows} records"
        return None

    def _rows(self, path: str) -> int:
        """Count rows by the footer, or with `deep` by reading every value."""
        with self._io.new_input(path).open() as stream:
            parquet = pq.ParquetFile(stream, page_checksum_verification=self._deep)
            if not self._deep:
                return int(parquet.metadata.num_rows)
            return sum(batch.num_rows for batch in parquet.iter_batches())

    def _read(self, read: Callable[[], Answer], path: str, snapshot_id: int) -> Answer | None:
        """Read a file of metadata; None, and a finding, if that fails."""
        try:
            return read()
        except Exception as failure:  # an Avro reader fails on garbage in any way it likes
            self._sound[path] = False
            self._findings.add(
                "files", "unreadable", path, _short(failure), snapshot_id=snapshot_id
            )
            return None


def _referenced(file: DataFile) -> ReferencedFile:
    kind = "data file" if file.content == DataFileContent.DATA else "delete file"
    records = file.record_count if file.file_format == FileFormat.PARQUET else None
    return ReferencedFile(file.file_path, kind, file.file_size_in_bytes, records)


def _short(failure: BaseException) -> str:
    if isinstance(failure, FileNotFoundError):
        return "no such file"
    return f"{type(failure).__name__}: {failure}".splitlines()[0][:200]
