"""History: events are stored and read back, old ones go, and nobody depends on the file."""

import sqlite3
import threading
import time

import pytest

from icestream.observe import history
from icestream.observe.events import (
    Bus,
    RunFailed,
    RunStarted,
    RunStopped,
    TableCommitted,
    TableCreated,
)
from icestream.observe.history import History, commits, last_run


def committed(table="shop.orders", landed=5, pipeline="shop", **facts):
    known = {
        "commit_id": "c",
        "sequence": 1,
        "quarantined": 0,
        "dropped": 0,
        "files": 1,
        "bytes": 10,
        "stage_seconds": 0.5,
        "commit_seconds": 0.1,
        "attempts": 1,
        "freshness_seconds": None,
        "backlog": 0,
        "positions": {"orders": {0: 5}},
    }
    return TableCommitted(pipeline, table, landed=landed, **{**known, **facts})


@pytest.fixture
def store(tmp_path):
    opened = History(tmp_path / "state")
    yield opened
    opened.close()


def test_commits_come_back_oldest_first(store, tmp_path):
    began = time.time()
    for landed in (1, 2, 3):
        store(committed(landed=landed))
    store(committed(table="shop.other"))
    store(committed(pipeline="another"))
    store(TableCreated("shop", "shop.orders"))
    found = commits(tmp_path / "state", "shop", "shop.orders", began - 1)
    assert [each["landed"] for each in found] == [1, 2, 3]
    assert all(began - 1 <= each["at"] <= time.time() for each in found)
    assert found[0]["positions"] == {"orders": {"0": 5}}
    assert found[0]["freshness_seconds"] is None
    assert commits(tmp_path / "state", "shop", "shop.orders", time.time() + 1) == []


def test_the_last_word_on_a_run(store, tmp_path):
    assert last_run(tmp_path / "state", "shop") is None
    store(RunStarted("shop", "r1", 3, ("a", "b")))
    store(committed())
    started = last_run(tmp_path / "state", "shop")
    assert (started["kind"], started["generation"]) == ("run_started", 3)
    assert started["tables"] == ["a", "b"]
    store(RunStopped("shop", "r1", "asked to"))
    assert last_run(tmp_path / "state", "shop")["kind"] == "run_stopped"
    store(RunFailed("shop", "r2", "no", "Gap"))
    store(RunStopped("another", "r3", "asked to"))
    assert last_run(tmp_path / "state", "shop")["error_kind"] == "Gap"


def test_no_file_no_history(tmp_path):
    assert commits(tmp_path / "nowhere", "shop", "t", 0) == []
    assert last_run(tmp_path / "nowhere", "shop") is None
    assert not (tmp_path / "nowhere").exists()


def test_it_can_be_read_after_it_was_closed(tmp_path):
    opened = History(tmp_path)
    opened(committed())
    opened.close()
    assert len(commits(tmp_path, "shop", "shop.orders", 0)) == 1
    again = History(tmp_path)
    again(committed())
    again.close()
    assert len(commits(tmp_path, "shop", "shop.orders", 0)) == 2


@pytest.mark.parametrize("name", ["plain", "with space", "a#b", "a?b", "a%20b", "ünï"])
def test_the_state_folder_may_have_any_name(tmp_path, name):
    opened = History(tmp_path / name)
    opened(committed())
    assert len(commits(tmp_path / name, "shop", "shop.orders", 0)) == 1
    opened.close()


def test_old_entries_go(tmp_path, monkeypatch):
    now = time.time()
    opened = History(tmp_path)
    for days in (45, 31, 29, 0):
        monkeypatch.setattr(history.time, "time", lambda days=days: now - days * 86400)
        opened(committed(landed=days))
    opened.close()
    assert len(commits(tmp_path, "shop", "shop.orders", 0)) == 4
    monkeypatch.setattr(history.time, "time", lambda: now)
    History(tmp_path).close()
    assert [each["landed"] for each in commits(tmp_path, "shop", "shop.orders", 0)] == [29, 0]


def test_reading_never_writes(tmp_path):
    History(tmp_path).close()
    with history._reading(tmp_path) as database, pytest.raises(sqlite3.OperationalError):
        database.execute("DELETE FROM events")


def test_several_threads_write(store, tmp_path):
    def work():
        for _ in range(20):
            store(committed())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(commits(tmp_path / "state", "shop", "shop.orders", 0)) == 80


def test_a_bus_tells_everyone_in_order():
    bus, heard = Bus(), []
    bus.join(lambda event: heard.append((1, event.kind)))
    bus.join(lambda event: heard.append((2, event.kind)))
    bus.emit(TableCreated("shop", "t"))
    assert heard == [(1, "table_created"), (2, "table_created")]


def test_the_kind_of_an_event_is_its_name():
    assert committed().kind == "table_committed"
    assert RunStopped("p", "r", "x").facts() == {"pipeline": "p", "run_id": "r", "reason": "x"}
