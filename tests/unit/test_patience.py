"""How long a failing pipeline is tried again."""

import pytest

from icestream import errors
from icestream.errors import GaveUp, Unreachable
from icestream.run.restart_policy import OUTAGE_SECONDS, RESTARTS, RestartPolicy

SAFE = {"GaveUp", "IndexDamaged", "StorageFailed", "Unreachable"}


def waits(patience: RestartPolicy, failure: errors.IcestreamError, most: int = 1000) -> list[float]:
    """The waits until it gives up, with a clock that only the waits move."""
    now, found = 100.0, []
    while len(found) < most and (wait := patience.next_delay(failure, now)) is not None:
        found.append(wait)
        now += wait
    return found


def test_a_batch_that_keeps_failing_is_given_up():
    assert waits(RestartPolicy(), GaveUp("no")) == [1, 2, 4, 8, 16]
    assert len(waits(RestartPolicy(), GaveUp("no"))) == RESTARTS


def test_an_outage_is_waited_for_without_haste():
    found = waits(RestartPolicy(), Unreachable("no"))
    assert found[:7] == [1, 2, 4, 8, 16, 30, 30]
    assert set(found[5:]) == {30}
    assert OUTAGE_SECONDS < sum(found) < OUTAGE_SECONDS + 60


def test_progress_begins_it_anew():
    patience = RestartPolicy()
    waits(patience, GaveUp("no"), most=4)
    patience.reset()
    assert waits(patience, GaveUp("no")) == [1, 2, 4, 8, 16]


def test_an_outage_does_not_excuse_a_batch():
    patience = RestartPolicy()
    waits(patience, Unreachable("no"), most=RESTARTS)
    assert patience.next_delay(GaveUp("no"), 100.0) is None


@pytest.mark.parametrize(
    "kind",
    [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.IcestreamError)
    ],
)
def test_a_refusal_is_no_accident(kind):
    assert (RestartPolicy().next_delay(kind("no"), 0.0) is not None) == (kind.__name__ in SAFE)
