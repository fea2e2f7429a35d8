"""The command line without Spark: errors, exit codes, help, and the reading verbs."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icestream.catalogs import catalog_for
from icestream.cli import main as entry
from icestream.cli.main import cli
from icestream.config.json_schema import json_schema
from icestream.config.load import load
from icestream.schema import DELETED_COLUMN, SEQUENCE_COLUMN

GOOD = """\
name: shop
maintenance: false
source: {type: files, path: ./in}
tables:
  - name: shop.events
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def call(capsys):
    """Run the console script; → exit code, stdout, stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            entry.main(list(arguments))
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_help_is_quick_and_does_not_import_spark():
    code = "import sys; sys.argv = ['icestream', '--help']\nfrom icestream.cli.main import main\n"
    check = "try: main()\nexcept SystemExit: pass\nassert 'pyspark' not in sys.modules"
    begin = time.process_time(), time.monotonic()
    ran = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "Streaming ingestion into Apache Iceberg" in ran.stdout
    assert time.monotonic() - begin[1] < 5  # half a second on a quiet machine; never an import


@pytest.mark.parametrize(
    "edit, expected",
    [
        (
            ("commit_interval: 10s", "commit_intervall: 10s"),
            ["icestream.yml:6", "commit_interval`?"],
        ),
        (("commit_interval: 10s", "commit_interval: 5 minutes"), ["icestream.yml:6", "30s"]),
        (("shop.events", '"${NO_SUCH_NAME}"'), ["icestream.yml:5", "NO_SUCH_NAME"]),
        (("path: ./in", "path: ./in, options: {a: b}"), ["icestream.yml:3", "`options`"]),
        (("shop.events", "shop.events, branch: x"), ["icestream.yml:5", "not built yet"]),
    ],
)
def test_a_wrong_file_is_one_readable_error(folder, call, edit, expected):
    text = (
        GOOD.replace("  - name: shop.events", "  - {name: shop.events}") + "commit_interval: 10s\n"
    )
    (folder / "icestream.yml").write_text(text.replace(*edit))
    for verb in ("validate", "run", "status", "preview"):
        code, out, err = call(verb)
        assert code == 78
        assert out == ""
        assert err.count("error: ") == 1
        for part in expected:
            assert part in err
        assert "Traceback" not in err


def test_a_missing_file_names_the_next_command(folder, call):
    code, _, err = call("run")
    assert code == 78
    assert "hint: `icestream init` writes one" in err


def test_init_validate_and_never_overwrite(folder, call):
    for flag in ("--append", "--multi", "--cdc"):
        (folder / "icestream.yml").unlink(missing_ok=True)
        assert call("init", flag)[0] == 0
        code, out, err = call("validate", "--offline")
        assert code == 0, err
        assert "ok (config, references)" in out
    code, _, err = call("init")
    assert code == 2
    assert "exists already" in err


def test_validate_looks_at_the_world_unless_offline(folder, call):
    (folder / "icestream.yml").write_text(GOOD.replace("./in", "./nowhere"))
    assert call("validate", "--offline")[0] == 0
    code, _, err = call("validate")
    assert code == 1
    assert "nowhere" in err
    (folder / "nowhere").mkdir()
    code, out, _ = call("validate", "--json")
    assert code == 0
    assert json.loads(out)["checked"] == ["config", "references", "environment"]


def test_status_before_the_first_run_is_unhealthy(folder, call):
    (folder / "icestream.yml").write_text(GOOD)
    code, out, _ = call("status", "--json")
    assert code == 1
    [table] = json.loads(out)["tables"]
    assert (table["table"], table["note"]) == ("shop.events", "not created yet")
    assert call("status")[0] == 1


def test_preview_shows_rows_and_reasons_and_writes_nothing(folder, call):
    (folder / "icestream.yml").write_text(GOOD)
    (folder / "in" / "a.jsonl").write_text('{"id": 1, "name": "ada"}\nbroken\n{"id": 2}\n')
    code, out, _ = call("preview", "--json")
    assert code == 0
    [table] = json.loads(out)
    assert [(row["id"], row["name"]) for row in table["rows"]] == [(1, "ada"), (2, None)]
    assert table["columns"]["id"] == "long"
    assert [bad["offset"] for bad in table["bad"]] == [25]
    code, out, _ = call("preview", "-n", "1")
    assert "shop.events (would be created): 1 good, 0 bad" in out
    assert not (folder / "warehouse" / "shop").exists()


def test_preview_of_a_mirror_that_exists(folder, call):
    rule = "  - {name: shop.events, mode: upsert, keys: [id], sequence_by: [v], deletes: soft}"
    (folder / "icestream.yml").write_text(GOOD.replace("  - name: shop.events", rule))
    (folder / "in" / "a.jsonl").write_text('{"id": 1, "v": 7}\n')
    catalog = catalog_for(load(folder / "icestream.yml").pipeline.catalog).open()
    catalog.create_namespace("shop")
    data = (NestedField(1, "id", LongType()), NestedField(2, "v", LongType()))
    catalog.create_table("shop.events", Schema(*data, SEQUENCE_COLUMN, DELETED_COLUMN))
    code, out, err = call("preview", "--json")
    assert code == 0, err
    [table] = json.loads(out)
    names = [name for name in table["columns"] if not name.startswith("_src_")]
    assert names == ["id", "v", "_ingested_at", "_is_deleted"]
    assert [(row["id"], row["v"]) for row in table["rows"]] == [(1, 7)]


def test_schema_is_the_model(call):
    code, out, _ = call("schema")
    assert code == 0
    assert json.loads(out) == json.loads(json.dumps(json_schema()))


def test_the_demo_replaces_nothing_but_a_demo(folder, call):
    (folder / "mine").mkdir()
    (folder / "mine" / "file").touch()
    code, _, err = call("demo", "--folder", "mine")
    assert code == 2
    assert "not empty and not an earlier demo" in err
    assert (folder / "mine" / "file").exists()


def test_usage_errors_are_2(call):
    assert call("run", "--no-such-option")[0] == 2
    assert call("no-such-verb")[0] == 2


def test_an_unexpected_exception_is_70_and_says_so(folder, call, monkeypatch):
    import icestream.config.load

    def explode(_):
        raise ValueError("boom")

    monkeypatch.setattr(icestream.config.load, "load", explode)
    code, _, err = call("validate")
    assert code == 70
    assert "ValueError: boom" in err


def test_the_log_is_json_lines_when_asked(capsys):
    from icestream.cli.output import EventLog
    from icestream.events import TableCreated

    EventLog(as_json=True)(TableCreated("p", "shop.events"))
    EventLog(as_json=False)(TableCreated("p", "shop.a b"))
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["event"] == "table_created"
    assert second.endswith('table_created pipeline=p table="shop.a b"')


def test_the_log_for_people_leaves_the_partitions_out(capsys):
    from icestream.cli.output import EventLog
    from icestream.events import LossAccepted, PartitionState, TableCommitted

    many = tuple(PartitionState("orders", n, 5, 0, None) for n in range(1000))
    facts = ("p", "shop.orders", "c", 1, 5, 0, 0, 1, 9, 0.1, 0.1, 1, 0.5, 2.5, 12, 0.5, many)
    EventLog(as_json=False)(TableCommitted(*facts))
    EventLog(as_json=False)(LossAccepted("p", "shop.orders", ("orders/0: 1 to 5 (4 records)",)))
    first, second = capsys.readouterr().err.splitlines()
    assert "partitions" not in first
    assert "latency_seconds=2.5 lag_records=12 lag_seconds=0.5" in first
    assert "loss_accepted pipeline=p table=shop.orders" in second
    assert "orders/0: 1 to 5 (4 records)" in second
    EventLog(as_json=True)(TableCommitted(*facts))
    assert len(json.loads(capsys.readouterr().err)["partitions"]) == 1000


def test_every_verb_has_help():
    runner = CliRunner()
    for name, command in cli.commands.items():
        shown = runner.invoke(cli, [name, "--help"])
        assert shown.exit_code == 0
        assert command.help


def test_the_schema_in_the_docs_is_the_one_that_is_printed(call):
    stored = Path(__file__).parents[2] / "docs" / "icestream.schema.json"
    assert stored.read_text() == call("schema")[1], "run `make docs`"
