"""A mirror under test, from outside: made, filled, watched by events taken, and read."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import statements
import wheels
from changes import COLUMNS, FIGURES, SEQUENCE, Feed, Maker
from lake import NAME, NAMESPACE, PROPERTIES, Commit, Lake, _commit
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

KINDS: dict[str, Any] = {
    "bigint": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "decimal(12,2)": DecimalType(12, 2),
    "timestamptz": TimestamptzType(),
}
LOCK = Path(__file__).with_name("duckdb.lock")
TABLE, COPY = f"lake.{NAMESPACE}.{NAME}", f"lake.{NAMESPACE}.copy"
AT_ONCE = 1_000_000
WARM, SCANS = 3, 9  # of each, by turns

SCAN = """
SELECT count(*) AS rows, sum(quantity) AS quantities, sum(amount) AS amounts,
    max(customer_id) AS customer, sum(length(note)) AS letters, max(updated_at) AS newest
FROM {}
"""
IN_SPARK = {
    "micros": "unix_micros",
    "text": "STRING",
    "number": "CAST(conv(",
    "base": ", 16, 10) AS BIGINT)",
}


def extensions() -> list[Path]:
    """What DuckDB needs to read Iceberg's tables."""
    found = wheels.installed(LOCK).glob("*/extensions/*/*.duckdb_extension")
    return sorted(found)  # avro comes before iceberg, which needs it


class MirrorLake(Lake):
    """A lake whose table has a key, and whose commits count events instead of rows."""

    def __init__(self, warehouse: Path, taken: Mapping[int, int] | None = None) -> None:
        """`taken` says how many events those are of which a table has written so many rows."""
        super().__init__(warehouse)
        self._taken = taken or {0: 0}

    def create_keyed(self, properties: Mapping[str, str]) -> None:
        """Make the table for a system that does not do so itself."""
        fields = [
            NestedField(number, name, KINDS[kind], required=name == "id")
            for number, (name, kind) in enumerate(COLUMNS.items(), 1)
        ]
        catalog = self._catalog.open()
        catalog.create_namespace(NAMESPACE)
        schema = Schema(*fields, identifier_field_ids=[1])
        catalog.create_table((NAMESPACE, NAME), schema, properties={**PROPERTIES, **properties})
        catalog.close()

    def fill(self, feed: Feed, rows: int) -> None:
        """Put the first rows of a feed into the table, a million in a file."""
        table, maker = self.table(), Maker()
        more = SEQUENCE if "_src_sequence" in table.schema().column_names else ""
        for first in range(0, rows, AT_ONCE):
            made = maker.rows(feed.rows(first, min(first + AT_ONCE, rows)), more)
            kinds = table.schema().select(*made.column_names).as_arrow()
            table.append(made.select(kinds.names).cast(kinds))

    def commits(self) -> list[Commit]:
        location = self._location()
        if location and location != self._seen[0]:
            metadata = json.loads(Path(location.removeprefix("file:")).read_bytes())
            self._seen = (location, list(self._counted(metadata.get("snapshots", []))))
        return self._seen[1]

    def _counted(self, snapshots: Sequence[Mapping[str, Any]]) -> Iterator[Commit]:
        """Events by icestream's own word, or by the rows that were ever written."""
        positions: dict[str, int] = {}
        for snapshot in snapshots:
            commit = _commit(dict(snapshot))
            offsets = json.loads(snapshot["summary"].get("icestream.offsets", "{}"))
            for stream, partitions in offsets.items():
                positions |= {f"{stream}/{number}": at for number, at in partitions.items()}
            written = np.interp(commit.total_records, [*self._taken], [*self._taken.values()])
            events = sum(positions.values()) if positions else round(float(written))
            yield replace(commit, total_records=events)

    def by_pyiceberg(self) -> dict[str, int]:
        """What the table holds, as PyIceberg reads it."""
        scan = self.table().scan(selected_fields=tuple(COLUMNS))
        return Maker().figures(scan.to_arrow_batch_reader())

    def by_duckdb(self) -> dict[str, int]:
        """What the table holds, as DuckDB's own extension reads it."""
        place = str(self._location()).removeprefix("file:")
        return Maker(extensions()).figures_of(f"iceberg_scan('{place}')")

    def scans(self, folder: Path) -> tuple[dict[str, int], dict[str, Any]]:
        """Read by Spark: what the table holds, and a full scan of it and of a fresh copy.

        Both are read a few times before anything is measured: Java compiles what they share, and
        neither of the two shall pay for that.
        """
        rounds = [(name, SCAN.format(name)) for name in (TABLE, COPY)]
        done = statements.run(
            folder,
            self,
            [
                ("copy", f"CREATE TABLE {COPY} USING iceberg AS SELECT * FROM {TABLE}"),
                *[(f"warm {name}", text) for name, text in rounds] * WARM,
                *(rounds * SCANS),
                ("figures", FIGURES.format(rows=TABLE, **IN_SPARK)),
            ],
        )
        found = {
            name: {
                "seconds": round(float(np.median([d.seconds for d in done if d.name == name])), 3),
                "cpu_s": round(sum(d.cpu for d in done if d.name == name) / SCANS, 3),
            }
            for name in (TABLE, COPY)
        }
        own, copy = found[TABLE], found[COPY]
        return done[-1].rows[0], {
            "scan_ratio": round(own["seconds"] / copy["seconds"], 3),
            "scan": {**own, "copy": copy, "cpu_ratio": round(own["cpu_s"] / copy["cpu_s"], 3)},
        }
