"""The table under test, from outside: made, watched, checked and read the same for every system."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
from load import LOADED_AT_MS, ROWS
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from icestream.catalogs.local import FILE, LocalCatalog

NAMESPACE, NAME = "bench", "events"
COLUMNS: dict[str, Any] = {
    "id": LongType(),
    "user_id": LongType(),
    "event_type": StringType(),
    "url": StringType(),
    "amount": DoubleType(),
    "event_time": TimestamptzType(),
    "created_ms": LongType(),
    "session": StringType(),
    "agent": StringType(),
}
# Java's Iceberg writes these into each table that it makes; without the second it would gzip.
PROPERTIES = {"format-version": "2", "write.parquet.compression-codec": "zstd"}

# Every column of every row goes into the last two figures, so nothing can be lost on the way.
CHECK = """
SELECT count(*) AS rows, count(DISTINCT id) AS ids, sum(user_id)::HUGEINT AS user_ids,
    sum(hash(id, user_id, event_type, url, amount, epoch_us(event_time), session, agent))::HUGEINT
        AS hashes,
    {created} AS created
FROM ({rows})
"""
EXPECTED = CHECK.format(
    created=f"count(*) * {LOADED_AT_MS}::HUGEINT",
    rows=f"SELECT *, cents / 100 AS amount FROM ({ROWS})",
)
FOUND = CHECK.format(created="sum(created_ms)::HUGEINT", rows="FROM read_parquet(?)")


@dataclass(frozen=True)
class Commit:
    """One snapshot, as its summary tells it."""

    snapshot: int
    at: float
    total_records: int
    total_files: int
    total_bytes: int


class Lake:
    """A warehouse folder with a SQLite catalog and one table."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        options = SimpleNamespace(name="lake", warehouse=warehouse, properties={})
        self._catalog = LocalCatalog(options)
        self._seen: tuple[str | None, list[Commit]] = (None, [])

    @property
    def java_properties(self) -> dict[str, str]:
        """For Iceberg's own JdbcCatalog."""
        return dict(self._catalog.java_properties())

    def create(self) -> None:
        fields = [
            NestedField(number, name, kind)
            for number, (name, kind) in enumerate(COLUMNS.items(), 1)
        ]
        catalog = self._catalog.open()
        catalog.create_namespace(NAMESPACE)
        catalog.create_table((NAMESPACE, NAME), Schema(*fields), properties=PROPERTIES)
        catalog.close()

    def commits(self) -> list[Commit]:
        """All snapshots so far; asks SQLite for one row and reads a file only if it is new."""
        location = self._location()
        if location and location != self._seen[0]:
            metadata = json.loads(Path(location.removeprefix("file:")).read_bytes())
            self._seen = (location, [_commit(each) for each in metadata.get("snapshots", [])])
        return self._seen[1]

    def _location(self) -> str | None:
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        if not (self.warehouse / FILE).exists():
            return None
        try:
            with closing(sqlite3.connect(self.warehouse / FILE, timeout=5)) as database:
                row = database.execute(query, (NAME,)).fetchone()
        except sqlite3.OperationalError:  # the tables are being made, or busy
            return None
        return row[0] if row else None

    def table(self) -> Table:
        return self._catalog.open().load_table((NAMESPACE, NAME))

    def check(self) -> dict[str, int]:
        """What the table holds, read by PyIceberg (files) and DuckDB (rows)."""
        files = list(self.table().scan().plan_files())
        if any(each.delete_files for each in files):
            raise RuntimeError("an append-only table has delete files")
        return _figures(FOUND, [[_path(each.file.file_path) for each in files]])

    def freshness(self, begin: float, end: float) -> np.ndarray:
        """Seconds from the making of a record to its commit, for commits in that time."""
        table = self.table()
        parts = [
            snapshot.timestamp_ms - pq.read_table(file, columns=["created_ms"])[0].to_numpy()
            for snapshot in table.snapshots()
            if begin <= snapshot.timestamp_ms / 1000 < end
            for file in _added(table, snapshot)
        ]
        return np.concatenate([np.empty(0), *parts]) / 1000


def expected(records: int) -> dict[str, int]:
    """What a table must hold after `load.fill`."""
    return _figures(EXPECTED, [0, records])


def _figures(query: str, parameters: list[Any]) -> dict[str, int]:
    with duckdb.connect() as database:
        done = database.execute(query, parameters)
        names = [column[0] for column in done.description]
        return dict(zip(names, done.fetchone(), strict=True))


def _commit(snapshot: dict[str, Any]) -> Commit:
    summary = snapshot["summary"]
    return Commit(
        snapshot["snapshot-id"],
        snapshot["timestamp-ms"] / 1000,
        int(summary.get("total-records", 0)),
        int(summary.get("total-data-files", 0)),
        int(summary.get("total-files-size", 0)),
    )


def _added(table: Table, snapshot: Any) -> Iterator[str]:
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.status == ManifestEntryStatus.ADDED:
                    yield _path(entry.data_file.file_path)


def _path(location: str) -> str:
    return location.removeprefix("file:")
