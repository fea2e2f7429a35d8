"""Loading: every error is one readable line with file, line and option; secrets stay secret."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.config.document import parse
from icestream.config.load import LoadedConfig, load
from icestream.errors import ConfigError, NotBuilt

BASE = """\
name: shop
source: {type: files, path: ./in}
tables:
  - name: shop.events
"""
INTERFACE = Path(__file__).parent / "data" / "interface.yml"
KAFKA = "{type: kafka, bootstrap_servers: 'x:1', topics: [a]}"
JARGON = re.compile(r"pydantic|Input should|type=|https?://|Value error|NoneType|Traceback", re.I)


def _load(folder: Path, text: str, env: dict[str, str] | None = None) -> LoadedConfig:
    path = folder / "icestream.yml"
    path.write_text(text)
    return load(path, env=env or {})


def _error(folder: Path, text: str, env: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        _load(folder, text, env)
    assert caught.value.exit_code == 78
    assert not JARGON.search(f"{caught.value.what} {caught.value.hint}")
    return caught.value


def _with(key: str, value: str) -> str:
    """The base file with one key replaced or added."""
    kept = re.sub(rf"^{key}:.*\n(  .*\n)*", "", BASE, flags=re.MULTILINE)
    return f"{kept}{key}: {value}\n"


# ── one error each: (file, line, option, message) ────────────────────────────────────────────────

WRONG: dict[str, tuple[str, int, str, str]] = {
    "unknown key": (
        BASE + "comit_interval: 5m\n",
        5,
        "comit_interval",
        "`comit_interval`: unknown key; did you mean `commit_interval`?",
    ),
    "unknown key, other spelling": (
        BASE + "    partition-by: [x]\n",
        5,
        "tables[0].partition-by",
        "`partition-by`: unknown key; did you mean `partition_by`?",
    ),
    "unknown key, nothing near": (BASE + "zzz: 1\n", 5, "zzz", "`zzz`: unknown key"),
    "key of another type": (
        BASE + "catalog:\n  credential: abc\n",
        6,
        "catalog.credential",
        "`credential`: this key belongs to `type: rest`, not to `type: local`",
    ),
    "duration in words": (
        BASE + "commit_interval: 5 minutes\n",
        5,
        "commit_interval",
        "`commit_interval: 5 minutes`: expected a duration such as 30s, 5m, 1h",
    ),
    "bare number": (
        BASE + "maintenance:\n  expire_snapshots:\n    older_than: 5\n",
        7,
        "maintenance.expire_snapshots.older_than",
        "`older_than: 5`: expected a duration such as 30s, 5m, 1h",
    ),
    "missing variable": (
        BASE + "state_location: ${STATE}\n",
        5,
        "state_location",
        "`state_location: ${STATE}`: the environment variable `STATE` is not set",
    ),
    "missing variable, with a reason": (
        BASE + "state_location: ${STATE:?ask Ann}\n",
        5,
        "state_location",
        "`state_location: ${STATE:?ask Ann}`: the environment variable `STATE` is not set: ask Ann",
    ),
    "missing file": (
        BASE + "state_location: ${file:nowhere}\n",
        5,
        "state_location",
        (
            "`state_location: ${file:nowhere}`: `${file:nowhere}` cannot be read: "
            "no such file or directory"
        ),
    ),
    "bad substitution": (
        BASE + "state_location: ${a b}\n",
        5,
        "state_location",
        "`state_location: ${a b}`: `${a b}` is not understood",
    ),
    "open substitution": (
        BASE + "state_location: ${a\n",
        5,
        "state_location",
        "`state_location: ${a`: `${` without `}`",
    ),
    "unknown type": (
        _with("source", "{type: kafak}"),
        4,
        "source.type",
        (
            "`type: kafak`: unknown type; known: kafka, files, generator, postgres, mysql, "
            "kinesis, pulsar"
        ),
    ),
    "no type": (
        _with("source", "{path: x}"),
        4,
        "source",
        "`source`: `type` is required: kafka, files, generator, postgres, mysql, kinesis, pulsar",
    ),
    "required key": (
        _with("source", "{type: files}"),
        4,
        "source.path",
        "`path`: this key is required",
    ),
    "not a mapping": (
        BASE + "catalog: rest\n",
        5,
        "catalog",
        "`catalog: rest`: expected a mapping, key: value",
    ),
    "not a list": (
        BASE + "    sort_by: order_id\n",
        5,
        "tables[0].sort_by",
        "`sort_by: order_id`: expected a list such as [a, b]",
    ),
    "not a choice": (
        BASE + "    bad_records: keep\n",
        5,
        "tables[0].bad_records",
        "`bad_records: keep`: expected quarantine, fail or drop",
    ),
    "not a number": (
        _with("source", "{type: generator, rows: many}"),
        4,
        "source.rows",
        "`rows: many`: expected a whole number",
    ),
    "too small": (
        _with("source", "{type: generator, rate: 0}"),
        4,
        "source.rate",
        "`rate: 0`: expected a whole number, at least 1",
    ),
    "not a switch": (
        BASE + "    metadata_columns: maybe\n",
        5,
        "tables[0].metadata_columns",
        "`metadata_columns: maybe`: expected true or false",
    ),
    "pipeline name": (
        _with("name", "Shop 1"),
        4,
        "name",
        "`name: Shop 1`: expected text of the form [a-z0-9_-]+",
    ),
    "name is a number": (_with("name", "5"), 4, "name", "`name: 5`: expected text"),
    "nested option": (
        BASE + "spark: {spark: {master: local}}\n",
        5,
        "spark.spark",
        "`spark`: expected text",
    ),
    "column type": (
        BASE + "    columns: {id: in}\n",
        5,
        "tables[0].columns.id",
        "`id: in`: unknown type `in`",
    ),
    "partition": (
        BASE + "    partition_by:\n      - days(at)\n      - weeks(at)\n",
        7,
        "tables[0].partition_by[1]",
        (
            "`partition_by[1]: weeks(at)`: unknown transform `weeks`: years, months, days, hours, "
            "bucket or truncate"
        ),
    ),
    "sort order": (
        BASE + "    sort_by: [x down]\n",
        5,
        "tables[0].sort_by[0]",
        "`sort_by[0]: x down`: after the column: asc or desc, then nulls first or nulls last",
    ),
    "regular expression": (
        _with("tables", "[{match: '(', name: a.b}]"),
        3,
        "tables[0].match",
        "`match: (`: not a regular expression: missing ), unterminated subpattern at position 0",
    ),
    "unknown metric": (
        BASE + "alerts: {rules: [{metric: speed, above: 1, to: [x]}]}\n",
        5,
        "alerts.rules[0].metric",
        (
            "`metric: speed`: expected freshness, source_lag_records, rows, commits, "
            "commit_duration, data_files, average_file_size, compaction_lag_files, "
            "quarantined_rows or snapshots"
        ),
    ),
    "unknown channel type": (
        BASE + "alerts: {channels: {x: {type: fax, url: y}}}\n",
        5,
        "alerts.channels.x.type",
        "`type: fax`: unknown type; known: webhook",
    ),
    # phase 2: parts that do not fit together
    "no table": (
        _with("tables", "[{match: a, skip: true}]"),
        3,
        "tables",
        "`tables`: every rule skips; at least one table is needed",
    ),
    "no name": (
        _with("tables", "[{match: a}]"),
        3,
        "tables[0].name",
        "`name`: this key is required",
    ),
    "empty tables": (_with("tables", "[]"), 3, "tables", "`tables`: expected at least one entry"),
    "table name": (
        _with("tables", "[{name: events}]"),
        3,
        "tables[0].name",
        "`name: events`: expected namespace.table, of letters, digits, _ and -",
    ),
    "quarantine name": (
        _with("tables", "[{name: a.b__quarantine}]"),
        3,
        "tables[0].name",
        "`name: a.b__quarantine`: tables that end in __quarantine hold bad records",
    ),
    "placeholder": (
        _with("tables", "[{match: '(?P<kind>.)', name: 'a.{table}'}]"),
        3,
        "tables[0].name",
        "`name: a.{table}`: nothing fills `{table}`",
    ),
    "same table twice": (
        _with("tables", "\n  - {match: a, name: x.y}\n  - {match: b, name: X.y}"),
        5,
        "tables[1].name",
        "`name: X.y`: `tables[0]` writes to this table already",
    ),
    "unreachable rule": (
        _with("tables", "\n  - {name: x.y}\n  - {match: b, name: x.z}"),
        5,
        "tables[1]",
        "`tables[1]`: never reached: `tables[0]` takes every topic",
    ),
    "skip with settings": (
        _with("tables", "\n  - {match: b, skip: true, sort_by: [x]}\n  - {name: x.y}"),
        4,
        "tables[0].sort_by",
        "`sort_by`: has no effect beside `skip: true`",
    ),
    "reserved column": (
        BASE + "    columns: {_POS: int}\n",
        5,
        "tables[0].columns._POS",
        "`_POS: int`: this name belongs to Iceberg's metadata columns",
    ),
    "reserved column of format version 3": (
        BASE + "    columns: {_last_updated_sequence_number: int}\n",
        5,
        "tables[0].columns._last_updated_sequence_number",
        "`_last_updated_sequence_number: int`: this name belongs to Iceberg's metadata columns",
    ),
    "own column": (
        BASE + "    columns: {_src_offset: int}\n",
        5,
        "tables[0].columns._src_offset",
        "`_src_offset: int`: icestream writes this column itself",
    ),
    "column twice": (
        BASE + "    columns: {a: int, A: int}\n",
        5,
        "tables[0].columns.A",
        "`A: int`: declared twice; case makes no difference",
    ),
    "column declared and left out": (
        BASE + "    columns: {a: int}\n    except_columns: [a]\n",
        5,
        "tables[0].columns.a",
        "`a: int`: declared, and left out by `except_columns`",
    ),
    "partitioned by what is left out": (
        BASE + "    partition_by: [days(a)]\n    except_columns: [a]\n",
        5,
        "tables[0].partition_by[0]",
        "`partition_by[0]: days(a)`: the column is left out by `except_columns`",
    ),
    "spark says the catalog again": (
        BASE + "spark:\n  spark.sql.catalog.lake.uri: x\n",
        6,
        'spark["spark.sql.catalog.lake.uri"]',
        "`spark.sql.catalog.lake.uri`: said twice: `catalog` says it",
    ),
    "properties say the catalog again": (
        BASE + "catalog: {properties: {warehouse: x}}\n",
        5,
        "catalog.properties.warehouse",
        "`warehouse`: said twice: write it as `catalog.warehouse`",
    ),
    "our own table property": (
        BASE + "    properties: {icestream.shop.marker: x}\n",
        5,
        'tables[0].properties["icestream.shop.marker"]',
        "`icestream.shop.marker`: icestream writes these properties itself",
    ),
    "maintenance in our spelling": (
        BASE + "maintenance: {rewrite_data_files: {min_input_files: 8}}\n",
        5,
        "maintenance.rewrite_data_files.min_input_files",
        "`min_input_files: 8`: expected Iceberg's spelling, such as `min-input-files`",
    ),
    "an option of Iceberg's own compaction": (
        BASE + "maintenance: {rewrite_data_files: {rewrite-job-order: none}}\n",
        5,
        "maintenance.rewrite_data_files.rewrite-job-order",
        (
            "`rewrite-job-order: none`: icestream rewrites these files itself and has no such "
            "option; known: `target-file-size-bytes`, `min-file-size-bytes`, `min-input-files`, "
            "`max-file-group-size-bytes`, `delete-file-threshold`, `delete-ratio-threshold`"
        ),
    ),
    "maintenance by a word": (
        BASE + "maintenance: {rewrite_data_files: {min-input-files: many}}\n",
        5,
        "maintenance.rewrite_data_files.min-input-files",
        "`min-input-files: many`: expected a whole number",
    ),
    "no topics": (
        _with("source", "{type: kafka, bootstrap_servers: 'x:1'}"),
        4,
        "source",
        "`source`: exactly one of `topics` and `topic_pattern` is needed",
    ),
    "topics twice": (
        _with("source", KAFKA[:-1] + ", topic_pattern: a}"),
        4,
        "source",
        "`source`: exactly one of `topics` and `topic_pattern` is needed",
    ),
    "options say the brokers again": (
        _with("source", KAFKA[:-1] + ", options: {kafka.bootstrap.servers: y}}"),
        4,
        'source.options["kafka.bootstrap.servers"]',
        "`kafka.bootstrap.servers`: said twice: write it as `source.bootstrap_servers`",
    ),
    "options say the topics again": (
        _with("source", KAFKA[:-1] + ", options: {subscribePattern: y}}"),
        4,
        "source.options.subscribePattern",
        "`subscribePattern`: said twice: write it as `source.topic_pattern`",
    ),
    "options say the start again": (
        _with("source", KAFKA[:-1] + ", options: {startingOffsets: y}}"),
        4,
        "source.options.startingOffsets",
        "`startingOffsets`: said twice: write it as `source.start`",
    ),
    "a part that records do not have": (
        _with("source", KAFKA[:-1] + ", include: [key, offset]}"),
        4,
        "source.include[1]",
        "`include[1]: offset`: expected key or headers",
    ),
    "own column that is included": (
        BASE + "    columns: {_src_key: binary}\n",
        5,
        "tables[0].columns._src_key",
        "`_src_key: binary`: icestream writes this column itself",
    ),
    "sequence of an append": (
        BASE + "    sequence_by: [x]\n",
        5,
        "tables[0].sequence_by",
        "`sequence_by`: only with `mode: upsert`",
    ),
    "keys of an append": (
        BASE + "    keys: [x]\n",
        5,
        "tables[0].keys",
        "`keys`: only with `mode: upsert`",
    ),
    "upsert without keys": (
        BASE + "    mode: upsert\n",
        4,
        "tables[0].keys",
        "`keys`: this key is required: only Debezium's records name theirs",
    ),
    "deletes said twice": (
        (
            "name: shop\nsource: {type: files, path: x, format: {type: debezium}}\ntables:\n"
            "  - {name: a.b, mode: upsert, apply_as_deletes: a = 1}\n"
        ),
        4,
        "tables[0].apply_as_deletes",
        "`apply_as_deletes: a = 1`: Debezium's events say what they delete",
    ),
    "young orphans": (
        BASE + "maintenance: {remove_orphan_files: {older_than: 1h}}\n",
        5,
        "maintenance.remove_orphan_files.older_than",
        "`older_than: 1h`: expected at least 1d: younger files may belong to a commit under way",
    ),
}


@pytest.mark.parametrize("text, line, option, message", WRONG.values(), ids=WRONG.keys())
def test_one_readable_error(
    tmp_path: Path, text: str, line: int, option: str, message: str
) -> None:
    error = _error(tmp_path, text)
    assert error.what == message
    assert error.where == f"{tmp_path}/icestream.yml:{line}, {option}"
    assert not isinstance(error, NotBuilt)


# Among not-built options: the line that says what is wrong is there as well.
WRONG_AND_NOT_BUILT = {
    _with("source", "{type: kinesis, region: x}"): (
        "exactly one of `topics` and `topic_pattern` is needed"
    ),
    _with("source", "{type: pulsar, url: x, topics: [a], topic_pattern: a}"): (
        "exactly one of `topics` and `topic_pattern` is needed"
    ),
    BASE + "alerts: {rules: [{metric: freshness, above: 1m, to: [x]}]}\n": (
        "no such channel under `alerts.channels`; known: none"
    ),
}


@pytest.mark.parametrize("text, message", WRONG_AND_NOT_BUILT.items())
def test_wrong_beside_not_built(tmp_path: Path, text: str, message: str) -> None:
    error = _error(tmp_path, text)
    assert message in error.what
    assert "is not built yet" in error.what
    assert not isinstance(error, NotBuilt)


# ── not built yet ────────────────────────────────────────────────────────────────────────────────

NOT_BUILT: dict[str, tuple[str, str]] = {
    **{
        f"catalog {kind}": (
            BASE + f"catalog: {{type: {kind}, {keys}}}\n",
            f"`type: {kind}`",
        )
        for kind, keys in {
            "jdbc": "uri: x, warehouse: y",
            "hive": "uri: x",
            "glue": "warehouse: x",
            "hadoop": "warehouse: x",
        }.items()
    },
    **{
        f"source {kind}": (_with("source", f"{{type: {kind}, {keys}}}"), f"`type: {kind}`")
        for kind, keys in {
            "kinesis": "region: x, topic_pattern: a",
            "pulsar": "url: x, topics: [a]",
            "postgres": "url: x, tables: [a.b], publication: p",
            "mysql": "url: x, tables: [a.b], server_id: 5",
        }.items()
    },
    **{
        f"format {kind}": (
            _with("source", f"{{type: files, path: x, format: {{type: {kind}{keys}}}}}"),
            f"`type: {kind}`",
        )
        for kind, keys in {
            "avro": ", schema_registry: {url: x}",
            "protobuf": ", schema_registry: {url: x}",
        }.items()
    },
    "Avro of Debezium": (
        _with(
            "source",
            "{type: files, path: x, format: {type: debezium, schema_registry: {url: x}}}",
        ),
        "`schema_registry`",
    ),
    "transform": (BASE + "transform: SELECT * FROM input\n", "`transform`"),
    "alerts": (BASE + "alerts: {}\n", "`alerts`"),
    "tests": (
        BASE + "tests: [{name: t, input: x, expect: {table: a.b, rows: []}}]\n",
        "`tests`",
    ),
    "branch": (BASE + "    branch: audit\n", "`branch`"),
}


@pytest.mark.parametrize("text, option", NOT_BUILT.values(), ids=NOT_BUILT.keys())
def test_not_built_yet(tmp_path: Path, text: str, option: str) -> None:
    error = _error(tmp_path, text)
    assert isinstance(error, NotBuilt)
    assert error.what == f"{option} is not built yet"
    assert re.search(r"icestream\.yml:\d+, ", error.where or "")
    assert error.hint


def test_format_version_3_on_upsert_is_not_built(tmp_path: Path) -> None:
    text = BASE + '    mode: upsert\n    keys: [a]\n    properties: {format-version: "3"}\n'
    error = _error(tmp_path, text)
    assert isinstance(error, NotBuilt)
    assert "`format-version` 3 with `mode: upsert` is not built yet" in error.what


def test_maintenance_is_on_unless_it_is_switched_off(tmp_path: Path) -> None:
    for text in (BASE, BASE + "maintenance: {every: 1m, rewrite_manifests: false}\n"):
        loaded = _load(tmp_path, text)
        assert loaded.pipeline.maintenance
        assert loaded.warnings == []
    assert _load(tmp_path, BASE + "maintenance: false\n").pipeline.maintenance is False


# ── the whole file ───────────────────────────────────────────────────────────────────────────────

SYNTAX = {
    BASE + "x: [1\n": (6, "not valid YAML: "),
    BASE + "name: again\n": (5, "`name` is there twice, first on line 1"),
    BASE + "    name: again\n": (5, "`tables[0].name` is there twice, first on line 4"),
    BASE + "x: !!python/object:os.system {}\n": (5, "the tag `"),
    BASE + "x: !secret y\n": (5, "the tag `!secret` is not allowed"),
    BASE + "5: x\n": (5, "a key must be text; put it in quotes"),
    BASE + "x: &a [*a]\n": (5, "an anchor that contains itself"),
    BASE + "---\nname: b\n": (5, "not valid YAML: "),
    BASE + "x: \x01\n": (5, "not valid YAML: special characters"),
    BASE + 'x: "\\ud800"\n': (5, "not valid YAML: half a character"),
    "": (1, "the file is empty"),
    "- a\n": (1, "the file is not a mapping"),
}


@pytest.mark.parametrize("text", SYNTAX)
def test_syntax(tmp_path: Path, text: str) -> None:
    line, message = SYNTAX[text]
    error = _error(tmp_path, text)
    assert error.what.startswith(message)
    assert error.where == f"{tmp_path}/icestream.yml:{line}"


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file") as caught:
        load(tmp_path / "icestream.yml")
    assert "icestream init" in (caught.value.hint or "")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path)


def test_all_errors_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "nme: shop\nsource: {type: fils}\ntables:\n  - {name: a.b, mode: x}\n"
    first, *lines = _error(tmp_path, text).what.splitlines()
    assert first == f"4 errors in {tmp_path}/icestream.yml"
    seen = [re.sub(r".*icestream\.yml:(\d+), ([^:]+):.*", r"\1 \2", line) for line in lines]
    assert sorted(seen) == ["1 name", "1 nme", "2 source.type", "4 tables[0].mode"]
    assert [line.split(":")[1][0] for line in lines] == ["1", "1", "2", "4"]


def test_json_is_accepted(tmp_path: Path) -> None:
    text = '{"name": "a",\n\t"source": {"type": "generator"},\n\t"tables": [{"name": "a.b"}]}'
    assert _load(tmp_path, text).pipeline.name == "a"


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


def _paths(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(data, dict | list):
        return [path]
    pairs = data.items() if isinstance(data, dict) else enumerate(data)
    return [path, *(found for key, item in pairs for found in _paths(item, (*path, key)))]


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data(), junk)
def test_junk_anywhere_is_a_config_error(data: st.DataObject, value: Any) -> None:
    tree = parse(INTERFACE.read_text()).data
    *outer, last = data.draw(st.sampled_from(_paths(tree)[1:]))
    part = tree
    for step in outer:
        part = part[step]
    part[last] = value
    with tempfile.TemporaryDirectory() as folder:
        env = dict.fromkeys(("CATALOG_URI", "CLIENT_ID", "CLIENT_SECRET", "HOOK_URL"), "x")
        _error(Path(folder), json.dumps(tree), env)


def test_anchors_and_merges(tmp_path: Path) -> None:
    text = (
        "name: shop\nsource: {type: generator}\ntables:\n"
        "  - &first {match: a, name: x.a, sort_by: [id], bad_records: fail}\n"
        "  - {match: b, name: x.b, <<: *first}\n"
    )
    first, second = _load(tmp_path, text).pipeline.tables
    assert (second.name, second.match, second.sort_by) == ("x.b", "b", first.sort_by)


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    pipeline = _load(tmp_path, BASE).pipeline
    assert pipeline.source.type == "files"
    assert pipeline.source.path == str(tmp_path / "in")
    assert pipeline.state_location == str(tmp_path / ".icestream")
    assert pipeline.catalog.warehouse == str(tmp_path / "warehouse")
    text = BASE + "catalog: {warehouse: 's3://b/w'}\nstate_location: /s\n"
    pipeline = _load(tmp_path, text).pipeline
    assert pipeline.catalog.warehouse == "s3://b/w"
    assert pipeline.state_location == "/s"


def test_rules_carry_the_defaults(tmp_path: Path) -> None:
    text = (
        "name: shop\nsource: {type: generator}\n"
        "defaults: {bad_records: fail, metadata_columns: false, properties: {a: 1, b: 1}}\n"
        "tables:\n  - {match: a, name: x.a, bad_records: drop, properties: {b: 2}}\n"
        "  - name: x.b\n"
    )
    first, second = _load(tmp_path, text).pipeline.tables
    assert (first.bad_records, second.bad_records) == ("drop", "fail")
    assert first.metadata_columns is second.metadata_columns is False
    assert first.properties == {"a": "1", "b": "2"}
    assert second.properties == {"a": "1", "b": "1"}


def test_where_finds_the_line_again(tmp_path: Path) -> None:
    loaded = _load(tmp_path, BASE)
    assert loaded.where("tables", 0, "name") == f"{tmp_path}/icestream.yml:4"
    assert loaded.where("tables", 0, "sort_by") == f"{tmp_path}/icestream.yml:4"


# ── substitution ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "written, read",
    [
        ("${A}", "1"),
        ("x${A}y${B}", "x1y2"),
        ("${C:-3}", "3"),
        ("${EMPTY:-4}", "4"),
        ("${EMPTY}", ""),
        ("${A:-3}", "1"),
        ("${A:?why}", "1"),
        ("$${A}", "${A}"),
        ("$$", "$"),
        ("a$b$", "a$b$"),
        ("${C:-http://x:1}", "http://x:1"),
        ("${file:secret}", "from file"),
        ("${NESTED}", "${A}"),
    ],
)
def test_substitution(tmp_path: Path, written: str, read: str) -> None:
    (tmp_path / "secret").write_text("from file\n")
    env = {"A": "1", "B": "2", "EMPTY": "", "NESTED": "${A}"}
    loaded = _load(tmp_path, f'{BASE}spark: {{"${{A}}": "{written}"}}\n', env)
    assert loaded.pipeline.spark == {"${A}": read}


def test_substituted_text_becomes_what_the_option_needs(tmp_path: Path) -> None:
    text = _with("source", "{type: '${T}', rows: '${N}'}") + "maintenance: ${M:-false}\n"
    pipeline = _load(tmp_path, text, {"T": "generator", "N": "7"}).pipeline
    assert pipeline.source.type == "generator"
    assert pipeline.source.rows == 7
    assert pipeline.maintenance is False


SECRET = "hunter2-(secret"
LEAKS = [
    BASE + "commit_interval: ${S}\n",
    BASE + "catalog: {type: '${S}'}\n",
    BASE + "catalog: {uri: '${S}'}\n",
    BASE + "catalog: {properties: {uri: '${S}'}}\n",
    BASE + "catalog: {credential: 'a:${S}', type: rest}\n",
    BASE + "spark: {spark.sql.catalog.lake.x: '${S}'}\n",
    BASE + "spark: '${S}'\n",
    BASE + "    columns: {a: '${S}'}\n",
    BASE + "    partition_by: ['${S}']\n",
    BASE + "    sort_by: ['x ${S}']\n",
    BASE + "    mode: ${S}\n",
    BASE + "transform: ${S}\n",
    BASE + "alerts: {rules: [{metric: '${S}', above: '${S}', to: ['${S}']}]}\n",
    BASE + "alerts: {rules: [{metric: rows, above: 1, to: ['${S}']}]}\n",
    BASE + "zzz: ${S}\n",
    _with("name", "${S}"),
    _with("source", "{type: files, path: x, start: '${S}'}"),
    _with("source", "{type: generator, rows: '${S}', topics: ['${S}']}"),
    _with("tables", "[{match: '${S}', name: a.b}]"),
    _with("tables", "[{name: '${S}'}]"),
    _with("tables", "[{name: 'a.{${S}}'}]"),
    _with("tables", "[{match: a, name: 'a.${S}'}, {match: b, name: 'a.${S}'}]"),
]


@pytest.mark.parametrize("text", LEAKS)
def test_errors_never_show_what_was_filled_in(tmp_path: Path, text: str) -> None:
    error = _error(tmp_path, text, {"S": SECRET})
    shown = f"{error} {error.what} {error.where} {error.hint} {error.__cause__!r}"
    assert "hunter2" not in shown
    assert "secret" not in shown.replace(str(tmp_path), "")
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


LITERAL_SECRETS: list[str] = [
    BASE + "catalog: {properties: {token: hunter2}}\n",
    BASE + "catalog: {credential: hunter2}\n",
    _with("source", "{type: files, path: x, url: hunter2}"),
    BASE + "spark: {spark.sql.catalog.lake.password: hunter2}\n",
]


@pytest.mark.parametrize("text", LITERAL_SECRETS)
def test_secret_places_are_not_shown_even_if_written_out(tmp_path: Path, text: str) -> None:
    error = _error(tmp_path, text)
    assert "hunter2" not in f"{error.what} {error.where} {error.hint}"


def test_loaded_hides_and_knows_the_secrets(tmp_path: Path) -> None:
    text = BASE + "spark: {spark.x: '${S}', spark.y: '${T:-public}', spark.z: '${E}'}\n"
    loaded = _load(tmp_path, text, {"S": SECRET, "E": ""})
    assert loaded.secrets == {SECRET}
    assert SECRET not in repr(loaded)


def test_a_character_in_two_halves_is_one(tmp_path: Path) -> None:
    """JSON writes those that came late to Unicode so."""
    text = BASE + 'state_location: "./\\ud83d\\ude00"\n'
    assert _load(tmp_path, text).pipeline.state_location.endswith("\N{GRINNING FACE}")
