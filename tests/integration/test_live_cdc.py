"""Real databases, a real Debezium, a real broker: at the end each mirror equals its source."""

import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import UTC
from typing import TYPE_CHECKING, Any

import pytest
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import GreaterThanOrEqual

from clients import CHANGES, SENTINELS, Key, Row, Shop, Table, plain
from connect import connector
from feeds import Feed
from icestream.config.load import load
from icestream.verify import verify
from servers import soon

if TYPE_CHECKING:
    from conftest import Lake

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("live_cdc"),
]

SEED = int(os.environ.get("SEED", "1"))  # in the names of the tests, so that a failure tells it
CLIENTS = 3
WAIT_SECONDS = 120
OURS = ("_src_", "_ingested_at")  # columns that the database has not


def tables() -> list[Table]:
    return [
        Table(
            "orders",
            ("id", "line"),
            {
                "customer": "name",
                "amount": "money",
                "placed": "local",
                "changed": "instant",
                "note": "text",
            },
        ),
        Table(
            "customers",
            ("id",),
            {
                "name": "name",
                "balance": "exact",
                "points": "long",
                "active": "bool",
                "born": "day",
                "score": "double",
                "settings": "json",
                "token": "uuid",
                "photo": "bytes",
                "letter": "text",
            },
        ),
        Table("payments", ("id",), {"amount": "money", "paid": "instant"}),
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [SEED])
@pytest.mark.parametrize("kind, partitions", [("postgres", 1), ("mysql", 2)])
def test_a_mirror_equals_the_live_database(kind, partitions, seed, request, debezium, feed):
    database = request.getfixturevalue(kind)
    shop = Shop(database, seed, tables())
    orders, _, payments = shop.tables
    prefix = f"{kind}_{uuid.uuid4().hex[:8]}"
    feed.configure(
        {
            "topic_pattern": rf"{prefix}\.\w+\.(?P<table>\w+)",
            "format": {"type": "debezium"},
            "start": "earliest",
        },
        [{"name": "db.{table}", "mode": "upsert"}],
        commit_interval="1s",
    )
    shop.create(filled=40)
    names = [table.name for table in shop.tables]
    debezium.create(prefix, connector(database, feed.bootstrap, prefix, names, partitions))
    with feed.lake.running() as run:
        with shop.clients(CLIENTS) as clients:
            working = [run, *clients]
            more_commits(feed, working, 3)
            shop.add_column(orders, "rating", "int")
            more_commits(feed, working, 3)
            debezium.kill()
            shop.add_column(payments, "remark", "name")
            debezium.start()
            debezium.wait(prefix)
            more_commits(feed, working, 4)
        shop.finish()
        for table in shop.tables:
            wait(feed, [run], lambda table=table: finished(feed.lake, table, partitions))
    debezium.delete(prefix)
    assert all(shop.done[what] for what in (*CHANGES, "rolled back", "refused")), shop.done
    assert kind == "mysql" or shop.kept_aside(orders), "events carried every text"
    for table in shop.tables:
        assert not any(commit.quarantined for commit in feed.commits(f"db.{table.name}"))
        truth = shop.rows(table)
        assert differences(table, truth, by_pyiceberg(feed.lake, table)) == []
        assert differences(table, truth, by_spark(feed.lake, table)) == []
    shop.drop()
    result = verify(load(feed.lake.file).pipeline, source=True, all_snapshots=True)
    assert result.violations == ()


def wait(feed: Feed, working: "list[Future[Any]]", true: Callable[[], bool]) -> None:
    """Until it is true, while all work; one that ended meanwhile says why."""
    ended: list[Future[Any]] = []

    def look() -> bool:
        ended[:] = [each for each in working if each.done()]
        return bool(ended) or true()

    assert soon(look, WAIT_SECONDS), feed.lake.events[-20:]
    for each in ended:
        raise AssertionError(f"ended too early with {each.result()}")


def more_commits(feed: Feed, working: "list[Future[Any]]", count: int) -> None:
    """Let changes go all the way for a while."""
    enough = len(feed.commits("db.orders")) + count
    wait(feed, working, lambda: len(feed.commits("db.orders")) >= enough)


def finished(lake: "Lake", table: Table, partitions: int) -> bool:
    """Whether the last rows are there, of each partition: then so is all that was before them."""
    try:
        scan = lake.table(f"db.{table.name}").scan(GreaterThanOrEqual("id", SENTINELS.start))
    except (NoSuchTableError, NoSuchNamespaceError):
        return False
    found = scan.to_arrow()
    if found.num_rows < len(SENTINELS):
        return False
    assert len(set(found.column("_src_partition").to_pylist())) == partitions
    return True


def by_pyiceberg(lake: "Lake", table: Table) -> list[Row]:
    return lake.rows(f"db.{table.name}").to_pylist()


def by_spark(lake: "Lake", table: Table) -> list[Row]:
    """Spark's instants are local times in Python."""
    rows = [row.asDict() for row in lake.spark_rows(f"SELECT * FROM lake.db.{table.name}")]
    instants = [name for name, kind in table.columns.items() if kind == "instant"]
    return [
        {**row, **{name: row[name] and row[name].astimezone(UTC) for name in instants}}
        for row in rows
    ]


def differences(table: Table, truth: Mapping[Key, Row], mirror: list[Row]) -> list[str]:
    """Every value that is not the database's, and every row that is not there exactly once."""
    found: dict[Key, list[Row]] = defaultdict(list)
    for row in mirror:
        ours = {name: value for name, value in row.items() if not name.startswith(OURS)}
        found[tuple(row[key] for key in table.keys)].append(plain(table, ours))
    told = []
    for key in sorted({*truth, *found}):
        wanted = [truth[key]] if key in truth else []
        if len(found[key]) != len(wanted):
            told.append(f"{table.name} {key}: {len(found[key])} rows instead of {len(wanted)}")
        elif found[key] != wanted:
            names = sorted({*wanted[0], *found[key][0]})
            pairs = [(name, wanted[0].get(name), found[key][0].get(name)) for name in names]
            told += [
                f"{table.name} {key} {n}: {f!r:.80} is {w!r:.80}" for n, w, f in pairs if w != f
            ]
    return told
