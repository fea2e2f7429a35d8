"""Files: what a snapshot refers to is there, whole, and no data file is live twice."""

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

_AT_ONCE = 8  # object stores answer slowly, and many questions at a time


@dataclass(frozen=True)
class ReferencedFile:
    """A file as the metadata describes it."""

    path: str
    kind: str
    size: int | None = None
    records: int | None = None  # only of Parquet files


class FileChecker:
    """Looks at the files of one table; one that several snapshots share is looked at once."""

    def __init__(self, io: FileIO, deep: bool, findings: TableFindings) -> None:
        self._io = io
        self._deep = deep
        self._findings = findings
        self._sound: dict[str, bool] = {}
        self._entries: dict[str, list[DataFile]] = {}  # by manifest

    @property
    def seen(self) -> int:
        """How many files were looked at."""
        return len(self._sound)

    def live_files(self, snapshot: Snapshot) -> list[DataFile] | None:
        """The live files of a snapshot; None if not every file is as it should be."""
        at = snapshot.snapshot_id
        if not self._check_files([ReferencedFile(snapshot.manifest_list, "manifest list")], at):
            return None
        manifests = self._read(partial(snapshot.manifests, self._io), snapshot.manifest_list, at)
        if manifests is None:
            return None
        facts = [
            ReferencedFile(each.manifest_path, "manifest", each.manifest_length)
            for each in manifests
        ]
        if not self._check_files(facts, at):
            return None
        live: list[DataFile] = []
        for manifest in manifests:
            path = manifest.manifest_path
            if path not in self._entries:
                entries = self._read(partial(manifest.fetch_manifest_entry, self._io), path, at)
                if entries is None:
                    return None
                self._entries[path] = [entry.data_file for entry in entries]
            live += self._entries[path]
        self._check_live_once(live, at)
        return live if self._check_files([_described(file) for file in live], at) else None

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

    def _check_files(self, facts: Sequence[ReferencedFile], snapshot_id: int) -> bool:
        fresh = {fact.path: fact for fact in facts if fact.path not in self._sound}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = list(pool.map(self._fault, fresh.values()))
        for fact, fault in zip(fresh.values(), answers, strict=True):
            self._sound[fact.path] = fault is None
            if fault is not None:
                kind, expected, seen = fault
                where = f"{fact.kind} {fact.path}"
                self._findings.add(
                    "files", kind, f"{where}{expected}", seen, snapshot_id=snapshot_id
                )
        return all(self._sound[fact.path] for fact in facts)

    def _fault(self, fact: ReferencedFile) -> tuple[str, str, str] | None:
        """What is wrong with a file: kind, what was expected of it, what was seen."""
        try:
            size = len(self._io.new_input(fact.path))
        except OSError as failure:
            return "missing-file", "", _short(failure)
        if fact.size is not None and size != fact.size:
            return "size-differs", f", {fact.size} bytes", f"{size} bytes"
        if fact.records is None:
            return None
        try:
            rows = self._rows(fact.path)
        except (OSError, pa.ArrowException) as failure:
            return "unreadable", "", _short(failure)
        if rows != fact.records:
            return "records-differ", f", {fact.records} records", f"{rows} records"
        return None

    def _rows(self, path: str) -> int:
        """Rows that the footer tells, or with `deep` those that can be read value by value."""
        with self._io.new_input(path).open() as stream:
            file = pq.ParquetFile(stream, page_checksum_verification=self._deep)
            if not self._deep:
                return int(file.metadata.num_rows)
            return sum(batch.num_rows for batch in file.iter_batches())

    def _read(self, read: Callable[[], Answer], path: str, snapshot_id: int) -> Answer | None:
        """What is in a file of metadata; None, and a finding, if it is not what it should be."""
        try:
            return read()
        except Exception as failure:  # an Avro reader fails on garbage in any way it likes
            self._sound[path] = False
            self._findings.add(
                "files", "unreadable", path, _short(failure), snapshot_id=snapshot_id
            )
            return None


def _described(file: DataFile) -> ReferencedFile:
    parquet = file.file_format == FileFormat.PARQUET
    kind = "data file" if file.content == DataFileContent.DATA else "delete file"
    return ReferencedFile(
        file.file_path, kind, file.file_size_in_bytes, file.record_count if parquet else None
    )


def _short(failure: BaseException) -> str:
    if isinstance(failure, FileNotFoundError):
        return "no such file"
    return f"{type(failure).__name__}: {failure}".splitlines()[0][:200]
