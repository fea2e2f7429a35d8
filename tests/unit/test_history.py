"""History: events are stored and read back, old ones go, and nobody depends on the file."""

import json
import sqlite3
import threading
import time

import pytest

from icestream.events import (
    BatchPlanned,
    EventBus,
    LossAccepted,
    PartitionState,
    RunFailed,
    RunStarted,
    RunStopped,
    TableCommitted,
    TableCreated,
)
from icestream.observe import history
from icestream.observe.history import History, commits, last_run, partitions


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
        "latency_seconds": 2.5,
        "lag_records": 7,
        "lag_seconds": 0.5,
        "partitions": (PartitionState("orders", 0, 5, 7, 0.5),),
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
    assert found[0]["freshness_seconds"] is None
    assert (found[0]["lag_records"], found[0]["lag_seconds"]) == (7, 0.5)
    assert found[0]["latency_seconds"] == 2.5
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
    assert partitions(tmp_path / "nowhere", "shop", "t") == []
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


def stored(folder):
    """Kind and table of every event in the file, oldest first."""
    return history._rows(folder, "SELECT kind, subject FROM events ORDER BY id", ())


@pytest.fixture
def small(monkeypatch):
    """Ten events are kept, and every fifth looks whether there are more."""
    monkeypatch.setattr(history, "_KEEP_EVENTS", 10)
    monkeypatch.setattr(history, "_PRUNE_EVERY", 5)


@pytest.mark.usefixtures("small")
def test_the_number_of_events_is_bounded_while_it_runs(store, tmp_path):
    for landed in range(103):
        store(committed(landed=landed))
        found = [each["landed"] for each in commits(tmp_path / "state", "shop", "shop.orders", 0)]
        assert len(found) < 10 + 5
        assert found == list(range(landed + 1))[-len(found) :]  # always the newest
    assert len(found) >= 10


@pytest.mark.usefixtures("small")
def test_the_number_of_events_is_bounded_over_many_short_runs(tmp_path):
    for _ in range(40):
        opened = History(tmp_path)
        opened(committed())
        opened.close()
    assert len(stored(tmp_path)) == 11


@pytest.mark.usefixtures("small")
def test_the_bound_is_for_all_pipelines_of_a_folder(tmp_path):
    one, two = History(tmp_path), History(tmp_path)
    for _ in range(20):
        one(committed(pipeline="one"))
        two(committed(pipeline="two"))
    one.close()
    two.close()
    assert len(stored(tmp_path)) < 10 + 2 * 5


def test_old_entries_go_while_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "_PRUNE_EVERY", 3)
    now = time.time()
    opened = History(tmp_path)
    for days in (40, 31, 0):
        monkeypatch.setattr(history.time, "time", lambda days=days: now - days * 86400)
        opened(committed(landed=days))
    opened.close()
    assert [each["landed"] for each in commits(tmp_path, "shop", "shop.orders", 0)] == [0]


def test_a_planned_batch_is_not_stored(store, tmp_path):
    store(TableCreated("shop", "shop.orders"))
    store(BatchPlanned("shop", 1, {"shop.orders": "commit"}))
    store(LossAccepted("shop", "shop.orders", ("orders/0: 1 to 5",)))
    assert stored(tmp_path / "state") == [
        ("table_created", "shop.orders"),
        ("loss_accepted", "shop.orders"),
    ]


# ── partitions ──────────────────────────────────────────────────────────────────────────────────


def states(*positions):
    return tuple(PartitionState("orders", n, at, n, None) for n, at in enumerate(positions))


def test_partitions_stand_as_at_the_last_commit(store, tmp_path):
    for positions in ((1, 1, 1), (5, 1, 1), (9, 3)):  # fewer: the topic was created again
        store(committed(partitions=states(*positions)))
    store(committed(table="shop.other", partitions=states(4)))
    store(committed(pipeline="another", partitions=states(8)))
    found = partitions(tmp_path / "state", "shop", "shop.orders")
    assert tuple(PartitionState(**each) for each in found) == states(9, 3)
    assert [each["position"] for each in partitions(tmp_path / "state", "shop", "shop.other")] == [
        4
    ]
    assert partitions(tmp_path / "state", "shop", "shop.none") == []


def test_partitions_are_stored_once_however_many_commits_there_are(store, tmp_path):
    many = tuple(PartitionState("orders", n, 0, 0, 1.5) for n in range(2000))
    for _ in range(20):
        store(committed(partitions=many))
    state = tmp_path / "state"
    assert history._rows(state, "SELECT count(*) FROM partitions", ()) == [(1,)]
    [(longest,)] = history._rows(state, "SELECT max(length(facts)) FROM events", ())
    assert longest < 1000
    assert all("partitions" not in e for e in commits(tmp_path / "state", "shop", "shop.orders", 0))


def test_a_commit_without_partitions_leaves_the_last_word(store, tmp_path):
    store(committed(partitions=states(5)))
    store(committed(partitions=()))
    assert len(partitions(tmp_path / "state", "shop", "shop.orders")) == 1


def test_reading_never_writes(tmp_path):
    store = History(tmp_path)
    store(TableCreated("shop", "shop.orders"))
    store.close()
    history._rows(tmp_path, "DELETE FROM events", ())
    assert stored(tmp_path) == [("table_created", "shop.orders")]


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
    bus, heard = EventBus(), []
    bus.join(lambda event: heard.append((1, event.kind)))
    bus.join(lambda event: heard.append((2, event.kind)))
    bus.emit(TableCreated("shop", "t"))
    assert heard == [(1, "table_created"), (2, "table_created")]


def test_the_kind_of_an_event_is_its_name():
    assert committed().kind == "table_committed"
    assert LossAccepted("p", "t", ()).kind == "loss_accepted"
    assert RunStopped("p", "r", "x").facts() == {"pipeline": "p", "run_id": "r", "reason": "x"}


def test_the_facts_of_a_commit_are_plain():
    facts = committed(partitions=states(5, 6)).facts()
    assert [each["position"] for each in facts["partitions"]] == [5, 6]
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["table"], facts["landed"], facts["pipeline"]) == ("shop.orders", 5, "shop")


def test_two_that_open_it_for_the_first_time_wait_for_each_other(tmp_path):
    """The change to WAL needs a lock for which SQLite itself does not always wait."""
    other = sqlite3.connect(tmp_path / "history.db", check_same_thread=False, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    leaving = threading.Timer(0.2, other.execute, ["COMMIT"])
    leaving.start()
    History(tmp_path).close()
    leaving.join()
    other.close()


@pytest.mark.parametrize("damage", [b"no database at all" * 300, None])
def test_a_damaged_file_is_put_aside(tmp_path, damage):
    """It is derived: no run stops for it, and nothing that is in it is thrown away."""
    state = tmp_path / "state"
    store = History(state)
    for _ in range(2000):
        store(committed())
    store.close()
    file = state / "history.db"
    whole = file.read_bytes()
    broken = damage or whole[:4096] + b"\xff" * (len(whole) - 4096)
    file.write_bytes(broken)
    assert commits(state, "shop", "shop.orders", 0) == []
    again = History(state)
    again(committed(landed=3))
    again.close()
    assert [each["landed"] for each in commits(state, "shop", "shop.orders", 0)] == [3]
    assert (state / "history.db.damaged").read_bytes() == broken


def test_damage_while_it_is_open_stops_nobody(tmp_path):
    store = History(tmp_path)
    for _ in range(2000):
        store(committed())
    store.close()
    store = History(tmp_path)
    file = tmp_path / "history.db"
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * (file.stat().st_size - 4096))
    (tmp_path / "history.db-wal").unlink(missing_ok=True)
    for _ in range(50):
        store(committed())
    store.close()


def test_a_file_that_is_being_made_has_no_history_yet(tmp_path):
    (tmp_path / "history.db").touch()
    assert last_run(tmp_path, "shop") is None
    assert partitions(tmp_path, "shop", "shop.orders") == []
