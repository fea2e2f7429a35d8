"""Clients that change a shop's tables in a real database, at random, several at a time."""

import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from databases import Database

PAUSE_SECONDS = 0.05
IDS, LINES = 60, 3
SENTINELS = range(1_000_000, 1_000_016)
LETTERS = "abcdefghij klmnopqr stuvwxyz äöü 日本 🙂 '\"\\%"

Key = tuple[int, ...]
Row = dict[str, Any]

# What a client does, and how often.
CHANGES = {"insert": 30, "update": 40, "update many": 2, "move": 8, "delete": 15}

# A column's kind: its type in PostgreSQL, in MySQL, and how a value is made up.
KINDS: dict[str, tuple[str, str, Callable[[random.Random], Any]]] = {
    "int": ("integer", "int", lambda r: r.randint(-(2**31), 2**31 - 1)),
    "long": ("bigint", "bigint", lambda r: r.randint(-(2**63), 2**63 - 1)),
    "double": ("double precision", "double", lambda r: r.uniform(-1e9, 1e9)),
    "bool": ("boolean", "tinyint(1)", lambda r: r.random() < 0.5),
    "money": ("numeric(12,2)", "decimal(12,2)", lambda r: _decimal(r, 12, 2)),
    "exact": ("numeric(38,9)", "decimal(38,9)", lambda r: _decimal(r, 38, 9)),
    "name": ("varchar(60)", "varchar(60)", lambda r: _text(r, 0, 40)),
    # Large enough to be kept apart from the row: PostgreSQL logs it only when it changes.
    "text": ("text", "longtext", lambda r: _text(r, 2_500, 6_000) if r.random() < 0.7 else ""),
    "bytes": ("bytea", "longblob", lambda r: r.randbytes(r.choice([0, 3, 100]))),
    "json": ("jsonb", "json", lambda r: json.dumps({"n": r.randint(0, 99), "t": _text(r, 0, 9)})),
    "uuid": ("uuid", "char(36)", lambda r: str(uuid.UUID(int=r.getrandbits(128)))),
    "day": ("date", "date", lambda r: _moment(r).date()),
    "local": ("timestamp", "datetime(6)", lambda r: _moment(r).replace(tzinfo=None)),
    "instant": ("timestamptz", "timestamp(6) null", lambda r: _moment(r)),
}


def _decimal(r: random.Random, digits: int, scale: int) -> Decimal:
    return Decimal(f"{r.randint(-(10**digits) + 1, 10**digits - 1)}e-{scale}")


def _text(r: random.Random, least: int, most: int) -> str:
    return "".join(r.choices(LETTERS, k=r.randint(least, most)))


def _moment(r: random.Random) -> datetime:
    return datetime(1990, 1, 1, tzinfo=UTC) + timedelta(microseconds=r.randrange(10**15))


@dataclass
class Table:
    """A table of the shop: the key's columns, then the others, by their kinds."""

    name: str
    keys: tuple[str, ...]
    columns: dict[str, str]

    @property
    def where(self) -> str:
        return " AND ".join(f"{key} = %s" for key in self.keys)

    def key(self, r: random.Random) -> list[int]:
        """One of a few, so that clients meet."""
        return [r.randint(1, IDS), *(r.randint(1, LINES) for _ in self.keys[1:])]

    def value(self, r: random.Random, column: str) -> Any:
        return None if r.random() < 0.15 else KINDS[self.columns[column]][2](r)


@dataclass
class Shop:
    """The tables, their clients, and what is in them."""

    database: Database
    seed: int
    tables: list[Table]
    done: Counter[str] = field(default_factory=Counter)

    def create(self, filled: int) -> None:
        """Make the tables; the last one stays empty, to be filled later."""
        r = random.Random(self.seed)
        column = 0 if self.database.kind == "postgres" else 1
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            for table in self.tables:
                kinds = {**dict.fromkeys(table.keys, "int"), **table.columns}
                parts = [f"{name} {KINDS[kind][column]}" for name, kind in kinds.items()]
                key = f"PRIMARY KEY ({', '.join(table.keys)})"
                cursor.execute(f"CREATE TABLE {table.name} ({', '.join([*parts, key])})")
            for table in self.tables[:-1]:
                for number in range(1, filled + 1):
                    key = [number, *(1 for _ in table.keys[1:])]
                    self._insert(cursor, table, r, key)
            connection.commit()

    def drop(self) -> None:
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            for table in self.tables:
                cursor.execute(f"DROP TABLE {table.name}")
            connection.commit()

    @contextmanager
    def clients(self, count: int) -> Iterator[list["Future[None]"]]:
        """So many, each with transactions of its own choice, until the end of the block."""
        stop = threading.Event()
        with ThreadPoolExecutor(count) as pool:
            working = [pool.submit(self._client, number, stop) for number in range(count)]
            try:
                yield working
            finally:
                stop.set()
        for client in working:
            client.result()

    def add_column(self, table: Table, name: str, kind: str) -> None:
        """In the midst of it all; whoever is chosen to end a deadlock begins again."""
        column = 0 if self.database.kind == "postgres" else 1
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            while True:
                try:
                    cursor.execute(
                        f"ALTER TABLE {table.name} ADD COLUMN {name} {KINDS[kind][column]}"
                    )
                    connection.commit()
                    break
                except self.database.error:
                    connection.rollback()
        table.columns = {**table.columns, name: kind}

    def finish(self) -> None:
        """The last rows of every table: where they are, all before them is."""
        r = random.Random(self.seed)
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            for table in self.tables:
                for number in SENTINELS:
                    self._insert(cursor, table, r, [number, *(1 for _ in table.keys[1:])])
            connection.commit()

    def rows(self, table: Table) -> dict[Key, Row]:
        """What the database says, by key."""
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table.name}")
            names = [column[0] for column in cursor.description]
            found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return {tuple(row[k] for k in table.keys): plain(table, row) for row in found}

    def kept_aside(self, table: Table) -> int:
        """Bytes of large values that PostgreSQL keeps apart, and logs only when they change."""
        size = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE relname = %s"
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(size, [table.name])
            [found] = cursor.fetchone()
        return int(found)

    def _client(self, number: int, stop: threading.Event) -> None:
        r = random.Random(f"{self.seed} {number}")
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            while not stop.wait(r.uniform(0, 2 * PAUSE_SECONDS)):
                did: Counter[str] = Counter()
                try:
                    for _ in range(r.randint(1, 6)):
                        did[self._change(cursor, r)] += cursor.rowcount
                    if r.random() < 0.15:
                        connection.rollback()
                        did = Counter({"rolled back": 1})
                    else:
                        connection.commit()
                except self.database.error:  # a key that is there already, or a deadlock
                    connection.rollback()
                    did = Counter({"refused": 1})
                self.done.update(did)

    def _change(self, cursor: Any, r: random.Random) -> str:
        """One statement; → what it was."""
        table = r.choice(self.tables)
        what = r.choices(["insert", "update", "move", "delete", "update many"], [30, 40, 8, 15, 2])[
            0
        ]
        if what == "insert":
            self._insert(cursor, table, r, table.key(r))
        elif what == "delete":
            cursor.execute(f"DELETE FROM {table.name} WHERE {table.where}", table.key(r))
        elif what == "move":
            self._move(cursor, table, r)
        else:
            names = r.sample(list(table.columns), r.randint(1, 2))
            change = ", ".join(f"{name} = %s" for name in names)
            values = [table.value(r, name) for name in names]
            key = table.key(r)
            where = table.where if what == "update" else f"{table.keys[0]} BETWEEN %s AND %s"
            values += key if what == "update" else [key[0], key[0] + 5]
            cursor.execute(f"UPDATE {table.name} SET {change} WHERE {where}", values)
        return what

    def _move(self, cursor: Any, table: Table, r: random.Random) -> None:
        """Change a key.

        PostgreSQL would not log a large text with it, and a mirror that has removed the old key
        by then has nothing to take it from (docs/design/upsert.md): so the text changes as well.
        """
        large = [name for name, kind in table.columns.items() if kind == "text"]
        names = [*table.keys, *(large if self.database.kind == "postgres" else ())]
        change = ", ".join(f"{name} = %s" for name in names)
        values = [*table.key(r), *(table.value(r, name) for name in names[len(table.keys) :])]
        update = f"UPDATE {table.name} SET {change} WHERE {table.where}"
        cursor.execute(update, [*values, *table.key(r)])

    def _insert(self, cursor: Any, table: Table, r: random.Random, key: list[int]) -> None:
        names = list(table.columns)
        row = [*key, *(table.value(r, name) for name in names)]
        places = ", ".join(["%s"] * len(row))
        columns = ", ".join([*table.keys, *names])
        cursor.execute(f"INSERT INTO {table.name} ({columns}) VALUES ({places})", row)


def plain(table: Table, row: Row) -> Row:
    """Values as they compare, whoever read them."""
    return {name: _plain(table.columns.get(name, "int"), value) for name, value in row.items()}


def _plain(kind: str, value: Any) -> Any:
    if value is None:
        return None
    if kind == "instant" and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    if kind == "json" and isinstance(value, str):
        return json.loads(value)
    if kind == "uuid":
        return str(value)
    return bytes(value) if kind == "bytes" else value
