"""Scratch: a DuckDB file in the temporary folder, which holds more than memory does."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

_MEMORY = "1GB"


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """An empty database that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="icestream-verify-") as folder:
        path = str(Path(folder) / "verify.db")
        opened = duckdb.connect(path, config={"memory_limit": _MEMORY})
        try:
            yield opened
        finally:
            opened.close()


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def number(opened: duckdb.DuckDBPyConnection, query: str) -> int:
    """The one number that a query is about."""
    row = opened.execute(query).fetchone()
    return int(row[0]) if row else 0
