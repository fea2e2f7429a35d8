"""`icestream tables` and `icestream plan`: what they say, to people and to machines."""

import json
import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.catalogs import catalog_for
from icestream.cli import main as entry
from icestream.config.load import load
from icestream.events import TableCommitted
from icestream.observe import history
from icestream.tables.commits import summary
from icestream.tables.marker import Marker, property_name

PIPELINE = """\
name: shop
source: {type: kafka, bootstrap_servers: 'nowhere:1', topic_pattern: '(?P<table>\\w+)'}
tables:
  - {match: users, name: shop.users}
  - name: "shop.{table}"
"""
ROWS = pa.table({"id": pa.array(range(3), pa.int64())})


@pytest.fixture
def path(tmp_path):
    made = tmp_path / "icestream.yml"
    made.write_text(PIPELINE)
    return made


def written(path, name="shop.orders", commits=9):
    """The table as runs of ours leave it, made without a JVM."""
    catalog = catalog_for(load(path, env={}).pipeline.catalog).open()
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table(name, ROWS.schema)
    marker = Marker(
        "shop", 1, "r", "c1", None, 1, str(table.metadata.table_uuid), 1, {"orders": {0: 20}}
    )
    for _ in range(commits):
        with table.transaction() as transaction:
            transaction.append(ROWS, summary(marker, {}, 3))
            transaction.set_properties({property_name("shop"): marker.to_json()})
    catalog.close()
    return table


def said(capsys, *arguments):
    """Exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as end:
        entry.main([str(each) for each in arguments])
    told = capsys.readouterr()
    return end.value.code or 0, told.out, told.err


def test_health_and_what_would_run(path, capsys, monkeypatch):
    written(path, commits=20)
    written(path, "shop.orders__quarantine", commits=1)
    code, out, _ = said(capsys, "tables", path)
    lines = out.splitlines()
    assert code == 0
    columns = ["table", "files", "size", "average", "small", "deleted", "snapshots", "due"]
    assert lines[0].split() == columns
    assert lines[1].split()[:2] == ["shop.orders", "20"]
    assert lines[1].split()[-4:] == ["20", "0%", "20", "20"]
    assert lines[2].split()[:2] == ["shop.orders__quarantine", "1"]
    assert lines[3:5] == ["shop.users: not created yet", "maintenance would run now:"]
    assert lines[5] == "  shop.orders: rewrite_data_files"
    assert lines[6].startswith("    20 small files, oldest ")
    assert len(lines) == 7


def test_machines_get_more(path, capsys):
    table = written(path, commits=20)
    code, out, _ = said(capsys, "tables", path, "--json")
    told = json.loads(out)
    assert (code, told["pipeline"], told["maintenance"]) == (0, "shop", True)
    assert (told["missing"], told["broken"]) == (["shop.users"], {})
    (only,) = told["tables"]
    assert (only["table"], only["data_files"], only["compaction_lag"]) == ("shop.orders", 20, 20)
    size = sum(task.file.file_size_in_bytes for task in table.scan().plan_files())
    assert only["bytes"] == size
    (due,) = only["due"]
    assert due.pop("reason").startswith("20 small files, oldest")
    assert due == {"action": "rewrite_data_files", "groups": 1, "files": 20, "bytes": size}


def test_nothing_to_do_and_nothing_allowed(path, capsys):
    written(path, commits=1)
    assert said(capsys, "tables", path)[1].endswith("maintenance has nothing to do\n")
    path.write_text(PIPELINE + "maintenance: false\n")
    assert said(capsys, "tables", path)[1].endswith("maintenance is off: `maintenance: false`\n")


def test_a_table_that_cannot_be_read_is_exit_1(path, capsys):
    table = written(path)
    Path(table.current_snapshot().manifest_list.removeprefix("file://")).unlink()
    code, out, _ = said(capsys, "tables", path)
    assert code == 1
    assert "shop.orders: cannot be read: " in out


def test_a_catalog_that_does_not_answer_is_exit_69(path, capsys):
    path.write_text(PIPELINE + "catalog: {type: rest, uri: 'http://127.0.0.1:9'}\n")
    assert said(capsys, "tables", path)[0] == 69


def test_options_that_mean_nothing_are_exit_78(path, capsys):
    written(path)
    path.write_text(PIPELINE + "maintenance: {rewrite_data_files: {min-input-files: many}}\n")
    code, _, err = said(capsys, "tables", path)
    assert code == 78
    assert "`min-input-files: many`: expected a whole number" in err


def remember(path, name="shop.orders", rows=6000, monkeypatch=None):
    """A commit a minute for the last hour."""
    remembered = history.History(Path(load(path, env={}).pipeline.state_location))
    now = time.time()
    for at in range(60):
        monkeypatch.setattr(history.time, "time", lambda at=at: now - 3600 + at * 60)
        remembered(
            TableCommitted(
                "shop", name, "c", at, rows, 0, 0, 2, rows * 50, 0.4, 0.1, 1, 1.0, 1.0, 0, 0.0
            )
        )
    remembered.close()
    monkeypatch.undo()


@pytest.mark.usefixtures("impatient")
def test_plan_by_what_was_measured(path, capsys, monkeypatch):
    written(path, commits=1)
    remember(path, monkeypatch=monkeypatch)
    code, out, _ = said(capsys, "plan", path)
    lines = out.splitlines()
    assert code == 0
    head = "shop.orders: 100 records/s, 50 bytes each as stored, measured over"
    lines = lines[next(at for at, line in enumerate(lines) if line.startswith(head)) :]
    columns = ["interval", "fresh", "commits", "files", "each", "after", "rewritten", "core"]
    assert lines[1].split() == columns
    assert [line.split()[0] for line in lines[2:7]] == ["10s", "1m", "5m", "15m", "1h"]
    assert lines[3].split()[:7] == ["1m", "←", "60s", "1,440", "2,880", "150.0", "kB"]
    assert max(len(line) for line in lines[:9]) <= 80


@pytest.mark.usefixtures("impatient")
def test_plan_by_what_is_told(path, capsys):
    code, out, _ = said(capsys, "plan", path, "--rate", 5000, "--record-bytes", 60, "--json")
    told = json.loads(out)
    assert (code, told["pipeline"], told["interval"], told["compaction"]) == (0, "shop", 60, True)
    (only,) = told["tables"]
    assert only["table"] == "shop.users"
    assert only["rate"]["records_per_s"] == 5000
    lines = {line["interval"]: line for line in only["lines"]}
    assert sorted(lines) == [10, 60, 300, 900, 3600]
    assert (lines[60]["commits"], lines[60]["files"]) == (1440, 2880)
    assert not os.path.exists(path.parent / "warehouse")  # noqa: PTH110


@pytest.mark.usefixtures("impatient")
def test_plan_without_compaction(path, capsys):
    path.write_text(PIPELINE + "maintenance: {rewrite_data_files: false}\n")
    _, out, _ = said(capsys, "plan", path, "--rate", 5000)
    assert "compaction is off: files stay as they are committed" in out
    [line] = [line for line in out.splitlines() if line.startswith("5m ")]
    assert line.split()[-3:] == ["-", "-", "-"]


@pytest.mark.usefixtures("impatient")
def test_a_plan_without_a_rate_asks_for_one(path, capsys):
    code, out, _ = said(capsys, "plan", path)
    assert code == 0
    assert "icestream plan --rate 5000" in out
    told = json.loads(said(capsys, "plan", path, "--json")[1])
    assert [(each["table"], each["rate"], each["lines"]) for each in told["tables"]] == [
        ("shop.users", None, [])
    ]
