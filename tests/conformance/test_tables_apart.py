"""Mirrors of one pipeline stand apart: what hurts one leaves nothing half, there or elsewhere."""

import json
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.stand import Stand
from icestream.catalogs import catalog_for
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.port import CommitFailed
from icestream.errors import BadRecord, GaveUp, IcestreamError, StorageFailed
from icestream.events import TableCommitted
from icestream.records import RECORDS
from icestream.tables.marker import Marker
from icestream.verify import verify
from servers import soon

pytestmark = pytest.mark.spark

HURT, WELL = "shop.hurt", "shop.well"
TABLE = {
    "name": "shop.{table}",
    "mode": "upsert",
    "columns": {"id": "bigint", "v": "bigint"},
    "bad_records": "fail",
}
FACTS = {
    "source": {
        "topics": None,
        "topic_pattern": r"pg\.public\.(?P<table>\w+)",
        "format": {"type": "debezium"},
    },
    "tables": [TABLE],
}


@dataclass
class Topic:
    """A table of the source, its events, and what it held after each of them."""

    name: str
    rng: random.Random
    rows: dict[int, int] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    truth: list[dict[int, int]] = field(default_factory=lambda: [{}])

    def change(self) -> None:
        key, value = self.rng.randrange(20), len(self.records)
        before = {"id": key} if key in self.rows else None
        if before and self.rng.random() < 0.3:
            del self.rows[key]
            self.tell("d", key, before, None)
        else:
            self.rows[key] = value
            self.tell("u" if before else "c", key, before, {"id": key, "v": value})

    def tell(self, op: str, key: int, before: Any, after: Any) -> None:
        source = {"connector": "postgresql", "lsn": 100 + len(self.records)}
        value = {"before": before, "after": after, "source": source, "op": op}
        self.records.append(
            {
                "topic": self.name,
                "partition": 0,
                "offset": len(self.records),
                "timestamp": 0,
                "key": json.dumps({"id": key}).encode(),
                "value": json.dumps(value).encode(),
            }
        )
        self.truth.append(dict(self.rows))


class Pair:
    """Two topics or more, a mirror of each, batches that have records of all."""

    def __init__(self, spark: Any, folder: Path, names: Sequence[str] = (HURT, WELL)) -> None:
        rng = random.Random(str(folder.name))
        self.topics = {name: Topic(f"pg.public.{name[5:]}", rng) for name in names}
        self._taken = dict.fromkeys(self.topics, 0)
        self.stand = Stand(spark, folder, [t.name for t in self.topics.values()], FACTS)

    def batch(self, count: int = 30) -> pa.RecordBatch:
        rows = []
        for table, topic in self.topics.items():
            for _ in range(count):
                topic.change()
            rows += topic.records[self._taken[table] :]
            self._taken[table] = len(topic.records)
        return pa.RecordBatch.from_pylist(rows, schema=RECORDS)

    def held(self, table: str) -> tuple[int, dict[int, int]]:
        """How far a table has come by its own marker, and what is in it."""
        found = catalog_for(self.stand.config.catalog).open().load_table(table)
        marker = Marker.from_json(found.properties["icestream.p.marker"])
        rows = found.scan().to_arrow().select(["id", "v"]).to_pylist()
        assert len({row["id"] for row in rows}) == len(rows)
        at = marker.positions[self.topics[table].name][0]
        return at, {row["id"]: row["v"] for row in rows}

    def check(self, table: str) -> int:
        """What a table holds is what the source held at its marker; → where that is."""
        at, rows = self.held(table)
        assert rows == self.topics[table].truth[at]
        return at


@pytest.fixture
def pair(spark, tmp_path):
    return Pair(spark, tmp_path)


def no_commits(pair: Pair, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The catalog refuses the one table's commits."""
    commit = IcebergTables.commit

    def refuse(self: IcebergTables, name: str, *rest: Any) -> None:
        if name == HURT:
            raise CommitFailed("service unavailable")
        commit(self, name, *rest)

    patch.setattr(IcebergTables, "commit", refuse)
    patch.setattr("icestream.commit.retry.backoff", lambda attempt: attempt < 3)
    return patch.undo


def no_folder(pair: Pair, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nothing can be written where its data files belong."""
    catalog = catalog_for(pair.stand.config.catalog).open()
    data = Path(catalog.load_table(HURT).location().removeprefix("file:")) / "data"
    kept = data.with_name("data-kept")
    data.rename(kept)
    data.write_text("in the way")

    def back() -> None:
        data.unlink()
        kept.rename(data)

    return back


def no_sense(pair: Pair, patch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A record of it is not what the table takes, until the rule says otherwise."""
    pair.topics[HURT].tell("u", 1, None, {"id": 1, "v": "no number"})

    def aside() -> None:
        config = pair.stand.config
        rule = config.tables[0].model_copy(update={"bad_records": "quarantine"})
        pair.stand.config = config.model_copy(update={"tables": [rule]})

    return aside


@pytest.mark.parametrize(
    "harm, error, other",
    [
        (no_commits, GaveUp, "goes on"),
        (no_folder, StorageFailed, "waits"),
        (no_sense, BadRecord, "waits"),
    ],
)
def test_what_hurts_one_table_leaves_the_other_right(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    harm: Callable[[Pair, pytest.MonkeyPatch], Callable[[], None]],
    error: type[IcestreamError],
    other: str,
) -> None:
    pair.stand.take(pair.batch())
    assert (pair.check(HURT), pair.check(WELL)) == (30, 30)

    heal = harm(pair, monkeypatch)
    batch = pair.batch()
    with pytest.raises(error, match=r"hurt|data"):
        pair.stand.take(batch)
    assert pair.stand._pipeline is not None
    pair.stand._pipeline.shut_down()  # the other table's commit may still be under way
    heal()  # so that it can be read
    assert pair.check(HURT) == 30
    assert pair.check(WELL) == (60 if other == "goes on" else 30)

    pair.stand.start()
    pair.stand.take(batch)
    pair.stand.take(pair.batch())
    for table, topic in pair.topics.items():
        assert pair.check(table) == len(topic.records) >= 90
    assert verify(pair.stand.config, all_snapshots=True).violations == ()


class SlowTable:
    """The catalog takes one table's next commit, and lets it wait until it is told to go on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        commit = IcebergTables.commit
        self.reached, self.go_on = threading.Event(), threading.Event()

        def slow(tables: IcebergTables, name: str, *rest: Any) -> None:
            if name == HURT and not self.reached.is_set():
                self.reached.set()
                assert self.go_on.wait(120)
            commit(tables, name, *rest)

        patch.setattr(IcebergTables, "commit", slow)


OTHERS = [WELL, *(f"shop.well{n}" for n in range(2, 6))]


@pytest.fixture
def six(spark, tmp_path):
    """More tables than are committed at a time."""
    return Pair(spark, tmp_path, [HURT, *OTHERS])


def committed(pair: Pair) -> set[str]:
    return {e.table for e in list(pair.stand.events) if isinstance(e, TableCommitted)}


def test_a_slow_table_holds_up_no_other_of_its_batch(
    six: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    six.stand.take(six.batch())
    slow, batch = SlowTable(monkeypatch), six.batch()
    six.stand.events.clear()
    with ThreadPoolExecutor(1) as beside:
        taken = beside.submit(six.stand.take, batch)
        assert slow.reached.wait(120)
        assert soon(lambda: committed(six) == set(OTHERS), 120)
        assert six.check(HURT) == 30
        assert {six.check(table) for table in OTHERS} == {60}
        assert not taken.done()
        slow.go_on.set()
        taken.result(120)
    assert six.check(HURT) == 60
    six.stand.take(six.batch())
    assert {six.check(table) for table in six.topics} == {90}
    assert verify(six.stand.config, all_snapshots=True).violations == ()
