"""Status: how tables stand, from what is in the tables and in the history; and how it is shown."""

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.catalogs import catalog_for
from icestream.cli import main as entry
from icestream.cli import show
from icestream.config.load import load
from icestream.events import PartitionState, RunFailed, RunStarted, TableCommitted
from icestream.observe.history import History
from icestream.observe.status import pipeline_status
from icestream.tables.commits import summary
from icestream.tables.marker import Counts, Loss, Marker, property_name

PIPELINE = """\
name: shop
maintenance: false
source: {type: kafka, bootstrap_servers: 'nowhere:1', topics: [orders]}
tables:
  - name: shop.orders
"""
LOST = (Loss("retention", "orders", 1, 5, 9), Loss("recreated", "users", 0, 3, None))


@pytest.fixture
def loaded(tmp_path):
    path = tmp_path / "icestream.yml"
    path.write_text(PIPELINE)
    return load(path, env={})


def committed(loaded, table="shop.orders", **facts):
    known = {
        "commit_id": "c",
        "sequence": 1,
        "landed": 30,
        "quarantined": 0,
        "dropped": 0,
        "files": 1,
        "bytes": 10,
        "stage_seconds": 0.5,
        "commit_seconds": 0.1,
        "attempts": 1,
        "freshness_seconds": 1.0,
        "latency_seconds": 4.5,
        "lag_records": 12,
        "lag_seconds": 2.5,
        "partitions": (
            PartitionState("orders", 0, 20, 0, 1.0),
            PartitionState("orders", 1, 10, 12, None),
        ),
    }
    remember(loaded, TableCommitted("shop", table, **{**known, **facts}))


def remember(loaded, *events):
    history = History(Path(loaded.pipeline.state_location))
    for event in events:
        history(event)
    history.close()


def written(loaded, rows=3, **facts):
    """The table as a run of ours leaves it, made without a JVM."""
    catalog = catalog_for(loaded.pipeline.catalog).open()
    catalog.create_namespace_if_not_exists("shop")
    data = pa.table({"id": pa.array(range(rows), pa.int64())})
    table = catalog.create_table("shop.orders", data.schema)
    known = {
        "pipeline": "shop",
        "generation": 2,
        "run_id": "r",
        "commit_id": "c1",
        "previous_commit_id": None,
        "sequence": 7,
        "table_uuid": str(table.metadata.table_uuid),
        "snapshot_sequence": 1,
        "positions": {"orders": {0: 20, 1: 10}},
    }
    marker = Marker(**{**known, **facts})
    with table.transaction() as transaction:
        transaction.append(data, summary(marker, {}, rows))
        transaction.set_properties({property_name("shop"): marker.to_json()})


def only(loaded):
    (table,) = pipeline_status(loaded).tables
    return table


# ── what is known ───────────────────────────────────────────────────────────────────────────────


def test_a_table_that_is_not_there(loaded):
    status = pipeline_status(loaded)
    assert not status.healthy
    (table,) = status.tables
    assert (table.table, table.healthy, table.note) == ("shop.orders", False, "not created yet")
    nothing = (table.lag_records, table.lag_s, table.freshness_s, table.latency_s)
    assert nothing == (None, None, None, None)
    assert table.last_commit is table.rows_per_s is None
    assert (table.rows, table.commits, table.data_files, table.bytes, table.snapshots) == (0,) * 5
    assert (table.quarantined, table.dropped) == (0, 0)
    assert (table.lost, table.partitions) == ((), ())


def test_a_table_of_ours(loaded):
    watermark = int((time.time() - 60) * 1000)
    written(loaded, counts=Counts(3, 2, 1), watermark_ms=watermark)
    committed(loaded)
    status = pipeline_status(loaded)
    assert status.healthy
    (table,) = status.tables
    assert (table.healthy, table.note) == (True, "")
    assert (table.rows, table.commits, table.data_files, table.snapshots) == (3, 7, 1, 1)
    assert (table.quarantined, table.dropped) == (2, 1)
    assert 0 < table.rows_per_s <= 30
    assert (table.lag_records, table.lag_s, table.latency_s) == (12, 2.5, 4.5)
    assert table.freshness_s == pytest.approx(60, abs=30)
    assert table.last_commit == pytest.approx(time.time(), abs=60)
    assert table.bytes > 0
    assert table.lost == ()


def test_the_last_commit_speaks_of_lag(loaded):
    written(loaded)
    committed(loaded, lag_records=900, lag_seconds=80.0, latency_seconds=90.0)
    committed(loaded, lag_records=0, lag_seconds=0.0, latency_seconds=None)
    table = only(loaded)
    assert (table.lag_records, table.lag_s, table.latency_s) == (0, 0.0, None)


def test_partitions_of_each_table(loaded):
    written(loaded)
    committed(loaded, partitions=(PartitionState("orders", 0, 5, 99, 9.0),))
    committed(loaded)
    committed(loaded, "shop.other", partitions=(PartitionState("users", 0, 1, 1, 1.0),))
    assert only(loaded).partitions == (
        PartitionState("orders", 0, 20, 0, 1.0),
        PartitionState("orders", 1, 10, 12, None),
    )


def test_without_a_history_the_table_itself_still_speaks(loaded):
    written(loaded, losses=LOST)
    table = only(loaded)
    assert table.healthy
    assert (table.rows, table.partitions, table.lag_records, table.lag_s) == (3, (), None, None)
    assert table.lost


def test_what_was_given_up_is_told_and_no_illness(loaded):
    written(loaded, losses=LOST)
    status = pipeline_status(loaded)
    assert status.healthy
    assert status.tables[0].lost == (
        "retention orders/1: 5 to 9 (4 records)",
        "recreated users/0: 3 to the end",
    )


def test_a_table_that_is_not_ours_is_unhealthy(loaded):
    written(loaded, table_uuid="another")
    table = only(loaded)
    assert (table.healthy, table.note) == (False, "replaced")


def test_a_failed_run_is_unhealthy(loaded):
    written(loaded)
    remember(loaded, RunStarted("shop", "r", 1, ()), RunFailed("shop", "r", "no", "Gap"))
    status = pipeline_status(loaded)
    assert not status.healthy
    assert status.tables[0].healthy
    assert status.last_run["error_kind"] == "Gap"


TEMPLATE = PIPELINE.replace("topics: [orders]", r"topic_pattern: '(?P<table>\w+)'").replace(
    "shop.orders", "'shop.{table}'"
)


def test_a_table_of_a_template_whose_marker_is_gone(loaded):
    """It is still listed: its snapshots say that it is ours."""
    loaded.path.write_text(TEMPLATE)
    loaded = load(loaded.path, env={})
    written(loaded)
    assert only(loaded).healthy
    catalog = catalog_for(loaded.pipeline.catalog).open()
    with catalog.load_table("shop.orders").transaction() as transaction:
        transaction.remove_properties(property_name("shop"))
    table = only(loaded)
    assert (table.healthy, table.note) == (False, "its marker property is gone")
    assert (table.rows, table.commits) == (3, 0)


@pytest.mark.parametrize("pipeline", [PIPELINE, TEMPLATE])
@pytest.mark.parametrize(
    "damage, reason", [("unlink", ".metadata.json"), ("cut", "validation error")]
)
def test_a_table_whose_metadata_are_damaged(loaded, call, pipeline, damage, reason):
    loaded.path.write_text(pipeline)
    loaded = load(loaded.path, env={})
    written(loaded)
    catalog = catalog_for(loaded.pipeline.catalog).open()
    file = Path(catalog.load_table("shop.orders").metadata_location.removeprefix("file://"))
    if damage == "unlink":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:100])
    table = only(loaded)
    assert not table.healthy
    assert table.note.startswith("cannot be read: ")
    assert reason in table.note
    code, out = call()
    assert code == 1
    assert "shop.orders: cannot be read: " in out


def test_a_catalog_that_does_not_answer(loaded, call):
    loaded.path.write_text(PIPELINE + "catalog: {type: rest, uri: 'http://127.0.0.1:9'}\n")
    assert call() == (69, "")


# ── how it is shown ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def call(loaded, capsys, monkeypatch):
    """Run `icestream status`; → exit code, stdout."""
    monkeypatch.chdir(loaded.path.parent)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            entry.main(["status", *arguments])
        return ended.value.code or 0, capsys.readouterr().out

    return run


def words(text):
    """Each line without its borders."""
    return [" ".join(line.replace("│", " ").split()) for line in text.splitlines()]


def test_losses_are_shown_always_and_partitions_when_asked_for(loaded, call):
    written(loaded, losses=LOST)
    committed(loaded)
    code, out = call()
    assert code == 0
    shown = words(out)
    assert "shop.orders: given up by --accept-loss: retention orders/1: 5 to 9 (4 records)" in shown
    assert "shop.orders: given up by --accept-loss: recreated users/0: 3 to the end" in shown
    assert not any(line.startswith("orders 0 20") for line in shown)
    code, out = call("--partitions")
    assert code == 0
    lines = words(out)
    (first,) = [line for line in lines if line.startswith("orders 0 20")]
    (second,) = [line for line in lines if line.startswith("orders 1 10")]
    assert first.split()[:4] == ["orders", "0", "20", "0"]
    assert second.split()[:4] == ["orders", "1", "10", "12"]


def test_json_has_losses_and_partitions(loaded, call):
    written(loaded, losses=LOST)
    committed(loaded)
    code, out = call("--json")
    assert code == 0
    (table,) = json.loads(out)["tables"]
    assert table["lost"] == [f"{loss.kind} {loss}" for loss in LOST]
    assert [each["position"] for each in table["partitions"]] == [20, 10]
    assert table["partitions"][1] == {
        "stream": "orders",
        "partition": 1,
        "position": 10,
        "lag_records": 12,
        "freshness_seconds": None,
    }
    assert (table["lag_records"], table["lag_s"], table["latency_s"]) == (12, 2.5, 4.5)


def test_watching_shows_it_again(loaded, capsys, monkeypatch):
    written(loaded)
    committed(loaded)
    looks = []

    def look():
        looks.append(1)
        if len(looks) > 2:
            raise KeyboardInterrupt
        return pipeline_status(loaded)

    monkeypatch.setattr(show.time, "sleep", lambda _: None)
    show.watch_status(look, partitions=True)
    assert len(looks) == 3
    assert capsys.readouterr().out.count("fresh at commit") == 2
