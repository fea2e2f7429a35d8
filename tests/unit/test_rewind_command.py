"""`rewind` as a command, on tables that are made without a JVM."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException

from icestream.catalogs import catalog_for
from icestream.cli import main as entry
from icestream.config.load import load
from icestream.errors import GaveUp, TableRefused
from icestream.rewind import RewindTarget, rewind, tables
from icestream.rewind.plan import moment
from icestream.tables.commits import summary
from icestream.tables.marker import Counts, Marker, property_name
from icestream.verify import verify

PIPELINE = """\
name: shop
maintenance: false
source: {type: generator, topics: [page_events, order_changes]}
tables:
  - {match: page_events, name: shop.pages}
  - {match: order_changes, name: shop.orders}
"""
TOPICS = {"shop.pages": "page_events", "shop.orders": "order_changes"}


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "icestream.yml"
    path.write_text(PIPELINE)
    loaded = load(path, env={})
    for name in TOPICS:
        written(loaded, name, range(3), range(3, 8), range(8, 10))
    return loaded


def rows(topic, offsets):
    count = len(offsets)
    return pa.table(
        {
            "id": pa.array(offsets, pa.int64()),
            "_src_topic": pa.array([topic] * count, pa.string()),
            "_src_partition": pa.array([0] * count, pa.int32()),
            "_src_offset": pa.array(offsets, pa.int64()),
        }
    )


def opened(loaded):
    return catalog_for(loaded.pipeline.catalog).open()


def written(loaded, name, *batches, generation=1):
    """The table as a run of ours leaves it: a claim, then a commit for each batch."""
    catalog, topic = opened(loaded), TOPICS[name]
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table_if_not_exists(name, rows(topic, []).schema)
    stored = table.properties.get(property_name("shop"))
    old = Marker.from_json(stored) if stored else None
    at = old.positions[topic][0] if old else 0
    for batch in [[], *batches]:
        at = max([at, *(offset + 1 for offset in batch)])
        number = old.sequence + 1 if old else 1
        marker = Marker(
            "shop", generation, "r", f"{name}-{generation}-{number}",
            old.commit_id if old else None, number, str(table.metadata.table_uuid),
            table.metadata.last_sequence_number + 1, {topic: {0: at}},
            counts=(old.counts if old else Counts()) + Counts(landed=len(batch)),
        )  # fmt: skip
        with table.transaction() as transaction:
            told = summary(marker, old.positions if old else {}, len(batch))
            transaction.append(rows(topic, list(batch)), told)
            transaction.set_properties({property_name("shop"): marker.to_json()})
        old = marker
    return table


def offsets(loaded, name):
    table = opened(loaded).load_table(name)
    return sorted(table.scan().to_arrow().column("_src_offset").to_pylist())


def ids(loaded, name):
    return [each.snapshot_id for each in opened(loaded).load_table(name).metadata.snapshots]


def marker(loaded, name):
    return Marker.from_json(opened(loaded).load_table(name).properties[property_name("shop")])


def proved(loaded):
    return verify(loaded.pipeline, all_snapshots=True, deep=True)


@pytest.fixture
def call(capsys):
    """Run `icestream rewind`; → exit code, stdout, stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            entry.main(["rewind", *map(str, arguments)])
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def test_the_plan_is_shown_and_nothing_is_changed(loaded, call):
    before = {name: ids(loaded, name) for name in TOPICS}
    target = before["shop.pages"][1]
    code, out, err = call("--to-snapshot", target)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any(line.startswith(f"shop.pages goes to {target}") for line in lines)
    assert "page_events 0 10 3 7" in lines
    assert lines[-1] == f"to do it: icestream rewind icestream.yml --to-snapshot {target} --yes"
    assert "shop.orders" not in out
    assert {name: ids(loaded, name) for name in TOPICS} == before
    code, out, _ = call("--to-snapshot", target, "--json")
    told = json.loads(out)
    assert set(told) == {"pipeline", "target", "done", "tables", "lost", "notes"}
    assert set(told["tables"][0]) == {
        "table", "moves", "from_snapshot", "to_snapshot", "to_commit", "to_time", "rows_before",
        "rows_after", "snapshots_left", "positions", "notes",
    }  # fmt: skip
    assert told["tables"][0]["positions"] == [
        {"stream": "page_events", "partition": 0, "before": 10, "after": 3}
    ]
    assert (told["done"], told["tables"][0]["moves"]) == (False, True)


def test_one_table_to_a_snapshot(loaded, call):
    before = ids(loaded, "shop.pages")
    code, out, _ = call("--to-snapshot", before[1], "--yes")
    assert code == 0
    assert "shop: rewound to snapshot" in out
    assert offsets(loaded, "shop.pages") == [0, 1, 2]
    assert offsets(loaded, "shop.orders") == list(range(10))
    new = marker(loaded, "shop.pages")
    assert new.positions == {"page_events": {0: 3}}
    assert (new.generation, new.sequence, new.counts.landed) == (2, 3, 3)
    table = opened(loaded).load_table("shop.pages")
    now = table.current_snapshot()
    assert now.parent_snapshot_id == before[1]
    assert now.manifest_list != table.metadata.snapshot_by_id(before[1]).manifest_list
    assert now.summary["icestream.rewound-from"] == str(before[-1])
    assert now.summary["total-records"] == "3"
    assert set(before) < set(ids(loaded, "shop.pages"))
    result = proved(loaded)
    assert result.clean, result.violations
    # What came before the rewind is still there for those who read by snapshot.
    assert table.scan(snapshot_id=before[-1]).to_arrow().num_rows == 10
    written(loaded, "shop.pages", range(3, 10), range(10, 12), generation=3)
    result = proved(loaded)
    assert result.clean, result.violations
    code, out, _ = call("--to-snapshot", before[1], "--yes", "--json")
    assert (code, json.loads(out)["done"]) == (0, True)
    assert offsets(loaded, "shop.pages") == [0, 1, 2]


def test_all_tables_to_a_time(loaded, call):
    stamps = [s.timestamp_ms for s in opened(loaded).load_table("shop.orders").metadata.snapshots]
    later = moment(stamps[2])
    code, out, _ = call("--to-time", later, "--table", "shop.orders", "--yes")
    assert code == 0
    assert offsets(loaded, "shop.orders") == list(range(8))
    assert offsets(loaded, "shop.pages") == list(range(10))
    code, out, _ = call("--to-time", "2020-01-01", "--yes")
    assert code == 0
    assert out.count("back to its beginning") == 2
    assert offsets(loaded, "shop.orders") == offsets(loaded, "shop.pages") == []
    assert marker(loaded, "shop.pages").positions == {"page_events": {0: 0}}
    assert proved(loaded).clean
    code, out, _ = call("--to-time", "2100-01-01T00:00:00+02:00", "--yes")
    assert code == 0
    assert "shop: nothing to do, every table is there already" in out


def name_of(table):
    return ".".join(table.name())


def test_a_death_between_two_tables_is_made_good_by_a_repetition(loaded, monkeypatch):
    real, calls = tables.commit_rewind, []

    def dies(catalog, table, rewound):
        if calls:
            raise KeyboardInterrupt
        calls.append(name_of(table))
        real(catalog, table, rewound)

    monkeypatch.setattr(tables, "commit_rewind", dies)
    start = RewindTarget(time_ms=0)
    with pytest.raises(KeyboardInterrupt):
        rewind(loaded.pipeline, start)
    assert calls == ["shop.orders"]
    assert offsets(loaded, "shop.orders") == []
    assert offsets(loaded, "shop.pages") == list(range(10))
    assert proved(loaded).clean  # each table and its position agree all the same
    generation = marker(loaded, "shop.orders").generation
    monkeypatch.setattr(tables, "commit_rewind", real)
    done = rewind(loaded.pipeline, start)
    assert [plan.table for plan in done.moves] == ["shop.pages"]
    assert marker(loaded, "shop.pages").generation == generation + 1
    assert offsets(loaded, "shop.pages") == []
    assert proved(loaded).clean


def test_a_commit_meanwhile_is_seen_and_left_behind_too(loaded, monkeypatch):
    real, calls = tables.commit_rewind, []

    def after_a_commit(catalog, table, rewound):
        if not calls:
            written(loaded, name_of(table), range(10, 13))
        calls.append(name_of(table))
        real(catalog, table, rewound)

    monkeypatch.setattr(tables, "commit_rewind", after_a_commit)
    rewind(loaded.pipeline, RewindTarget(time_ms=0))
    assert calls == ["shop.orders", "shop.orders", "shop.pages"]
    assert offsets(loaded, "shop.orders") == []
    assert proved(loaded).clean


def test_a_lost_answer_is_no_second_commit(loaded, monkeypatch):
    real, calls = tables.commit_rewind, []

    def unanswered(catalog, table, rewound):
        calls.append(name_of(table))
        real(catalog, table, rewound)
        if len(calls) == 1:
            raise CommitFailedException("as if it had not landed")

    monkeypatch.setattr(tables, "commit_rewind", unanswered)
    before = len(ids(loaded, "shop.orders"))
    rewind(loaded.pipeline, RewindTarget(time_ms=0))
    assert calls == ["shop.orders", "shop.pages"]
    assert len(ids(loaded, "shop.orders")) == before + 1


def test_it_gives_up_when_a_run_is_always_faster(loaded, monkeypatch):
    def refused(*_):
        raise CommitFailedException("branch main has changed")

    monkeypatch.setattr(tables, "commit_rewind", refused)
    monkeypatch.setattr(tables.time, "sleep", lambda seconds: None)
    with pytest.raises(GaveUp, match="5 commits failed: branch main has changed"):
        rewind(loaded.pipeline, RewindTarget(time_ms=0))


def test_a_rollback_by_hand_is_taken_up(loaded, call):
    table = opened(loaded).load_table("shop.pages")
    table.manage_snapshots().rollback_to_snapshot(ids(loaded, "shop.pages")[2]).commit()
    assert not proved(loaded).clean
    code, out, _ = call("--to-time", "2100-01-01", "--yes")
    assert code == 0
    assert "somebody has rolled it back by hand: its position follows" in out
    assert offsets(loaded, "shop.pages") == list(range(8))
    result = proved(loaded)
    assert result.clean, result.violations


def test_what_is_refused_and_how(loaded, call):
    for arguments in ((), ("--to-time", "2026-01-01", "--to-snapshot", "1"), ("--to-time", "soon")):
        assert call(*arguments)[0] == 2
    code, _, err = call("--to-time", "2026-01-01", "--table", "shop.nothing")
    assert code == 2
    assert "its tables: shop.orders, shop.pages" in err
    code, _, err = call("--to-snapshot", 7)
    assert code == 1
    assert "no table of pipeline `shop` has a snapshot 7" in err
    code, _, err = call("--to-snapshot", ids(loaded, "shop.pages")[0], "--table", "shop.orders")
    assert code == 1
    assert "table `shop.orders` has no snapshot" in err
    shutil.rmtree(loaded.path.parent / "warehouse")
    code, _, err = call("--to-time", "2026-01-01")
    assert code == 1
    assert "has no tables yet" in err
    warehouse = Path(loaded.pipeline.catalog.warehouse)
    for part in warehouse.glob("catalog.db*"):
        part.unlink()
    (warehouse / "catalog.db").write_bytes(b"no database" * 100)
    assert call("--to-time", "2026-01-01")[0] == 69


@pytest.mark.usefixtures("impatient")
def test_a_broker_that_is_away(loaded, call):
    text = PIPELINE.replace("type: generator", "type: kafka, bootstrap_servers: '127.0.0.1:1'")
    loaded.path.write_text(text)
    code, out, _ = call("--to-time", "2020-01-01")
    assert code == 0
    assert "note: whether the source still has the records was not checked" in out
    before = ids(loaded, "shop.pages")
    code, _, err = call("--to-time", "2020-01-01", "--yes")
    assert code == 69
    assert "`--accept-loss` goes back without asking" in err
    assert ids(loaded, "shop.pages") == before
    assert call("--to-time", "2020-01-01", "--yes", "--accept-loss")[0] == 0
    assert offsets(loaded, "shop.pages") == []


def test_a_topic_that_is_not_read_any_more(loaded, call):
    loaded.path.write_text(PIPELINE.replace("[page_events, order_changes]", "[order_changes]"))
    code, out, _ = call("--to-time", "2020-01-01")
    told = "shop.pages: topic `page_events` does not go to this table any more"
    assert code == 0
    assert f"LOST: {told}" in out
    assert out.splitlines()[-1].endswith("--accept-loss --yes")
    code, _, err = call("--to-time", "2020-01-01", "--yes")
    assert code == 1
    assert told in err
    assert offsets(loaded, "shop.pages") == list(range(10))


def test_a_format_version_that_cannot_be_written():
    table = SimpleNamespace(metadata=SimpleNamespace(format_version=3))
    with pytest.raises(TableRefused, match="format version 3"):
        tables._refuse_version("shop.pages", table)
