"""The files of `icestream init`: they load, or say what is not built."""

import re
from pathlib import Path

import pytest

from icestream.config.load import LoadedConfig, load
from icestream.config.route import route
from icestream.config.starter import StarterKind, starter


def _load(folder: Path, kind: StarterKind) -> LoadedConfig:
    path = folder / "icestream.yml"
    path.write_text(starter(kind))
    return load(path, env={})


def test_append_runs_today(tmp_path: Path) -> None:
    pipeline = _load(tmp_path, "append").pipeline
    assert pipeline.source.type == "files"
    assert pipeline.source.path == str(tmp_path / "in")
    assert pipeline.catalog.type == "local"


def test_append_with_everything_uncommented(tmp_path: Path) -> None:
    text = re.sub(r"^(\s*)# (\w+: )", r"\1\2", starter("append"), flags=re.MULTILINE)
    path = tmp_path / "icestream.yml"
    path.write_text(text)
    rule = load(path, env={}).pipeline.tables[0]
    assert rule.partition_by == ("days(event_time)",)
    assert rule.except_columns == ("card_number",)


def test_multi_routes_its_topics(tmp_path: Path) -> None:
    pipeline = _load(tmp_path, "multi").pipeline
    tables = {}
    for topic in ("page_events", "order_changes", "tmp_page_x", "clicks"):
        found = route(pipeline, topic)
        tables[topic] = found and found.table
    assert tables == {
        "page_events": "page.events",
        "order_changes": "order.changes",
        "tmp_page_x": None,
        "clicks": "other.clicks",
    }


def test_cdc_routes_by_topic(tmp_path: Path) -> None:
    pipeline = _load(tmp_path, "cdc").pipeline
    tables = {}
    for topic in ("shop.public.orders", "shop.public.users", "shop.public.tmp_x"):
        found = route(pipeline, topic)
        tables[topic] = found and (found.table, found.rule.mode, found.rule.keys)
    assert tables == {
        "shop.public.orders": ("shop.orders", "upsert", ("order_id",)),
        "shop.public.users": ("shop.users", "upsert", None),
        "shop.public.tmp_x": None,
    }


@pytest.mark.parametrize("kind", ["append", "cdc", "multi"])
def test_is_readable(kind: StarterKind) -> None:
    assert all(len(line) <= 100 for line in starter(kind).splitlines())
