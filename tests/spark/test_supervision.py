"""A failing pipeline is begun again, exactly once all the same, and given up in the end."""

import pytest

from icestream.errors import Fenced, GaveUp
from icestream.events import RunFailed, RunRestarting, RunStarted
from icestream.run import restart_policy

pytestmark = pytest.mark.spark

# A commit that failed, or whose answer was lost, is settled on the spot; and bad records that are
# in already are not committed again.
RESTARTS = {"before-request": 0, "request-sent": 0, "quarantine-committed": 1}

CONFIG = """\
name: p
catalog: {{type: local, warehouse: {folder}/warehouse}}
state_location: {folder}/state
source: {{type: files, path: {folder}/in, pattern: '*.jsonl', max_records_per_commit: 2}}
commit_interval: once
tables: [{{name: db.events}}]
"""


@pytest.fixture
def events(lake, monkeypatch):
    monkeypatch.setattr(restart_policy, "_FIRST_WAIT", 0.01)
    lake.configure(CONFIG.format(folder=lake.folder))
    lake.put("a.jsonl", *({"id": n} for n in range(5)), "{not json")
    return lake


@pytest.mark.parametrize(
    "point",
    [
        "batch-begins",
        "offsets-logged",
        "files-staged",
        "marker-checked",
        "quarantine-committed",
        "before-request",
        "request-sent",
        "between-tables",
        "tables-done",
    ],
)
def test_whatever_fails_once_or_twice_is_made_up_for(events, arm, point):
    arm(f"{point}:raise:1:2")
    seen = events.run()
    assert events.values("db.events", "id") == [(n,) for n in range(5)]
    assert events.rows("db.events__quarantine").num_rows == 1
    restarts = [each for each in seen if isinstance(each, RunRestarting)]
    assert len(restarts) == RESTARTS.get(point, 2)
    assert len([each for each in seen if isinstance(each, RunStarted)]) == 1 + len(restarts)
    assert all("raised by a failpoint" in each.error for each in restarts)


def test_a_batch_that_never_works_is_given_up_with_its_range(events, arm):
    arm("files-staged:raise")
    with pytest.raises(GaveUp, match=r"6 tries without a commit: .*raised by a failpoint") as told:
        events.run()
    assert told.value.exit_code == 75
    assert "0 to 1" in str(told.value.where)
    restarts = [each for each in events.events if isinstance(each, RunRestarting)]
    assert [each.attempt for each in restarts] == [1, 2, 3, 4, 5]
    assert all("0 to 1" in str(each.stuck_on) for each in restarts)
    assert isinstance(events.events[-1], RunFailed)
    arm("")
    events.run()
    assert events.values("db.events", "id") == [(n,) for n in range(5)]


def test_progress_in_between_is_no_crash_loop(events, arm):
    events.put("b.jsonl", *({"id": n} for n in range(5, 17)))
    arm("tables-done:raise")  # after every commit
    seen = events.run()
    assert sorted(events.values("db.events", "id")) == [(n,) for n in range(17)]
    assert len([each for each in seen if isinstance(each, RunRestarting)]) > restart_policy.RESTARTS


def test_who_begins_again_claims_nothing_from_who_took_over(events, arm):
    arm("batch-begins:raise:1:1")
    took_over = []

    def take_over(event):
        if isinstance(event, RunRestarting) and not took_over:
            took_over.append(event)
            events.run()

    with pytest.raises(Fenced):
        events.run(listen=take_over)
    assert took_over
    assert events.values("db.events", "id") == [(n,) for n in range(5)]
