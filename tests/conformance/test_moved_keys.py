"""Keys that change while a large value stays behind: PostgreSQL does not say it again (TOAST)."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from conformance.stand import Stand
from icestream.catalogs import catalog_for
from icestream.records import RECORDS
from unit.test_format_debezium_captures import HEADERS

pytestmark = pytest.mark.spark

ABSENT = "__debezium_unavailable_value"
IDS = range(1, 7)


@dataclass
class Log:
    """A table of a few rows, and the events of its changes as Debezium would write them."""

    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[list[dict[str, Any]]] = field(default_factory=list)  # of one change each

    def insert(self, key: int, big: str) -> None:
        self.rows[key] = {"id": key, "n": 0, "big": big}
        self._tell([("c", key, self.rows[key], {})])

    def update(self, key: int, big: str | None = None) -> None:
        row = self.rows[key]
        row["n"] += 1
        row["big"] = big or row["big"]
        self._tell([("u", key, {**row, "big": big or ABSENT}, {})])

    def delete(self, key: int) -> None:
        del self.rows[key]
        self._tell([("d", key, None, {})])

    def move(self, old: int, new: int) -> None:
        self.rows[new] = {**self.rows.pop(old), "id": new}
        after = {**self.rows[new], "big": ABSENT}
        self._tell([("d", old, None, {"newkey": new}), ("c", new, after, {"oldkey": old})])

    def _tell(self, change: list[tuple[str, int, Any, dict[str, int]]]) -> None:
        lsn = 100 + len(self.events)
        told = []
        for op, key, after, other in change:
            before = {"id": key} if op == "d" else None
            source = {"connector": "postgresql", "lsn": lsn}
            value = {"op": op, "before": before, "after": after, "source": source}
            headers = [
                {"key": f"__debezium.{name}", "value": json.dumps({"id": n}).encode()}
                for name, n in other.items()
            ]
            told.append({"key": {"id": key}, "value": value, "headers": headers})
        self.events.append(told)


def at_random(seed: int, count: int) -> Log:
    r, log = random.Random(seed), Log()
    for number in range(count):
        free, there = [k for k in IDS if k not in log.rows], list(log.rows)
        what = r.choice(["insert", "update", "update", "carry", "move", "move", "delete"])
        if what == "insert" and free:
            log.insert(r.choice(free), f"big {number}")
        elif what == "update" and there:
            log.update(r.choice(there))
        elif what == "carry" and there:
            log.update(r.choice(there), f"big {number}")
        elif what == "move" and there and free:
            log.move(r.choice(there), r.choice(free))
        elif what == "delete" and there:
            log.delete(r.choice(there))
    return log


def mirror(spark: Any, folder: Any, log: Log, size: int) -> dict[int, dict[str, Any]]:
    """Batches of so many changes; a move is never cut in two."""
    table = {
        "name": "db.t",
        "mode": "upsert",
        "columns": {"id": "bigint", "n": "bigint", "big": "string"},
    }
    facts = {"source": {"format": {"type": "debezium"}}, "tables": [table]}
    one, offset = Stand(spark, folder, ["t"], facts), 0
    for first in range(0, len(log.events), size):
        events = [event for change in log.events[first : first + size] for event in change]
        rows = [
            {
                "topic": "t",
                "partition": 0,
                "offset": offset + n,
                "timestamp": 0,
                "key": json.dumps(event["key"]).encode(),
                "value": json.dumps(event["value"]).encode(),
                "headers": event["headers"],
            }
            for n, event in enumerate(events)
        ]
        schema = RECORDS.append(pa.field("headers", HEADERS))
        one.take(pa.RecordBatch.from_pylist(rows, schema=schema))
        offset += len(events)
    found = catalog_for(one.config.catalog).open().load_table("db.t").scan().to_arrow()
    rows = found.select(["id", "n", "big"]).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("size", [1, 5, 30, 200])
def test_a_value_follows_its_row_from_key_to_key(spark, tmp_path, size):
    log = at_random(seed=size, count=40 if size == 1 else 200)
    assert mirror(spark, tmp_path, log, size) == log.rows


@pytest.mark.parametrize("size", [1, 10], ids=["batch by batch", "in one batch"])
def test_a_row_that_takes_the_old_key_later_is_another_one(spark, tmp_path, size):
    log = Log()
    log.insert(1, "mine")
    log.move(1, 2)
    log.insert(1, "another's")
    log.update(2)
    assert mirror(spark, tmp_path, log, size) == log.rows


def test_a_row_moves_several_times_in_a_batch(spark, tmp_path):
    log = Log()
    log.insert(1, "kept")
    log.insert(2, "other")
    log.delete(2)
    log.move(1, 2)
    log.update(2)
    log.move(2, 3)
    log.move(3, 1)
    assert mirror(spark, tmp_path, log, 10) == log.rows
