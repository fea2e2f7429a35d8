"""The model against the interface page, its values and its JSON Schema."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from icestream.config.document import parse
from icestream.config.json_schema import json_schema
from icestream.config.load import load
from icestream.config.model import PipelineConfig
from icestream.config.options.alerts import Metric
from icestream.config.route import route
from icestream.config.values import (
    Interval,
    Start,
    format_duration,
    parse_duration,
    parse_size,
)
from icestream.errors import ConfigError, NotBuilt

INTERFACE = Path(__file__).parent / "data" / "interface.yml"
SMALLEST: dict[str, Any] = {
    "name": "p",
    "source": {"type": "generator"},
    "tables": [{"name": "shop.events"}],
}
SECRETS = {name: f"value-of-{name}" for name in ("CLIENT_ID", "CLIENT_SECRET", "HOOK_URL")}


# ── the interface page ───────────────────────────────────────────────────────────────────────────


def _leaf_paths(data: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*path, key)
            yield from _leaf_paths(value, (*path, key))
    if isinstance(data, list):
        for value in data:
            yield from _leaf_paths(value, path)


def _is_known(path: tuple[str, ...], part: Any, root: dict[str, Any]) -> bool:
    """Whether any variant of the schema has a place for this key path."""
    if not isinstance(part, dict):
        return False
    if not path:
        return True
    if "$ref" in part:
        return _is_known(path, root["$defs"][part["$ref"].rsplit("/", 1)[1]], root)
    variants = [*part.get("oneOf", ()), *part.get("anyOf", ()), part.get("items")]
    if any(_is_known(path, variant, root) for variant in variants):
        return True
    if path[0] in part.get("properties", {}):
        return _is_known(path[1:], part["properties"][path[0]], root)
    extra = part.get("additionalProperties", False)
    return extra is True or _is_known(path[1:], extra, root)


def _interface_paths() -> list[tuple[str, ...]]:
    return sorted(set(_leaf_paths(parse(INTERFACE.read_text()).data)))


@pytest.mark.parametrize("path", _interface_paths(), ids=".".join)
def test_every_key_of_the_page_is_in_the_schema(path: tuple[str, ...]) -> None:
    schema = json_schema()
    assert _is_known(path, schema, schema)


def test_unknown_paths_are_not_in_the_schema() -> None:
    schema = json_schema()
    assert not _is_known(("catalog", "url"), schema, schema)
    assert not _is_known(("tables", "mode", "x"), schema, schema)


def test_the_page_is_refused_only_for_what_is_not_built(tmp_path: Path) -> None:
    # The page shows the keys of every catalog type at once; `uri` and `credential` belong to rest.
    path = tmp_path / "icestream.yml"
    path.write_text(INTERFACE.read_text().replace("type: local ", "type: rest "))
    with pytest.raises(NotBuilt) as caught:
        load(path, env={**SECRETS, "CATALOG_URI": "value-of-CATALOG_URI"})
    lines = caught.value.what.splitlines()[1:]
    assert all(line.endswith("is not built yet") for line in lines)
    for option in ("`transform`", "`alerts`", "`branch`"):
        assert any(option in line for line in lines), option
    assert not any("kafka" in line for line in lines)
    assert "value-of" not in caught.value.what


def test_columns_of_the_page_survive_flow_style(tmp_path: Path) -> None:
    """To YAML `{amount: decimal(12,2)}` has two keys; to us it has one."""
    path = tmp_path / "icestream.yml"
    path.write_text(
        "name: p\nsource: {type: generator}\ntables:\n- name: a.b\n"
        "  columns: {a: decimal(12,2), b: decimal(10,2), c: 'map<string,int>',"
        " d: struct<x:decimal(3,1),y:int>, e: date}\n"
        "  partition_by: [bucket(16, a), days(e)]\n  sort_by: [truncate(b, 10) desc, a]\n"
    )
    rule = load(path, env={}).pipeline.tables[0]
    assert rule.columns == {
        "a": "decimal(12,2)",
        "b": "decimal(10,2)",
        "c": "map<string,int>",
        "d": "struct<x:decimal(3,1),y:int>",
        "e": "date",
    }
    assert rule.partition_by == ("bucket(16,a)", "days(e)")
    assert rule.sort_by == ("truncate(b,10) desc", "a")


# ── JSON Schema ──────────────────────────────────────────────────────────────────────────────────


def _properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in (schema, *schema["$defs"].values()):
        for key, option in model.get("properties", {}).items():
            yield f"{model['title']}.{key}", option


def test_every_option_has_a_description() -> None:
    missing = [name for name, option in _properties(json_schema()) if "description" not in option]
    assert missing == []


def test_schema_tells_what_is_not_built_and_the_defaults() -> None:
    schema = json_schema()
    options = dict(_properties(schema))
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["title"] == "icestream.yml"
    assert options["icestream.yml.transform"]["description"].endswith("(not built yet)")
    assert schema["$defs"]["KinesisSource"]["description"].endswith("(not built yet)")
    assert schema["$defs"]["JdbcCatalog"]["description"].endswith("(not built yet)")
    for built in ("KafkaSource", "FilesSource", "RestCatalog"):
        assert "not built" not in schema["$defs"][built]["description"]
    assert options["icestream.yml.commit_interval"]["default"] == "1m"
    assert options["ExpireSnapshots.older_than"]["default"] == "1d"
    assert options["AlertRule.for"]["default"] == "0s"
    assert schema["required"] == ["name", "source", "tables"]


# ── the model ────────────────────────────────────────────────────────────────────────────────────


def test_defaults() -> None:
    pipeline = PipelineConfig.model_validate(SMALLEST)
    assert pipeline.catalog.name == "lake"
    assert pipeline.catalog.type == "local"
    assert pipeline.catalog.warehouse == "./warehouse"
    assert pipeline.source.format.type == "json"
    assert pipeline.source.start == "earliest"
    assert pipeline.source.max_records_per_commit == 5_000_000
    assert pipeline.commit_interval == timedelta(minutes=1)
    assert pipeline.state_location == "./.icestream"
    assert pipeline.maintenance
    assert pipeline.maintenance.every == timedelta(minutes=5)
    assert pipeline.maintenance.expire_snapshots
    assert pipeline.maintenance.expire_snapshots.max_snapshots == 500


def test_is_frozen() -> None:
    pipeline = PipelineConfig.model_validate(SMALLEST)
    with pytest.raises(ValidationError):
        pipeline.name = "other"  # type: ignore[misc]


def test_foreign_maps_take_spark_spelling() -> None:
    spark = {"a": True, "b": False, "c": 5, "d": 0.5, "e": "x"}
    pipeline = PipelineConfig.model_validate({**SMALLEST, "spark": spark})
    assert pipeline.spark == {"a": "true", "b": "false", "c": "5", "d": "0.5", "e": "x"}


def test_repr_shows_no_secret() -> None:
    source = {"type": "postgres", "url": "hunter2", "tables": ["t"], "options": {"p": "hunter2"}}
    catalog = {
        "type": "rest",
        "uri": "http://catalog",
        "credential": "a:hunter2",
        "token": "hunter2",
        "properties": {"header.x": "hunter2"},
    }
    pipeline = PipelineConfig.model_validate(
        {**SMALLEST, "source": source, "catalog": catalog, "spark": {"spark.x": "hunter2"}}
    )
    assert "hunter2" not in repr(pipeline)


@pytest.mark.parametrize("off", [False, "false"], ids=repr)
def test_maintenance_switches_off(off: object) -> None:
    whole = PipelineConfig.model_validate({**SMALLEST, "maintenance": off})
    assert whole.maintenance is False
    one = PipelineConfig.model_validate({**SMALLEST, "maintenance": {"rewrite_manifests": off}})
    assert one.maintenance
    assert one.maintenance.rewrite_manifests is False
    assert one.maintenance.rewrite_data_files == {}


@pytest.mark.parametrize("metric", get_args(Metric))
def test_thresholds_have_the_unit_of_their_metric(metric: str) -> None:
    def above(value: object) -> object:
        rule = {"metric": metric, "above": value, "for": "1m", "to": ["x"]}
        pipeline = PipelineConfig.model_validate({**SMALLEST, "alerts": {"rules": [rule]}})
        assert pipeline.alerts
        assert pipeline.alerts.rules[0].for_ == timedelta(minutes=1)
        return pipeline.alerts.rules[0].above

    good = {"freshness": "5m", "commit_duration": "5m", "average_file_size": "1MB"}
    parsed = {
        "freshness": timedelta(minutes=5),
        "commit_duration": timedelta(minutes=5),
        "average_file_size": 1 << 20,
    }
    assert above(good.get(metric, 5)) == parsed.get(metric, 5)
    with pytest.raises(ValidationError):
        above(5 if metric in good else "5m")


# ── values ───────────────────────────────────────────────────────────────────────────────────────

durations = st.tuples(st.integers(0, 10_000), st.sampled_from(["ms", "s", "m", "h", "d"]))
sizes = st.tuples(st.integers(0, 10_000), st.sampled_from(["B", "KB", "MB", "GB", "TB"]))


@given(durations)
def test_durations_round_trip(written: tuple[int, str]) -> None:
    value = parse_duration(f"{written[0]}{written[1]}")
    assert parse_duration(format_duration(value)) == value


@given(sizes)
def test_sizes_are_powers_of_1024(written: tuple[int, str]) -> None:
    units = ["B", "KB", "MB", "GB", "TB"]
    assert parse_size(f"{written[0]}{written[1]}") == written[0] * 1024 ** units.index(written[1])


@pytest.mark.parametrize(
    "text",
    ["5", 5, "", "5 m", "-5m", "1.5h", "5w", "m", None, True, "9" * 20],
    ids=repr,
)
def test_bad_durations(text: object) -> None:
    with pytest.raises(ValueError, match="expected a duration"):
        parse_duration(text)


def test_a_duration_too_long_for_the_clock() -> None:
    with pytest.raises(ValueError, match="expected a duration of less than"):
        parse_duration("999999999999d")


@pytest.mark.parametrize("text", ["512", 512, "512M", "512mb", "-1MB", "0.5GB", None], ids=repr)
def test_bad_sizes(text: object) -> None:
    with pytest.raises(ValueError, match="expected a size"):
        parse_size(text)


def test_interval() -> None:
    interval: TypeAdapter[Any] = TypeAdapter(Interval)
    assert interval.validate_python("once") == "once"
    assert interval.validate_python("500ms") == timedelta(milliseconds=500)
    with pytest.raises(ValidationError, match="or `once`"):
        interval.validate_python("Once")
    with pytest.raises(ValidationError, match="above zero"):
        interval.validate_python("0s")


def test_start() -> None:
    start: TypeAdapter[Any] = TypeAdapter(Start)
    assert start.validate_python("latest") == "latest"
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00Z", "2026-01-31 12:00", "2026-01-31T13:00:00+01:00"):
        assert start.validate_python(text) == noon
    with pytest.raises(ValidationError, match="earliest, latest or a timestamp"):
        start.validate_python("yesterday")


# ── routes ───────────────────────────────────────────────────────────────────────────────────────


def _pipeline(tables: list[dict[str, Any]], topic_pattern: str | None = None) -> PipelineConfig:
    source: dict[str, Any] = {"type": "generator"}
    if topic_pattern:
        source = {"type": "kafka", "bootstrap_servers": "x:1", "topic_pattern": topic_pattern}
    return PipelineConfig.model_validate({**SMALLEST, "source": source, "tables": tables})


@pytest.mark.parametrize(
    "topic, table",
    [
        ("tmp_x", None),
        ("not_tmp_x", "rest.all"),
        ("orders_eu", "eu.orders"),
        ("orders_eu_x", "rest.all"),
    ],
)
def test_first_match_of_the_whole_topic_wins(topic: str, table: str | None) -> None:
    pipeline = _pipeline(
        [
            {"match": "tmp_.*", "skip": True},
            {"match": "orders_(?P<land>[a-z]+)", "name": "{land}.orders"},
            {"name": "rest.all"},
        ]
    )
    found = route(pipeline, topic)
    assert (found and found.table) == table


def test_names_are_filled_from_the_topic_pattern() -> None:
    pipeline = _pipeline([{"name": "shop.{table}"}], r"shop\.public\.(?P<table>.+)")
    found = route(pipeline, "shop.public.orders")
    assert found
    assert found.table == "shop.orders"
    with pytest.raises(ConfigError, match=r"would be called `shop\.a b`"):
        route(pipeline, "shop.public.a b")


def test_no_rule_no_table() -> None:
    assert route(_pipeline([{"match": "a", "name": "x.y"}]), "b") is None
