"""Catalog `local`: a SQLite file and a folder, no server; Spark and PyIceberg open the same one."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from icestream.catalogs.sqlite import use_wal
from icestream.errors import SetupError, Unreachable

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyCatalog

FILE = "catalog.db"
_BUSY_SECONDS = 30  # stream, maintenance and status share the file
# As JdbcCatalog and SqlCatalog expect them. Each would create them, too, but checks first and then
# creates: of two processes that start with a new file at once, one would fail.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS iceberg_tables (
    catalog_name               VARCHAR(255) NOT NULL,
    table_namespace            VARCHAR(255) NOT NULL,
    table_name                 VARCHAR(255) NOT NULL,
    metadata_location          VARCHAR(1000),
    previous_metadata_location VARCHAR(1000),
    iceberg_type               VARCHAR(5),
    PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
    catalog_name   VARCHAR(255) NOT NULL,
    namespace      VARCHAR(255) NOT NULL,
    property_key   VARCHAR(255),
    property_value VARCHAR(1000),
    PRIMARY KEY (catalog_name, namespace, property_key)
);
"""


class LocalCatalog:
    """Iceberg's JdbcCatalog on `<warehouse>/catalog.db`."""

    def __init__(self, options: Any) -> None:
        self.name: str = options.name
        self.warehouse = Path(options.warehouse).absolute()
        self._properties: Mapping[str, str] = options.properties

    def java_properties(self) -> Mapping[str, str]:
        """Return the properties of a JdbcCatalog over sqlite-jdbc; creates the file if need be."""
        self._prepare()
        file = self.warehouse / FILE
        return {
            "type": "jdbc",
            "uri": f"jdbc:sqlite:{file}?journal_mode=WAL&busy_timeout={_BUSY_SECONDS * 1000}",
            "warehouse": str(self.warehouse),
            "jdbc.schema-version": "V1",
            **self._properties,
        }

    def open(self) -> "PyCatalog":
        """Open PyIceberg's SqlCatalog on the same file."""
        from pyiceberg.catalog.sql import SqlCatalog

        self._prepare()
        return SqlCatalog(
            self.name,
            uri=f"sqlite:///{quote(str(self.warehouse / FILE))}?timeout={_BUSY_SECONDS}",
            warehouse=str(self.warehouse),
            schema_version="v1",
            **self._properties,
        )

    def check(self) -> None:
        """Check that the warehouse can be written and the catalog file is a SQLite database."""
        self._prepare()

    def _prepare(self) -> None:
        """Create folder, file and tables if they are missing; raises SetupError or Unreachable."""
        if "?" in str(self.warehouse):  # where settings begin in the address of the SQLite file
            raise SetupError(
                f"warehouse folder `{self.warehouse}` has a `?` in its name",
                hint="set `catalog.warehouse` to a folder without one",
            )
        try:
            self.warehouse.mkdir(parents=True, exist_ok=True)
        except OSError as failure:
            raise SetupError(
                f"warehouse folder `{self.warehouse}` cannot be made: {failure.strerror}",
                hint="set `catalog.warehouse` to a folder that you may write to",
            ) from None
        if not os.access(self.warehouse, os.W_OK):
            raise SetupError(
                f"warehouse folder `{self.warehouse}` is not writable",
                hint="set `catalog.warehouse` to a folder that you may write to",
            )
        file = self.warehouse / FILE
        try:
            with closing(sqlite3.connect(file, timeout=_BUSY_SECONDS)) as database:
                use_wal(database, _BUSY_SECONDS)
                database.executescript(_SCHEMA)
        except sqlite3.DatabaseError as failure:
            raise Unreachable(
                f"catalog file `{file}` cannot be opened: {failure}",
                hint="move it away if it is not a SQLite database",
            ) from None
