"""Helpers for SQLite files that several processes open at once."""

import sqlite3
import time

_PAUSE_SECONDS = 0.02


def use_wal(database: sqlite3.Connection, seconds: float) -> None:
    """Let readers and a writer work side by side, from now on and for every process.

    The change itself needs a lock for which SQLite does not always wait, and two runs may start at
    the same moment; in a file that is in WAL mode already, it needs none.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as failure:
            if code(failure) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SECONDS)


def code(failure: sqlite3.DatabaseError) -> int:
    """Return SQLite's primary error code of a failure, without the bits of the extended one."""
    return failure.sqlite_errorcode & 0xFF
