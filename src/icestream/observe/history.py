"""History: events in a SQLite file under the state folder; deleting it loses no row.

It has a fixed bound: the newest events of the last days, and of each table's partitions, of which
there may be thousands, only how they stood at the last commit.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from icestream.observe.events import BatchPlanned, Event, MaintenanceProgress

_FILE = "history.db"
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
    """Appends events; safe to call from several threads."""

    def __init__(self, state: Path) -> None:
        state.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._database = sqlite3.connect(
            state / _FILE, timeout=30, check_same_thread=False, isolation_level=None
        )
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.executescript(_SCHEMA)
        self._database.execute("PRAGMA synchronous=OFF")  # derived data: no commit waits for it
        self._stored = 0
        self._prune()

    def __call__(self, event: Event) -> None:
        """Store one event."""
        if isinstance(event, BatchPlanned | MaintenanceProgress):
            return  # the commit, or the end, that follows says more
        facts = event.facts()
        now, table = time.time(), facts.get("table")
        partitions = facts.pop("partitions", None)
        with self._lock, suppress(sqlite3.OperationalError):  # derived: a full disk stops no run
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
                self._prune()

    def _prune(self) -> None:
        self._database.execute(
            "DELETE FROM events WHERE at < ? OR id <= (SELECT max(id) FROM events) - ?",
            (time.time() - _KEEP_DAYS * 86400, _KEEP_EVENTS),
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()


def commits(state: Path, pipeline: str, table: str, since: float) -> list[dict[str, Any]]:
    """A table's commits since a moment, oldest first, each with its time as `at`."""
    return _select(
        state,
        "SELECT at, facts FROM events WHERE pipeline = ? AND subject = ? "
        "AND kind = 'table_committed' AND at >= ? ORDER BY at",
        (pipeline, table, since),
    )


def partitions(state: Path, pipeline: str, table: str) -> list[dict[str, Any]]:
    """How a table's partitions stood at its last commit."""
    with _reading(state) as database:
        query = "SELECT facts FROM partitions WHERE pipeline = ? AND subject = ?"
        row = database.execute(query, (pipeline, table)).fetchone() if database else None
    found: list[dict[str, Any]] = json.loads(row[0]) if row else []
    return found


def maintenance(state: Path, pipeline: str, since: float = 0.0) -> list[dict[str, Any]]:
    """What maintenance did since a moment, oldest first, each with its time as `at`."""
    return _select(
        state,
        "SELECT at, facts FROM events WHERE pipeline = ? "
        "AND kind = 'maintenance_finished' AND at >= ? ORDER BY at, id",
        (pipeline, since),
    )


def last_run(state: Path, pipeline: str) -> dict[str, Any] | None:
    """The newest word on how a run started, stopped or failed."""
    found = _select(
        state,
        "SELECT at, json_insert(facts, '$.kind', kind) FROM events WHERE pipeline = ? "
        "AND kind IN ('run_started', 'run_stopped', 'run_failed') ORDER BY at DESC LIMIT 1",
        (pipeline,),
    )
    return found[0] if found else None


def trouble(state: Path, pipeline: str) -> dict[str, Any] | None:
    """The newest restart, if nothing was committed and nobody stopped the pipeline since."""
    found = _select(
        state,
        "SELECT at, json_insert(facts, '$.kind', kind) FROM events WHERE pipeline = ? "
        "AND kind IN ('run_restarting', 'table_committed', 'run_stopped', 'run_failed') "
        "ORDER BY at DESC, rowid DESC LIMIT 1",
        (pipeline,),
    )
    return found[0] if found and found[0]["kind"] == "run_restarting" else None


def _select(state: Path, query: str, arguments: tuple[Any, ...]) -> list[dict[str, Any]]:
    with _reading(state) as database:
        if database is None:
            return []
        rows = database.execute(query, arguments).fetchall()
    return [{"at": at, **json.loads(facts)} for at, facts in rows]


@contextmanager
def _reading(state: Path) -> Iterator[sqlite3.Connection | None]:
    file = state / _FILE
    if not file.exists():
        yield None
        return
    address = f"{file.absolute().as_uri()}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, timeout=30)) as database:
        yield database
