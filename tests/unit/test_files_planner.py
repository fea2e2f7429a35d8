"""The source `files`: which files are taken, when, in which pieces, and after which restart."""

import gzip
import json
import os
import random
import time
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import pyarrow as pa
import pytest

from icestream.batch.run_tables import RunTables
from icestream.batch.table_modes import AppendMode
from icestream.commit import retry
from icestream.commit.port import CommitFailed
from icestream.commit.protocol import Claim, marker_after_batch
from icestream.commit.table_commits import TableCommitter
from icestream.commit.table_state import AncestorSnapshot, TableState
from icestream.config.model import PipelineConfig
from icestream.errors import Fenced, GaveUp, SetupError, SourceChanged
from icestream.events import EventBus
from icestream.pipeline import Pipeline
from icestream.positions import PositionRange
from icestream.run.scratch import make_scratch
from icestream.sources import LossReport, files, lines
from icestream.sources.files import FilesPlanner, FilesSource, LedgerLog
from icestream.sources.ledger import Split
from icestream.sources.lines import LineReader
from icestream.tables.design import TableDesign
from icestream.tables.marker import Counts, LocatedMarker, Marker
from icestream.tables.metadata import Metadata


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(files, "_SETTLE_SECONDS", 0)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "in"
    place.mkdir()
    return place


def put(folder, name, *values, at=None, mode="wb"):
    """A file of lines; `at` is its time in seconds."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    text = b"".join(value.encode() + b"\n" for value in values)
    with file.open(mode) as out:
        out.write(gzip.compress(text) if name.endswith(".gz") else text)
    if at is not None:
        os.utime(file, (at, at))
    return file


def planner(folder, begin=0, max_records=1000, tasks=4, once=False, pattern="*", known=()):
    log = folder.parent / "ledger.jsonl"
    log.unlink(missing_ok=True)
    LedgerLog(log).append(known)
    return FilesPlanner(
        folder=str(folder),
        pattern=pattern,
        log=str(log),
        begin=begin,
        max_records=max_records,
        tasks=tasks,
        once=once,
    )


def at(count):
    return {"files": {0: count}}


def values(folder, orders):
    """What tasks make of work orders."""
    batches = [pa.record_batch({"work": [order]}) for order in orders]
    found = LineReader(str(folder)).read(iter(batches))
    return [value.decode() for batch in found for value in batch.column("value").to_pylist()]


def drain(folder, plans, calls=30):
    """Batch after batch until nothing new comes; → the values of each batch."""
    reached, batches = plans.initial_positions(), []
    for _ in range(calls):
        latest = plans.latest_positions()
        if latest != reached:
            batches.append(values(folder, plans.work_orders(reached, latest)))
        reached = latest
    return batches


# ── taking files ────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_taken_after_two_equal_listings(folder):
    put(folder, "a", "1", "2")
    plans = planner(folder)
    assert plans.latest_positions() == at(0)
    assert plans.latest_positions() == at(1)
    assert plans.latest_positions() == at(1)
    assert values(folder, plans.work_orders(at(0), at(1))) == ["1", "2"]


@pytest.mark.parametrize("once", [True, False])
def test_a_file_that_grows_is_not_taken(folder, monkeypatch, once):
    put(folder, "a", "1")
    plans = planner(folder, once=once)
    real = files._listing

    def grow(*arguments):
        put(folder, "a", "more", mode="ab")
        return real(*arguments)

    monkeypatch.setattr(files, "_listing", grow)
    assert [plans.latest_positions() for _ in range(4)] == [at(0)] * 4
    monkeypatch.setattr(files, "_listing", real)
    plans.latest_positions()
    assert plans.latest_positions() == (at(0) if once else at(1))


def test_a_file_whose_time_moves_is_not_taken(folder):
    put(folder, "a", "1", at=100)
    plans = planner(folder)
    for second in (101, 102, 103):
        assert plans.latest_positions() == at(0)
        os.utime(folder / "a", (second, second))
    plans.latest_positions()
    assert plans.latest_positions() == at(1)


def test_listings_keep_their_distance(folder, monkeypatch):
    monkeypatch.setattr(files, "_SETTLE_SECONDS", 3600)
    put(folder, "a", "1")
    plans = planner(folder)
    assert [plans.latest_positions() for _ in range(5)] == [at(0)] * 5


def test_older_files_come_first(folder):
    put(folder, "c", "3", at=300)
    put(folder, "a", "2", at=200)
    put(folder, "b", "1", at=200)
    put(folder, "d", "0", at=100)
    (batch,) = drain(folder, planner(folder))
    assert batch == ["0", "2", "1", "3"]


def test_hidden_and_empty_files_and_folders_are_passed_over(folder):
    for name in (".a", "_b", "sub/.c", "_temporary/d", ".tmp/e"):
        put(folder, name, name)
    put(folder, "empty")
    (folder / "dir").mkdir()
    put(folder, "sub/f", "f", at=1)
    put(folder, "g", "g", at=2)
    (batch,) = drain(folder, planner(folder, pattern="**/*"))
    assert batch == ["f", "g"]


def test_only_what_the_pattern_names(folder):
    put(folder, "a.json", "a")
    put(folder, "b.txt", "b")
    put(folder, "sub/c.json", "c")
    assert drain(folder, planner(folder, pattern="*.json")) == [["a"]]


def test_files_that_come_later(folder):
    plans = planner(folder)
    assert plans.latest_positions() == at(0)
    put(folder, "a", "1")
    assert drain(folder, plans, calls=3) == [["1"]]
    put(folder, "b", "2")
    plans.latest_positions()
    assert values(folder, plans.work_orders(at(1), plans.latest_positions())) == ["2"]


def test_a_file_that_changed_after_it_was_taken(folder):
    put(folder, "a", "1")
    plans = planner(folder)
    drain(folder, plans)
    put(folder, "a", "2", mode="ab")
    with pytest.raises(SourceChanged, match="`a` changed"):
        plans.latest_positions()


def test_a_file_that_changed_while_we_were_away(folder):
    put(folder, "a", "1", at=100)
    known = [Split("a", 2, 100 * 10**9, 0, 2, 1)]
    assert drain(folder, planner(folder, begin=1, known=known)) == []
    os.utime(folder / "a", (101, 101))
    with pytest.raises(SourceChanged, match="`a` changed"):
        planner(folder, begin=1, known=known).latest_positions()


def test_a_taken_file_may_be_removed(folder):
    put(folder, "a", "1")
    plans = planner(folder)
    drain(folder, plans)
    (folder / "a").unlink()
    put(folder, "b", "2")
    plans.latest_positions()
    assert plans.latest_positions() == at(2)


def test_a_broken_packed_file_stops(folder):
    (folder / "a.gz").write_bytes(b"\x1f\x8b no")
    plans = planner(folder)
    plans.latest_positions()
    with pytest.raises(SourceChanged, match="gzip"):
        plans.latest_positions()


# ── batches ─────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_takes_at_most_so_many_records(folder):
    for number, count in enumerate((3, 3, 5, 1, 12)):
        name = f"f{number}"
        put(folder, name, *(f"{name}-{each}" for each in range(count)), at=100 + number)
    batches = drain(folder, planner(folder, max_records=5))
    assert all(len(batch) <= 5 for batch in batches)
    assert [value for batch in batches for value in batch] == [
        f"f{number}-{each}"
        for number, count in enumerate((3, 3, 5, 1, 12))
        for each in range(count)
    ]


def test_a_packed_file_goes_whole_and_alone(folder):
    put(folder, "a", "0", at=100)
    put(folder, "b.gz", *map(str, range(9)), at=101)
    put(folder, "c", "0", at=102)
    assert [len(batch) for batch in drain(folder, planner(folder, max_records=4))] == [1, 9, 1]


def test_once_ends_at_what_is_there(folder):
    for number in range(5):
        put(folder, f"f{number}", "x", "y", at=100 + number)
    plans = planner(folder, max_records=4, once=True)
    reached = [plans.latest_positions() for _ in range(3)]
    put(folder, "late", "z")
    reached += [plans.latest_positions() for _ in range(4)]
    assert reached == [at(2), at(4), *[at(5)] * 5]


@pytest.mark.parametrize("tasks", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_orders_cover_every_split_once(folder, tasks, count):
    known = [Split(f"f{each}", 1, 1, 0, 1, 1) for each in range(12)]
    plans = planner(folder, known=known, tasks=tasks)
    orders = plans.work_orders(at(3), at(3 + count))
    assert len(orders) == min(tasks, count)
    assert all(json.loads(order) for order in orders)
    taken = [Split(*entry) for order in orders for entry in json.loads(order)]
    assert taken == known[3 : 3 + count]


def test_no_orders_for_nothing(folder):
    assert planner(folder).work_orders(at(0), at(0)) == []


def test_it_goes_on_where_the_tables_stand(folder):
    known = []
    for number in range(3):
        put(folder, f"f{number}", f"value {number}", at=100 + number)
        known.append(Split(f"f{number}", 8, (100 + number) * 10**9, 0, 8, 1))
    put(folder, "new", "later", at=90)
    plans = planner(folder, begin=2, known=known)
    assert plans.initial_positions() == at(2)
    batches = drain(folder, plans)
    assert [value for batch in batches for value in batch] == ["value 2", "later"]


# ── the driver's side, and whole runs ───────────────────────────────────────────────────────────


def source(folder, max_records=1000, pattern="*"):
    options = SimpleNamespace(path=str(folder), pattern=pattern, max_records_per_commit=max_records)
    return FilesSource(options)


def open_planner(one, begin, scratch, once=False):
    """What the stream makes of `open` when it starts."""
    session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3))
    scratch.mkdir(parents=True)
    return one.open(session, begin, scratch, once).planner()


def located(location, count, details):
    mark = Marker("p", 1, "run", "c", None, 1, "u", 1, positions=at(count), details=details)
    return LocatedMarker(mark, str(location))


class Run:
    """A start of the pipeline with its tables: table → (count, details) as a marker has them."""

    def __init__(self, tmp_path, folder, tables, start="earliest", **options):
        self.number = sum(1 for _ in tmp_path.glob("run-*"))
        self.folder, self.tables, self.place = folder, tables, tmp_path
        self.source = source(folder, **options)
        self.source.load_details(
            [located(tmp_path / n, c, d) for n, (c, d) in tables.items() if c >= 0]
        )
        new = [name for name, (count, _) in tables.items() if count < 0]  # not claimed yet
        if new:
            begin = self.source.resolve_start(start).positions["files"][0]
            for name in new:
                self.commit(name, begin)
        lowest = min(count for count, _ in tables.values())
        self.planner = open_planner(self.source, at(lowest), tmp_path / f"run-{self.number}")
        self.reached = lowest

    def commit(self, name, count):
        old = self.tables[name][1]
        details = self.source.store_details(
            at(count), str(self.place / name), f"{name}-{count}-{time.monotonic_ns()}", old
        )
        self.tables[name] = (count, details)

    def batch(self):
        """Let the planner look twice; → the range and its records, or None."""
        for _ in range(3):
            stop = self.planner.latest_positions()["files"][0]
            if stop > self.reached:
                span = PositionRange(at(self.reached), at(stop))
                self.reached = stop
                return span, values(self.folder, self.planner.work_orders(span.start, span.stop))
        return None


def test_a_restart_finds_the_rest_of_a_large_file(tmp_path, folder):
    """One commit takes a part of the file; the next one may belong to another run."""
    put(folder, "large", *map(str, range(10)))
    tables, landed = {"t": (-1, {})}, []
    for _ in range(6):
        run = Run(tmp_path, folder, tables, max_records=3)
        if found := run.batch():
            span, records = found
            landed += records
            run.commit("t", span.stop["files"][0])
    assert landed == [str(each) for each in range(10)]


def test_a_restart_finds_the_rest_cut_in_another_way(tmp_path, folder, monkeypatch):
    put(folder, "large", *map(str, range(10)), at=100)
    tables = {"t": (-1, {})}
    run = Run(tmp_path, folder, tables, max_records=3)
    span, first = run.batch()
    run.commit("t", span.stop["files"][0])
    put(folder, "other", "x", at=50)
    again = Run(tmp_path, folder, tables, max_records=1000)
    rest = []
    while found := again.batch():
        rest += found[1]
    assert sorted(first + rest) == sorted([*map(str, range(10)), "x"])


def test_a_restart_refuses_a_large_file_that_changed_halfway(tmp_path, folder):
    put(folder, "large", *map(str, range(10)), at=100)
    tables = {"t": (-1, {})}
    run = Run(tmp_path, folder, tables, max_records=3)
    span, _ = run.batch()
    run.commit("t", span.stop["files"][0])
    put(folder, "large", *map(str, range(20)), at=100)
    with pytest.raises(SourceChanged):
        Run(tmp_path, folder, tables, max_records=3).batch()


def test_a_crash_before_the_commit_takes_the_same_again(tmp_path, folder):
    put(folder, "a", "1", at=100)
    tables = {"t": (-1, {})}
    assert Run(tmp_path, folder, tables).batch()[1] == ["1"]
    put(folder, "b", "0", at=50)  # older, but it came later
    found = Run(tmp_path, folder, tables).batch()[1]
    assert sorted(found) == ["0", "1"]


def test_two_tables_of_different_progress(tmp_path, folder):
    tables = {"t": (-1, {}), "u": (-1, {})}
    run = Run(tmp_path, folder, tables)
    for number in range(4):
        put(folder, f"f{number}", f"{number}-a", f"{number}-b", at=100 - number)
        span, _ = run.batch()
        run.commit("t", span.stop["files"][0])
        if number < 2:
            run.commit("u", span.stop["files"][0])
    put(folder, "new", "new", at=10)
    again = Run(tmp_path, folder, tables)
    assert again.source._ledger.splits[:4] == run.source._ledger.splits
    landed = {"t": [], "u": []}
    while found := again.batch():
        span, records = found
        for name in tables:
            floor = max(span.start["files"][0], tables[name][0])
            floors = again.source.record_floors(span, at(floor))
            landed[name] += [one for one in records if not _below(again, one, floors)]
            again.commit(name, max(span.stop["files"][0], tables[name][0]))
    assert landed == {"t": ["new"], "u": ["2-a", "2-b", "3-a", "3-b", "new"]}


def _below(run, value, floors):
    """Whether the record lies below the floor of its file."""
    for path in run.folder.iterdir():
        text = path.read_bytes()
        where = text.find(value.encode() + b"\n")
        if where >= 0:
            return where < floors.get(path.name, {0: 0})[0]
    raise AssertionError(value)


def test_tables_that_disagree_are_refused(tmp_path, folder):
    tables = {}
    for name, file in (("t", "a"), ("u", "b")):
        place = folder.parent / f"in-{name}"
        place.mkdir()
        put(place, file, "1")
        mine = {name: (-1, {})}
        run = Run(tmp_path, place, mine)
        run.commit(name, run.batch()[0].stop["files"][0])
        tables |= mine
    with pytest.raises(SourceChanged, match="different files"):
        Run(tmp_path, folder, tables)


def test_a_lost_position_list_stops_the_start(tmp_path, folder):
    put(folder, "a", "1")
    tables = {"t": (-1, {})}
    run = Run(tmp_path, folder, tables)
    run.commit("t", run.batch()[0].stop["files"][0])
    (tmp_path / "t" / "_icestream" / tables["t"][1]["ledger"]).unlink()
    with pytest.raises(SourceChanged, match="missing or damaged"):
        Run(tmp_path, folder, tables)


# ── floors ──────────────────────────────────────────────────────────────────────────────────────

EVERYTHING = 2**63 - 1
ENTRIES = [
    Split("a", 10, 1, 0, 10, 5),
    Split("b", 30, 2, 0, 10, 5),
    Split("b", 30, 2, 10, 20, 5),
    Split("b", 30, 2, 20, 30, 5),
    Split("c", 10, 3, 0, 10, 5),
]


@pytest.mark.parametrize(
    "start, stop, floor, floors",
    [
        (0, 5, 0, {}),
        (0, 5, 1, {"a": EVERYTHING}),
        (0, 5, 2, {"a": EVERYTHING, "b": 10}),
        (0, 5, 3, {"a": EVERYTHING, "b": 20}),
        (0, 5, 4, {"a": EVERYTHING, "b": EVERYTHING}),
        (0, 5, 5, {"a": EVERYTHING, "b": EVERYTHING, "c": EVERYTHING}),
        (2, 5, 2, {}),
        (2, 5, 3, {"b": 20}),
        (2, 4, 4, {"b": EVERYTHING}),
        (1, 3, 2, {"b": 10}),
        (1, 3, 5, {"b": EVERYTHING}),  # the table is ahead of the range
        (4, 5, 4, {}),
    ],
)
def test_floors_of_records(tmp_path, folder, start, stop, floor, floors):
    one = source(folder)
    one._ledger.extend(ENTRIES)
    span = PositionRange(at(start), at(stop))
    assert one.record_floors(span, at(floor)) == {path: {0: at} for path, at in floors.items()}
    assert one.topics(span) == list(dict.fromkeys(each.path for each in ENTRIES[start:stop]))


def test_floors_trim_what_is_below_and_nothing_else(tmp_path, folder, monkeypatch):
    """Every floor in a range of real splits keeps exactly the records of the entries above."""
    monkeypatch.setattr(lines, "_SPLIT_BYTES", 8)
    put(folder, "a", "one", at=100)
    put(folder, "b", *(f"b-{each}" for each in range(9)), at=101)
    put(folder, "c", "two", "three", at=102)
    run = Run(tmp_path, folder, {"t": (-1, {})})
    span, everything = run.batch()
    count = span.stop["files"][0]
    assert count > 5
    for floor in range(count + 1):
        floors = run.source.record_floors(span, at(floor))
        kept = [one for one in everything if not _below(run, one, floors)]
        above = values(folder, run.planner.work_orders(at(floor), at(count)))
        assert kept == above


# ── where a table begins ────────────────────────────────────────────────────────────────────────


def test_earliest_takes_all(tmp_path, folder):
    put(folder, "a", "1")
    assert Run(tmp_path, folder, {"t": (-1, {})}).batch()[1] == ["1"]


def test_latest_passes_over_what_is_there(tmp_path, folder):
    put(folder, "a", "1")
    put(folder, "b", "2")
    tables = {"t": (-1, {})}
    run = Run(tmp_path, folder, tables, "latest")
    assert run.batch() is None
    put(folder, "a", "more", mode="ab")  # nobody reads it: it may grow
    put(folder, "c", "3")
    span, records = run.batch()
    assert records == ["3"]
    run.commit("t", span.stop["files"][0])
    put(folder, "a", "more", mode="ab")
    put(folder, "d", "4")
    assert Run(tmp_path, folder, tables, "latest").batch()[1] == ["4"]


def test_a_time_passes_over_older_files(tmp_path, folder):
    put(folder, "old", "1", at=1_700_000_000)
    put(folder, "exact", "2", at=1_700_000_100)
    put(folder, "young", "3", at=1_700_000_200)
    start = datetime.fromtimestamp(1_700_000_100, UTC)
    assert Run(tmp_path, folder, {"t": (-1, {})}, start).batch()[1] == ["2", "3"]


def test_latest_at_a_restart_takes_what_came_while_we_were_away(tmp_path, folder):
    tables = {"t": (-1, {})}
    Run(tmp_path, folder, tables, "latest")
    put(folder, "a", "1", "2")
    run = Run(tmp_path, folder, tables, "latest")
    assert run.batch()[1] == ["1", "2"]


def test_latest_at_a_restart_waits_for_files_that_grow(tmp_path, folder):
    """`start` is for tables without a marker: a file under way must not be taken half."""
    tables = {"t": (-1, {})}
    Run(tmp_path, folder, tables, "latest")
    put(folder, "a", "1")
    run = Run(tmp_path, folder, tables, "latest")
    assert run.planner.latest_positions() == at(0)
    put(folder, "a", "2", mode="ab")
    assert run.batch()[1] == ["1", "2"]


def test_latest_for_a_second_table_leaves_the_first_alone(tmp_path, folder):
    put(folder, "old", "0", at=50)
    tables = {"t": (-1, {})}
    run = Run(tmp_path, folder, tables)
    run.commit("t", run.batch()[0].stop["files"][0])
    put(folder, "a", "1", "2", "3", at=100)
    tables["u"] = (-1, {})
    run = Run(tmp_path, folder, tables, "latest", max_records=2)
    landed = []
    while found := run.batch():
        assert len(found[1]) <= 2
        landed += found[1]
    assert landed == ["1", "2", "3"]
    put(folder, "a", "4", mode="ab", at=200)
    with pytest.raises(SourceChanged):
        run.batch()


def test_latest_for_a_second_table_while_the_first_has_nothing_yet(tmp_path, folder):
    """A file under way must not become an entry that the first table reads half."""
    tables = {"t": (-1, {})}
    Run(tmp_path, folder, tables)
    put(folder, "a", "1")
    tables["u"] = (-1, {})
    run = Run(tmp_path, folder, tables, "latest")
    assert tables["t"][0] == 0
    first = run.planner.latest_positions()
    put(folder, "a", "2", mode="ab")
    landed = values(folder, run.planner.work_orders(at(0), first))
    run.reached = first["files"][0]
    while found := run.batch():
        landed += found[1]
    assert landed == ["1", "2"]


# ── a start against the last commit of the run before ───────────────────────────────────────────


class Tables:
    """One table; `meanwhile` happens between our look and our claim."""

    def __init__(self, location, meanwhile):
        self.location, self.meanwhile = str(location), meanwhile
        self.version, self.marker, self.lineage = 0, None, ()

    def load(self, name):
        schemas = {"schemas": [{"schema-id": 0, "fields": []}], "current-schema-id": 0}
        metadata = Metadata({"location": self.location, **schemas})
        base = SimpleNamespace(version=self.version)
        return TableState("u", self.marker, self.lineage, self.version, 0, base, metadata)

    def commit(self, name, base, marker, before, work):
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            meanwhile()
        if base.version != self.version:
            raise CommitFailed("409")
        self.version += 1
        self.marker = marker
        self.lineage = (
            AncestorSnapshot(self.version, None, self.version, marker.commit_id),
            *self.lineage,
        )

    def exists(self, name):
        return not name.endswith("__quarantine")

    def list_tables(self, reaches):
        return []


def start(tmp_path, folder, tables, scratch):
    """`Pipeline.open`, with everything but Spark; → what the planner is given."""
    facts = {
        "name": "p",
        "source": {"type": "files", "path": str(folder)},
        "tables": [{"name": "a.t"}],
    }
    config = PipelineConfig.model_validate(facts, context={"folder": str(tmp_path)})
    one = FilesSource(config.source)
    changes, bus = SimpleNamespace(create=lambda design: False), EventBus()
    committer = TableCommitter(tables, one, bus, Claim("p", 0, "run"))
    run_tables = RunTables(
        config,
        one,
        tables,
        changes,
        committer,
        lambda name, rule: TableDesign(name),
        lambda name, rule: AppendMode(),
        bus,
    )
    run = Pipeline("p", uuid4().hex, one, run_tables, changes, None, committer, None, bus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "backoff", lambda attempt: attempt < 5)
        session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3))
        claimed = run.claim()
        folder = make_scratch(scratch, claimed.generation, run.run_id)
        stream = run.open(session, claimed, folder, once=False)
    return one, stream.planner()


def test_a_start_knows_the_files_that_the_run_before_it_took_last(tmp_path, folder):
    """It commits between our look and our claim: what we recalled is out of date then."""
    put(folder, "old", "1", at=100)
    tables = Tables(tmp_path / "t", None)
    first, plans = start(tmp_path, folder, tables, tmp_path / "one")
    plans.latest_positions()
    assert plans.latest_positions() == at(1)

    def last_commit():
        view = tables.load("a.t")
        details = first.store_details(at(1), tables.location, "last", view.marker.details)
        span = PositionRange(at(0), at(1))
        marker = marker_after_batch(view, span, "last", Counts(1), None, details, {})
        tables.commit("a.t", view.base, marker, {}, ())

    tables.meanwhile = last_commit
    put(folder, "new", "2", at=50)  # would come first in a ledger that starts anew
    try:
        _, again = start(tmp_path, folder, tables, tmp_path / "two")
    except (Fenced, GaveUp):  # refusing is fine: the next start sees what is there now
        _, again = start(tmp_path, folder, tables, tmp_path / "three")
    assert again.initial_positions() == at(1)
    assert drain(folder, again) == [["2"]]


def test_a_file_that_is_gone_before_its_rest_was_read_is_told(folder):
    """The rest is looked for when the planner is made."""
    with pytest.raises(SourceChanged, match="gone"):
        planner(folder, begin=1, known=[Split("gone", 100, 1, 0, 50, 5)])


# ── small things ────────────────────────────────────────────────────────────────────────────────


def test_the_lag_counts_lines(tmp_path, folder):
    for number, count in enumerate((2, 3, 4)):
        put(folder, f"f{number}", *map(str, range(count)), at=100 + number)
    run = Run(tmp_path, folder, {"t": (-1, {})})
    run.batch()
    assert [run.source.lag(at(count)) for count in range(4)] == [at(n) for n in (9, 7, 4, 0)]


def test_a_sample_reads_without_taking(folder):
    put(folder, "b", "3", "4", at=200)
    put(folder, "a", "1", "2", at=100)
    one = source(folder)
    for count, expected in ((1, [b"1"]), (3, [b"1", b"2", b"3"]), (9, [b"1", b"2", b"3", b"4"])):
        found = [
            value for batch in one.sample(count) for value in batch.column("value").to_pylist()
        ]
        assert found == expected
    assert len(one._ledger) == 0


def test_a_folder_that_is_not_there(tmp_path):
    one = source(tmp_path / "nowhere")
    for ask in (one.check, lambda: one.resolve_start("earliest"), lambda: list(one.sample(1))):
        with pytest.raises(SetupError, match="does not exist"):
            ask()


def test_one_ledger_covers_all_paths(folder):
    one = source(folder)
    assert {one.stream_of(path) for path in ("a", "b/c")} == one.shared_streams
    assert one.stream_ids(one.shared_streams) == {}
    assert one.losses(at(5), {}) == LossReport()
    assert one.known_topics() == ()


def test_the_log_is_read_once_and_never_half(tmp_path):
    log, reader = LedgerLog(tmp_path / "log"), LedgerLog(tmp_path / "log")
    log.append(ENTRIES[:2])
    assert reader.read() == ENTRIES[:2]
    assert reader.read() == []
    with log.file.open("a") as out:  # the planner is in the middle of a line
        out.write(json.dumps(["c", 10])[:-1])
    assert reader.read() == []
    with log.file.open("a") as out:
        out.write(", 3, 0, 10, 5]\n")
    assert reader.read() == ENTRIES[4:]


def test_random_runs_take_every_line_once(tmp_path, folder, monkeypatch):
    """Files come, batches differ in size, and runs end at any moment between two commits."""
    for seed in range(12):
        chance = random.Random(seed)
        place, home = folder / str(seed), tmp_path / f"seed-{seed}"
        place.mkdir()
        home.mkdir()
        tables, written, landed, files_made = {"t": (-1, {}), "u": (-1, {})}, [], Counter(), 0
        monkeypatch.setattr(lines, "_SPLIT_BYTES", chance.choice([5, 20, 10**6]))
        for _ in range(10):
            run = Run(home, place, tables, max_records=chance.choice([1, 3, 10]))
            for _ in range(chance.randint(0, 4)):
                if chance.random() < 0.7:
                    more = [f"{seed}-{files_made}-{each}" for each in range(chance.randint(1, 7))]
                    name = f"f{files_made}" + chance.choice(["", ".gz"])
                    put(place, name, *more, at=1000 + chance.randint(0, 50))
                    written += more
                    files_made += 1
                _round(run, tables, landed, chance.random)
        run = Run(home, place, tables, max_records=3)
        while _round(run, tables, landed, lambda: 1):
            pass
        for name in tables:
            assert {v: n for (t, v), n in landed.items() if t == name} == dict.fromkeys(written, 1)


def _round(run, tables, landed, chance):
    found = run.batch()
    if not found:
        return False
    span, records = found
    for name in tables:
        floor = max(span.start["files"][0], tables[name][0])
        if span.stop["files"][0] <= floor:
            continue
        if chance() < 0.2:
            run.reached = span.start["files"][0]  # this run dies here
            return False
        floors = run.source.record_floors(span, at(floor))
        landed.update((name, one) for one in records if not _under(run, one, floors))
        run.commit(name, span.stop["files"][0])
    return True


def _under(run, value, floors):
    path = f"f{value.split('-')[1]}"
    packed = (run.folder / f"{path}.gz").exists()
    file = run.folder / (f"{path}.gz" if packed else path)
    text = gzip.decompress(file.read_bytes()) if packed else file.read_bytes()
    return text.index(value.encode() + b"\n") < floors.get(file.name, {0: 0})[0]
