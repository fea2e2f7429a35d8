"""Values: rows by a digest of their columns, in a DuckDB file that spills to disk."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from icestream.tables.arrow import arrow_schema
from icestream.verify.scan import ORIGIN, batches, tasks
from icestream.verify.scratch import query_number, quoted, registered
from icestream.write.conform import conform_to

RecordId = tuple[str, int, int]  # topic, partition, offset

_LONGEST = 80  # characters of a value that are shown

_TABLE = """
    CREATE TABLE {name} (topic VARCHAR, partition INTEGER, "offset" BIGINT, digest UBIGINT)
"""
_DIFFERING = """
    SELECT topic, partition, "offset"
    FROM expected JOIN actual USING (topic, partition, "offset")
    WHERE expected.digest <> actual.digest
    ORDER BY ALL
"""


class RowDigests:
    """Digests, 64 bits each, of rows as their records say and as the table has them."""

    def __init__(self, database: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._database = database
        for name in ("expected", "actual"):
            self._database.execute(_TABLE.format(name=name))
        self.compared = 0

    def add_expected(self, rows: pa.RecordBatch) -> None:
        """Add rows as the records say that they are."""
        self._insert("expected", rows)

    def add_table(self, table: Table, live: Sequence[DataFile]) -> None:
        """Add the rows of the table's current snapshot."""
        schema = arrow_schema(table.schema().select(*self._columns))
        for task in tasks(table, live):
            for batch in batches(table, task, self._columns):
                self._insert("actual", conform_to(batch, schema))

    def differing(self, most: int) -> tuple[int, list[RecordId]]:
        """Compare. Returns how many rows differ from their records, and the first of them."""
        both = 'SELECT count(*) FROM expected JOIN actual USING (topic, partition, "offset")'
        self.compared = query_number(self._database, both)
        total = query_number(self._database, f"SELECT count(*) FROM ({_DIFFERING})")
        rows = self._database.execute(f"{_DIFFERING} LIMIT {most}").fetchall()
        return total, [(topic, partition, offset) for topic, partition, offset in rows]

    def _insert(self, name: str, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        columns = ", ".join(quoted(column) for column in self._columns)
        origin = ", ".join(quoted(column) for column in ORIGIN)
        with registered(self._database, "batch", pa.Table.from_batches([rows])):
            self._database.execute(
                f"INSERT INTO {name} SELECT {origin}, hash({columns}) FROM batch"
            )


def differing(
    table: Table,
    live: Sequence[DataFile],
    expected: Mapping[RecordId, Mapping[str, Any]],
    columns: tuple[str, ...],
) -> Iterator[tuple[RecordId, str, str, str]]:
    """Yield the columns of these rows that differ: origin, name, expected and actual value."""
    offsets = pa.array([offset for _, _, offset in expected], pa.int64())
    for task in tasks(table, live):
        for batch in batches(table, task, columns):
            candidates = batch.filter(pc.is_in(batch.column(ORIGIN[2]), offsets))
            for row in candidates.to_pylist():
                origin = (row[ORIGIN[0]], row[ORIGIN[1]], row[ORIGIN[2]])
                wanted = expected.get(origin, row)
                for column in columns:
                    if repr(row[column]) != repr(wanted[column]):
                        yield origin, column, shorten(wanted[column]), shorten(row[column])


def shorten(value: Any) -> str:
    """Format a value for people; a long one is cut."""
    text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
