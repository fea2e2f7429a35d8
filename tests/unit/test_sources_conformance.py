"""What every registered source must do, whatever it reads; and every registered catalog."""

import json
import pickle
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter

from icestream.catalogs import CATALOGS, catalog_for, spark_conf
from icestream.config.options.catalog import Catalog
from icestream.errors import ConfigError, NotBuilt, Unreachable
from icestream.plugins import plugin
from icestream.positions import PositionRange
from icestream.records import RECORDS
from icestream.sources import SOURCES, LossReport, source_for
from icestream.spark import jars
from icestream.tables.marker import LocatedMarker, Marker

sources = pytest.mark.parametrize("name", sorted(SOURCES))
catalogs = pytest.mark.parametrize("name", sorted(CATALOGS))


@pytest.fixture
def made(name, tmp_path, cluster):
    """A source with some records to read."""
    cluster.put("orders", p0=(5, 9), p1=(0, 3))
    cluster.put("users", p0=(0, 0))
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n')
    options = {
        "files": {"path": str(folder), "pattern": "*"},
        "generator": {
            "topics": ("page_events", "order_changes"), "rows": 100, "rate": None, "seed": 1,
            "malformed": 0.0,
        },
        "kafka": {
            "topics": ("orders", "users"), "topic_pattern": None, "bootstrap_servers": "nowhere:1",
            "options": {}, "include": (), "format": SimpleNamespace(type="json"),
        },
    }  # fmt: skip
    return source_for(SimpleNamespace(type=name, max_records_per_commit=10, **options[name]))


def marker(positions, stream_ids, details):
    return Marker("p", 1, "r", "c", None, 1, "u", 1, positions, stream_ids, details=details)


@sources
def test_it_can_be_checked_and_sampled_without_spark(name, made):
    made.check()
    batches = list(made.sample(5))
    assert 1 <= sum(len(batch) for batch in batches) <= 5
    for batch in batches:
        assert batch.schema.equals(RECORDS)
        for topic in set(batch.column("topic").to_pylist()):
            assert made.stream_of(topic)


@sources
@pytest.mark.parametrize("start", ["earliest", "latest", datetime(2020, 1, 1, tzinfo=UTC)])
def test_a_start_is_explicit_and_can_be_stored_and_recalled(name, made, start, tmp_path):
    resolved = made.resolve_start(start)
    assert resolved.positions
    location = str(tmp_path / "table")
    details = made.store_details(resolved.positions, location, "first", {})
    stored = marker(resolved.positions, resolved.stream_ids, details)
    again = Marker.from_json(stored.to_json())
    assert again == stored
    made.load_details([LocatedMarker(again, location)])
    assert made.stream_ids(resolved.positions) == resolved.stream_ids
    assert made.topics(PositionRange(resolved.positions, resolved.positions)) is not None


@sources
def test_identities_are_of_the_streams_that_are_asked_for(name, made):
    every = made.resolve_start("earliest").positions
    known = made.stream_ids(every)
    assert set(known) <= set(every)
    for stream in every:
        assert made.stream_ids([stream]) == {s: one for s, one in known.items() if s == stream}
    assert made.stream_ids([]) == {}
    assert made.stream_ids(every) == known  # and stay as long as the stream does


@sources
def test_nothing_is_lost_where_nothing_happened(name, made):
    for start in ("earliest", "latest"):
        resolved = made.resolve_start(start)
        assert made.losses(resolved.positions, resolved.stream_ids) == LossReport()
    assert made.losses({}, {}) == LossReport()


@sources
def test_lag_is_per_partition_of_what_was_reached(name, made):
    reached = made.resolve_start("earliest").positions
    lag = made.lag(reached)
    assert set(lag) <= set(reached)
    for stream, partitions in lag.items():
        assert set(partitions) <= set(reached[stream])
        assert all(isinstance(behind, int) and behind >= 0 for behind in partitions.values())


@sources
def test_it_says_what_the_jvm_needs(name, made):
    assert set(made.jar_sets) <= set(jars.known_sets()) - set(jars.CORE)
    assert all(option.startswith("-") and " " not in option for option in made.java_options)
    assert isinstance(made.ends_by_itself, bool)
    assert isinstance(made.shared_streams, frozenset)


@sources
def test_it_may_be_closed_at_any_time(name, made):
    made.close()  # as a source that was only asked what it needs
    made.check()
    made.close()
    made.close()


@sources
def test_its_reader_travels(name, made):
    data = pickle.dumps(made.reader)
    assert len(data) < 10_000
    again = pickle.loads(data)
    assert type(again) is type(made.reader)
    assert vars(again) == vars(made.reader)


@catalogs
def test_a_catalog_opens_for_java_spark_and_python(name, tmp_path):
    where = {"local": {"warehouse": str(tmp_path / "w")}, "rest": {"uri": "http://127.0.0.1:1"}}
    catalog = catalog_for(TypeAdapter(Catalog).validate_python({"type": name, **where[name]}))
    for key, value in {**catalog.java_properties(), **spark_conf(catalog)}.items():
        assert isinstance(key, str)
        assert isinstance(value, str)
    assert spark_conf(catalog)["spark.sql.catalog.lake"].endswith("SparkCatalog")
    json.dumps(dict(catalog.java_properties()))
    if name == "rest":  # nobody listens there; tests/spark/test_rest_catalog.py has a server
        for ask in (catalog.check, catalog.open):
            with pytest.raises(Unreachable):
                ask()
    else:
        catalog.check()
        assert catalog.open().list_namespaces() == []


def test_what_is_not_there_says_so():
    with pytest.raises(NotBuilt, match="`source` of type `kinesis` is not built yet"):
        plugin("source", SOURCES, "kinesis")
    with pytest.raises(ConfigError, match="needs the package `no_such_package`"):
        plugin("format", {"odd": "no_such_package.odd:Odd"}, "odd")
