"""`verify` as a command, on tables that are made without a JVM."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.catalogs import catalog_for
from icestream.cli import main as entry
from icestream.config.load import load
from icestream.tables.commits import summary
from icestream.tables.marker import Counts, Marker, property_name
from icestream.verify import verify
from icestream.verify.report import MOST, TableFindings

PIPELINE = """\
name: shop
maintenance: false
source: {type: kafka, bootstrap_servers: '127.0.0.1:1', topics: [orders]}
tables:
  - name: shop.orders
"""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "icestream.yml"
    path.write_text(PIPELINE)
    return load(path, env={})


def rows(*offsets):
    return pa.table(
        {
            "id": pa.array(offsets, pa.int64()),
            "_src_topic": pa.array(["orders"] * len(offsets), pa.string()),
            "_src_partition": pa.array([0] * len(offsets), pa.int32()),
            "_src_offset": pa.array(offsets, pa.int64()),
        }
    )


def written(loaded, *batches):
    """The table as a run of ours leaves it: a claim, then a commit for each batch."""
    catalog = catalog_for(loaded.pipeline.catalog).open()
    catalog.create_namespace_if_not_exists("shop")
    table = catalog.create_table("shop.orders", rows().schema)
    old, at = None, 0
    for number, batch in enumerate([(), *batches], start=1):
        at = max([at, *(offset + 1 for offset in batch)])
        marker = Marker(
            "shop", 1, "r", f"c{number}", old.commit_id if old else None, number,
            str(table.metadata.table_uuid), number, {"orders": {0: at}},
            counts=(old.counts if old else Counts()) + Counts(landed=len(batch)),
        )  # fmt: skip
        with table.transaction() as transaction:
            told = summary(marker, old.positions if old else {}, len(batch))
            transaction.append(rows(*batch), told)
            transaction.set_properties({property_name("shop"): marker.to_json()})
        old = marker
    return table


@pytest.fixture
def call(capsys):
    """Run `icestream verify`; → exit code, stdout, stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            entry.main(["verify", *arguments])
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def test_a_clean_table(loaded, call):
    written(loaded, (0, 1, 2), (5, 7))
    code, out, err = call("--all-snapshots", "--deep")
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "shop.orders chain ok 3 commits of ours, 0 rewrites" in lines
    assert "shop.orders rows ok 5 rows, 3 snapshots" in lines
    assert lines[-1] == "shop: clean; 0 lost, 0 duplicated, 0 phantom"
    code, out, _ = call("--json")
    assert code == 0
    told = json.loads(out)
    assert set(told) == {"pipeline", "clean", "lost", "duplicated", "phantom", "tables"}
    assert set(told["tables"][0]) == {
        "table", "checks", "findings", "notes", "lost", "duplicated", "phantom",
    }  # fmt: skip
    assert set(told["tables"][0]["checks"][0]) == {"name", "status", "detail", "findings"}


def test_a_row_that_came_twice(loaded, call):
    table = written(loaded, (0, 1, 2), (2, 3))
    code, out, _ = call()
    assert code == 1
    assert (
        f"violation: shop.orders: duplicated (snapshot {table.metadata.current_snapshot_id}, "
        "orders/0 2 to 3): expected one row for each offset; seen 1 offsets more than once"
    ) in out
    assert "shop: VIOLATED; 0 lost, 1 duplicated, 0 phantom" in out
    result = verify(loaded.pipeline)
    # Five records cannot come from four offsets.
    assert [finding.kind for finding in result.violations] == ["duplicated", "read-differs"]
    assert not result.clean


def test_a_pipeline_without_its_table_is_not_clean(loaded, call):
    code, out, _ = call()
    assert code == 1
    assert "table-missing" in out


@pytest.mark.parametrize("content", ["", "{", '{"format-version": 2}'])
def test_a_metadata_file_that_is_none(loaded, call, content):
    table = written(loaded, (0,))
    Path(table.metadata_location.removeprefix("file://")).write_text(content)
    code, out, _ = call()
    assert code == 1
    assert "violation: shop.orders: unreadable: expected the table's metadata file" in out


@pytest.mark.usefixtures("impatient")
def test_servers_that_are_away_and_files_that_are_wrong(loaded, call):
    written(loaded, (0,))
    code, _, err = call("--source")
    assert code == 69
    assert "127.0.0.1:1" in err
    warehouse = loaded.path.parent / "warehouse"
    shutil.rmtree(warehouse)
    warehouse.mkdir()
    (warehouse / "catalog.db").write_bytes(b"no database" * 100)
    code, _, err = call()
    assert code == 69
    assert "catalog.db" in err
    loaded.path.write_text("name: shop\nnonsense: 1\n")
    assert call()[0] == 78
    assert call("nowhere.yml")[0] == 78


def test_findings_are_counted_whole_and_harm_once():
    findings = TableFindings("s.t")
    for snapshot in (1, 2):
        for number in range(15):
            findings.add("rows", "x", "a", "b", snapshot_id=snapshot, records=number, harm="lost")
    findings.add("source", "x", "a", "b", records=7, harm="lost")
    findings.finish_check("rows", "")
    report = findings.report()
    assert len(report.findings) == MOST + 1
    assert report.checks[0].findings == 30
    assert report.lost == sum(range(15))  # the same rows, seen in two snapshots
