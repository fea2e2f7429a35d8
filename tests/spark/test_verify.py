"""`verify` on tables of a real pipeline: clean as they are, red after every kind of damage."""

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.expressions import EqualTo
from pyiceberg.io.pyarrow import _dataframe_to_data_files

from feeds import TABLE, ids
from icestream.cli import main as entry
from icestream.config.load import load
from icestream.errors import Unreachable
from icestream.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("verify")]

PAGES = "shop.pages"
SOURCE = "{{type: generator, rows: {rows}, malformed: 0.01, max_records_per_commit: 1000}}"
GENERATOR = f"""
    name: p
    source: {SOURCE}
    tables:
      - {{{{match: page_events, name: {PAGES}}}}}
      - {{{{match: order_changes, name: shop.orders}}}}
"""


def proved(lake, **options):
    return verify(load(lake.file).pipeline, **options)


def found(result, table=PAGES):
    """The kinds of findings in a table, each once, in order."""
    return list(dict.fromkeys(f.kind for f in result.violations if f.table == table))


def notes(result, table=PAGES):
    return " ".join(n for t in result.tables if t.table == table for n in t.notes)


KEPT = {}


@pytest.fixture
def made(lake, tmp_path_factory):
    """Four commits of the generator in two runs, made once and put back before each test."""
    if not KEPT:
        kept = KEPT["lake"] = type(lake)(tmp_path_factory.mktemp("kept"), lake.spark)
        kept.configure(GENERATOR.format(rows=2000))
        kept.run()
        kept.configure(GENERATOR.format(rows=4000))
        kept.run()
        shutil.copytree(kept.folder / "warehouse", kept.folder / "as-made")
    kept = KEPT["lake"]
    shutil.rmtree(kept.folder / "warehouse")
    shutil.copytree(kept.folder / "as-made", kept.folder / "warehouse")
    return kept


def local(path):
    return Path(path.removeprefix("file:").removeprefix("//"))


def files(table):
    return [task.file for task in table.scan().plan_files()]


def edit(lake, change, name=PAGES):
    """Change the table's metadata file by hand."""
    path = local(lake.table(name).metadata_location)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def rewritten(table, change, which=0):
    """Replace a data file by another with changed rows, in a snapshot of its own."""
    old = files(table)[which]
    columns = table.scan().to_arrow().schema
    rows = [columns.empty_table(), pq.read_table(local(old.file_path))]
    rows = change(pa.concat_tables(rows, promote_options="permissive").cast(columns))
    with table.transaction() as transaction, transaction.update_snapshot().overwrite() as update:
        update.delete_data_file(old)
        for new in _dataframe_to_data_files(table.metadata, rows, table.io):
            update.append_data_file(new)


# ── what is right ───────────────────────────────────────────────────────────────────────────────


def test_several_runs_are_clean_in_every_snapshot(made):
    result = proved(made, all_snapshots=True, deep=True)
    assert result.clean, result.violations
    assert [t.table for t in result.tables] == [
        "shop.orders", "shop.orders__quarantine", PAGES, f"{PAGES}__quarantine",
    ]  # fmt: skip
    for table in result.tables:
        names = [check.name for check in table.checks]
        assert names == ["chain", "files", "rows"] + ["quarantine"] * ("__" not in table.table)
        assert {check.status for check in table.checks} == {"ok"}
        assert table.notes == ()
    assert (result.lost, result.duplicated, result.phantom) == (0, 0, 0)
    made.run()  # a claim without rows
    assert proved(made, all_snapshots=True).clean


def test_compaction_and_expiry_are_clean(made):
    before = len(files(made.table(PAGES)))
    made.spark_rows(
        f"CALL lake.system.rewrite_data_files(table => '{PAGES}', "
        "options => map('min-input-files', '2', 'rewrite-all', 'true'))"
    )
    assert len(files(made.table(PAGES))) < before
    result = proved(made, all_snapshots=True)
    assert result.clean, result.violations
    assert notes(result) == ""
    made.configure(GENERATOR.format(rows=5000))
    made.run()
    assert proved(made, all_snapshots=True).clean
    later = "TIMESTAMP '2100-01-01 00:00:00'"
    made.spark_rows(f"CALL lake.system.expire_snapshots('{PAGES}', {later}, 2)")
    assert len(made.table(PAGES).metadata.snapshots) == 2
    result = proved(made, all_snapshots=True, deep=True)
    assert result.clean, result.violations
    (chain,) = [c for t in result.tables if t.table == PAGES for c in t.checks if c.name == "chain"]
    assert "expired" in chain.detail


def test_a_foreign_append_is_named_and_not_red(made):
    table = made.table(PAGES)
    schema = table.scan().to_arrow().schema
    table.append(pa.table({f.name: pa.nulls(3, f.type) for f in schema}, schema=schema))
    result = proved(made, all_snapshots=True)
    assert result.clean, result.violations
    assert "is not ours: append by" in notes(result)
    made.run()
    assert proved(made).clean


def test_new_columns_and_accepted_bad_records_are_clean(lake):
    lake.configure(
        """
        name: p
        source: {type: files, path: ./in}
        tables: [{name: shop.events, bad_records: drop}]
        """
    )
    lake.put("a.jsonl", {"id": 1}, "{broken", {"id": 2})
    lake.run()
    lake.put("b.jsonl", {"id": 3, "more": {"deep": True}})
    lake.run()
    result = proved(lake, all_snapshots=True, deep=True)
    assert result.clean, result.violations
    assert "entries of a ledger" in notes(result, "shop.events")
    (check,) = [c for c in result.tables[0].checks if c.name == "quarantine"]
    assert check.detail == "3 landed + 0 set aside + 1 dropped = 4 read"


def test_without_metadata_columns_rows_are_counted(lake):
    lake.configure(
        """
        name: p
        source: {type: generator, rows: 100, topics: [page_events]}
        tables: [{name: shop.pages, metadata_columns: false}]
        """
    )
    lake.run()
    result = proved(lake)
    assert result.clean
    assert [c.status for c in result.tables[0].checks if c.name == "rows"] == ["unchecked"]
    table = lake.table(PAGES)
    rewritten(table, lambda rows: rows.slice(1))
    edit(lake, _as_compaction)
    assert found(proved(lake)) == ["rows-missing"]


def test_a_rest_catalog_is_no_different(lake, rest):
    lake.configure(
        f"""
        name: p
        catalog: {{type: rest, uri: '{rest.uri}'}}
        source: {{type: generator, rows: 300, malformed: 0.05, topics: [page_events]}}
        tables: [{{name: verified.pages}}]
        """
    )
    lake.run()
    assert proved(lake, all_snapshots=True, deep=True).clean
    table = lake.table("verified.pages")
    table.append(table.scan().to_arrow().slice(0, 5))
    assert proved(lake).duplicated == 5
    local(files(table)[0].file_path).unlink()
    assert found(proved(lake), "verified.pages") == ["missing-file"]
    lake.file.write_text(lake.file.read_text().replace(rest.uri, "http://127.0.0.1:1"))
    with pytest.raises(Unreachable):
        proved(lake)


# ── damage to rows ──────────────────────────────────────────────────────────────────────────────


def _as_compaction(document):
    document["snapshots"][-1]["summary"]["operation"] = "replace"


def test_a_compaction_that_loses_a_row(made):
    rewritten(made.table(PAGES), lambda rows: rows.slice(1))
    edit(made, _as_compaction)
    result = proved(made)
    assert found(result) == ["rows-missing", "missing"]
    assert result.lost == 1
    lost = next(f for f in result.violations if f.kind == "missing")
    assert (lost.stream, lost.partition, lost.stop - lost.start) == ("page_events", 0, 1)
    rows = made.rows(PAGES)
    assert lost.start not in rows.column("_src_offset").to_pylist()


def test_a_row_that_others_deleted_is_named(made):
    made.table(PAGES).delete(EqualTo("_src_offset", 7))
    result = proved(made)
    assert result.clean, result.violations
    assert "is not ours" in notes(result)
    assert "which ones, the counts cannot tell" in notes(result)


def test_rows_appended_again(made):
    table = made.table(PAGES)
    rows = table.scan().to_arrow()
    table.append(rows.slice(0, 30))
    result = proved(made)
    assert found(result) == ["duplicated"]
    assert (result.duplicated, result.lost, result.phantom) == (30, 0, 0)
    # The snapshots before it are as they were.
    (at,) = {f.snapshot_id for f in proved(made, all_snapshots=True).violations}
    assert at == table.metadata.current_snapshot_id


def test_a_file_added_twice(made):
    table = made.table(PAGES)
    first = files(table)[0]
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
        update.append_data_file(first)
    result = proved(made)
    assert found(result) == ["live-twice", "duplicated"]
    assert result.duplicated == first.record_count


def test_a_row_above_the_marker(made):
    table = made.table(PAGES)
    rows = table.scan().to_arrow().slice(0, 1)
    at = rows.schema.get_field_index("_src_offset")
    table.append(rows.set_column(at, rows.schema.field(at), pa.array([10**12], pa.int64())))
    result = proved(made)
    assert found(result) == ["above-marker"]
    assert result.phantom == 1
    (finding,) = result.violations
    assert (finding.stream, finding.start, finding.stop) == ("page_events", 10**12, 10**12 + 1)


def test_a_record_set_aside_that_is_gone(made):
    name = f"{PAGES}__quarantine"
    offset = made.rows(name).column("offset").to_pylist()[0]
    made.table(name).delete(EqualTo("offset", offset))
    result = proved(made)
    assert found(result) == ["quarantine-missing", "missing"]
    assert result.lost == 1
    assert {f.start for f in result.violations if f.kind == "missing"} == {offset}


def test_a_record_in_the_table_and_in_its_quarantine(made):
    name = f"{PAGES}__quarantine"
    landed = made.rows(PAGES).column("_src_offset").to_pylist()[0]
    table = made.table(name)
    rows = table.scan().to_arrow().slice(0, 1)
    at = rows.schema.get_field_index("offset")
    table.append(rows.set_column(at, rows.schema.field(at), pa.array([landed], pa.int64())))
    assert found(proved(made)) == ["both", "quarantine-surplus"]


# ── damage to the chain ─────────────────────────────────────────────────────────────────────────

MARKER = "icestream.p.marker"


def test_the_marker_is_gone(made):
    with made.table(PAGES).transaction() as transaction:
        transaction.remove_properties(MARKER)
    result = proved(made)
    assert found(result) == ["marker-missing"]
    (check,) = [c for c in result.tables[2].checks if c.name == "rows"]
    assert check.status == "unchecked"


def test_an_older_marker(made):
    table = made.table(PAGES)
    before = json.loads(local(table.metadata.metadata_log[-1].metadata_file).read_text())
    with table.transaction() as transaction:
        transaction.set_properties({MARKER: before["properties"][MARKER]})
    assert "marker-old" in found(proved(made))


def test_a_broken_link(made):
    def change(document):
        document["snapshots"][-2]["summary"]["icestream.previous-commit-id"] = "0" * 32

    edit(made, change)
    result = proved(made)
    assert found(result) == ["chain-broken"]
    (finding,) = result.violations
    assert finding.snapshot_id == made.table(PAGES).metadata.snapshots[-2].snapshot_id


def test_a_rollback(made):
    snapshots = sorted(made.table(PAGES).metadata.snapshots, key=lambda s: s.sequence_number)
    made.spark_rows(
        f"CALL lake.system.rollback_to_snapshot('{PAGES}', {snapshots[-3].snapshot_id})"
    )
    result = proved(made)
    assert found(result)[0] == "rolled-back"
    assert not result.clean


def test_a_table_that_was_made_anew(made):
    def change(document):
        document["table-uuid"] = "00000000-0000-0000-0000-000000000000"

    edit(made, change)
    assert found(proved(made)) == ["table-replaced"]


def test_a_table_that_is_gone(made):
    from icestream.catalogs import catalog_for

    catalog_for(load(made.file).pipeline.catalog).open().drop_table(PAGES)
    assert found(proved(made)) == ["table-missing"]


# ── damage to files ─────────────────────────────────────────────────────────────────────────────


def test_a_data_file_is_gone(made):
    path = files(made.table(PAGES))[0].file_path
    local(path).unlink()
    result = proved(made)
    assert found(result) == ["missing-file"]
    (finding,) = result.violations
    assert path in finding.expected
    assert finding.seen == "no such file"
    checks = {c.name: c.status for c in result.tables[2].checks}
    assert checks == {
        "chain": "ok", "files": "violated", "rows": "unchecked", "quarantine": "unchecked",
    }  # fmt: skip


@pytest.mark.parametrize("which", ["manifest", "manifest list", "metadata"])
def test_a_file_of_metadata_is_gone(made, which):
    table = made.table(PAGES)
    snapshot = table.current_snapshot()
    path = {
        "manifest": snapshot.manifests(table.io)[0].manifest_path,
        "manifest list": snapshot.manifest_list,
        "metadata": table.metadata_location,
    }[which]
    local(path).unlink()
    result = proved(made)
    assert found(result) == ["missing-file"]
    assert which in result.violations[0].expected


def test_a_manifest_of_an_old_snapshot_shows_with_all_of_them(made):
    table = made.table(PAGES)
    made.spark_rows(f"CALL lake.system.rewrite_manifests('{PAGES}')")
    local(table.current_snapshot().manifests(table.io)[0].manifest_path).unlink()
    assert proved(made).clean
    assert found(proved(made, all_snapshots=True)) == ["missing-file"]


def test_a_data_file_is_cut_off(made):
    path = local(files(made.table(PAGES))[0].file_path)
    path.write_bytes(path.read_bytes()[:-100])
    assert found(proved(made)) == ["size-differs"]


def test_a_data_file_lost_a_row_in_place(made):
    path = local(files(made.table(PAGES))[0].file_path)
    size, rows = path.stat().st_size, pq.read_table(path)
    rows, padding = rows.slice(rows.num_rows // 2), 0
    for _ in range(5):  # as long as before, to the byte
        with pq.ParquetWriter(path, rows.schema, compression="zstd") as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({"padding": "x" * padding})
        padding += size - path.stat().st_size
    assert path.stat().st_size == size
    result = proved(made)
    assert found(result) == ["records-differ"]
    (finding,) = result.violations
    assert finding.seen == f"{rows.num_rows} records"


def test_garbled_values_show_when_all_are_read(made):
    file = files(made.table(PAGES))[0]
    path = local(file.file_path)
    data = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    for at in range(start, start + column.total_compressed_size):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))
    assert proved(made).clean  # of this column only statistics were looked at
    assert found(proved(made, deep=True)) == ["unreadable"]


def test_garbled_origins_show_at_once(made):
    path = local(files(made.table(PAGES))[0].file_path)
    data = bytearray(path.read_bytes())
    group = pq.ParquetFile(path).metadata.row_group(0)
    column = next(
        column
        for column in map(group.column, range(group.num_columns))
        if column.path_in_schema == "_src_offset"
    )
    start = column.dictionary_page_offset or column.data_page_offset
    for at in range(start, start + column.total_compressed_size):
        data[at] ^= 0xFF
    path.write_bytes(bytes(data))
    assert found(proved(made)) == ["unreadable"]


# ── against the broker ──────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fed(feed):
    """Two partitions, good and bad records, two runs."""
    feed.create(partitions=2)
    feed.configure()
    feed.put([*ids(0, 50), "{broken", *ids(50, 60)], partition=0)
    feed.lake.run()
    feed.put(ids(100, 140), partition=1)
    feed.put([{"id": 200, "name": "ada"}], partition=0)
    feed.lake.run()
    return feed


@pytest.mark.parametrize("at_once", [7, 20_000])
def test_what_the_broker_has_is_in_the_table(fed, monkeypatch, at_once):
    monkeypatch.setattr("icestream.verify.broker._AT_ONCE", at_once)
    result = proved(fed.lake, source=True, all_snapshots=True)
    assert result.clean, result.violations
    (check,) = [c for c in result.tables[0].checks if c.name == "source"]
    assert check.detail == "102 records of the broker compared, 101 rows by value"


def test_a_swapped_value_shows_against_the_broker(fed):
    def change(rows):
        at = rows.schema.get_field_index("id")
        column = pc.if_else(pc.equal(rows.column("id"), 20), 21, rows.column("id"))
        return rows.set_column(at, rows.schema.field(at), column)

    table = fed.lake.table(TABLE)
    counts = [file.record_count for file in files(table)]
    rewritten(table, change, counts.index(60))
    assert proved(fed.lake).clean
    result = proved(fed.lake, source=True)
    (finding,) = result.violations
    assert (finding.kind, finding.expected, finding.seen) == ("value-differs", "`id` = 20", "21")
    assert (finding.stream, finding.partition, finding.start) == (fed.topic, 0, 20)


def test_a_lost_and_a_made_up_row_show_against_the_broker(fed):
    table = fed.lake.table(TABLE)
    table.delete(EqualTo("id", 120))
    result = proved(fed.lake, source=True)
    (finding,) = result.violations
    assert (finding.kind, finding.partition, finding.start, finding.stop) == ("missing", 1, 20, 21)
    assert (result.lost, result.phantom) == (1, 0)
    with AdminClient({"bootstrap.servers": fed.bootstrap}) as admin:
        for done in admin.delete_records([TopicPartition(fed.topic, 1, 40)]).values():
            done.result(20)
    assert proved(fed.lake, source=True).clean  # nobody can tell any more


def test_a_row_without_a_record_shows_against_the_broker(feed):
    feed.create()
    feed.configure()
    transactions(feed, 6)
    feed.lake.run()
    table = feed.lake.table(TABLE)
    rows = table.scan().to_arrow().slice(0, 1)
    at = rows.schema.get_field_index("_src_offset")
    (hole,) = {2} - set(table.scan().to_arrow().column("_src_offset").to_pylist())
    table.append(rows.set_column(at, rows.schema.field(at), pa.array([hole], pa.int64())))
    assert proved(feed.lake).clean  # a foreign append: named
    result = proved(feed.lake, source=True)
    (finding,) = result.violations
    assert (finding.kind, finding.start, finding.stop) == ("phantom", hole, hole + 1)
    assert (result.lost, result.phantom) == (0, 1)


def test_what_retention_removed_is_said_to_be_unchecked(fed):
    with AdminClient({"bootstrap.servers": fed.bootstrap}) as admin:
        for done in admin.delete_records([TopicPartition(fed.topic, 0, 30)]).values():
            done.result(20)
    result = proved(fed.lake, source=True)
    assert result.clean, result.violations
    assert f"{fed.topic}/0 0 to 30: removed from the broker, unchecked" in notes(result, TABLE)
    (check,) = [c for c in result.tables[0].checks if c.name == "source"]
    assert "30 offsets are not on the broker any more" in check.detail
    assert check.status == "unchecked"


def transactions(feed, count):
    """As many transactions of one record each; every second is aborted."""
    producer = Producer({"bootstrap.servers": feed.bootstrap, "transactional.id": feed.topic})
    producer.init_transactions(20)
    for number in range(count):
        producer.begin_transaction()
        producer.produce(feed.topic, json.dumps({"id": number}))
        producer.flush(20)
        if number % 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)


def test_holes_of_transactions_are_no_loss(feed):
    feed.create()
    feed.configure()
    transactions(feed, 6)
    feed.lake.run()
    assert feed.ids() == [0, 2, 4]
    result = proved(feed.lake, source=True)
    assert result.clean, result.violations


# ── as a command ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def call(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")

    def run(lake, *arguments):
        monkeypatch.chdir(lake.folder)
        with pytest.raises(SystemExit) as ended:
            entry.main(["verify", *arguments])
        return ended.value.code or 0, capsys.readouterr()

    return run


def test_exit_codes_and_reports(made, call):
    code, said = call(made, "--all-snapshots")
    assert code == 0
    assert "p: clean; 0 lost, 0 duplicated, 0 phantom" in said.out
    table = made.table(PAGES)
    table.append(table.scan().to_arrow().slice(0, 3))
    code, said = call(made)
    assert code == 1
    assert f"violation: {PAGES}: duplicated (snapshot " in said.out
    assert "p: VIOLATED; 0 lost, 3 duplicated, 0 phantom" in said.out
    code, said = call(made, "--json")
    assert code == 1
    told = json.loads(said.out)
    assert (told["clean"], told["lost"], told["duplicated"], told["phantom"]) == (False, 0, 3, 0)
    one = next(t for t in told["tables"] if t["table"] == PAGES)
    assert set(one["findings"][0]) == {
        "check", "kind", "table", "expected", "seen", "snapshot_id", "stream", "partition",
        "start", "stop", "records", "harm",
    }  # fmt: skip


def test_a_broker_or_catalog_that_is_away(fed, call):
    fed.configure(source={"bootstrap_servers": "127.0.0.1:1"})
    code, said = call(fed.lake, "--source")
    assert code == 69
    assert "127.0.0.1:1" in said.err
    for part in (fed.lake.folder / "warehouse").glob("catalog.db*"):
        part.write_bytes(b"not a database" * 100)
    code, said = call(fed.lake)
    assert code == 69
    fed.lake.file.write_text("name: p\nnonsense: 1\n")
    code, said = call(fed.lake)
    assert code == 78
