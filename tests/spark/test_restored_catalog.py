"""A catalog that was restored from an older backup: what it lost comes again, or the run stops."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from icestream.errors import Rewound, Unreachable
from icestream.events import TableCommitted

pytestmark = pytest.mark.spark

CONFIG = """
    name: p
    source: {type: files, path: ./in}
    commit_interval: 1s
    tables:
      - {name: db.aa, match: 'aa.*', columns: {id: bigint}}
      - {name: db.bb, columns: {id: bigint}}
"""


@pytest.fixture
def shop(lake):
    lake.configure(CONFIG)
    return lake


def put(lake, part: str, *numbers: int, bad: int = 0) -> None:
    """The same records for both tables."""
    lines = [*({"id": n} for n in range(*numbers)), *(f"{{bad {n}" for n in range(bad))]
    for table in ("aa", "bb"):
        lake.put(f"{table}-{part}.jsonl", *lines)


def database(lake) -> Path:
    return lake.folder / "warehouse" / "catalog.db"


def backup(lake) -> Path:
    copy = lake.folder / "backup.db"
    with closing(sqlite3.connect(database(lake))) as live, closing(sqlite3.connect(copy)) as saved:
        live.backup(saved)
    return copy


def restore(lake, copy: Path) -> None:
    with closing(sqlite3.connect(copy)) as saved, closing(sqlite3.connect(database(lake))) as live:
        saved.backup(live)


def restore_one(lake, copy: Path, table: str) -> None:
    """One table's pointer goes back, the others stay."""
    query = "SELECT metadata_location, previous_metadata_location FROM iceberg_tables WHERE "
    with closing(sqlite3.connect(copy)) as saved:
        [old] = saved.execute(query + "table_name = ?", (table,)).fetchall()
    with closing(sqlite3.connect(database(lake))) as live, live:
        live.execute(
            "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ? "
            "WHERE table_name = ?",
            (*old, table),
        )


def assert_whole(lake, count: int, bad: int = 0) -> None:
    for table in ("db.aa", "db.bb"):
        assert sorted(lake.rows(table).column("id").to_pylist()) == list(range(count))
        if bad:
            aside = lake.rows(f"{table}__quarantine").column("value").to_pylist()
            assert sorted(aside) == sorted(f"{{bad {n}".encode() for n in range(bad))


def test_all_tables_go_back_and_are_filled_up_again(shop):
    put(shop, "1", 0, 10)
    shop.run()
    saved = backup(shop)
    put(shop, "2", 10, 20, bad=1)  # the quarantine tables are made after the backup
    shop.run()
    assert_whole(shop, 20, bad=1)
    restore(shop, saved)
    assert shop.rows("db.aa").num_rows == 10
    shop.run()
    assert_whole(shop, 20, bad=1)
    put(shop, "3", 20, 30)
    shop.run()
    assert_whole(shop, 30, bad=1)


@pytest.mark.parametrize("table", ["aa", "bb"])
def test_one_table_goes_back_and_its_sibling_trims(shop, table):
    put(shop, "1", 0, 10, bad=1)
    shop.run()
    saved = backup(shop)
    put(shop, "2", 10, 20)
    shop.run()
    restore_one(shop, saved, table)
    assert shop.rows(f"db.{table}").num_rows == 10
    shop.run()
    assert_whole(shop, 20, bad=1)


def test_a_run_sees_that_its_table_went_back_under_it(shop):
    put(shop, "1", 0, 10)
    saved: list[Path] = []
    done = threading.Event()
    counted: list[TableCommitted] = []

    def listen(event) -> None:
        if isinstance(event, TableCommitted):
            counted.append(event)
            if len(counted) in (2, 4):
                done.set()

    with pytest.raises(Rewound) as told, shop.running(listen=listen) as ended:  # noqa: PT012
        assert done.wait(150)
        saved.append(backup(shop))
        done.clear()
        put(shop, "2", 10, 20)
        assert done.wait(150)
        restore(shop, saved[0])
        put(shop, "3", 20, 30)
        ended.exception(timeout=150)
    assert told.value.exit_code == 1
    shop.run()
    assert_whole(shop, 30)


def test_metadata_that_is_gone_is_no_empty_table(shop):
    put(shop, "1", 0, 10)
    shop.run()
    Path(shop.table("db.aa").metadata_location.removeprefix("file:")).unlink()
    put(shop, "2", 10, 20)
    with pytest.raises(Unreachable, match=r"table `db\.aa` cannot .*\.metadata\.json"):
        shop.run()
    assert sorted(shop.rows("db.bb").column("id").to_pylist()) == list(range(10))
