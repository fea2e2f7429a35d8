"""`verify --source` of mirrors: records in memory, tables made without a JVM, all kinds of harm."""

import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icestream.catalogs import catalog_for
from icestream.config.load import load
from icestream.formats import DELETE, UPSERT
from icestream.formats.sequence import encode_sequence
from icestream.records import RECORDS
from icestream.tables.commits import summary
from icestream.tables.marker import Counts, Marker, property_name
from icestream.verify import broker, verify
from icestream.verify.replay import ChangeReplay, ReplayBatch, TruncateEvent, UncarriedColumns

pytestmark = pytest.mark.slow

TOPIC, TABLE = "pg.public.t", "shop.t"
ABSENT = "__debezium_unavailable_value"
PIPELINE = """\
name: p
maintenance: false
source:
  type: kafka
  bootstrap_servers: '127.0.0.1:1'
  topics: [pg.public.t]
  format: {format}
tables:
  - name: shop.t
    mode: upsert
    keys: [id]
"""
DEBEZIUM = PIPELINE.replace("{format}", "{type: debezium}")
PLAIN = PIPELINE.replace("{format}", "{type: json}") + (
    "    sequence_by: [at]\n    apply_as_deletes: op = 'D'\n"
)
COLUMNS = {"id": LongType(), "v": LongType(), "big": StringType()}
FEED = {"id": LongType(), "v": LongType(), "op": StringType(), "at": LongType()}
OURS = {
    "_src_topic": StringType(),
    "_src_partition": IntegerType(),
    "_src_offset": LongType(),
    "_src_timestamp": TimestamptzType(),
    "_ingested_at": TimestamptzType(),
    "_src_sequence": BinaryType(),
}
NOW = datetime(2026, 1, 31, tzinfo=UTC)


@dataclass
class Topic:
    """A topic, and the rows that its records make when each is applied as it comes."""

    records: list = field(default_factory=list)
    rows: dict = field(default_factory=dict)
    soft: bool = False

    def upsert(self, key, v, big=None, lsn=None, partition=0):
        old = self.rows.get(key, {})
        place = self._place(lsn, partition)
        after = {"id": key, "v": v, "big": ABSENT if big is None else big}
        self._say({"op": "u", "before": None, "after": after}, key, place)
        kept = old.get("big") if big is None else big
        self.rows[key] = {**after, "big": kept, **self._ours(place)}

    def delete(self, key, lsn=None, partition=0):
        place = self._place(lsn, partition)
        self._say({"op": "d", "before": {"id": key}, "after": None}, key, place)
        if self.soft:
            self.rows[key] = {**self.rows[key], **self._ours(place), "_is_deleted": True}
        else:
            self.rows.pop(key, None)

    def truncate(self):
        self._say({"op": "t", "before": None, "after": None}, None, self._place(None, 0))
        self.rows.clear()

    def late(self, key, v, lsn):
        """A record that is older than what was there: it counts for nothing."""
        kept = dict(self.rows)
        self.upsert(key, v, "late", lsn)
        self.rows = kept

    def bad(self, partition=0):
        self._say(None, None, self._place(None, partition), b"{broken")

    def plain(self, key, v, op, at):
        """As a feed that is no Debezium has it."""
        offset = self._place(None, 0)[1]
        row = {"id": key, "v": v, "op": op, "at": at}
        self._say(row, None, (0, offset, None), json.dumps(row).encode())
        told = encode_sequence([pa.array([at], pa.int64())])[0].as_py()
        if op == "D":
            self.rows.pop(key, None)
        else:
            self.rows[key] = {**row, **self._ours((0, offset, None)), "_src_sequence": told}

    def _place(self, lsn, partition):
        offset = sum(each["partition"] == partition for each in self.records)
        return partition, offset, 100 + len(self.records) if lsn is None else lsn

    def _ours(self, place):
        partition, offset, lsn = place
        ours = {"_src_topic": TOPIC, "_src_partition": partition, "_src_offset": offset}
        ours |= {"_src_timestamp": NOW, "_ingested_at": NOW}
        ours |= {"_is_deleted": False} if self.soft else {}
        return ours | {"_src_sequence": struct.pack(">Q", lsn or 0)}

    def _say(self, value, key, place, raw=None):
        partition, offset, lsn = place
        if raw is None:
            value = {**value, "source": {"connector": "postgresql", "lsn": lsn}}
        self.records.append(
            {
                "topic": TOPIC,
                "partition": partition,
                "offset": offset,
                "timestamp": NOW,
                "key": None if key is None else json.dumps({"id": key}).encode(),
                "value": raw or json.dumps(value).encode(),
            }
        )


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    return Mirror(tmp_path, monkeypatch)


class Mirror:
    """A mirror as a run leaves it, and a broker that has the records."""

    def __init__(self, folder, monkeypatch):
        self.topic = Topic()
        self.first = {}  # offsets that the partitions begin with
        self.thinned = frozenset()
        self.removed = set()  # places of records that compaction took
        self._folder = folder
        monkeypatch.chdir(folder)
        monkeypatch.setattr(broker, "KafkaAdmin", lambda *_: self)
        monkeypatch.setattr(broker, "SampleConsumer", self._sample)
        monkeypatch.setattr(broker, "_compacted_topics", lambda *_: self.thinned)

    # -- the broker ----------------------------------------------------------------------------

    def describe(self, topics):
        return {t: SimpleNamespace(id="", partitions=(0, 1)) for t in topics if t == TOPIC}

    def earliest(self, usable):
        return {t: {n: self.first.get(n, 0) for n in numbers} for t, numbers in usable.items()}

    def close(self): ...

    def _sample(self, settings, begin, ends):
        [(topic, parts)] = begin.items()
        [(number, start)] = parts.items()
        there = [
            each
            for each in self.topic.records
            if each["partition"] == number
            and start <= each["offset"] < ends[topic][number]
            and (number, each["offset"]) not in self.removed
        ]
        return _Sample(there)

    # -- the table -----------------------------------------------------------------------------

    def write(self, text=DEBEZIUM, columns=COLUMNS, dropped=0, rows=None):
        """Make the table; → it."""
        path = self._folder / "icestream.yml"
        path.write_text(text)
        self.config = load(path, env={}).pipeline
        kinds = {**columns, **OURS, **({"_is_deleted": BooleanType()} if self.topic.soft else {})}
        schema = Schema(
            *(NestedField(n, name, kind) for n, (name, kind) in enumerate(kinds.items(), 1))
        )
        catalog = catalog_for(self.config.catalog).open()
        catalog.create_namespace_if_not_exists("shop")
        table = catalog.create_table(TABLE, schema)
        ends = {0: 0}
        for each in self.topic.records:
            ends[each["partition"]] = each["offset"] + 1
        count = len(self.topic.records)
        marker = None
        for number, positions in enumerate([dict.fromkeys(ends, 0), ends], start=1):
            old, landed = marker, count - dropped if number == 2 else 0
            marker = Marker(
                "p", 1, "r", f"c{number}", old.commit_id if old else None, number,
                str(table.metadata.table_uuid), number, {TOPIC: positions},
                counts=Counts(landed=landed, dropped=dropped if number == 2 else 0),
            )  # fmt: skip
            some = list((rows or self.topic.rows).values()) if number == 2 else []
            with table.transaction() as transaction:
                told = summary(marker, old.positions if old else {}, landed)
                transaction.append(pa.Table.from_pylist(some, schema.as_arrow()), told)
                transaction.set_properties({property_name("p"): marker.to_json()})
        self.table = table
        return table

    def source(self):
        """What the comparison found: kinds, and how it ended."""
        result = verify(self.config, source=True)
        [check] = [c for c in result.tables[0].checks if c.name == "source"]
        kinds = [f.kind for f in result.violations if f.check == "source"]
        return kinds, check, result


class _Sample:
    def __init__(self, records):
        self._left = records

    def __enter__(self):
        return self

    def __exit__(self, *_): ...

    def batches(self, count):
        some, self._left = self._left[:7], self._left[7:]
        return [pa.RecordBatch.from_pylist(some, schema=RECORDS)] if some else []


def story(topic):
    """Rows that come, change, go and come back; a value that is not said again; a late record."""
    for key in range(6):
        topic.upsert(key, key, f"big {key}")
    topic.upsert(1, 11)  # without its large value
    topic.delete(2)
    topic.delete(3)
    topic.upsert(3, 33, "back")
    topic.upsert(1, 12)
    topic.late(4, 99, lsn=1)
    topic.delete(5)
    topic.late(5, 98, lsn=2)


# ── clean ───────────────────────────────────────────────────────────────────────────────────────


def test_a_mirror_is_what_its_records_make(mirror):
    story(mirror.topic)
    mirror.write()
    kinds, check, result = mirror.source()
    assert kinds == [], result.violations
    assert check.status == "ok"
    assert check.detail == "14 records of the broker make 6 keys, compared with 4 rows"


def test_another_feed(mirror):
    for number in range(8):
        mirror.topic.plain(number, number, "I", at=number)
    mirror.topic.plain(3, 33, "U", at=20)
    mirror.topic.plain(4, None, "D", at=21)
    mirror.write(PLAIN, FEED)
    assert mirror.source()[1].status == "ok"
    mirror.table.delete(EqualTo("id", 3))
    mirror.table.append(mirror.table.scan().to_arrow().slice(0, 0))
    assert mirror.source()[0] == ["missing"]


def test_soft_deletes(mirror):
    mirror.topic.soft = True
    story(mirror.topic)
    mirror.topic.rows[5] |= {"_is_deleted": True}
    mirror.write(DEBEZIUM + "    deletes: soft\n")
    kinds, _, result = mirror.source()
    assert kinds == [], result.violations
    change(mirror, 2, "big", "other")
    kinds, _, result = mirror.source()
    assert kinds == ["value-differs"]
    assert result.violations[-1].expected == "id = 2: `big` = 'big 2'"


def test_a_truncate(mirror):
    story(mirror.topic)
    mirror.topic.truncate()
    mirror.topic.upsert(9, 9, "after")
    mirror.write()
    assert mirror.source()[1].status == "ok"
    mirror.table.append(row(mirror, {**mirror.topic.rows[9], "id": 1}))
    assert mirror.source()[0] == ["phantom"]


def test_a_bad_record_is_set_aside_or_counted(mirror):
    story(mirror.topic)
    mirror.topic.bad()
    mirror.write(DEBEZIUM + "    bad_records: drop\n", dropped=1)
    assert mirror.source()[1].status == "ok"
    mirror.topic.bad()
    mirror.table = None
    catalog_for(mirror.config.catalog).open().drop_table(TABLE)
    mirror.write(DEBEZIUM + "    bad_records: drop\n", dropped=1)
    kinds, _, result = mirror.source()
    assert kinds == ["missing"]
    assert result.lost == 1


# ── damage ──────────────────────────────────────────────────────────────────────────────────────


def row(mirror, *values):
    return pa.Table.from_pylist(list(values), mirror.table.schema().as_arrow())


def change(mirror, key, column, value):
    """Somebody changes a value in place, and nothing else."""
    found = mirror.table.scan(row_filter=EqualTo("id", key)).to_arrow().to_pylist()
    mirror.table.delete(EqualTo("id", key))
    mirror.table.append(row(mirror, {**found[0], column: value}))


def test_a_row_that_is_gone(mirror):
    story(mirror.topic)
    mirror.write()
    mirror.table.delete(EqualTo("id", 3))
    kinds, check, result = mirror.source()
    assert (kinds, check.status) == (["missing"], "violated")
    assert (result.lost, result.phantom) == (1, 0)
    [found] = result.violations
    assert found.expected.startswith("a row for id = 3")
    assert (found.stream, found.partition, found.start) == (TOPIC, 0, 9)


@pytest.mark.parametrize(
    "key, column, value, expected",
    [
        (0, "v", 7, "id = 0: `v` = 0"),
        (0, "v", None, "id = 0: `v` = 0"),
        (1, "v", 11, "id = 1: `v` = 12"),  # an update that was lost
        (1, "big", "?", "id = 1: `big` = 'big 1'"),  # which the newest record does not carry
        (4, "big", "late", "id = 4: `big` = 'big 4'"),
        (3, "_src_offset", 3, "id = 3: `_src_offset` = 9"),
        (3, "_src_sequence", b"\0" * 8, f"id = 3: `_src_sequence` = {struct.pack('>Q', 109)!r}"),
    ],
)
def test_a_value_that_is_another(mirror, key, column, value, expected):
    story(mirror.topic)
    mirror.write()
    change(mirror, key, column, value)
    kinds, _, result = mirror.source()
    assert kinds == ["value-differs"]
    assert result.violations[-1].expected == expected
    assert result.violations[-1].seen == repr(value)


@pytest.mark.parametrize("key, kind", [(2, "resurrected"), (5, "resurrected"), (77, "phantom")])
def test_a_row_that_should_not_be(mirror, key, kind):
    story(mirror.topic)
    mirror.write()
    mirror.table.append(row(mirror, {**mirror.topic.rows[0], "id": key}))
    kinds, _, result = mirror.source()
    assert kinds == [kind]
    assert (result.lost, result.phantom) == (0, 1)


def test_all_are_counted_and_some_are_told(mirror):
    for key in range(60):
        mirror.topic.upsert(key, key, "x")
    mirror.write(rows={0: mirror.topic.rows[0]})
    kinds, _, result = mirror.source()
    assert kinds == ["missing"] * 20
    assert result.lost == 59
    assert "and so for 39 other keys" in result.violations[-1].seen


# ── what cannot be proven ───────────────────────────────────────────────────────────────────────


def test_a_topic_whose_beginning_is_gone(mirror):
    story(mirror.topic)
    mirror.write()
    mirror.first[0] = 6  # the first rows came before
    kinds, check, _ = mirror.source()
    assert (kinds, check.status) == ([], "unchecked")
    assert "not proven: 6 offsets are not on the broker any more" in check.detail
    change(mirror, 0, "v", 5)
    assert mirror.source()[0] == []  # nobody can tell any more
    change(mirror, 3, "v", 5)
    assert mirror.source()[0] == ["value-differs"]  # its record is there
    mirror.table.delete(EqualTo("id", 3))
    assert mirror.source()[0] == ["missing"]
    mirror.table.append(row(mirror, {**mirror.topic.rows[0], "id": 2}))
    assert mirror.source()[0] == ["missing", "resurrected"]


def test_a_compacted_topic(mirror):
    story(mirror.topic)
    mirror.write()
    mirror.thinned = frozenset({TOPIC})
    newest = {json.loads(r["key"])["id"]: r["offset"] for r in mirror.topic.records}
    mirror.removed = {(0, r["offset"]) for r in mirror.topic.records} - {
        (0, offset) for offset in newest.values()
    }
    kinds, check, result = mirror.source()
    assert (kinds, check.status) == ([], "unchecked"), result.violations
    assert f"{TOPIC}: compacted" in check.detail
    mirror.table.delete(EqualTo("id", 3))
    assert mirror.source()[0] == ["missing"]
    change(mirror, 1, "v", 5)
    assert mirror.source()[0] == ["missing", "value-differs"]


def test_keys_whose_order_nobody_knows(mirror):
    """One key in two partitions, at one place in the log."""
    mirror.topic.upsert(1, 1, "a", lsn=5)
    mirror.topic.upsert(1, 2, "b", lsn=5, partition=1)
    mirror.topic.upsert(2, 2, "c", lsn=6)
    mirror.write()
    change(mirror, 1, "v", 1)
    kinds, check, _ = mirror.source()
    assert (kinds, check.status) == ([], "unchecked")
    assert "1 keys cannot be judged" in check.detail


# ── any history ─────────────────────────────────────────────────────────────────────────────────

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("big", pa.string())])
EVENT = st.tuples(
    st.integers(0, 4),  # key
    st.integers(0, 12) | st.none(),  # how far back in the log it was, or none at all
    st.sampled_from(["u", "u", "toast", "d", "t"]),
    st.integers(0, 3),
)


def changes(rows, ops, sequence, missing=()):
    count = len(rows)
    places = pa.table(
        {
            "topic": ["t"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array([row["at"] for row in rows], pa.int64()),
        }
    )
    return ReplayBatch(
        places,
        pa.RecordBatch.from_pylist([{n: row[n] for n in SCHEMA.names} for row in rows], SCHEMA),
        pa.array(ops, pa.int8()),
        pa.array(sequence, pa.binary()),
        pa.array([op == UPSERT for op in ops], pa.bool_()),
        {"big": pa.array(missing or [False] * count, pa.bool_())},
    )


def model(events):
    """What becomes of each key when records are applied in the order of the log."""
    rows = {}
    for at, (key, _, what, v) in sorted(
        enumerate(events), key=lambda each: (place(*each), each[0])
    ):
        if what == "t":
            rows.clear()
        elif what == "d":
            rows.pop(key, None)
        else:
            old = rows.get(key, {"big": None})
            rows[key] = {"id": key, "v": v, "big": old["big"] if what == "toast" else f"b{at}"}
    return rows


def place(at, event):
    return b"" if event[1] is None else struct.pack(">Q", 100 + max(at - event[1], 0))


@settings(max_examples=30)
@given(st.lists(EVENT, max_size=14), st.booleans(), st.integers(0, 2**32))
def test_any_history_and_any_damage(events, logged, seed):
    # A log has a place for all of its records, or there is none.
    events = [(k, (b or 0) if logged else None, what, v) for k, b, what, v in events]
    wanted = model(events)
    with duckdb.connect() as database:
        replay = ChangeReplay(database, SCHEMA, ["id"], [], ["big"])
        of_rows = [(at, e) for at, e in enumerate(events) if e[2] != "t"]
        rows = [{"id": e[0], "v": e[3], "big": f"b{at}", "at": at} for at, e in of_rows]
        ops = [DELETE if e[2] == "d" else UPSERT for _, e in of_rows]
        sequence = [place(at, e) or None for at, e in of_rows]
        replay.add_records(changes(rows, ops, sequence, [e[2] == "toast" for _, e in of_rows]))
        truncates = [
            TruncateEvent(place(at, e), ("t", 0, at)) for at, e in enumerate(events) if e[2] == "t"
        ]
        assert replay.fold(truncates, set())
        harmed, kind = damaged(wanted, seed)
        given_ = [{**row, "at": 0} for row in harmed.values()]
        told = changes(given_, [UPSERT] * len(given_), [None] * len(given_))
        replay.add_rows(told.rows, told.origins, told.sequence)
        replay.compare(lenient=False)
        found = {k: replay.count(k) for k in ("missing", "resurrected", "phantom", "value-differs")}
    if kind == "phantom":
        assert found.pop("resurrected") + found.pop("phantom") == 1
    elif kind:
        assert found.pop(kind) == 1
    assert set(found.values()) <= {0}


def damaged(rows, seed):
    """One kind of damage to one row, or none; → the rows, and what it is called."""
    rows = {key: dict(row) for key, row in rows.items()}
    kind = [None, "missing", "value-differs", "phantom"][seed % 4]
    key = sorted(rows)[seed // 4 % len(rows)] if rows else None
    free = [n for n in range(6) if n not in rows]
    if kind == "phantom":
        key = free[seed // 4 % len(free)]
        rows[key] = {"id": key, "v": 0, "big": "?"}
    elif key is None:
        kind = None
    elif kind == "missing":
        del rows[key]
    elif kind == "value-differs":
        rows[key]["v"] += 1
    return rows, kind


def test_a_column_that_not_all_records_carry_is_told_first():
    with duckdb.connect() as database:
        replay = ChangeReplay(database, SCHEMA, ["id"], [])
        rows = [{"id": 1, "v": 1, "big": "b", "at": 0}]
        with pytest.raises(UncarriedColumns, match="big"):
            replay.add_records(changes(rows, [UPSERT], [None], [True]))
