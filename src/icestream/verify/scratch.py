"""Scratch: a DuckDB file in the temporary folder, which holds more than memory does."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

_MEMORY = "1GB"


@contextmanager
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    """Context manager: an empty database, removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="icestream-verify-") as folder:
        path = str(Path(folder) / "verify.db")
        with duckdb.connect(path, config={"memory_limit": _MEMORY}) as connection:
            yield connection


@contextmanager
def registered(
    connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table | pa.RecordBatch
) -> Iterator[None]:
    """Context manager: queries inside the block can read these rows as the view `name`."""
    connection.register(name, rows)
    try:
        yield
    finally:
        connection.unregister(name)


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def query_number(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    """Run a query whose result is one number."""
    row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0
