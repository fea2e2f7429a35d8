"""The stream of a planner of ours: batches in order, each logged before it begins; how it ends."""

import json
import shutil
import threading
from types import SimpleNamespace

import pytest

from icestream.errors import SourceChanged, Unreachable
from icestream.sources import planned
from icestream.sources.planned import PlannedStream
from servers import soon


class Counting:
    """A planner that goes on by one as often as it is let."""

    def __init__(self, upto=3):
        self.upto, self.at = upto, 0

    def initial_positions(self):
        return {"t": {0: 0}}

    def latest_positions(self):
        self.at = min(self.at + 1, self.upto)
        return {"t": {0: self.at}}

    def work_orders(self, start, stop):
        return [f"{start['t'][0]}-{stop['t'][0]}"]


class Alive:
    """As much of a session as a stream needs."""

    def __init__(self):
        self.sparkContext = SimpleNamespace(
            _jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False)),
            setJobGroup=lambda *_: None,
        )


@pytest.fixture(autouse=True)
def _no_spark(monkeypatch):
    monkeypatch.setattr(planned, "_cloned_session", lambda spark: spark)
    monkeypatch.setattr(planned, "_work_order_frame", lambda session, orders: tuple(orders))


def start(folder, handle, planner=Counting, interval=0.0):
    return PlannedStream(Alive(), planner).start("p", handle, folder / "checkpoint", interval)


def logged(folder):
    found = {}
    for file in (folder / "checkpoint" / "offsets").iterdir():
        found[int(file.name)] = json.loads(file.read_text().splitlines()[2])["t"]["0"]
    return found


def test_batches_come_in_order_and_are_logged_before_they_begin(tmp_path):
    taken = []
    query = start(tmp_path, lambda frame, n: taken.append((n, frame, logged(tmp_path)[n])))
    query.processAllAvailable()
    assert taken == [(0, ("0-1",), 1), (1, ("1-2",), 2), (2, ("2-3",), 3)]
    assert query.isActive
    query.stop()
    assert not query.isActive
    assert query.exception() is None
    assert logged(tmp_path) == {1: 2, 2: 3}  # a batch and the one before it


def test_what_comes_later_is_taken_later(tmp_path):
    planner, taken = Counting(1), []
    query = start(tmp_path, lambda frame, n: taken.append(n), lambda: planner)
    query.processAllAvailable()
    assert taken == [0]
    planner.upto = 2
    assert soon(lambda: taken == [0, 1])
    query.stop()


def test_an_interval_lies_between_the_begins_of_two_batches(tmp_path):
    begun = threading.Semaphore(0)
    query = start(tmp_path, lambda *_: begun.release(), interval=3600)
    assert begun.acquire(timeout=30)
    assert not begun.acquire(timeout=0.2)
    query.stop()  # does not wait for the hour
    assert not query.isActive


class Panic(BaseException):
    """As a panic in Rust arrives, which is no Exception."""


@pytest.mark.parametrize("error", [SourceChanged("file `a` changed"), Panic()], ids=repr)
@pytest.mark.parametrize("where", ["made", "latest", "batch"])
def test_an_error_ends_the_stream_and_is_kept_whole(tmp_path, where, error):

    def fail(*_):
        raise error

    planner = Counting()
    if where == "latest":
        planner.latest_positions = fail
    query = start(
        tmp_path, fail if where == "batch" else print, fail if where == "made" else lambda: planner
    )
    for ask in (query.processAllAvailable, query.awaitTermination):
        with pytest.raises(type(error)) as told:
            ask()
        assert told.value is error
    assert query.exception() is error
    assert not query.isActive


def test_a_stop_waits_for_the_batch_under_way(tmp_path):
    begun, go_on, done = threading.Event(), threading.Event(), []

    def slow(frame, number):
        begun.set()
        assert go_on.wait(30)
        done.append(number)

    query = start(tmp_path, slow)
    assert begun.wait(30)
    stopping = threading.Thread(target=query.stop)
    stopping.start()
    stopping.join(0.2)
    assert stopping.is_alive()
    assert query.isActive
    go_on.set()
    stopping.join(30)
    assert done == [0]


def test_a_context_that_spark_has_stopped_is_no_stream_that_waits(tmp_path):
    spark = Alive()
    query = PlannedStream(spark, Counting).start("p", print, tmp_path / "checkpoint", 0.0)
    query.processAllAvailable()
    spark.sparkContext._jsc.sc = lambda: SimpleNamespace(isStopped=lambda: True)
    with pytest.raises(ConnectionError, match="context"):
        query.isActive  # noqa: B018
    query.stop()


def test_a_log_whose_folder_was_deleted_says_so(tmp_path):
    def delete(frame, number):
        shutil.rmtree(tmp_path / "checkpoint")

    query = start(tmp_path, delete)
    with pytest.raises(Unreachable, match="log `1` is gone") as told:
        query.awaitTermination()
    assert "state_location" in told.value.hint
