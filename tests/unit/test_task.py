"""The task: every record that is read is landed, quarantined or dropped, once and in its table."""

import json
import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import LongType, NestedField, StringType

from icestream.batch.decode_task import StageTask, _timestamp_range
from icestream.batch.report import (
    TASK_OUTPUT,
    FirstBadRecord,
    RecordStats,
    StagedChanges,
    TaskReport,
    TaskRequests,
    add_reports,
    pack_reports,
    unpack_report,
)
from icestream.batch.split_records import at_or_above
from icestream.batch.table_task import TableTaskInput
from icestream.errors import IcestreamError, SourceChanged
from icestream.formats.json import JsonFormat
from icestream.records import RECORDS
from icestream.schema import INCLUDED_COLUMNS, METADATA_COLUMNS, QUARANTINE_SCHEMA, NewField
from icestream.tables.marker import Counts
from icestream.write.stage import StagedFile, StageTarget

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BASE = 1_700_000_000_000_000  # µs
DATA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "word", StringType(), required=False),
    *(
        NestedField(each.field_id + 10, each.name, each.field_type, required=False)
        for each in METADATA_COLUMNS
    ),
)


class Reader:
    """Hands on batches that are in the shape of records already."""

    def read(self, batches):
        yield from batches


class Broken:
    """A source that contradicts itself after its first batch."""

    def read(self, batches):
        yield next(batches)
        raise SourceChanged("it changed", where="here", hint="do this")


class Bug:
    def read(self, batches):
        yield next(batches)
        raise ZeroDivisionError


def records(*rows):
    """(topic, offset, value) or (topic, offset, value, partition) each."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": topic,
                "partition": part[0] if part else 0,
                "offset": offset,
                "timestamp": BASE + offset,
                "key": None,
                "value": value if isinstance(value, bytes | None) else json.dumps(value).encode(),
            }
            for topic, offset, value, *part in rows
        ],
        schema=RECORDS,
    )


def target(place, schema):
    return StageTarget(
        schema_json=schema.model_dump_json(),
        spec_json='{"spec-id": 0, "fields": []}',
        sort_order_json='{"order-id": 0, "fields": []}',
        data_location=str(place),
        file_prefix="p-00001-c",
        properties={},
    )


def table(place, quarantine=True, **facts):
    known = {
        "target": target(place / "data", DATA),
        "quarantine": target(place / "quarantine", QUARANTINE_SCHEMA) if quarantine else None,
        "floors": {},
        "quarantine_floors": {},
        "format": JsonFormat(),
        "schema_evolution": "evolve",
        "bad_records": "quarantine",
        "metadata_columns": True,
        "dropped_columns": frozenset(),
    }
    return TableTaskInput(**{**known, **facts})


def run(tables, *batches, routes=None, reader=None):
    """Call the task as Spark does; → table → report."""
    job = StageTask("p", reader or Reader(), routes or {"a": "t"}, tables, NOW)
    job = pickle.loads(pickle.dumps(job))
    (out,) = job(iter(batches))
    assert out.schema == TASK_OUTPUT
    return {row["table"]: row["block"] for row in out.to_pylist()}


def reports(*arguments, **options):
    packed = run(*arguments, **options)
    found = {name: unpack_report(name, block) for name, block in packed.items()}
    for each in found.values():
        # What the driver insists on, except where the batch has to run again.
        if not each.requests.new_fields:
            assert (
                each.stats.records
                == each.counts.landed + each.counts.quarantined + each.counts.dropped
            )
        assert sum(file.records for file in each.staged.files) <= each.counts.landed
    return found


def rows(staged, *columns):
    found = [pq.read_table(file.path).select(list(columns)).to_pylist() for file in staged]
    return [tuple(row.values()) for part in found for row in part]


def good(at):
    return {"id": at, "word": f"word {at}"}


# ── the plain way ───────────────────────────────────────────────────────────────────────────────


def test_records_land_with_where_they_came_from(tmp_path):
    batches = [records(("a", 3, good(1)), ("a", 4, good(2), 7)), records(("a", 5, good(3)))]
    report = reports({"t": table(tmp_path)}, *batches)["t"]
    assert (report.stats.records, report.counts.landed) == (3, 3)
    assert sum(file.records for file in report.staged.files) == 3
    found = rows(report.staged.files, "id", "word", "_src_topic", "_src_partition", "_src_offset")
    assert found == [
        (1, "word 1", "a", 0, 3),
        (2, "word 2", "a", 7, 4),
        (3, "word 3", "a", 0, 5),
    ]
    assert rows(report.staged.files, "_ingested_at") == [(NOW,)] * 3
    assert report.stats.newest == {"a/0": BASE + 5, "a/7": BASE + 4}
    assert all("p-00001-c" in file.path for file in report.staged.files)
    assert report.staged.quarantine_files == ()


def test_nothing_in_nothing_out(tmp_path):
    assert reports({"t": table(tmp_path)}) == {}
    assert reports({"t": table(tmp_path)}, records()) == {}
    assert list(tmp_path.iterdir()) == []


def test_two_topics_go_to_two_tables_and_a_third_nowhere(tmp_path):
    tables = {"t": table(tmp_path / "t"), "u": table(tmp_path / "u")}
    mixed = records(
        ("a", 0, good(1)),
        ("b", 0, good(2)),
        ("c", 0, good(3)),
        ("a", 1, good(4)),
        ("d", 0, good(5)),
    )
    found = reports(tables, mixed, routes={"a": "t", "b": "u", "d": "t"})
    assert {name: each.stats.records for name, each in found.items()} == {"t": 3, "u": 1}
    assert rows(found["t"].staged.files, "id") == [(1,), (4,), (5,)]
    assert rows(found["u"].staged.files, "id") == [(2,)]


def test_two_attempts_never_write_the_same_file(tmp_path):
    first = reports({"t": table(tmp_path)}, records(("a", 0, good(1))))["t"]
    second = reports({"t": table(tmp_path)}, records(("a", 0, good(1))))["t"]
    assert not {file.path for file in first.staged.files} & {
        file.path for file in second.staged.files
    }
    assert rows(first.staged.files, "id") == rows(second.staged.files, "id") == [(1,)]


# ── floors ──────────────────────────────────────────────────────────────────────────────────────


def test_what_is_below_the_floor_is_not_even_read(tmp_path):
    """A bad record below the floor is not counted again either."""
    floors = {"a": {0: 5, 1: 2}}
    batch = records(
        ("a", 4, b"not json"), ("a", 5, good(5)), ("a", 1, good(1), 1), ("a", 2, good(2), 1),
        ("a", 0, good(0), 9), ("b", 0, good(8)),
    )  # fmt: skip
    report = reports({"t": table(tmp_path, floors=floors)}, batch, routes={"a": "t", "b": "t"})["t"]
    assert (report.stats.records, report.counts.landed, report.counts.quarantined) == (4, 4, 0)
    assert sorted(rows(report.staged.files, "id")) == [(0,), (2,), (5,), (8,)]


def test_a_table_that_has_it_all_reports_nothing(tmp_path):
    tables = {
        "t": table(tmp_path / "t", floors={"a": {0: 2**63 - 1}}),
        "u": table(tmp_path / "u"),
    }
    found = reports(
        tables, records(("a", 0, good(1)), ("b", 0, good(2))), routes={"a": "t", "b": "u"}
    )
    assert set(found) == {"u"}


@pytest.mark.parametrize("floor", range(-1, 5))
def test_the_floor_itself_is_kept(floor):
    batch = records(*(("a", at, good(at)) for at in range(4)))
    kept = at_or_above(batch, {0: floor}).column("offset").to_pylist()
    assert kept == [at for at in range(4) if at >= floor]
    assert at_or_above(batch, {3: 99}).num_rows == 4
    assert at_or_above(batch, {}).num_rows == 4


# ── bad records ─────────────────────────────────────────────────────────────────────────────────

BAD = records(
    ("a", 0, good(1)), ("a", 1, b"{"), ("a", 2, good(2)), ("a", 3, None), ("a", 4, {"id": "x"})
)  # fmt: skip


def test_bad_records_are_kept_aside(tmp_path):
    report = reports({"t": table(tmp_path)}, BAD)["t"]
    assert (report.stats.records, report.counts.landed, report.counts.quarantined) == (5, 2, 3)
    assert rows(report.staged.files, "id") == [(1,), (2,)]
    aside = rows(
        report.staged.quarantine_files, "topic", "offset", "value", "pipeline", "ingested_at"
    )
    assert aside == [
        ("a", 1, b"{", "p", NOW),
        ("a", 3, None, "p", NOW),
        ("a", 4, b'{"id": "x"}', "p", NOW),
    ]
    assert all(why for (why,) in rows(report.staged.quarantine_files, "error"))
    assert not report.requests.needs_quarantine


def test_only_bad_records(tmp_path):
    report = reports({"t": table(tmp_path)}, records(("a", 0, b"{"), ("a", 1, b"[")))["t"]
    assert (report.counts.landed, report.counts.quarantined, report.staged.files) == (0, 2, ())
    assert report.stats.newest == {"a/0": BASE + 1}


def test_a_quarantine_that_does_not_exist_is_asked_for(tmp_path):
    report = reports({"t": table(tmp_path, quarantine=False)}, BAD)["t"]
    assert report.requests.needs_quarantine
    assert (report.stats.records, report.counts.quarantined, report.staged.quarantine_files) == (
        5,
        3,
        (),
    )


def test_bad_records_are_dropped_and_counted(tmp_path):
    report = reports({"t": table(tmp_path, quarantine=False, bad_records="drop")}, BAD)["t"]
    assert (report.counts.landed, report.counts.quarantined, report.counts.dropped) == (2, 0, 3)
    assert not report.requests.needs_quarantine
    assert report.staged.quarantine_files == ()


def test_the_first_bad_record_stops(tmp_path):
    report = reports({"t": table(tmp_path, bad_records="fail")}, BAD)["t"]
    assert (
        report.requests.first_bad.topic,
        report.requests.first_bad.partition,
        report.requests.first_bad.offset,
    ) == (
        "a",
        0,
        1,
    )
    assert report.requests.first_bad.error
    assert report.staged.quarantine_files == ()
    assert not report.requests.needs_quarantine


def test_floors_of_the_quarantine_trim_only_bad_rows(tmp_path):
    """They were committed before the table's rows; the run died in between."""
    report = reports(
        {"t": table(tmp_path, quarantine_floors={"a": {0: 4}})},
        BAD,
    )["t"]
    assert (report.stats.records, report.counts.landed, report.counts.quarantined) == (5, 2, 3)
    assert rows(report.staged.files, "id") == [(1,), (2,)]
    assert rows(report.staged.quarantine_files, "offset") == [(4,)]


def test_floors_of_the_quarantine_are_per_topic(tmp_path):
    bad = records(("a", 0, b"{"), ("b", 0, b"{"), ("a", 1, b"{"))
    report = reports(
        {"t": table(tmp_path, quarantine_floors={"a": {0: 1}})}, bad, routes={"a": "t", "b": "t"}
    )["t"]
    assert report.counts.quarantined == 3
    assert sorted(rows(report.staged.quarantine_files, "topic", "offset")) == [("a", 1), ("b", 0)]


# ── new fields ──────────────────────────────────────────────────────────────────────────────────


def test_new_fields_are_reported_and_nothing_of_that_batch_is_used(tmp_path):
    batches = [
        records(("a", 0, good(1))),
        records(("a", 1, {**good(2), "extra": 1.5}), ("a", 2, b"{")),
        records(("a", 3, good(3))),
        records(("a", 4, {"id": 4, "other": "x"})),
    ]
    report = reports({"t": table(tmp_path)}, *batches)["t"]
    names = {field.name for seen in report.requests.new_fields for field in seen}
    assert names == {"extra", "other"}  # all at once: each round costs a job
    assert report.counts.landed < report.stats.records
    assert rows(report.staged.files, "id") == [(1,)]  # named, so that the driver can remove it
    assert report.staged.quarantine_files == ()


def test_new_fields_of_one_table_leave_the_other_alone(tmp_path):
    tables = {"t": table(tmp_path / "t"), "u": table(tmp_path / "u")}
    mixed = records(("a", 0, {"id": 1, "extra": 1}), ("b", 0, good(2)))
    found = reports(tables, mixed, routes={"a": "t", "b": "u"})
    assert found["t"].requests.new_fields
    assert not found["u"].requests.new_fields
    assert rows(found["u"].staged.files, "id") == [(2,)]


@pytest.mark.parametrize("rule, quarantined", [("ignore", 0), ("freeze", 1)])
def test_other_rules_for_new_fields(tmp_path, rule, quarantined):
    batch = records(("a", 0, good(1)), ("a", 1, {**good(2), "extra": 1}))
    report = reports({"t": table(tmp_path, schema_evolution=rule)}, batch)["t"]
    assert (report.requests.new_fields, report.counts.quarantined) == ((), quarantined)
    assert report.counts.landed == 2 - quarantined


def test_columns_that_are_not_wanted(tmp_path):
    batch = records(("a", 0, {**good(1), "secret": "x"}))
    report = reports({"t": table(tmp_path, dropped_columns=frozenset({"secret"}))}, batch)["t"]
    assert (report.counts.landed, report.requests.new_fields) == (1, ())


# ── failures ────────────────────────────────────────────────────────────────────────────────────


def test_an_error_of_ours_comes_back_whole(tmp_path):
    """Spark would hand on no more than its text, after retrying it in vain."""
    found = run({"t": table(tmp_path)}, records(("a", 0, good(1))), reader=Broken())
    assert set(found) == {""}
    error = IcestreamError.from_facts(json.loads(found[""]))
    assert type(error) is SourceChanged
    assert (error.what, error.where, error.hint) == ("it changed", "here", "do this")


def test_a_bug_fails_the_task(tmp_path):
    with pytest.raises(ZeroDivisionError):
        run({"t": table(tmp_path)}, records(("a", 0, good(1))), reader=Bug())


# ── reports ─────────────────────────────────────────────────────────────────────────────────────


def test_reports_travel_and_add_up():
    file = StagedFile("x", 2, 3, "{}")
    one = TaskReport(
        Counts(landed=2, quarantined=1, dropped=1),
        RecordStats(records=4, oldest=2, newest={"a/0": 5, "b/0": 2}),
        StagedChanges(files=(file,)),
        TaskRequests(
            new_fields=((NewField(("a", "element"), "n", LongType()),),),
            first_bad=FirstBadRecord("a", 0, 1, "no"),
        ),
    )
    other = TaskReport(
        Counts(quarantined=1),
        RecordStats(records=1, oldest=1, newest={"a/0": 4, "c/0": 9}),
        StagedChanges(quarantine_files=(file,)),
        TaskRequests(
            new_fields=((NewField((), "m", StringType()),),),
            needs_quarantine=True,
            first_bad=FirstBadRecord("b", 0, 1, "no"),
        ),
    )
    packed = pack_reports({"one": one, "other": other}).to_pylist()
    assert [unpack_report(row["table"], row["block"]) for row in packed] == [one, other]
    rows = [("t", row["group"], row["block"]) for row in packed]
    assert add_reports(rows, ["t", "quiet"]) == {"t": one + other, "quiet": TaskReport()}
    both = one + other
    assert (
        both.stats.records,
        both.counts.landed,
        both.counts.quarantined,
        both.counts.dropped,
    ) == (5, 2, 2, 1)
    assert (both.staged.files, both.staged.quarantine_files) == ((file,), (file,))
    assert both.requests.new_fields == one.requests.new_fields + other.requests.new_fields
    assert both.requests.first_bad == one.requests.first_bad
    assert both.requests.needs_quarantine
    assert both.stats.oldest == (other + one).stats.oldest == 1
    assert both.stats.newest == {"a/0": 5, "b/0": 2, "c/0": 9}
    assert TaskReport() + one == one + TaskReport() == one


def test_the_first_error_of_any_task_is_the_batch():
    (failed,) = pack_reports(SourceChanged("it changed")).to_pylist()
    (done,) = pack_reports({"t": TaskReport(Counts(1))}).to_pylist()
    rows = [(row["table"], row["group"], row["block"]) for row in (done, failed)]
    with pytest.raises(SourceChanged, match="it changed"):
        add_reports(rows, ["t"])


# ── timestamps ──────────────────────────────────────────────────────────────────────────────────


def timed(*rows):
    """(partition, timestamp in µs) each, of one topic."""
    return pa.RecordBatch.from_pylist(
        [
            {"topic": "shop.a", "partition": partition, "offset": n, "timestamp": at}
            for n, (partition, at) in enumerate(rows)
        ],
        schema=RECORDS,
    )


TIMES = {
    "one record": ([(3, 50)], 50, {"shop.a/3": 50}),
    "one partition, in any order": ([(0, 50), (0, 90), (0, 20)], 20, {"shop.a/0": 90}),
    "several partitions": (
        [(0, 50), (1, 10), (0, 40), (2, 30), (1, 80)],
        10,
        {"shop.a/0": 50, "shop.a/1": 80, "shop.a/2": 30},
    ),
    "one partition, some null": ([(0, None), (0, 50), (0, None), (0, 20)], 20, {"shop.a/0": 50}),
    "a partition without any": ([(0, 50), (1, None), (0, 20)], 20, {"shop.a/0": 50}),
    "several partitions, some null": (
        [(0, None), (0, 50), (1, 10), (1, None)],
        10,
        {"shop.a/0": 50, "shop.a/1": 10},
    ),
    "all null": ([(0, None), (1, None)], None, {}),
    "before 1970, and at its first moment": (
        [(0, -5), (1, 0)],
        -5,
        {"shop.a/0": -5, "shop.a/1": 0},
    ),
    "microseconds stay exact": (
        [(0, 4_102_444_799_999_999), (1, BASE + 1)],
        BASE + 1,
        {"shop.a/0": 4_102_444_799_999_999, "shop.a/1": BASE + 1},
    ),
}


@pytest.mark.parametrize("case", TIMES)
def test_times(case):
    rows, oldest, newest = TIMES[case]
    assert _timestamp_range(timed(*rows)) == (oldest, newest)
    zoned = pa.timestamp("us", "Europe/Berlin")  # Spark's session has its own idea
    at = RECORDS.get_field_index("timestamp")
    batch = timed(*rows)
    moved = batch.set_column(at, pa.field("timestamp", zoned), batch.column(at).cast(zoned))
    assert _timestamp_range(moved) == (oldest, newest)


def test_times_are_those_of_what_is_read_for_a_table(tmp_path):
    """Below the floor nothing counts; what goes to quarantine does."""
    of_a = [("a", 1, good(1)), ("a", 5, good(2)), ("a", 7, b"bad"), ("a", 6, good(3), 1)]
    batch = records(*of_a, ("b", 9, good(4)))
    tables = {
        "t": table(tmp_path / "t", floors={"a": {0: 5}}),
        "u": table(tmp_path / "u"),
    }
    found = reports(tables, batch, routes={"a": "t", "b": "u"})
    assert found["t"].stats.oldest == BASE + 5
    assert found["t"].stats.newest == {"a/0": BASE + 7, "a/1": BASE + 6}
    assert (found["u"].stats.oldest, found["u"].stats.newest) == (BASE + 9, {"b/0": BASE + 9})


def test_keys_and_headers_that_are_kept_come_from_the_records(tmp_path):
    """`_src_key` is a column of ours: a field of that name in the data must not fill it."""
    fields = [*DATA.fields, *INCLUDED_COLUMNS.values()]
    kept = target(tmp_path / "data", assign_fresh_schema_ids(Schema(*fields)))
    batch = records(("a", 0, good(1)), ("a", 1, {**good(2), "_src_key": "forged"}))
    at = RECORDS.get_field_index("key")
    batch = batch.set_column(at, "key", pa.array([b"real", b"other"], pa.binary()))
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    sent = [[{"key": "trace", "value": b"1"}], None]
    batch = batch.append_column("headers", pa.array(sent, headers))
    report = reports({"t": table(tmp_path, target=kept)}, batch)["t"]
    assert rows(report.staged.files, "id", "_src_key", "_src_headers") == [(1, b"real", sent[0])]
    assert report.requests.new_fields == ()
    ((offset, error),) = rows(report.staged.quarantine_files, "offset", "error")
    assert offset == 1
    assert "_src_key" in error
