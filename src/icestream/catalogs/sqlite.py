"""SQLite files that several processes open at once."""

import sqlite3
import time

_PAUSE_SECONDS = 0.02


def use_wal(database: sqlite3.Connection, seconds: float) -> None:
    """Let readers and a writer work side by side, from now on and for every process.

    The change itself needs a lock for which SQLite does not always wait, and two runs may begin at
    the same moment; in a file that is changed already, it needs none.
    """
    patient_until = time.monotonic() + seconds
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as failure:
            if code(failure) != sqlite3.SQLITE_BUSY or time.monotonic() > patient_until:
                raise
            time.sleep(_PAUSE_SECONDS)


def code(failure: sqlite3.DatabaseError) -> int:
    """The kind of a failure, without what SQLite says on top of it."""
    return failure.sqlite_errorcode & 0xFF
