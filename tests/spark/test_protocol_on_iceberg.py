"""The protocol on a real catalog: whatever others do to the table, nothing is lost or doubled."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.types import LongType, NestedField, StringType

from icestream import errors
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.port import CommitFailed
from icestream.commit.table_builder import TableBuilder
from icestream.events import BatchPlanned, CommitRetried, TableCommitted
from icestream.run import restart_policy
from icestream.tables.design import TableDesign
from icestream.tables.metadata import Metadata

pytestmark = pytest.mark.spark

CONFIG = """
    name: p
    source: {type: files, path: ./in}
    tables:
      - {name: shop.events, columns: {id: bigint}}
"""


@pytest.fixture
def filled(lake):
    """A lake with one commit of ten rows."""
    lake.configure(CONFIG)
    lake.put("a.jsonl", *({"id": n} for n in range(10)))
    lake.run()
    return lake


def ids(lake):
    return sorted(row[0] for row in lake.values("shop.events", "id"))


@pytest.fixture
def meddle(monkeypatch):
    """Replace the one attempt of the port: `meddle(before=…, after=…, times=…)`."""
    real = IcebergTables.commit

    def install(before=None, after=None, times=1, table="shop.events"):
        left = [times]

        def commit(self, name, base, marker, positions, work):
            ours = name == table and work.files and left[0] > 0
            if ours:
                left[0] -= 1
                if before:
                    before()
            real(self, name, base, marker, positions, work)
            if ours and after:
                after()

        monkeypatch.setattr(IcebergTables, "commit", commit)

    return install


def failing(text):
    def fail():
        raise CommitFailed(text)

    return fail


def test_marker_and_summary_are_in_the_snapshot_that_carries_the_rows(filled):
    table = filled.table("shop.events")
    marker = filled.marker("shop.events")
    notes = table.current_snapshot().summary
    assert notes["icestream.commit-id"] == marker["commit_id"]
    assert notes["icestream.previous-commit-id"] == marker["previous_commit_id"]
    assert notes["icestream.pipeline"] == "p"
    assert notes["icestream.sequence"] == str(marker["sequence"]) == "2"
    assert notes["icestream.generation"] == "1"
    assert notes["icestream.offsets"] == '{"files":{"0":1}}'
    assert notes["icestream.records"] == "10"
    assert notes["icestream.watermark"] == str(marker["watermark_ms"])
    assert marker["snapshot_sequence"] == table.current_snapshot().sequence_number
    assert marker["table_uuid"] == str(table.metadata.table_uuid)


def test_an_answer_that_was_lost_is_found_in_the_table(filled, meddle):
    filled.put("b.jsonl", {"id": 10})
    meddle(after=failing("connection reset"))
    events = filled.run()
    [retried] = [e for e in events if isinstance(e, CommitRetried)]
    assert (retried.outcome, retried.attempts) == ("landed", 1)
    assert ids(filled) == list(range(11))


def test_a_refused_commit_is_tried_again_with_the_same_files(filled, meddle):
    filled.put("b.jsonl", {"id": 10})
    meddle(before=failing("503"), times=3)
    [retried] = [e for e in filled.run() if isinstance(e, CommitRetried)]
    assert (retried.outcome, retried.attempts) == ("landed", 4)
    assert ids(filled) == list(range(11))
    assert len(list(filled.table("shop.events").inspect.files().to_pylist())) == 2


def test_a_foreign_commit_in_between_makes_the_base_stale_and_nothing_else(filled, meddle):
    def append():
        table = filled.table("shop.events")
        row = table.scan(limit=1).to_arrow()
        table.append(row.set_column(0, "id", [[1000]]).cast(row.schema))

    filled.put("b.jsonl", {"id": 10})
    meddle(before=append)
    [retried] = [e for e in filled.run() if isinstance(e, CommitRetried)]
    assert "has changed" in retried.reason
    assert (retried.outcome, retried.attempts) == ("landed", 2)
    assert ids(filled) == [*range(11), 1000]


def test_a_column_added_by_somebody_else_stages_the_batch_again(filled, meddle):
    def add_column():
        with filled.table("shop.events").update_schema() as update:
            from pyiceberg.types import StringType

            update.add_column("theirs", StringType())

    filled.put("b.jsonl", {"id": 10})
    meddle(before=add_column)
    events = filled.run()
    assert ids(filled) == list(range(11))
    assert "theirs" in filled.rows("shop.events").column_names
    assert [e.landed for e in events if isinstance(e, TableCommitted)] == [1]
    planned = [e for e in events if isinstance(e, BatchPlanned)]
    assert len(planned) == 2


def test_a_newer_run_fences_the_older_one(filled, meddle):
    """The second run claims the table while the first is about to commit."""
    filled.put("b.jsonl", {"id": 10})
    inner = {}

    def takeover():
        thread = threading.Thread(target=lambda: inner.update(done=filled.run()))
        thread.start()
        thread.join()

    meddle(before=takeover)
    with pytest.raises(errors.Fenced) as failure:
        filled.run()
    assert failure.value.exit_code == 3
    assert [e.landed for e in inner["done"] if isinstance(e, TableCommitted)] == [1]
    assert ids(filled) == list(range(11))
    assert filled.marker("shop.events")["generation"] == 3


def test_a_table_that_was_rolled_back_is_a_clear_stop(filled):
    filled.put("b.jsonl", {"id": 10})
    filled.run()
    table = filled.table("shop.events")
    first = next(s for s in table.snapshots() if s.summary["icestream.records"] == "10")
    filled.spark_rows(f"CALL lake.system.rollback_to_snapshot('shop.events', {first.snapshot_id})")
    with pytest.raises(errors.Rewound):
        filled.run()
    assert ids(filled) == list(range(10))


def test_a_table_that_was_dropped_and_made_again_begins_anew(filled):
    filled.spark_rows("DROP TABLE lake.shop.events")
    filled.run()
    assert ids(filled) == list(range(10))


def test_a_table_that_was_replaced_is_a_clear_stop(filled):
    filled.spark_rows(
        "CREATE OR REPLACE TABLE lake.shop.events USING iceberg AS SELECT * FROM lake.shop.events"
    )
    with pytest.raises(errors.Replaced):
        filled.run()


def test_compaction_and_expiry_down_to_one_snapshot_lose_nothing(filled):
    for n in range(3):
        filled.put(f"more{n}.jsonl", {"id": 10 + n})
        filled.run()
    filled.spark_rows(
        "CALL lake.system.rewrite_data_files(table => 'shop.events', "
        "options => map('min-input-files', '2'))"
    )
    filled.spark_rows(
        "CALL lake.system.expire_snapshots(table => 'shop.events', retain_last => 1, "
        "older_than => TIMESTAMP '2100-01-01')"
    )
    table = filled.table("shop.events")
    assert len(table.snapshots()) == 1
    assert "icestream.commit-id" not in table.current_snapshot().summary.additional_properties
    filled.put("last.jsonl", {"id": 13})
    filled.run()
    assert ids(filled) == list(range(14))


def test_another_seed_is_another_source(lake):
    config = """
        name: p
        source: {{type: generator, rows: 100, topics: [page_events], seed: {seed}}}
        tables: [{{name: shop.pages}}]
    """
    lake.configure(config.format(seed=1))
    lake.run()
    lake.configure(config.format(seed=2).replace("rows: 100", "rows: 200"))
    with pytest.raises(errors.Incarnation):
        lake.run()


def test_two_pipelines_fill_one_table(lake):
    lake.configure(CONFIG)
    lake.put("a.jsonl", *({"id": n} for n in range(10)))
    lake.run()
    lake.configure(CONFIG.replace("name: p", "name: q"))
    lake.run()
    lake.configure(CONFIG)
    lake.put("b.jsonl", {"id": 10})
    lake.run()
    assert ids(lake) == sorted([*range(10), *range(10), 10])
    assert lake.marker("shop.events", "q")["positions"] == {"files": {"0": 1}}
    assert lake.marker("shop.events", "p")["positions"] == {"files": {"0": 2}}


def test_quarantine_is_not_doubled_when_its_table_commits_and_the_rows_do_not(
    filled, meddle, monkeypatch
):
    monkeypatch.setattr(restart_policy, "RESTARTS", 0)
    filled.put("b.jsonl", {"id": 10}, "broken", {"id": 11})

    def die():
        raise RuntimeError("the process dies here")

    meddle(before=die)
    with pytest.raises(errors.GaveUp, match="the process dies here"):
        filled.run()
    assert ids(filled) == list(range(10))
    assert filled.rows("shop.events__quarantine").num_rows == 1
    filled.put("0-older.jsonl", "broken too", {"id": 12})
    filled.run()
    assert ids(filled) == list(range(13))
    aside = filled.rows("shop.events__quarantine").column("value").to_pylist()
    assert sorted(aside) == [b"broken", b"broken too"]


def test_iceberg_never_retries_or_cleans_up_for_us(filled):
    """A stale base is refused in one attempt, and the files that were offered stay."""
    tables = _tables(filled)
    stale = tables.load("shop.events")
    filled.put("b.jsonl", {"id": 10})
    filled.run()
    marker = tables.load("shop.events").marker
    snapshots = len(filled.table("shop.events").snapshots())
    from icestream.commit.port import AddedFiles

    with pytest.raises(CommitFailed, match="stale"):
        tables.commit("shop.events", stale.base, marker, {}, AddedFiles())
    assert len(filled.table("shop.events").snapshots()) == snapshots


def _tables(lake):
    from icestream.catalogs import catalog_for
    from icestream.config.load import load

    catalog = catalog_for(load(lake.file).pipeline.catalog)
    jvm = lake.spark.sparkContext._jvm
    java = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        "lake", dict(catalog.java_properties()), lake.spark._jsc.hadoopConfiguration()
    )
    return IcebergTables(jvm, java, "p")


def test_two_that_make_a_table_at_once_both_go_on(lake):
    """One of them made it; the other may have lost already at the namespace."""
    lake.configure(CONFIG)
    column = NestedField(1, "id", LongType(), required=False)
    builders = [TableBuilder(tables) for tables in (_tables(lake), _tables(lake))]
    together = threading.Barrier(2)

    def make(builder):
        together.wait()
        return [builder.create(TableDesign(f"n{n}.t", columns=(column,))) for n in range(20)]

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(make, builders)
    assert [a + b for a, b in zip(one, other, strict=True)] == [1] * 20


def test_a_view_that_was_followed_is_the_one_that_is_read_anew(filled):
    from icestream.catalogs import catalog_for
    from icestream.config.load import load
    from icestream.write.target import stage_target

    settings = catalog_for(load(filled.file).pipeline.catalog)
    jvm = filled.spark.sparkContext._jvm
    catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        settings.name,
        dict(settings.java_properties()),
        filled.spark._jsc.hadoopConfiguration(),
    )
    followed = IcebergTables(jvm, catalog, "p")
    followed.load("shop.events")

    def table():
        return filled.table("shop.events")

    def more(name):
        filled.put(name, {"id": 77})
        filled.run()

    def foreign_rows():
        table().append(table().scan(limit=1).to_arrow())

    def foreign_property(value):
        with table().transaction() as change:
            change.set_properties({"write.parquet.compression-level": value})

    def foreign_column():
        with table().update_schema() as change:
            change.add_column("more", StringType())

    def marker_gone():
        with table().transaction() as change:
            change.remove_properties("icestream.p.marker")

    for step in (
        lambda: None,
        lambda: more("b.jsonl"),
        foreign_rows,
        lambda: foreign_property("3"),
        lambda: foreign_property("4"),
        foreign_column,
        lambda: more("c.jsonl"),
        lambda: table().manage_snapshots().rollback_to_snapshot(
            table().snapshots()[1].snapshot_id
        ).commit(),
        marker_gone,
    ):  # fmt: skip
        step()
        one, other = (
            followed.load("shop.events"),
            IcebergTables(jvm, catalog, "p").load("shop.events"),
        )
        for name in ("uuid", "marker", "ancestors", "last_sequence", "schema_id"):
            assert getattr(one, name) == getattr(other, name), name
        documents = [each.base.document for each in (one, other)]
        assert stage_target(Metadata(documents[0]), "x") == stage_target(
            Metadata(documents[1]), "x"
        )
    assert other.marker is None
