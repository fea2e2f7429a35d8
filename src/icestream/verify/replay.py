"""Replay: change records folded by key in SQL, and a mirror's rows held against the result.

Of the way in nothing is used but the decoding. Of each key the newest record counts, by the
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
from icestream.verify.scratch import number
from icestream.verify.values import RecordId

MismatchKind = Literal["missing", "resurrected", "phantom", "value-differs"]

_NEWEST = 'ORDER BY seq DESC, "offset" DESC, partition DESC'


class UncarriedColumns(Exception):
    """Records were found that do not carry these columns: they need digests of their own."""

    def __init__(self, columns: set[str]) -> None:
        super().__init__(f"not in every record: {', '.join(sorted(columns))}")
        self.columns = columns


@dataclass(frozen=True)
class ReplayBatch:
    """Decoded records of rows that come, change or go, beside each other."""

    places: pa.Table  # topic, partition, offset
    rows: pa.RecordBatch  # in the columns that are compared
    op: pa.Int8Array  # UPSERT or DELETE
    sequence: pa.BinaryArray
    carries: pa.BooleanArray  # false: a soft delete, which says nothing but that
    missing: Mapping[str, pa.BooleanArray]


@dataclass(frozen=True)
class TruncateEvent:
    """A place at which everything before it is gone."""

    sequence: bytes  # empty: none
    place: RecordId


@dataclass(frozen=True)
class KeyMismatch:
    """A key whose row is not what its records say."""

    kind: MismatchKind
    key: tuple[Any, ...]
    place: RecordId | None  # of the record that counts, or of the row where there is none
    carried: Mapping[str, RecordId]  # columns that older records carry


class ChangeReplay:
    """The records of one mirror and its rows, in tables `events` and `found`."""

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
        at = {name: f"c{n}" for n, name in enumerate(columns.names)}
        rest = [n for n in columns.names if n not in {*keys, *always, *lacking}]
        self._keys = ", ".join(f"k{n}" for n in range(len(keys)))
        self._width = len(keys)
        self._groups = tuple(f"g{n}" for n in range(1 + len(lacking)))
        # A digest of nothing is that of a constant.
        parts = [["0", *(at[n] for n in rest)], *([at[n]] for n in lacking)]
        held = ["carries", *(f"carries AND NOT m{n}" for n in range(len(lacking)))]
        self._picked = ", ".join(
            [
                *(f"{at[name]} AS k{n}" for n, name in enumerate(keys)),
                f"hash({', '.join(['0', *(at[n] for n in always)])}) AS always",
                *(
                    f"CASE WHEN {test} THEN hash({', '.join(part)}) END AS {name}"
                    for name, part, test in zip(self._groups, parts, held, strict=True)
                ),
            ]
        )
        self._after_truncate = "true"  # than the last truncate
        for name in ("events", "found"):
            self._insert(name, self._empty(), create=True)

    # -- what was read -------------------------------------------------------------------------

    def add_records(self, changes: ReplayBatch) -> None:
        """Add records; raises Uncarried when they do not carry a column that others do."""
        found = {name for name, flags in changes.missing.items() if flags.true_count}
        if more := (found & set(self._columns.names)) - set(self._lacking):
            raise UncarriedColumns(more)
        none = pa.repeat(pa.scalar(False), len(changes.op))
        flags = [changes.missing.get(name, none) for name in self._lacking]
        self._insert("events", self._input_table(changes, flags))

    def add_rows(self, rows: pa.RecordBatch, places: pa.Table, sequence: pa.BinaryArray) -> None:
        """Add rows of the table; their places are null where it does not have them."""
        count = rows.num_rows
        whole = pa.repeat(pa.scalar(True), count)
        none = pa.repeat(pa.scalar(False), count)
        op = pa.repeat(pa.scalar(UPSERT, pa.int8()), count)
        changes = ReplayBatch(places, rows, op, sequence, whole, {})
        self._insert("found", self._input_table(changes, [none] * len(self._lacking)))

    def _input_table(self, changes: ReplayBatch, missing: Sequence[pa.BooleanArray]) -> pa.Table:
        parts = {f"c{n}": column for n, column in enumerate(changes.rows.columns)}
        parts |= {name: changes.places.column(name) for name in changes.places.column_names}
        parts |= {f"m{n}": flags for n, flags in enumerate(missing)}
        sequence = changes.sequence.cast(pa.binary()).fill_null(b"")
        return pa.table({**parts, "op": changes.op, "seq": sequence, "carries": changes.carries})

    def _empty(self) -> pa.Table:
        rows = pa.RecordBatch.from_pylist([], schema=self._columns)
        kinds = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()}
        places = pa.table({name: pa.array([], kind) for name, kind in kinds.items()})
        flags = pa.array([], pa.bool_())
        op, sequence = pa.array([], pa.int8()), pa.array([], pa.binary())
        changes = ReplayBatch(places, rows, op, sequence, flags, {})
        return self._input_table(changes, [flags] * len(self._lacking))

    def _insert(self, name: str, given: pa.Table, create: bool = False) -> None:
        begin = f"CREATE TABLE {name} AS" if create else f"INSERT INTO {name}"
        self._database.register("given", given)
        self._database.execute(
            f'{begin} SELECT topic, partition, "offset", op, seq, {self._picked} FROM given'
        )
        self._database.unregister("given")

    # -- what comes of it ----------------------------------------------------------------------

    def fold(self, truncates: Sequence[TruncateEvent], short: set[SourcePartition]) -> bool:
        """Find what becomes of each key; False: it cannot be told.

        `short` are partitions that lack records: there, one that is older than the first one left
        may have been overtaken by one that is gone.
        """
        if truncates and not self._empty_before(truncates):
            return False
        self._run("CREATE TABLE short (topic VARCHAR, partition INTEGER)")
        if short:
            self._database.executemany("INSERT INTO short VALUES (?, ?)", sorted(short))
        keys = self._keys
        ats = ", ".join(
            f'NULL::STRUCT(topic VARCHAR, partition INTEGER, "offset" BIGINT) AS at{name}'
            for name in self._groups
        )
        self._run(f"""
            CREATE TABLE last AS SELECT *, {ats} FROM events WHERE {self._after_truncate}
            QUALIFY row_number() OVER (PARTITION BY {keys} {_NEWEST}) = 1
        """)
        self._run(f"""
            CREATE TABLE unsure AS
            -- Some have a place in the log and some have none: it depends on the batches then.
            SELECT {keys} FROM events GROUP BY ALL
            HAVING count(*) FILTER (WHERE seq = ''::BLOB) NOT IN (0, count(*))
            UNION
            -- Two partitions say something at one place in the log.
            SELECT {keys} FROM events AS e JOIN last AS l USING ({keys})
            WHERE e.seq = l.seq AND (e.topic <> l.topic OR e.partition <> l.partition)
        """)
        if short:
            self._run(f"""
                INSERT INTO unsure
                SELECT {keys} FROM last SEMI JOIN short USING (topic, partition)
                JOIN (
                    SELECT topic, partition, arg_min(seq, "offset") AS first
                    FROM events GROUP BY ALL
                ) USING (topic, partition)
                WHERE seq < first
            """)
        self._fill()
        return True

    def _empty_before(self, truncates: Sequence[TruncateEvent]) -> bool:
        """Leave out what came before the last truncate; False: who came first is not known."""
        nowhere = [each for each in truncates if not each.sequence]
        count = "SELECT count(*) FROM (SELECT DISTINCT topic, partition FROM events)"
        if nowhere and number(self._database, count) > 1:
            return False
        newest = max(truncates, key=lambda each: (each.sequence, each.place[2]))
        place = f"'{newest.sequence.hex()}'"
        self._after_truncate = f"""
            (seq > unhex({place}) OR (seq = unhex({place}) AND "offset" > {newest.place[2]}))
        """
        return True

    def _fill(self) -> None:
        """Take what the newest record of a key does not carry from those before it."""
        keys, open_ = self._keys, f"op = {UPSERT} AND ({self._any('{} IS NULL')})"
        if not number(self._database, f"SELECT count(*) FROM last WHERE {open_}"):
            return
        # What came late was older than the row, or was not: it depends on the batches.
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
        for name in self._groups:
            self._run(f"""
                CREATE OR REPLACE TABLE carried AS
                SELECT {keys}, {name}, topic, partition, "offset"
                FROM (
                    SELECT *, count(*) FILTER (WHERE op = {DELETE}) OVER
                        (PARTITION BY {keys} {_NEWEST} ROWS UNBOUNDED PRECEDING) AS gone
                    FROM events
                    SEMI JOIN (
                        SELECT {keys} FROM last WHERE op = {UPSERT} AND {name} IS NULL
                    ) USING ({keys})
                    ANTI JOIN mixed USING ({keys})
                    WHERE {self._after_truncate}
                )
                WHERE gone = 0 AND {name} IS NOT NULL
                QUALIFY row_number() OVER (PARTITION BY {keys} {_NEWEST}) = 1
            """)
            self._run(f"""
                UPDATE last SET {name} = c.{name},
                    at{name} = {{'topic': c.topic, 'partition': c.partition, 'offset': c."offset"}}
                FROM carried AS c WHERE {self._same("last", "c")}
            """)
        # A soft delete of nothing leaves nothing, if it is sure that there was nothing.
        self._run(f"""
            INSERT INTO unsure
            SELECT {keys} FROM last WHERE op = {UPSERT} AND g0 IS NULL AND (
                ({keys}) IN (SELECT ({keys}) FROM mixed)
                OR (topic, partition) IN (SELECT (topic, partition) FROM short)
            )
        """)

    # -- the comparison ------------------------------------------------------------------------

    def compare(self, lenient: bool) -> None:
        """Hold rows against records; `lenient`: a record that lacks values may be dropped."""
        keys, live = self._keys, f"l.op = {UPSERT} AND l.g0 IS NOT NULL"
        whole = f"AND NOT ({self._any('l.{} IS NULL')})" if lenient else ""
        differs = self._any("f.{} <> l.{}")
        # Its record is not on the broker, which has removed some; then the row may be right.
        self._run("""
            CREATE TABLE seen AS
            SELECT f.*, (SELECT count(*) FROM short) > 0 AND (
                f.topic IS NULL OR (s.topic IS NOT NULL AND e.topic IS NULL)
            ) AS gone
            FROM found AS f
            LEFT JOIN short AS s ON f.topic = s.topic AND f.partition = s.partition
            LEFT JOIN (SELECT DISTINCT topic, partition, "offset" FROM events) AS e
                ON f.topic = e.topic AND f.partition = e.partition AND f."offset" = e."offset"
        """)
        newer = 'f.seq > l.seq OR (f.seq = l.seq AND coalesce(f."offset" > l."offset", true))'
        self._run(f"""
            CREATE TABLE apart AS
            SELECT CASE WHEN f.op IS NULL THEN 'missing' WHEN l.op IS NULL THEN 'phantom'
                    WHEN {live} THEN 'value-differs' ELSE 'resurrected' END AS kind,
                coalesce(f.gone AND (l.op IS NULL OR ({newer})), false) AS open,
                {", ".join(f"coalesce(l.k{n}, f.k{n}) AS k{n}" for n in range(self._width))},
                coalesce(l.topic, f.topic) AS topic,
                coalesce(l.partition, f.partition) AS partition,
                coalesce(l."offset", f."offset") AS "offset",
                {", ".join(f"l.at{name}" for name in self._groups)}
            FROM last AS l FULL JOIN seen AS f ON {self._same("l", "f")}
            WHERE CASE
                WHEN f.op IS NULL THEN {live} {whole}
                WHEN l.op IS NULL OR NOT ({live}) THEN true
                ELSE f.always <> l.always OR coalesce({differs}, false)
            END
        """)
        self._run(f"""
            UPDATE apart SET open = true WHERE ({keys}) IN (SELECT ({keys}) FROM unsure)
        """)

    def count(self, kind: MismatchKind) -> int:
        """How many keys are apart in this way."""
        return self._number(f"FROM apart WHERE kind = '{kind}' AND NOT open")

    def mismatches(self, kind: MismatchKind, most: int) -> Iterator[KeyMismatch]:
        """The first of them."""
        told = self._database.execute(f"""
            SELECT topic, partition, "offset", {", ".join(f"at{name}" for name in self._groups)},
                {self._keys}
            FROM apart WHERE kind = '{kind}' AND NOT open
            ORDER BY topic, partition, "offset", {self._keys} LIMIT {most}
        """).fetchall()
        groups = len(self._groups)
        for topic, partition, offset, *more in told:
            ats, key = more[:groups], more[groups:]
            place = None if topic is None else (topic, partition, offset)
            carried = {
                name: (at["topic"], at["partition"], at["offset"])
                for name, at in zip(("", *self._lacking), ats, strict=True)
                if at
            }
            yield KeyMismatch(kind, tuple(key), place, carried)

    @property
    def undecided(self) -> int:
        """Keys that are apart, and may be right all the same."""
        return self._number("FROM apart WHERE open")

    @property
    def rows_read(self) -> int:
        """Rows of the table."""
        return self._number("FROM found")

    @property
    def keys_read(self) -> int:
        """Keys that the records speak of."""
        return self._number("FROM last")

    @property
    def unknown(self) -> int:
        """Rows with a value that no record told for sure."""
        found = f"op = {UPSERT} AND g0 IS NOT NULL AND ({self._any('{} IS NULL')})"
        return self._number(f"FROM last WHERE {found}")

    # -- small things --------------------------------------------------------------------------

    def _run(self, query: str) -> None:
        self._database.execute(query)

    def _number(self, rest: str) -> int:
        return number(self._database, f"SELECT count(*) {rest}")

    def _same(self, one: str, other: str) -> str:
        return " AND ".join(f"{one}.k{n} = {other}.k{n}" for n in range(self._width))

    def _any(self, test: str) -> str:
        """A test of each group, `{}` in it; true if one holds."""
        return " OR ".join(test.format(name, name) for name in self._groups)
