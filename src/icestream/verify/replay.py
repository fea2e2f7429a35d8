"""Replay: change records folded by key in SQL, and a mirror's rows compared with the result.

Of the code of a run nothing is used but the decoding. Of each key the newest record counts, by the
source's log and then by offset; what it does not carry comes from the newest before it that does.
Rows are kept as digests of groups of columns: those that every record carries, and each column
that some record does not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import duckdb
import pyarrow as pa

from icestream.formats import DELETE, UPSERT
from icestream.verify.offsets import SourcePartition
from icestream.verify.scratch import query_number, registered
from icestream.verify.values import RecordId

MismatchKind = Literal["missing", "resurrected", "phantom", "value-differs"]

_NEWEST = 'ORDER BY seq DESC, "offset" DESC, partition DESC'


class UncarriedColumns(Exception):
    """Some records do not carry these columns: the replay needs a digest for each of them.

    `check_mirror` begins again with those columns as `lacking`.
    """

    def __init__(self, columns: set[str]) -> None:
        super().__init__(f"not in every record: {', '.join(sorted(columns))}")
        self.columns = columns


@dataclass(frozen=True)
class ReplayBatch:
    """Decoded change records, as columns of equal length."""

    origins: pa.Table  # topic, partition, offset
    rows: pa.RecordBatch  # in the columns that are compared
    op: pa.Int8Array  # UPSERT or DELETE
    sequence: pa.BinaryArray
    carries: pa.BooleanArray  # false: a soft delete, which says nothing but that
    missing: Mapping[str, pa.BooleanArray]


@dataclass(frozen=True)
class TruncateEvent:
    """A truncate of the source table: it deletes every row before it."""

    sequence: bytes  # its place in the source's log; empty: none
    origin: RecordId


@dataclass(frozen=True)
class KeyMismatch:
    """A key whose row is not what its records say."""

    kind: MismatchKind
    key: tuple[Any, ...]
    origin: RecordId | None  # the record that counts, or that of the row if there is none
    carried: Mapping[str, RecordId]  # by column: an older record that its value comes from


class ChangeReplay:
    """The records of one mirror and its rows, in the SQL tables `events` and `table_rows`."""

    def __init__(
        self,
        database: duckdb.DuckDBPyConnection,
        columns: pa.Schema,
        keys: Sequence[str],
        always: Sequence[str],
        lacking: Sequence[str] = (),
    ) -> None:
        self._database = database
        self._columns = columns
        self._lacking = tuple(lacking)
        inputs = {name: f"c{n}" for n, name in enumerate(columns.names)}
        others = [name for name in columns.names if name not in {*keys, *always, *lacking}]
        self._keys = ", ".join(f"k{n}" for n in range(len(keys)))
        self._width = len(keys)
        self._groups = tuple(f"g{n}" for n in range(1 + len(lacking)))
        # A digest of nothing is that of a constant.
        parts = [["0", *(inputs[name] for name in others)], *([inputs[name]] for name in lacking)]
        is_carried = ["carries", *(f"carries AND NOT m{n}" for n in range(len(lacking)))]
        self._selected = ", ".join(
            [
                *(f"{inputs[name]} AS k{n}" for n, name in enumerate(keys)),
                f"hash({', '.join(['0', *(inputs[name] for name in always)])}) AS always",
                *(
                    f"CASE WHEN {test} THEN hash({', '.join(part)}) END AS {group}"
                    for group, part, test in zip(self._groups, parts, is_carried, strict=True)
                ),
            ]
        )
        self._after_truncate = "true"  # SQL condition: the record is newer than the last truncate
        for name in ("events", "table_rows"):
            self._insert(name, self._empty(), create=True)

    # -- what was read -------------------------------------------------------------------------

    def add_records(self, changes: ReplayBatch) -> None:
        """Add records; raises UncarriedColumns when some lack a column not known as `lacking`."""
        uncarried = {name for name, flags in changes.missing.items() if flags.true_count}
        if more := (uncarried & set(self._columns.names)) - set(self._lacking):
            raise UncarriedColumns(more)
        none = pa.repeat(pa.scalar(False), len(changes.op))
        flags = [changes.missing.get(name, none) for name in self._lacking]
        self._insert("events", self._input_table(changes, flags))

    def add_rows(self, rows: pa.RecordBatch, origins: pa.Table, sequence: pa.BinaryArray) -> None:
        """Add rows of the table; their origins are null where it does not have them."""
        count = rows.num_rows
        whole = pa.repeat(pa.scalar(True), count)
        none = pa.repeat(pa.scalar(False), count)
        op = pa.repeat(pa.scalar(UPSERT, pa.int8()), count)
        changes = ReplayBatch(origins, rows, op, sequence, whole, {})
        self._insert("table_rows", self._input_table(changes, [none] * len(self._lacking)))

    def _input_table(self, changes: ReplayBatch, missing: Sequence[pa.BooleanArray]) -> pa.Table:
        parts = {f"c{n}": column for n, column in enumerate(changes.rows.columns)}
        parts |= {name: changes.origins.column(name) for name in changes.origins.column_names}
        parts |= {f"m{n}": flags for n, flags in enumerate(missing)}
        sequence = changes.sequence.cast(pa.binary()).fill_null(b"")
        return pa.table({**parts, "op": changes.op, "seq": sequence, "carries": changes.carries})

    def _empty(self) -> pa.Table:
        rows = pa.RecordBatch.from_pylist([], schema=self._columns)
        types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
        origins = pa.table({name: pa.array([], arrow_type) for name, arrow_type in types.items()})
        flags = pa.array([], pa.bool_())
        op, sequence = pa.array([], pa.int8()), pa.array([], pa.binary())
        changes = ReplayBatch(origins, rows, op, sequence, flags, {})
        return self._input_table(changes, [flags] * len(self._lacking))

    def _insert(self, name: str, batch: pa.Table, create: bool = False) -> None:
        into = f"CREATE TABLE {name} AS" if create else f"INSERT INTO {name}"
        with registered(self._database, "batch", batch):
            self._run(
                f'{into} SELECT topic, partition, "offset", op, seq, {self._selected} FROM batch'
            )

    # -- what comes of it ----------------------------------------------------------------------

    def fold(self, truncates: Sequence[TruncateEvent], incomplete: set[SourcePartition]) -> bool:
        """Find what becomes of each key. False: it cannot be told, and nothing is compared.

        `incomplete` are partitions of which the broker has removed records: there, one that is
        older than the first one left may have been overtaken by a removed one.
        """
        if truncates and not self._empty_before(truncates):
            return False
        self._run("CREATE TABLE incomplete (topic VARCHAR, partition INTEGER)")
        if incomplete:
            self._database.executemany("INSERT INTO incomplete VALUES (?, ?)", sorted(incomplete))
        keys = self._keys
        origins = ", ".join(
            f'NULL::STRUCT(topic VARCHAR, partition INTEGER, "offset" BIGINT) AS at{group}'
            for group in self._groups
        )
        self._run(f"""
            CREATE TABLE newest AS SELECT *, {origins} FROM events WHERE {self._after_truncate}
            QUALIFY row_number() OVER (PARTITION BY {keys} {_NEWEST}) = 1
        """)
        self._run(f"""
            CREATE TABLE undecided AS
            -- Some have a place in the log and some have none: it depends on the batches then.
            SELECT {keys} FROM events GROUP BY ALL
            HAVING count(*) FILTER (WHERE seq = ''::BLOB) NOT IN (0, count(*))
            UNION
            -- Two partitions have a record of the key with one place in the log.
            SELECT {keys} FROM events AS e JOIN newest AS n USING ({keys})
            WHERE e.seq = n.seq AND (e.topic <> n.topic OR e.partition <> n.partition)
        """)
        if incomplete:
            self._run(f"""
                INSERT INTO undecided
                SELECT {keys} FROM newest SEMI JOIN incomplete USING (topic, partition)
                JOIN (
                    SELECT topic, partition, arg_min(seq, "offset") AS first
                    FROM events GROUP BY ALL
                ) USING (topic, partition)
                WHERE seq < first
            """)
        self._fill()
        return True

    def _empty_before(self, truncates: Sequence[TruncateEvent]) -> bool:
        """Ignore records before the last truncate. False: which are before it is not known."""
        partitions = "FROM (SELECT DISTINCT topic, partition FROM events)"
        if not all(event.sequence for event in truncates) and self._count(partitions) > 1:
            return False
        last = max(truncates, key=lambda event: (event.sequence, event.origin[2]))
        sequence = f"unhex('{last.sequence.hex()}')"
        self._after_truncate = f"""
            (seq > {sequence} OR (seq = {sequence} AND "offset" > {last.origin[2]}))
        """
        return True

    def _fill(self) -> None:
        """Take what the newest record of a key does not carry from those before it."""
        keys, lacks = self._keys, f"op = {UPSERT} AND ({self._any('{} IS NULL')})"
        if not self._count(f"FROM newest WHERE {lacks}"):
            return
        # Records out of order, or of several partitions: what the row has depends on the batches.
        self._run(f"""
            CREATE TABLE mixed AS
            SELECT {keys} FROM (
                SELECT {keys}, seq < lag(seq) OVER
                    (PARTITION BY {keys}, topic, partition ORDER BY "offset") AS back
                FROM events
            ) WHERE back
            UNION
            SELECT {keys} FROM events GROUP BY ALL HAVING count(DISTINCT (topic, partition)) > 1
        """)
        for group in self._groups:
            # Not across a delete: a value from before it belonged to a row that was deleted.
            self._run(f"""
                CREATE OR REPLACE TABLE carried AS
                SELECT {keys}, {group}, topic, partition, "offset"
                FROM (
                    SELECT *, count(*) FILTER (WHERE op = {DELETE}) OVER
                        (PARTITION BY {keys} {_NEWEST} ROWS UNBOUNDED PRECEDING) AS later_deletes
                    FROM events
                    SEMI JOIN (
                        SELECT {keys} FROM newest WHERE op = {UPSERT} AND {group} IS NULL
                    ) USING ({keys})
                    ANTI JOIN mixed USING ({keys})
                    WHERE {self._after_truncate}
                )
                WHERE later_deletes = 0 AND {group} IS NOT NULL
                QUALIFY row_number() OVER (PARTITION BY {keys} {_NEWEST}) = 1
            """)
            self._run(f"""
                UPDATE newest SET {group} = c.{group},
                    at{group} = {{'topic': c.topic, 'partition': c.partition, 'offset': c."offset"}}
                FROM carried AS c WHERE {self._same("newest", "c")}
            """)
        # A soft delete of nothing leaves nothing, if it is sure that there was nothing.
        self._run(f"""
            INSERT INTO undecided
            SELECT {keys} FROM newest WHERE op = {UPSERT} AND g0 IS NULL AND (
                ({keys}) IN (SELECT ({keys}) FROM mixed)
                OR (topic, partition) IN (SELECT (topic, partition) FROM incomplete)
            )
        """)

    # -- the comparison ------------------------------------------------------------------------

    def compare(self, lenient: bool) -> None:
        """Compare rows with records; `lenient`: a record that lacks values may be dropped."""
        keys, live = self._keys, f"n.op = {UPSERT} AND n.g0 IS NOT NULL"
        whole = f"AND NOT ({self._any('n.{} IS NULL')})" if lenient else ""
        differs = self._any("r.{} <> n.{}")
        # A row whose record the broker has removed, or may have removed, may be right.
        self._run("""
            CREATE TABLE checked_rows AS
            SELECT r.*, (SELECT count(*) FROM incomplete) > 0 AND (
                r.topic IS NULL OR (i.topic IS NOT NULL AND e.topic IS NULL)
            ) AS record_removed
            FROM table_rows AS r
            LEFT JOIN incomplete AS i ON r.topic = i.topic AND r.partition = i.partition
            LEFT JOIN (SELECT DISTINCT topic, partition, "offset" FROM events) AS e
                ON r.topic = e.topic AND r.partition = e.partition AND r."offset" = e."offset"
        """)
        newer = 'r.seq > n.seq OR (r.seq = n.seq AND coalesce(r."offset" > n."offset", true))'
        self._run(f"""
            CREATE TABLE mismatches AS
            SELECT CASE WHEN r.op IS NULL THEN 'missing' WHEN n.op IS NULL THEN 'phantom'
                    WHEN {live} THEN 'value-differs' ELSE 'resurrected' END AS kind,
                coalesce(r.record_removed AND (n.op IS NULL OR ({newer})), false) AS open,
                {", ".join(f"coalesce(n.k{k}, r.k{k}) AS k{k}" for k in range(self._width))},
                coalesce(n.topic, r.topic) AS topic,
                coalesce(n.partition, r.partition) AS partition,
                coalesce(n."offset", r."offset") AS "offset",
                {", ".join(f"n.at{group}" for group in self._groups)}
            FROM newest AS n FULL JOIN checked_rows AS r ON {self._same("n", "r")}
            WHERE CASE
                WHEN r.op IS NULL THEN {live} {whole}
                WHEN n.op IS NULL OR NOT ({live}) THEN true
                ELSE r.always <> n.always OR coalesce({differs}, false)
            END
        """)
        self._run(f"""
            UPDATE mismatches SET open = true WHERE ({keys}) IN (SELECT ({keys}) FROM undecided)
        """)

    def count(self, kind: MismatchKind) -> int:
        """Count the keys with this kind of mismatch."""
        return self._count(f"FROM mismatches WHERE kind = '{kind}' AND NOT open")

    def mismatches(self, kind: MismatchKind, most: int) -> Iterator[KeyMismatch]:
        """Yield the first keys with this kind of mismatch."""
        rows = self._database.execute(f"""
            SELECT topic, partition, "offset", {", ".join(f"at{group}" for group in self._groups)},
                {self._keys}
            FROM mismatches WHERE kind = '{kind}' AND NOT open
            ORDER BY topic, partition, "offset", {self._keys} LIMIT {most}
        """).fetchall()
        groups = len(self._groups)
        for topic, partition, offset, *more in rows:
            origins, key = more[:groups], more[groups:]
            carried = {
                name: (origin["topic"], origin["partition"], origin["offset"])
                for name, origin in zip(("", *self._lacking), origins, strict=True)
                if origin
            }
            origin = None if topic is None else (topic, partition, offset)
            yield KeyMismatch(kind, tuple(key), origin, carried)

    @property
    def undecided(self) -> int:
        """Count the keys with a mismatch that may be right all the same."""
        return self._count("FROM mismatches WHERE open")

    @property
    def rows_read(self) -> int:
        """Count the rows of the table."""
        return self._count("FROM table_rows")

    @property
    def keys_read(self) -> int:
        """Count the keys that have a record."""
        return self._count("FROM newest")

    @property
    def unknown(self) -> int:
        """Count the keys with a value that no record gives for sure."""
        lacks = f"op = {UPSERT} AND g0 IS NOT NULL AND ({self._any('{} IS NULL')})"
        return self._count(f"FROM newest WHERE {lacks}")

    # -- small things --------------------------------------------------------------------------

    def _run(self, query: str) -> None:
        self._database.execute(query)

    def _count(self, from_clause: str) -> int:
        return query_number(self._database, f"SELECT count(*) {from_clause}")

    def _same(self, left: str, right: str) -> str:
        return " AND ".join(f"{left}.k{n} = {right}.k{n}" for n in range(self._width))

    def _any(self, test: str) -> str:
        """SQL that is true if a test, with `{}` for the group, holds for any group of columns."""
        return " OR ".join(test.format(group, group) for group in self._groups)
