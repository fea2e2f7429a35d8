"""One pipeline on real Spark and a real catalog: what is in the source is in the table, once."""

import gzip
import json
import shutil
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from icestream import errors
from icestream.batch import arrow_batches
from icestream.events import SchemaEvolved, TableCommitted, TopicUnrouted

pytestmark = pytest.mark.spark

FILES = """
    name: p
    source: {type: files, path: ./in, pattern: '**/*'}
    tables:
      - name: shop.events
"""


def with_table(text):
    return FILES + "".join(f"        {line}\n" for line in text.splitlines())


def test_lines_become_rows_with_their_origin(lake):
    lake.configure(FILES)
    first = {"id": 1, "name": "ada", "price": 1.5, "tags": ["a", "b"], "at": {"x": 1}}
    path = lake.put("a.jsonl", first, {"id": 2, "name": None, "price": 2, "tags": [], "at": None})
    lake.run()
    rows = sorted(lake.rows("shop.events").to_pylist(), key=lambda row: row["id"])
    assert [row["id"] for row in rows] == [1, 2]
    assert rows[0]["name"] == "ada"
    assert rows[0]["tags"] == ["a", "b"]
    assert rows[0]["at"] == {"x": 1}
    assert rows[1]["price"] == 2.0
    assert [row["_src_topic"] for row in rows] == ["a.jsonl", "a.jsonl"]
    assert [row["_src_offset"] for row in rows] == [0, len(json.dumps(first)) + 1]
    assert [row["_src_partition"] for row in rows] == [0, 0]
    stamp = datetime.fromtimestamp(path.stat().st_mtime_ns // 1000 / 1e6, UTC)
    assert rows[0]["_src_timestamp"] == stamp
    assert rows[0]["_ingested_at"] > stamp
    names = lake.rows("shop.events").column_names
    assert names[-5:] == [
        "_src_topic", "_src_partition", "_src_offset", "_src_timestamp", "_ingested_at",
    ]  # fmt: skip


def test_running_again_adds_nothing_even_without_state(lake):
    lake.configure(FILES)
    lake.put("a.jsonl", *({"id": n} for n in range(1000)))
    lake.run()
    assert not [e for e in lake.run() if isinstance(e, TableCommitted)]
    shutil.rmtree(lake.folder / ".icestream")
    assert not [e for e in lake.run() if isinstance(e, TableCommitted)]
    lake.put("b.jsonl", *({"id": n} for n in range(1000, 1500)))
    lake.run()
    assert lake.values("shop.events", "id") == sorted(((n,) for n in range(1500)), key=repr)
    [(count,)] = lake.spark_rows("SELECT count(DISTINCT id) FROM lake.shop.events")
    assert count == 1500


def test_several_commits_share_one_folder_by_max_records(lake):
    lake.configure(FILES.replace("path: ./in,", "path: ./in, max_records_per_commit: 100,"))
    lake.put("a.jsonl", *({"id": n} for n in range(250)))
    lake.put("b.jsonl", *({"id": n} for n in range(250, 300)))
    lake.run()
    commits = [e for e in lake.events if isinstance(e, TableCommitted)]
    assert [c.landed for c in commits] == [100, 100, 100]
    assert lake.values("shop.events", "id") == sorted(((n,) for n in range(300)), key=repr)
    assert lake.marker("shop.events")["counts"] == {"landed": 300, "quarantined": 0, "dropped": 0}


def test_gzip_crlf_blank_lines_and_a_last_line_without_an_end(lake):
    lake.configure(FILES)
    (lake.incoming / "deep").mkdir()
    with gzip.open(lake.incoming / "deep" / "a.jsonl.gz", "wb") as out:
        out.write(b'{"id":1}\r\n\r\n{"id":2}\n')
    (lake.incoming / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"id":3}\n\n{"id":4}')
    (lake.incoming / "_hidden.jsonl").write_bytes(b'{"id":5}\n')
    lake.run()
    assert lake.values("shop.events", "id", "_src_topic", "_src_offset") == [
        (1, "deep/a.jsonl.gz", 0),
        (2, "deep/a.jsonl.gz", 12),
        (3, "b.jsonl", 0),
        (4, "b.jsonl", 13),
    ]


BAD = {
    "malformed": b'{"id": 1, "n',
    "wrong type": b'{"id": "twelve"}',
    "fraction": b'{"id": 1.5}',
    "invalid UTF-8": b'{"id": 1, "s": "\xff\xfe"}',
    "out of range": b'{"id": 92233720368547758070}',
    "deep": b'{"id": 1, "d": ' + b"[" * 1000 + b"]" * 1000 + b"}",
    "not an object": b"[1, 2]",
    "null": b"null",
    "bad time": b'{"id": 1, "at": "yesterday"}',
    "too precise": b'{"id": 1, "price": 1.005}',
}
DECLARED = with_table("columns: {id: bigint, at: timestamp, price: decimal(10,2), s: string}")


def test_bad_records_are_set_aside_with_their_reason(lake):
    lake.configure(DECLARED)
    good = [{"id": n, "at": "2026-01-02T03:04:05Z", "price": 1.25, "s": "x"} for n in range(50)]
    lake.put("a.jsonl", *good[:25], *BAD.values(), *good[25:])
    lake.run()
    assert [row[0] for row in lake.values("shop.events", "id")] == sorted(range(50), key=repr)
    aside = lake.rows("shop.events__quarantine").to_pylist()
    assert {row["value"] for row in aside} == set(BAD.values())
    for row in aside:
        assert row["error"]
        assert row["topic"] == "a.jsonl"
        assert row["pipeline"] == "p"
        assert row["stage"] == "decode"
    reasons = {row["value"]: row["error"] for row in aside}
    assert "100 levels" in reasons[BAD["deep"]]
    assert "`id`" in reasons[BAD["wrong type"]]
    assert len({row["offset"] for row in aside}) == len(BAD)
    assert lake.marker("shop.events")["counts"] == {
        "landed": 50, "quarantined": len(BAD), "dropped": 0,
    }  # fmt: skip
    # Types are as declared.
    first = lake.rows("shop.events").to_pylist()[0]
    assert first["at"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert first["price"] == Decimal("1.25")


def test_drop_counts_and_fail_stops_before_anything_is_written(lake):
    lake.configure(DECLARED + "        bad_records: drop\n")
    lake.put("a.jsonl", {"id": 1}, *BAD.values(), {"id": 2})
    lake.run()
    assert lake.marker("shop.events")["counts"] == {
        "landed": 2, "quarantined": 0, "dropped": len(BAD),
    }  # fmt: skip
    lake.configure(DECLARED + "        bad_records: fail\n")
    lake.put("b.jsonl", {"id": 3}, BAD["wrong type"])
    with pytest.raises(errors.BadRecord) as failure:
        lake.run()
    assert "`id`" in failure.value.what
    assert failure.value.where == "topic b.jsonl, partition 0, offset 10"
    assert lake.values("shop.events", "id") == [(1,), (2,)]
    # Once the policy allows it, the very same range goes in.
    lake.configure(DECLARED)
    lake.run()
    assert lake.values("shop.events", "id") == [(1,), (2,), (3,)]
    assert lake.rows("shop.events__quarantine").num_rows == 1


def test_new_fields_become_columns_before_the_metadata(lake):
    lake.configure(FILES)
    lake.put("a.jsonl", {"id": 1})
    lake.run()
    lake.put("b.jsonl", {"id": 2, "extra": {"deep": True}, "list": [{"a": 1}]}, {"id": 3})
    lake.run()
    evolved = [e for e in lake.events if isinstance(e, SchemaEvolved)]
    assert [e.columns for e in evolved] == [("extra", "list")]
    lake.put("c.jsonl", {"id": 4, "extra": {"deep": False, "deeper": "x"}, "list": [{"b": 2}]})
    lake.run()
    rows = {row["id"]: row for row in lake.rows("shop.events").to_pylist()}
    assert rows[1]["extra"] is None
    assert rows[2]["extra"] == {"deep": True, "deeper": None}
    assert rows[4]["extra"] == {"deep": False, "deeper": "x"}
    assert rows[4]["list"] == [{"a": None, "b": 2}]
    names = lake.rows("shop.events").column_names
    assert names[:3] == ["id", "extra", "list"]
    [row] = lake.spark_rows("SELECT extra.deeper FROM lake.shop.events WHERE id = 4")
    assert row[0] == "x"


@pytest.mark.parametrize("rule, landed", [("freeze", [1]), ("ignore", [1, 2])])
def test_other_rules_for_new_fields(lake, rule, landed):
    lake.configure(with_table(f"columns: {{id: bigint}}\nschema_evolution: {rule}"))
    lake.put("a.jsonl", {"id": 1}, {"id": 2, "more": "x"})
    lake.run()
    assert lake.values("shop.events", "id") == [(n,) for n in landed]
    assert "more" not in lake.rows("shop.events").column_names
    if rule == "freeze":
        [row] = lake.rows("shop.events__quarantine").to_pylist()
        assert "`more`" in row["error"]


def test_layout_waits_for_inferred_columns_and_files_are_sorted(lake):
    lake.configure(
        with_table("partition_by: [bucket(4, user)]\nsort_by: [n desc]\nexcept_columns: [secret]")
    )
    lake.put("a.jsonl", *({"n": n, "user": f"u{n % 7}", "secret": "s"} for n in range(200)))
    lake.run()
    table = lake.table("shop.events")
    assert "secret" not in table.schema().column_names
    assert [field.name for field in table.spec().fields] == ["user_bucket"]
    files = [task.file for task in table.scan().plan_files()]
    assert len(files) == len({file.partition[0] for file in files}) == 4
    order = table.sort_order()
    assert {file.sort_order_id for file in files} == {order.order_id}
    for file in files:
        import pyarrow.parquet as pq

        numbers = pq.read_table(file.file_path.removeprefix("file:")).column("n").to_pylist()
        assert numbers == sorted(numbers, reverse=True)
    assert len(lake.values("shop.events", "n")) == 200
    [(count,)] = lake.spark_rows("SELECT count(*) FROM lake.shop.events WHERE user = 'u3'")
    assert count == len([n for n in range(200) if n % 7 == 3])


def test_a_layout_that_no_record_can_fill_is_a_clear_stop(lake):
    lake.configure(with_table("partition_by: [usr]"))
    lake.put("a.jsonl", {"user": "u1"})
    with pytest.raises(errors.SchemaRefused, match="names `usr`, which no record has"):
        lake.run()
    lake.configure(with_table("partition_by: [user]"))
    lake.run()
    assert [field.name for field in lake.table("shop.events").spec().fields] == ["user"]
    lake.configure(with_table("partition_by: [days(user)]").replace("shop.events", "shop.other"))
    with pytest.raises(errors.SchemaRefused, match="cannot be laid out"):
        lake.run()


def test_one_folder_feeds_many_tables_and_each_has_its_own_marker(lake):
    lake.configure(
        r"""
        name: p
        source: {type: files, path: ./in, pattern: '**/*.jsonl'}
        tables:
          - {match: 'tmp/.*', skip: true}
          - {match: '(?P<table>\w+)/.*', name: 'shop.{table}'}
        """
    )
    for folder in ("orders", "clicks", "tmp"):
        (lake.incoming / folder).mkdir()
    lake.put("orders/1.jsonl", {"o": 1}, {"o": 2})
    lake.put("clicks/1.jsonl", {"c": 1})
    lake.put("tmp/1.jsonl", {"t": 1})
    lake.put("stray.jsonl", {"s": 1})
    lake.run()
    assert [e.topic for e in lake.events if isinstance(e, TopicUnrouted)] == ["stray.jsonl"]
    lake.put("orders/2.jsonl", {"o": 3})
    (lake.incoming / "late").mkdir()
    lake.put("late/1.jsonl", {"l": 1})
    shutil.rmtree(lake.folder / ".icestream")
    lake.run()
    assert lake.values("shop.orders", "o") == [(1,), (2,), (3,)]
    assert lake.values("shop.clicks", "c") == [(1,)]
    assert lake.values("shop.late", "l") == [(1,)]
    # At a clean stop the quiet table has come as far as the busy ones.
    positions = [lake.marker(f"shop.{name}")["positions"] for name in ("orders", "clicks", "late")]
    assert positions == [{"files": {"0": 6}}] * 3


def test_raw_keeps_bytes_as_they_are(lake):
    lake.configure(FILES.replace("path: ./in,", "path: ./in, format: {type: raw},"))
    lines = [b"plain", b"\xff\x00binary", b'{"json": 1}']
    lake.put("a.bin", *lines)
    lake.run()
    assert {row["value"] for row in lake.rows("shop.events").to_pylist()} == set(lines)


def test_start_latest_takes_only_what_comes_later(lake):
    lake.configure(FILES.replace("path: ./in,", "path: ./in, start: latest,"))
    old = lake.put("old.jsonl", {"id": 1})
    lake.run()
    lake.put("new.jsonl", {"id": 2})
    old.write_text('{"id": 1}\n{"id": 9}\n')  # passed over: nobody reads it, it may change
    lake.run()
    assert lake.values("shop.events", "id") == [(2,)]


def test_a_file_that_changes_after_it_was_taken_is_a_clear_stop(lake):
    lake.configure(FILES)
    path = lake.put("a.jsonl", {"id": 1})
    lake.run()
    path.write_text('{"id": 1}\n{"id": 2}\n')
    with pytest.raises(errors.SourceChanged, match=r"`a\.jsonl` changed after it was taken"):
        lake.run()
    assert lake.values("shop.events", "id") == [(1,)]


def test_generator_makes_the_same_rows_in_any_number_of_runs(lake, tmp_path_factory):
    config = """
        name: p
        source:
          {{type: generator, rows: 4000, malformed: 0.01, max_records_per_commit: {size}}}
        tables:
          - {{match: page_events, name: shop.pages}}
          - {{match: order_changes, name: shop.orders}}
    """
    lake.configure(config.format(size=1500))
    lake.run()
    pages, orders = lake.rows("shop.pages"), lake.rows("shop.orders")
    bad = lake.rows("shop.pages__quarantine").num_rows
    assert pages.num_rows + bad == 3200
    assert 10 < bad < 70
    assert orders.num_rows + lake.rows("shop.orders__quarantine").num_rows == 800
    offsets = Counter(pages.column("_src_offset").to_pylist())
    assert set(offsets.values()) == {1}
    commits = [e for e in lake.events if isinstance(e, TableCommitted)]
    assert len(commits) == 6
    assert sum(c.landed + c.quarantined for c in commits) == 4000
    lake.configure(config.format(size=700))
    assert not [e for e in lake.run() if isinstance(e, TableCommitted)]
    assert lake.rows("shop.pages").num_rows == pages.num_rows


def test_several_pipelines_run_side_by_side(lake, tmp_path_factory):
    from icestream.config.load import load
    from icestream.events import EventBus
    from icestream.run.options import RunOptions
    from icestream.run.supervisor import run_on

    other = type(lake)(tmp_path_factory.mktemp("other"), lake.spark)
    for number, each in enumerate((lake, other)):
        each.configure(FILES.replace("name: p", f"name: p{number}"))
        each.put("a.jsonl", {"id": number})
    most = lake.spark.conf.get(arrow_batches.MOST)
    pipelines = [load(each.file).pipeline for each in (lake, other)]
    run_on(lake.spark, pipelines, EventBus(), RunOptions(once=True))
    assert lake.values("shop.events", "id") == [(0,)]
    assert other.values("shop.events", "id") == [(1,)]
    assert lake.spark.conf.get(arrow_batches.MOST) == most  # each batch sets it, in its own session


def test_an_awkward_folder_name(lake):
    lake.folder = lake.folder / "we ird #1 %20 ü"
    lake.folder.mkdir()
    lake.configure(with_table("partition_by: [name]"))
    lake.put("a b%.jsonl", {"id": 1, "name": "x/y z%"}, {"id": 2, "name": None})
    lake.run()
    lake.run()
    assert lake.values("shop.events", "id", "name", "_src_topic") == [
        (1, "x/y z%", "a b%.jsonl"),
        (2, None, "a b%.jsonl"),
    ]
    rows = lake.spark_rows("SELECT id FROM lake.shop.events WHERE name = 'x/y z%'")
    assert [row.id for row in rows] == [1]
