"""What the demo's summary says of maintenance."""

from contextlib import closing

import pytest

from icestream.cli.demo import generated
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.events import MaintenanceFinished
from icestream.observe.history import History


@pytest.fixture
def loaded(tmp_path, capsys):
    return generated.prepare(tmp_path / "demo")


def remember(state, table, action, before, after, ending="done"):
    event = MaintenanceFinished(
        "demo", table, action, "why", ending, before, after, 0, 0, 1.25, 1, ""
    )
    with closing(History(state)) as history:
        history(event)


def test_the_demo_is_maintained_and_soon(loaded):
    options = loaded.pipeline.maintenance
    assert isinstance(options, MaintenanceOptions)
    assert options.every.total_seconds() == 10
    assert options.expire_snapshots.max_snapshots == 5


def test_the_summary_says_what_was_done(loaded, tmp_path, capsys):
    state = tmp_path / "demo" / "state"
    for before, after in ((4, 1), (5, 1)):
        remember(state, "shop.orders", "rewrite_data_files", before, after)
    remember(state, "shop.orders", "rewrite_data_files", 9, 9, "gave way")
    remember(state, "shop.orders", "expire_snapshots", 11, 5)
    remember(state, "shop.page_events", "expire_snapshots", 8, 5)
    capsys.readouterr()
    generated._show_maintenance(state, "demo")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        ["maintenance", "beside", "the", "stream"],
        ["table", "files", "joined", "snapshots", "expired", "seconds"],
        ["shop.orders", "9", "→", "2", "6", "3.8"],
        ["shop.page_events", "-", "3", "1.2"],
    ]


def test_a_short_demo_has_nothing_to_say(loaded, tmp_path, capsys):
    capsys.readouterr()
    generated._show_maintenance(tmp_path / "demo" / "state", "demo")
    assert "had nothing to do yet" in capsys.readouterr().out
