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
from icestream.verify.scratch import number, quoted
from icestream.write.conform import conform_to

RecordId = tuple[str, int, int]  # topic, partition, offset

_LONGEST = 80  # characters of a value that are told

_TABLE = """
    CREATE TABLE {name} (topic VARCHAR, partition INTEGER, "offset" BIGINT, digest UBIGINT)
"""
_DIFFERING = """
    SELECT topic, partition, "offset"
    FROM expected JOIN found USING (topic, partition, "offset")
    WHERE expected.digest <> found.digest
    ORDER BY ALL
"""


class RowDigests:
    """What rows should be and what they are, each as 64 bits."""

    def __init__(self, database: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._database = database
        for name in ("expected", "found"):
            self._database.execute(_TABLE.format(name=name))
        self.compared = 0

    def add_expected(self, rows: pa.RecordBatch) -> None:
        """Take rows as the records say that they are."""
        self._insert("expected", rows)

    def add_table(self, table: Table, live: Sequence[DataFile]) -> None:
        """Take the rows of the table's current snapshot."""
        wanted = arrow_schema(table.schema().select(*self._columns))
        for task in tasks(table, live):
            for batch in batches(table, task, self._columns):
                self._insert("found", conform_to(batch, wanted))

    def differing(self, most: int) -> tuple[int, list[RecordId]]:
        """How many rows differ from their records, and which the first are."""
        both = 'SELECT count(*) FROM expected JOIN found USING (topic, partition, "offset")'
        self.compared = number(self._database, both)
        total = number(self._database, f"SELECT count(*) FROM ({_DIFFERING})")
        rows = self._database.execute(f"{_DIFFERING} LIMIT {most}").fetchall()
        return total, [(topic, partition, offset) for topic, partition, offset in rows]

    def _insert(self, name: str, rows: pa.RecordBatch) -> None:
        if not rows.num_rows:
            return
        columns = ", ".join(quoted(column) for column in self._columns)
        origin = ", ".join(quoted(column) for column in ORIGIN)
        self._database.register("given", pa.Table.from_batches([rows]))
        self._database.execute(f"INSERT INTO {name} SELECT {origin}, hash({columns}) FROM given")
        self._database.unregister("given")


def differing(
    table: Table,
    live: Sequence[DataFile],
    expected: Mapping[RecordId, Mapping[str, Any]],
    columns: tuple[str, ...],
) -> Iterator[tuple[RecordId, str, str, str]]:
    """The columns of these rows that are not as expected: where, name, expected, seen."""
    offsets = pa.array([offset for _, _, offset in expected], pa.int64())
    for task in tasks(table, live):
        for batch in batches(table, task, columns):
            few = batch.filter(pc.is_in(batch.column(ORIGIN[2]), offsets))
            for row in few.to_pylist():
                place = (row[ORIGIN[0]], row[ORIGIN[1]], row[ORIGIN[2]])
                wanted = expected.get(place, row)
                for column in columns:
                    if repr(row[column]) != repr(wanted[column]):
                        yield place, column, shorten(wanted[column]), shorten(row[column])


def shorten(value: Any) -> str:
    """A value for people, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
