"""Turns: who waits for whom between the batches of a stream, and for how long."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from icestream.maintain.gate import GateClosed, MaintenanceGate


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as pool:
        yield pool


class Noted:
    """What happened, in order, and doors that a test opens."""

    def __init__(self):
        self.seen = []
        self.open = threading.Event()
        self.inside = threading.Event()

    def hold(self, gate, name):
        with gate:
            self.seen.append(name)
            self.inside.set()
            assert self.open.wait(10)

    def pass_through(self, gate, name):
        with gate:
            self.seen.append(name)


def until(true):
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def waiting(turns, count):
    until(lambda: turns._commits_waiting == count)


def test_a_commit_waits_for_the_end_of_a_batch_and_the_next_batch_for_it(pool):
    turns, noted = MaintenanceGate(), Noted()
    first = pool.submit(noted.hold, turns.batch(), "batch 1")
    assert noted.inside.wait(10)
    commit = pool.submit(noted.pass_through, turns.commit_window("a"), "commit")
    waiting(turns, 1)
    noted.open.set()
    first.result(10)
    # The stream comes back at once, and lets the one that waits pass.
    noted.pass_through(turns.batch(), "batch 2")
    commit.result(10)
    assert noted.seen == ["batch 1", "commit", "batch 2"]


def test_a_batch_that_has_let_one_pass_is_next(pool):
    turns, noted = MaintenanceGate(longest_wait=60), Noted()
    first = pool.submit(noted.hold, turns.commit_window("a"), "commit")
    assert noted.inside.wait(10)
    behind = [pool.submit(noted.pass_through, turns.commit_window("a"), "commit") for _ in range(2)]
    waiting(turns, 2)
    batch = pool.submit(noted.pass_through, turns.batch(), "batch")
    until(lambda: turns._is_batch_waiting)
    noted.open.set()
    for each in (first, batch, *behind):
        each.result(10)
    assert noted.seen == ["commit", "batch", "commit", "commit"]


def test_a_batch_goes_on_when_a_commit_takes_too_long(pool):
    turns, noted = MaintenanceGate(longest_wait=0.05), Noted()
    commit = pool.submit(noted.hold, turns.commit_window("a"), "commit begins")
    assert noted.inside.wait(10)
    began = time.monotonic()
    with turns.batch():
        assert not commit.done()
        assert 0.05 <= time.monotonic() - began < 5
    noted.open.set()
    commit.result(10)
    noted.pass_through(turns.commit_window("a"), "the next one")
    assert noted.seen == ["commit begins", "the next one"]


def test_nobody_waits_for_nobody():
    turns = MaintenanceGate(longest_wait=10)
    began = time.monotonic()
    for _ in range(100):
        with turns.batch():
            pass
        with turns.commit_window("a"):
            pass
    assert time.monotonic() - began < 5


def test_a_busy_stream_starves_no_commit(pool):
    turns, stop = MaintenanceGate(), threading.Event()

    def stream():
        while not stop.is_set():
            with turns.batch():
                time.sleep(0.001)

    busy = pool.submit(stream)
    for _ in range(50):
        with turns.commit_window("a"):
            pass
    stop.set()
    busy.result(10)


def test_one_that_is_to_stop_waits_no_longer(pool):
    stop = threading.Event()
    turns, noted = MaintenanceGate(stopped=stop.is_set), Noted()
    batch = pool.submit(noted.hold, turns.batch(), "batch")
    assert noted.inside.wait(10)
    commit = pool.submit(noted.pass_through, turns.commit_window("a"), "commit")
    waiting(turns, 1)
    stop.set()
    with pytest.raises(GateClosed):
        commit.result(10)
    noted.open.set()
    batch.result(10)
    noted.pass_through(turns.batch(), "next batch")  # nobody is waited for any more
    assert noted.seen == ["batch", "next batch"]


def test_an_error_inside_ends_the_turn():
    turns = MaintenanceGate()
    for gate in (turns.batch, lambda: turns.commit_window("a")):
        with pytest.raises(ValueError), gate():
            raise ValueError
    with turns.commit_window("a"):
        pass
    with turns.batch():
        pass
