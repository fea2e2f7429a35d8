"""Debezium change events over a table of orders, and what the table must hold after them.

A row is made from its key and its version alone, so that any row can be said again: the feed keeps
no more than a version and a flag for each key.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import duckdb
import load
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

INSERT, UPDATE, DELETE = range(3)
UPDATES, DELETES = 0.80, 0.05  # of the changes after the first inserts; the rest are inserts
KEYS_SHARE = 0.5  # keys for each event
FIRST_SHARE = (KEYS_SHARE - (1 - UPDATES - DELETES)) / (UPDATES + DELETES)
AT_ONCE = 10_000
FIRST_LSN, LSN_STEP = 1 << 32, 176
SEED = 42

COLUMNS = {
    "id": "bigint",
    "customer_id": "bigint",
    "status": "string",
    "quantity": "int",
    "amount": "decimal(12,2)",
    "address": "string",
    "note": "string",
    "updated_at": "timestamptz",
}

# DuckDB's macros, so that `before` and `after` are said once.
MACROS = """
CREATE MACRO status(h) AS
    ['new', 'paid', 'packed', 'shipped', 'delivered', 'returned'][(1 + h % 6)::INT];
CREATE MACRO customer(id) AS (hash(id, 7) % 500_000)::BIGINT;
CREATE MACRO quantity(h) AS (1 + (h >> 8) % 20)::INT;
CREATE MACRO cents(h) AS ((h >> 13) % 10_000_000)::BIGINT;
CREATE MACRO address(id) AS (1 + hash(id, 8) % 200) || ' Harbour Road, ' ||
    ['Utrecht', 'Lisbon', 'Oslo', 'Ghent'][(1 + hash(id, 9) % 4)::INT];
CREATE MACRO note(h) AS 'parcel ' || lower(to_hex(h)) || ', ring twice';
CREATE MACRO updated_at(id, version) AS
    TIMESTAMP '2026-01-01' + to_microseconds((version * 86_400_000_000 + id * 1_000)::BIGINT);
CREATE MACRO row_json(id, version, h) AS
    '{"id":' || id || ',"customer_id":' || customer(id) || ',"status":"' || status(h)
    || '","quantity":' || quantity(h)
    || ',"amount":"' || cents(h) // 100 || '.' || lpad((cents(h) % 100)::VARCHAR, 2, '0')
    || '","address":"' || address(id) || '","note":"' || note(h)
    || '","updated_at":"' || strftime(updated_at(id, version), '%Y-%m-%dT%H:%M:%S.%fZ') || '"}';
"""
LSN = f"{FIRST_LSN} + n * {LSN_STEP}"
# As the connector for PostgreSQL writes them with REPLICA IDENTITY FULL, which Flink needs.
EVENTS = """
SELECT '{"id":' || id || '}' AS key,
    '{"before":' || if(op = 0, 'null', row_json(id, version - 1, hash(id, version - 1)))
    || ',"after":' || if(op = 2, 'null', row_json(id, version, hash(id, version)))
    || ',"source":{"version":"3.6.1.Final","connector":"postgresql","name":"shop","ts_ms":'
    || 1_767_225_600_000 + n // 20 || ',"snapshot":"false","db":"shop","sequence":"[\\"' || lsn - 56
    || '\\",\\"' || lsn || '\\"]","schema":"public","table":"orders","txId":' || 700 + n // 5
    || ',"lsn":' || lsn || ',"xmin":null},"transaction":null,"op":"' || ['c', 'u', 'd'][op + 1]
    || '","ts_ms":' || 1_767_225_600_250 + n // 20 || '}' AS value
FROM (SELECT *, LSN AS lsn FROM changes) ORDER BY n
""".replace("LSN", LSN)
ROWS = """
SELECT id, customer(id) AS customer_id, status(h) AS status, quantity(h) AS quantity,
    (cents(h)::DECIMAL(14, 0) / 100)::DECIMAL(12, 2) AS amount, address(id) AS address,
    note(h) AS note, updated_at(id, version)::TIMESTAMPTZ AS updated_at {more}
FROM (SELECT *, hash(id, version) AS h FROM changes)
"""

# The place in the log as icestream writes it into a table: eight bytes that compare as it does.
SEQUENCE = f", unhex(lpad(to_hex({LSN}), 16, '0')) AS _src_sequence"

# What a table holds, in words that DuckDB and Spark share; only names of functions differ. The
# last figure is over every column of every row.
FIGURES = """
SELECT count(*) AS rows, count(DISTINCT id) AS ids, sum(quantity) AS quantities,
    sum(CAST(amount * 100 AS BIGINT)) AS cents,
    sum({number}substr(md5(concat_ws('|', CAST(id AS {text}), CAST(customer_id AS {text}), status,
        CAST(quantity AS {text}), CAST(amount AS {text}), address, note,
        CAST({micros}(updated_at) AS {text}))), 1, 7){base}) AS hashes
FROM {rows}
"""
IN_DUCKDB = {
    "micros": "epoch_us",
    "text": "VARCHAR",
    "number": "CAST('0x' || ",
    "base": " AS BIGINT)",
}


@dataclass(frozen=True)
class Changes:
    """Some changes in the order of the log: of which keys, to which version, by what."""

    number: NDArray[np.int64]
    id: NDArray[np.int64]
    version: NDArray[np.int64]
    op: NDArray[np.int64]

    def to_arrow(self) -> pa.Table:
        return pa.table({"n": self.number, "id": self.id, "version": self.version, "op": self.op})

    def __len__(self) -> int:
        return len(self.id)


class Feed:
    """The source table: what is in it, and the changes that it has seen."""

    def __init__(self, rows: int = 0, seed: int = SEED) -> None:
        self._random = np.random.default_rng(seed)
        self._version = np.zeros(rows, np.int64)
        self._there = np.ones(rows, bool)
        self.count = rows  # the rows that were there from the beginning have a number, too
        self.deletes = 0

    def changes(self, count: int) -> Changes:
        """So many, of all kinds, and each of another key; keys that are gone come back."""
        inserts = count - round(count * (UPDATES + DELETES))
        old = self._random.choice(len(self._there), count - inserts, replace=False)
        new = self._grow(inserts)
        ids = self._random.permutation(np.concatenate([old, new]))
        deletes = self._random.random(count) < DELETES / (UPDATES + DELETES)
        return self._note(ids, deletes & self._there[ids])

    def inserts(self, count: int) -> Changes:
        """So many new rows."""
        return self._note(self._grow(count), np.zeros(count, bool))

    def updates(self, ids: NDArray[np.int64]) -> Changes:
        """One change of each of these, none of which is a delete."""
        return self._note(ids, np.zeros(len(ids), bool))

    def rows(self, first: int = 0, stop: int | None = None) -> Changes:
        """What is in the table now, or a range of it, as if it had just been put in."""
        ids = first + np.flatnonzero(self._there[first:stop])
        return Changes(ids, ids, self._version[ids], np.full(len(ids), INSERT))

    def _grow(self, count: int) -> NDArray[np.int64]:
        ids = np.arange(len(self._there), len(self._there) + count)
        self._version = np.concatenate([self._version, np.full(count, -1)])
        self._there = np.concatenate([self._there, np.zeros(count, bool)])
        return ids

    def _note(self, ids: NDArray[np.int64], deletes: NDArray[np.bool_]) -> Changes:
        op = np.where(deletes, DELETE, np.where(self._there[ids], UPDATE, INSERT))
        self._version[ids] += 1
        self._there[ids] = ~deletes
        numbers = np.arange(self.count, self.count + len(ids))
        self.count += len(ids)
        self.deletes += int(deletes.sum())
        return Changes(numbers, ids, self._version[ids], op)


class Maker:
    """Makes events and rows of changes, and the figures of a table."""

    def __init__(self, extensions: Iterable[Path] = ()) -> None:
        self._database = duckdb.connect()
        for file in extensions:
            self._database.load_extension(str(file))
        self._database.execute("SET TimeZone = 'UTC'")
        self._database.execute(MACROS)

    def events(self, changes: Changes) -> tuple[list[bytes], list[bytes]]:
        """Keys and values, as they are in the topic."""
        made = self._made(EVENTS, changes)
        keys, values = (made.column(name).cast(pa.binary()) for name in ("key", "value"))
        return keys.to_pylist(), values.to_pylist()

    def rows(self, changes: Changes, more: str = "") -> pa.Table:
        """Rows after the changes, in the columns of the table and perhaps some more."""
        return self._made(ROWS.format(more=more) + "ORDER BY n", changes)

    def truth(self, feed: Feed) -> dict[str, int]:
        """What a table must hold after all changes of a feed."""
        rows = f"({ROWS.format(more='')})"
        return _one(self._made(FIGURES.format(rows=rows, **IN_DUCKDB), feed.rows()))

    def figures(self, rows: pa.RecordBatchReader) -> dict[str, int]:
        """What a table holds: the same question that Spark is asked."""
        self._database.register("found", rows)
        return self.figures_of("found")

    def figures_of(self, rows: str) -> dict[str, int]:
        """The same of whatever can stand after FROM."""
        question = FIGURES.format(rows=rows, **IN_DUCKDB)
        return _one(self._database.execute(question).to_arrow_table())

    def _made(self, query: str, changes: Changes) -> pa.Table:
        self._database.register("changes", changes.to_arrow())
        return self._database.execute(query).to_arrow_table()


def _one(found: pa.Table) -> dict[str, int]:
    return {name: int(value) for name, value in found.to_pylist()[0].items()}


class Sender(load._Sender):
    """Sends events with their keys; all of one key go to one partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(bootstrap)
        self._topic = topic
        self._maker = Maker()
        self.bytes = 0

    def put(self, changes: Changes) -> None:
        keys, values = self._maker.events(changes)
        self.bytes += sum(map(len, values))
        parts: list[list[dict[str, bytes]]] = [[] for _ in range(load.PARTITIONS)]
        for row, key, value in zip(changes.id.tolist(), keys, values, strict=True):
            parts[row % load.PARTITIONS].append({"key": key, "value": value})
        for partition, messages in enumerate(parts):
            taken = self._producer.produce_batch(self._topic, messages, partition=partition)
            if taken != len(messages):
                raise RuntimeError("the producer did not take every event")
        self._producer.poll(0)
        while len(self._producer) > self.QUEUE:
            self._producer.poll(0.01)


def first_inserts(events: int) -> int:
    """How many of so many events are inserts before the first of another kind."""
    return round(events * FIRST_SHARE)


def fill(bootstrap: str, topic: str, events: int) -> tuple[Feed, float]:
    """Send so many events as fast as it goes; → what they did, and their average size in bytes."""
    sender, feed = Sender(bootstrap, topic), Feed()
    portion = min(AT_ONCE, events // 20)
    while (left := first_inserts(events) - feed.count) > 0:
        sender.put(feed.inserts(min(portion, left)))
    while (left := events - load.PARTITIONS - feed.count) > 0:
        sender.put(feed.changes(min(portion, left)))
    # A partition ends with an update: who has it has all that was before, deletes as well.
    sender.put(feed.updates(np.arange(load.PARTITIONS)))
    sender.flush()
    return feed, sender.bytes / events
