"""History: events in a SQLite file under the state folder; deleting it loses no row.

Its size is bounded: the newest events of the last days, and of each table's partitions, of which
there may be thousands, only their state at the last commit. Nobody waits for the disk here, so a
power failure may damage the file: it is renamed then, and stops no run.
"""

import json
import sqlite3
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from icestream.catalogs.sqlite import code, use_wal
from icestream.events import BatchPlanned, Event, MaintenanceProgress

_FILE = "history.db"
_WAIT_SECONDS = 30.0  # for the lock of another process
_DAMAGES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_KEEP_DAYS = 30
_KEEP_EVENTS = 100_000  # of all pipelines in one state folder; some 50 MB
_PRUNE_EVERY = 1_000
_SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    id       INTEGER PRIMARY KEY,
    at       REAL NOT NULL,
    pipeline TEXT NOT NULL,
    kind     TEXT NOT NULL,
    subject  TEXT,
    facts    TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_subject ON events (pipeline, subject, kind, at);
CREATE TABLE IF NOT EXISTS partitions (
    pipeline TEXT NOT NULL,
    subject  TEXT NOT NULL,
    at       REAL NOT NULL,
    facts    TEXT NOT NULL,
    PRIMARY KEY (pipeline, subject)
);
"""


class History:
    """Subscriber of the event bus that stores events; safe to call from several threads."""

    def __init__(self, state: Path) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        try:
            self._database = _opened(state / _FILE)
        except sqlite3.DatabaseError as failure:
            if code(failure) not in _DAMAGES:
                raise
            _rename_damaged(state / _FILE)
            self._database = _opened(state / _FILE)
        self._stored = 0

    def __call__(self, event: Event) -> None:
        """Store one event."""
        if isinstance(event, BatchPlanned | MaintenanceProgress):
            return  # the event of the commit, or of the end, that follows says more
        facts = event.facts()
        now, table = time.time(), facts.get("table")
        partitions = facts.pop("partitions", None)
        with self._lock, suppress(sqlite3.DatabaseError):  # derived: a full disk stops no run
            self._database.execute(
                "INSERT INTO events (at, pipeline, kind, subject, facts) VALUES (?, ?, ?, ?, ?)",
                (now, event.pipeline, event.kind, table, json.dumps(facts)),
            )
            if partitions:
                self._database.execute(
                    "INSERT OR REPLACE INTO partitions VALUES (?, ?, ?, ?)",
                    (event.pipeline, table, now, json.dumps(partitions)),
                )
            self._stored += 1
            if self._stored % _PRUNE_EVERY == 0:
                _prune(self._database)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()


def _opened(file: Path) -> sqlite3.Connection:
    """Open the file, or make it, and delete what is too old; raises if it is seen to be damaged."""
    database = sqlite3.connect(
        file, timeout=_WAIT_SECONDS, check_same_thread=False, isolation_level=None
    )
    try:
        use_wal(database, _WAIT_SECONDS)
        database.executescript(_SCHEMA)
        database.execute("PRAGMA synchronous=OFF")  # derived data: no commit waits for it
        _prune(database)
    except BaseException:
        database.close()
        raise
    return database


def _prune(database: sqlite3.Connection) -> None:
    database.execute(
        "DELETE FROM events WHERE at < ? OR id <= (SELECT max(id) FROM events) - ?",
        (time.time() - _KEEP_DAYS * 86400, _KEEP_EVENTS),
    )


def _rename_damaged(file: Path) -> None:
    """Keep a damaged file under another name, without its log, which fits no other file."""
    file.replace(file.with_name(f"{file.name}.damaged"))
    for tail in ("-wal", "-shm"):
        file.with_name(file.name + tail).unlink(missing_ok=True)


def commits(state: Path, pipeline: str, table: str, since: float) -> list[dict[str, Any]]:
    """List a table's commits since a time, oldest first, each with its own time as `at`."""
    return _select(
        state,
        "SELECT at, facts FROM events WHERE pipeline = ? AND subject = ? "
        "AND kind = 'table_committed' AND at >= ? ORDER BY at",
        (pipeline, table, since),
    )


def partitions(state: Path, pipeline: str, table: str) -> list[dict[str, Any]]:
    """List the positions and lag of a table's source partitions at its last commit."""
    query = "SELECT facts FROM partitions WHERE pipeline = ? AND subject = ?"
    rows = _rows(state, query, (pipeline, table))
    partitions: list[dict[str, Any]] = json.loads(rows[0][0]) if rows else []
    return partitions


def maintenance(state: Path, pipeline: str, since: float = 0.0) -> list[dict[str, Any]]:
    """List the maintenance actions since a time, oldest first, each with its own time as `at`."""
    return _select(
        state,
        "SELECT at, facts FROM events WHERE pipeline = ? "
        "AND kind = 'maintenance_finished' AND at >= ? ORDER BY at, id",
        (pipeline, since),
    )


def last_run(state: Path, pipeline: str) -> dict[str, Any] | None:
    """Return the newest event of a run that started, stopped or failed."""
    events = _select(
        state,
        "SELECT at, json_insert(facts, '$.kind', kind) FROM events WHERE pipeline = ? "
        "AND kind IN ('run_started', 'run_stopped', 'run_failed') ORDER BY at DESC LIMIT 1",
        (pipeline,),
    )
    return events[0] if events else None


def trouble(state: Path, pipeline: str) -> dict[str, Any] | None:
    """Return the newest restart, if no commit, stop or failure of the pipeline followed it."""
    events = _select(
        state,
        "SELECT at, json_insert(facts, '$.kind', kind) FROM events WHERE pipeline = ? "
        "AND kind IN ('run_restarting', 'table_committed', 'run_stopped', 'run_failed') "
        "ORDER BY at DESC, rowid DESC LIMIT 1",
        (pipeline,),
    )
    return events[0] if events and events[0]["kind"] == "run_restarting" else None


def _select(state: Path, query: str, arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [{"at": at, **json.loads(facts)} for at, facts in _rows(state, query, arguments)]


def _rows(state: Path, query: str, arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Run a query; no rows if the file does not exist, has no tables yet, or is damaged."""
    file = state / _FILE
    if not file.exists():
        return []
    address = f"{file.absolute().as_uri()}?mode=ro"
    with (
        suppress(sqlite3.DatabaseError),
        closing(sqlite3.connect(address, uri=True, timeout=_WAIT_SECONDS)) as database,
    ):
        return database.execute(query, arguments).fetchall()
    return []
