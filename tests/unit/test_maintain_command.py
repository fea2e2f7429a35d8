"""`icestream maintain` without a JVM: what would run, what ran, and what makes no sense."""

import json
import threading
from contextlib import closing

import pyarrow as pa
import pytest

from icestream.catalogs import catalog_for
from icestream.cli import main as entry
from icestream.cli import maintain
from icestream.config.load import load
from icestream.events import MaintenanceFinished, MaintenanceProgress
from icestream.maintain.action import ActionKind
from icestream.observe.history import History
from icestream.tables.commits import summary
from icestream.tables.marker import Marker, property_name

PIPELINE = """\
name: shop
source: {type: generator}
tables: [{name: shop.orders}]
"""
ROWS = pa.table({"id": pa.array(range(3), pa.int64())})


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "icestream.yml"
    made.write_text(PIPELINE)
    return made


@pytest.fixture
def orders(path):
    """Twenty commits of one small file each, made without a JVM."""
    catalog = catalog_for(load(path, env={}).pipeline.catalog).open()
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table("shop.orders", ROWS.schema)
    marker = Marker("shop", 1, "r", "c1", None, 1, str(table.metadata.table_uuid), 1)
    for _ in range(20):
        with table.transaction() as transaction:
            transaction.append(ROWS, summary(marker, {}, 3))
            transaction.set_properties({property_name("shop"): marker.to_json()})
    catalog.close()


@pytest.fixture
def call(path, capsys):
    """The console script on the file; → exit code, stdout, stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            entry.main(["maintain", str(path), *arguments])
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_every_action_of_the_policy_can_be_named():
    assert set(entry._KINDS) == {kind.value for kind in ActionKind}


@pytest.mark.usefixtures("orders")
def test_the_plan_says_what_would_run_and_why(call):
    code, out, _ = call("--plan", "--json")
    assert code == 0
    told = json.loads(out)
    assert told["maintenance"] is True
    [rewrite] = told["due"]
    assert (rewrite["table"], rewrite["action"], rewrite["files"]) == (
        "shop.orders", "rewrite_data_files", 20,
    )  # fmt: skip
    assert "20 small files" in rewrite["reason"]
    code, out, _ = call("--plan")
    assert "20 small files" in out


@pytest.mark.usefixtures("orders")
def test_one_table_or_one_action(call):
    _, out, _ = call("--plan", "--json", "--action", "expire_snapshots")
    [expiry] = json.loads(out)["due"]  # nothing is due, but somebody asks for it
    assert (expiry["action"], expiry["reason"]) == ("expire_snapshots", "asked for")
    _, out, _ = call("--plan", "--json", "--action", "rewrite_position_delete_files")
    assert json.loads(out)["due"] == []
    _, out, _ = call("--plan", "--json", "--table", "shop.orders")
    assert len(json.loads(out)["due"]) == 1
    code, _, err = call("--plan", "--table", "shop.nothing")
    assert code == 2
    assert "it has shop.orders" in err
    assert call("--action", "vacuum")[0] == 2


@pytest.mark.usefixtures("orders")
def test_what_is_switched_off_does_not_run(path, call):
    path.write_text(
        PIPELINE + "maintenance: {expire_snapshots: false, rewrite_data_files: false}\n"
    )
    assert call("--action", "expire_snapshots") == (0, "maintenance has nothing to do\n", "")
    assert call() == (0, "maintenance has nothing to do\n", "")
    path.write_text(PIPELINE + "maintenance: false\n")
    assert call() == (0, "maintenance is off: `maintenance: false`\n", "")
    assert json.loads(call("--json")[1]) == {"maintenance": False, "due": []}


def test_before_the_first_run_there_is_nothing_to_do(call):
    assert call() == (0, "maintenance has nothing to do\n", "")


def test_the_history_of_every_run_is_kept(path, call):
    assert "no maintenance has run yet" in call("--history")[1]
    done = MaintenanceFinished(
        "shop", "shop.orders", "rewrite_data_files", "128 small files", "done",
        128, 1, 10_000_000, 8_000_000, 3.5, 1, "",
    )  # fmt: skip
    lost = MaintenanceFinished(
        "shop", "shop.lines", "expire_snapshots", "600 snapshots", "failed",
        0, 0, 0, 0, 0.1, 1, "OSError: no answer",
    )  # fmt: skip
    with closing(History(path.parent / ".icestream")) as remembered:
        for event in (done, MaintenanceProgress("shop", "shop.lines", "x", 1, 2), lost):
            remembered(event)
    code, out, _ = call("--history", "--json")
    runs = json.loads(out)["runs"]
    assert code == 0
    assert [run["ending"] for run in runs] == ["done", "failed"]
    assert {key: runs[0][key] for key in ("files_before", "files_after", "bytes_after")} == {
        "files_before": 128, "files_after": 1, "bytes_after": 8_000_000,
    }  # fmt: skip
    _, out, _ = call("--history")
    assert "128 → 1" in out
    assert "10.0 MB → 8.0 MB" in out
    assert "no answer" in out
    _, out, _ = call("--history", "--json", "--table", "shop.lines")
    assert [run["table"] for run in json.loads(out)["runs"]] == ["shop.lines"]


def test_ctrl_c_cancels_the_jobs_until_they_have_ended(monkeypatch):
    stop, ended, cancelled = threading.Event(), threading.Event(), []
    stop.set()

    class Worker:
        def cancel_jobs(self):
            cancelled.append(1)
            if len(cancelled) == 2:
                ended.set()

    monkeypatch.setattr(maintain, "_CANCEL_SECONDS", 0.01)
    maintain._cancel_after_stop(stop, ended, Worker())
    assert len(cancelled) == 2
