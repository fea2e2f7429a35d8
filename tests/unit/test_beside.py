"""Maintenance beside a stream, without Spark: the thread's life, failures, rests, options."""

import threading
from datetime import timedelta

import pytest

from icestream.config.model import PipelineConfig
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.events import EventBus, MaintenanceFailed
from icestream.maintain import thread
from icestream.maintain.action import Action, ActionKind, ActionResult, Ending
from icestream.maintain.thread import ClaimLost, FailureBackoff, MaintenanceThread

ACTION = Action("shop.a", ActionKind.EXPIRE_SNAPSHOTS, "many")
CONFIG = PipelineConfig.model_validate(
    {"name": "p", "source": {"type": "generator"}, "tables": [{"name": "shop.a"}]}
)


class Crew:
    """Stands in for the real one: what its looks do is told beforehand."""

    def __init__(self, looks):
        self.looks = looks
        self.worked = []
        self.closed = False
        self.called_off = False
        self.rested = 0
        self.idle = threading.Event()  # all that was told is done

    def find_due(self):
        if not self.looks:
            self.idle.set()
            return []
        found = self.looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def run_actions(self, actions):
        self.worked += actions
        return actions

    def release_idle(self):
        self.rested += 1

    def cancel_jobs(self):
        self.called_off = True

    def close(self):
        self.closed = True


@pytest.fixture
def begun(monkeypatch):
    """A thread that looks without end, with such a crew; → both, and what was told."""
    made = []

    def begin(*looks):
        crew, seen, bus = Crew(list(looks)), [], EventBus()
        bus.join(seen.append)
        monkeypatch.setattr(thread, "MaintenanceWorker", lambda *_: crew)
        options = MaintenanceOptions(every=timedelta(milliseconds=1))
        made.append(MaintenanceThread(CONFIG, options, None, bus, "run", None))
        made[-1].start()
        return made[-1], crew, seen

    yield begin
    for each in made:
        each.stop()
        assert not each._thread.is_alive()


def test_it_looks_and_works_until_it_is_stopped(begun):
    maintenance, crew, seen = begun([ACTION], [], [ACTION, ACTION])
    assert crew.idle.wait(10)
    maintenance.stop()
    assert crew.worked == [ACTION] * 3
    assert crew.rested >= 1, "when there was nothing to do, and not in between"
    assert crew.closed
    assert crew.called_off
    assert seen == []


def test_a_look_that_fails_is_told_and_the_next_one_tried(begun):
    maintenance, crew, seen = begun(OSError("the catalog\nis away"), [ACTION])
    assert crew.idle.wait(10)
    maintenance.stop()
    assert seen == [MaintenanceFailed("p", "OSError: the catalog")]
    assert crew.worked == [ACTION]


def test_another_run_ends_it(begun):
    maintenance, crew, _ = begun([ACTION], ClaimLost("shop.a"), [ACTION])
    maintenance._thread.join(10)
    assert not maintenance._thread.is_alive()
    assert crew.worked == [ACTION]
    assert crew.closed


def test_one_that_never_began_is_stopped_at_once():
    maintenance = MaintenanceThread(CONFIG, MaintenanceOptions(), None, EventBus(), "run", None)
    maintenance.stop()
    with maintenance.gate.batch():
        pass


def test_failures_rest_longer_each_time_and_giving_way_is_none():
    rests = FailureBackoff(every=10)
    other = Action("shop.b", ACTION.kind, "many")
    rests.record(ActionResult(ACTION, Ending.FAILED), now=100)
    assert rests.is_backing_off(ACTION, 119)
    assert not rests.is_backing_off(ACTION, 120)
    assert not rests.is_backing_off(other, 100)
    rests.record(ActionResult(ACTION, Ending.FAILED), now=120)
    assert rests.is_backing_off(ACTION, 159)
    for ending in (Ending.GAVE_WAY, Ending.DONE, Ending.NOTHING):
        rests = FailureBackoff(every=10)
        rests.record(ActionResult(ACTION, Ending.FAILED), now=100)
        rests.record(ActionResult(ACTION, ending), now=130)
        assert not rests.is_backing_off(ACTION, 130)
        rests.record(ActionResult(ACTION, Ending.FAILED), now=200)
        assert not rests.is_backing_off(ACTION, 220)
    for at in range(50):
        rests.record(ActionResult(ACTION, Ending.FAILED), now=at)
    assert not rests.is_backing_off(ACTION, 49 + 3600)
