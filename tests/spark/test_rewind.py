"""`rewind` on tables of a real pipeline: what comes after it is the truth, each record once."""

import shutil
from datetime import UTC, datetime

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.types import LongType

from feeds import TABLE, ids
from icestream.catalogs import catalog_for
from icestream.commit.java_catalog import IcebergTables
from icestream.config.load import load
from icestream.errors import Fenced, Gap, Rewound
from icestream.rewind import RewindTarget, plan_rewind, rewind, tables
from icestream.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("rewind")]

PAGES, ORDERS = "shop.pages", "shop.orders"
GENERATOR = f"""
    name: p
    source: {{{{type: generator, rows: {{rows}}, malformed: 0.01, max_records_per_commit: 1000}}}}
    tables:
      - {{{{match: page_events, name: {PAGES}}}}}
      - {{{{match: order_changes, name: {ORDERS}}}}}
"""
FILES = """
    name: p
    source: {{type: files, path: ./in}}
    tables: [{{name: shop.events{more}}}]
"""
EVENTS, ASIDE = "shop.events", "shop.events__quarantine"


def back(lake, target, **options):
    return rewind(load(lake.file).pipeline, target, **options)


def proved(lake, **options):
    result = verify(load(lake.file).pipeline, all_snapshots=True, deep=True, **options)
    assert result.clean, result.violations
    return result


def content(lake, *names):
    """All rows of these tables, but for the moment at which they came."""
    found = []
    for name in names:
        rows = lake.rows(name)
        kept = [c for c in rows.column_names if c not in ("_ingested_at", "ingested_at")]
        found.append(sorted(map(repr, rows.select(kept).to_pylist())))
    return found


def snapshots(lake, name):
    """In the order of their making."""
    return sorted(lake.table(name).metadata.snapshots, key=lambda each: each.sequence_number)


def stages(lake, name):
    """For each number of rows that the table has had, the first snapshot with it."""
    found = {}
    for each in snapshots(lake, name):
        found.setdefault(int(each.summary["total-records"] or 0), each.snapshot_id)
    return [RewindTarget(snapshot_id=each) for each in found.values()]


def row_ids(lake, name=EVENTS):
    return sorted(lake.rows(name).column("id").to_pylist())


EVERY = (PAGES, f"{PAGES}__quarantine", ORDERS, f"{ORDERS}__quarantine")
KEPT = {}


@pytest.fixture
def made(lake, tmp_path_factory):
    """Four commits of the generator in two runs, made once and put back before each test."""
    if not KEPT:
        kept = KEPT["lake"] = type(lake)(tmp_path_factory.mktemp("kept"), lake.spark)
        kept.configure(GENERATOR.format(rows=2000))
        kept.run()
        KEPT["between"] = datetime.now(UTC)
        KEPT["first"] = content(kept, *EVERY)
        kept.configure(GENERATOR.format(rows=4000))
        kept.run()
        KEPT["truth"] = content(kept, *EVERY)
        shutil.copytree(kept.folder / "warehouse", kept.folder / "as-made")
    kept = KEPT["lake"]
    kept.configure(GENERATOR.format(rows=4000))
    shutil.rmtree(kept.folder / "warehouse")
    shutil.copytree(kept.folder / "as-made", kept.folder / "warehouse")
    return kept


def between():
    return RewindTarget(time_ms=int(KEPT["between"].timestamp() * 1000))


# ── there and on again ──────────────────────────────────────────────────────────────────────────


def test_all_tables_to_a_time_and_on_again(made):
    assert content(made, *EVERY) == KEPT["truth"]
    plan = plan_rewind(load(made.file).pipeline, between())
    assert [table.table for table in plan.moves] == sorted(EVERY)
    assert content(made, *EVERY) == KEPT["truth"]
    done = back(made, between())
    assert done.tables == plan.tables
    assert content(made, *EVERY) == KEPT["first"]
    proved(made)
    made.run()
    assert content(made, *EVERY) == KEPT["truth"]
    proved(made)
    # Once more, over the place where it went back before.
    back(made, between())
    assert content(made, *EVERY) == KEPT["first"]
    made.run()
    assert content(made, *EVERY) == KEPT["truth"]
    proved(made)


def test_one_table_to_a_snapshot_and_forth_to_one_that_it_left(made):
    """The others stay, and trim what they have already."""
    claim, _, second, *_ = stages(made, PAGES)
    for target in (claim, second):
        (plan, *_) = back(made, target).tables
        rows = made.table(PAGES).scan(snapshot_id=target.snapshot_id).to_arrow()
        assert plan.rows_after == rows.num_rows == made.rows(PAGES).num_rows
        assert content(made, ORDERS) == [KEPT["truth"][2]]
        proved(made)
        made.run()
        assert content(made, *EVERY) == KEPT["truth"]
        proved(made)


def test_a_table_that_went_without_its_quarantine_and_siblings(made, monkeypatch):
    """The rewind died after its first commit, and nobody says it again: a start is as good."""
    real, calls = tables.commit_rewind, []

    def dies(*arguments):
        if calls:
            raise KeyboardInterrupt
        calls.append(arguments)
        real(*arguments)

    monkeypatch.setattr(tables, "commit_rewind", dies)
    with pytest.raises(KeyboardInterrupt):
        back(made, between())
    assert content(made, ORDERS) == [KEPT["first"][2]]
    assert content(made, f"{ORDERS}__quarantine", PAGES) == [KEPT["truth"][3], KEPT["truth"][0]]
    made.run()
    assert content(made, *EVERY) == KEPT["truth"]
    proved(made)


def test_compaction_and_expiry_before_and_after(made):
    compact = (
        f"CALL lake.system.rewrite_data_files(table => '{PAGES}', "
        "options => map('min-input-files', '2', 'rewrite-all', 'true'))"
    )
    made.spark_rows(compact)
    back(made, between())
    assert content(made, *EVERY) == KEPT["first"]
    made.spark_rows(compact)
    later = "TIMESTAMP '2100-01-01 00:00:00'"
    made.spark_rows(f"CALL lake.system.expire_snapshots('{PAGES}', {later}, 1)")
    assert len(snapshots(made, PAGES)) == 1
    assert content(made, *EVERY) == KEPT["first"]
    proved(made)
    made.run()
    assert content(made, *EVERY) == KEPT["truth"]
    proved(made)


def test_expiry_by_icebergs_own_api_keeps_what_is_live(made):
    """It deletes the manifest lists of the snapshots that it removes."""
    back(made, between())
    iceberg = made.spark._jvm.org.apache.iceberg
    properties = dict(catalog_for(load(made.file).pipeline.catalog).java_properties())
    conf = made.spark._jsc.hadoopConfiguration()
    catalog = iceberg.CatalogUtil.buildIcebergCatalog("lake", properties, conf)
    name = iceberg.catalog.TableIdentifier.parse(PAGES)
    old = {each.manifest_list for each in snapshots(made, PAGES)[:-1]}
    catalog.loadTable(name).expireSnapshots().expireOlderThan(2**42).retainLast(1).commit()
    assert len(snapshots(made, PAGES)) == 1
    assert snapshots(made, PAGES)[0].manifest_list not in old
    assert content(made, *EVERY) == KEPT["first"]
    made.run()
    assert content(made, *EVERY) == KEPT["truth"]
    proved(made)


def test_a_rest_catalog_is_no_different(lake, rest):
    def config(rows):
        return f"""
        name: p
        catalog: {{type: rest, uri: '{rest.uri}'}}
        source: {{type: generator, rows: {rows}, malformed: 0.05, topics: [page_events]}}
        tables: [{{name: rewound.pages}}]
        """

    names = ("rewound.pages", "rewound.pages__quarantine")
    lake.configure(config(300))
    lake.run()
    first, half = content(lake, *names), stages(lake, "rewound.pages")[-1]
    lake.configure(config(500))
    lake.run()
    truth = content(lake, *names)
    back(lake, half)
    assert content(lake, *names) == first
    proved(lake)
    lake.run()
    assert content(lake, *names) == truth
    proved(lake)


# ── a folder of files ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def folder(lake):
    """Three files in three runs; the second has a new column and a bad record."""
    lake.configure(FILES.format(more=""))
    lake.put("a.jsonl", {"id": 1}, {"id": 2}, "{broken")
    lake.run()
    lake.put("b.jsonl", {"id": 3, "more": "x"}, "{broken, too", {"id": 4})
    lake.run()
    lake.put("c.jsonl", {"id": 5})
    lake.run()
    return lake


def test_files_are_read_again(folder):
    truth = content(folder, EVENTS, ASIDE)
    claim, first, *_ = stages(folder, EVENTS)
    for target in (first, claim):
        back(folder, target)
        proved(folder)
        folder.run()
        assert content(folder, EVENTS, ASIDE) == truth
        proved(folder)


def test_the_schema_stays_the_newest(folder):
    back(folder, stages(folder, EVENTS)[1])
    assert row_ids(folder) == [1, 2]
    assert "more" in folder.rows(EVENTS).column_names
    folder.put("d.jsonl", {"id": 6, "again": True})
    folder.run()
    assert row_ids(folder) == [1, 2, 3, 4, 5, 6]
    assert folder.values(EVENTS, "id", "more")[2] == (3, "x")
    proved(folder)


def test_files_that_are_gone_are_not_given_up_in_silence(folder):
    first = stages(folder, EVENTS)[1]
    (folder.incoming / "b.jsonl").unlink()
    assert plan_rewind(load(folder.file).pipeline, first).lost == ("file `b.jsonl`: gone",)
    with pytest.raises(Gap, match="no longer has all") as refused:
        back(folder, first)
    assert "b.jsonl" in refused.value.where
    assert row_ids(folder) == [1, 2, 3, 4, 5]
    back(folder, first, accept_loss=True)
    folder.run()
    assert row_ids(folder) == [1, 2, 5]
    proved(folder)


def test_records_that_are_good_by_now_leave_the_quarantine(lake):
    """What a rewind is for: the pipeline file said the wrong type, and records were set aside."""
    lake.configure(FILES.format(more=", columns: {amount: int}"))
    lake.put("a.jsonl", {"id": 1, "amount": 5})
    lake.run()
    lake.put(
        "b.jsonl", {"id": 2, "amount": 2**40}, {"id": 3, "amount": 7}, {"id": 4, "amount": "x"}
    )
    lake.run()
    assert row_ids(lake) == [1, 3]
    assert lake.rows(ASIDE).num_rows == 2
    back(lake, stages(lake, EVENTS)[1])
    assert (row_ids(lake), lake.rows(ASIDE).num_rows) == ([1], 0)
    with lake.table(EVENTS).update_schema() as update:
        update.update_column("amount", LongType())
    lake.configure(FILES.format(more=", columns: {amount: bigint}"))
    lake.run()
    assert lake.values(EVENTS, "id", "amount") == [(1, 5), (2, 2**40), (3, 7)]
    assert lake.rows(ASIDE).num_rows == 1
    proved(lake)


# ── beside a run ────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_is_about_to_commit_is_fenced(folder, monkeypatch):
    target = stages(folder, EVENTS)[1]
    real, left = IcebergTables.commit, [1]

    def commit(self, name, base, marker, positions, work):
        if name == EVENTS and work.files and left:
            left.pop()
            back(folder, target)
        real(self, name, base, marker, positions, work)

    monkeypatch.setattr(IcebergTables, "commit", commit)
    folder.put("d.jsonl", {"id": 6})
    with pytest.raises(Fenced):
        folder.run()
    assert row_ids(folder) == [1, 2]
    folder.run()
    assert row_ids(folder) == [1, 2, 3, 4, 5, 6]
    proved(folder)


def test_a_rollback_by_hand_is_taken_up_by_a_rewind(folder):
    truth = content(folder, EVENTS, ASIDE)
    old = stages(folder, EVENTS)[1]
    folder.spark_rows(f"CALL lake.system.rollback_to_snapshot('{EVENTS}', {old.snapshot_id})")
    with pytest.raises(Rewound) as refused:
        folder.run()
    assert "icestream rewind" in refused.value.hint
    back(folder, old)
    folder.run()
    assert content(folder, EVENTS, ASIDE) == truth
    proved(folder)


# ── Kafka ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fed(feed):
    """Two partitions, good and bad records, two runs."""
    feed.create(partitions=2)
    feed.configure()
    feed.put([*ids(0, 50), "{broken", *ids(50, 60)], partition=0)
    feed.lake.run()
    feed.put([*ids(100, 140), "{broken, too"], partition=1)
    feed.put([{"id": 200, "name": "ada"}], partition=0)
    feed.lake.run()
    return feed


def remove(feed, partition, before):
    with AdminClient({"bootstrap.servers": feed.bootstrap}) as admin:
        for done in admin.delete_records([TopicPartition(feed.topic, partition, before)]).values():
            done.result(20)


def test_kafka_is_read_again_from_the_offsets_of_that_time(fed):
    truth = content(fed.lake, TABLE, f"{TABLE}__quarantine")
    claim, first, *_ = stages(fed.lake, TABLE)
    for target in (first, claim):
        back(fed.lake, target)
        proved(fed.lake, source=True)
        fed.lake.run()
        assert content(fed.lake, TABLE, f"{TABLE}__quarantine") == truth
        proved(fed.lake, source=True)


def test_what_kafka_no_longer_has_is_not_given_up_in_silence(fed):
    first = stages(fed.lake, TABLE)[0]
    remove(fed, 0, 30)
    plan = plan_rewind(load(fed.lake.file).pipeline, first)
    assert plan.lost == (f"{TABLE}: retention {fed.topic}/0: 0 to 30 (30 records)",)
    with pytest.raises(Gap) as refused:
        back(fed.lake, first)
    assert f"{fed.topic}/0: 0 to 30" in refused.value.where
    assert fed.ids() == [*range(60), *range(100, 140), 200]
    back(fed.lake, first, accept_loss=True)
    assert fed.ids() == []
    with pytest.raises(Gap):
        fed.lake.run()
    fed.lake.run(accept_loss=True)
    assert fed.ids() == [*range(30, 60), *range(100, 140), 200]
    proved(fed.lake)


def test_a_part_that_kafka_still_has_goes_back_unasked(fed):
    remove(fed, 0, 30)
    back(fed.lake, stages(fed.lake, TABLE)[1])
    assert fed.ids() == list(range(60))
    fed.lake.run()
    assert fed.ids() == [*range(60), *range(100, 140), 200]
    proved(fed.lake)
