"""The rewrite of mirrors beside a stream that never stops: every batch falls where it hurts most.

Against a dict; tables are read by PyIceberg and Spark, and each snapshot is verified.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conformance.stand import Frame, Stand
from icestream.catalogs import catalog_for
from icestream.commit import retry
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.port import CommitFailed
from icestream.events import IndexFollowed
from icestream.failpoints import Failpoint
from icestream.index.build import build
from icestream.index.keys import bucket_of, key_hashes
from icestream.maintain.action import Action, ActionKind, ActionResult, Ending, FileGroup
from icestream.maintain.rewrite import Rewriter
from icestream.maintain.rewrite.task_runner import ProcessTaskRunner, SparkTaskRunner
from icestream.records import RECORDS
from icestream.tables.commits import REWRITE_ID
from icestream.verify import verify
from icestream.write import position_deletes

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = {"id": "bigint", "region": "string", "value": "bigint", "op": "string", "at": "int"}
IDS = range(60)
ROUNDS = 6


class Inline:
    """As much of a Spark session as a rewrite needs; its task runs here, at once."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.sparkContext = self
        self.master = "here"
        self._then = then

    def setJobGroup(self, *_: Any, **__: Any) -> None: ...  # noqa: N802

    def range(self, *_: int) -> Any:
        one = pa.RecordBatch.from_pylist([{"id": 0}])
        hook = self._then

        class Hooked(Frame):
            def mapInArrow(self, task: Any, kind: Any) -> Frame:  # noqa: N802
                done = super().mapInArrow(task, kind)
                hook()
                return done

        return Hooked(None, [[one]])


class World:
    """A mirror, the truth, and a rewriter with a hook at each of its steps."""

    def __init__(self, spark: Any, folder: Path, **rule: Any) -> None:
        table = {
            "name": "db.t",
            "mode": "upsert",
            "keys": ["id"],
            "sequence_by": ["at"],
            "apply_as_deletes": "op = 'D'",
            "columns": COLUMNS,
            **rule,
        }
        self._spark, self._folder = spark, folder
        self.stand = Stand(spark, folder, ["t"], {"tables": [table]})
        self.truth: dict[int, tuple[Any, ...]] = {}
        self._clock, self._offset = itertools.count(1), 0
        self._copies = itertools.count()
        self.staged: list[Callable[[], None]] = []  # called after the staging
        self.entering: list[Callable[[], None]] = []  # before a turn
        self.committing: list[Callable[[], None]] = []  # between carrying over and the commit
        catalog = catalog_for(self.stand.config.catalog)
        jvm = spark.sparkContext._jvm
        java = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
            catalog.name, dict(catalog.java_properties()), spark._jsc.hadoopConfiguration()
        )
        self.tables = IcebergTables(jvm, java, "p")
        self._replace = self.tables.commit_rewrite
        self.tables.commit_rewrite = self._hooked_replace  # type: ignore[method-assign]

    # -- the stream ----------------------------------------------------------------------------

    def put(self, *changes: dict[str, Any]) -> None:
        """One batch; each change is newer than those before."""
        rows = []
        for change in changes:
            full = {"region": "north", "value": None, "op": "U", **change, "at": next(self._clock)}
            rows.append(json.dumps(full).encode())
            if full["op"] == "D":
                self.truth.pop(full["id"], None)
            else:
                self.truth[full["id"]] = (full["region"], full["value"])
        facts = [
            {"topic": "t", "partition": 0, "offset": self._offset + at, "timestamp": 0, "value": v}
            for at, v in enumerate(rows)
        ]
        self._offset += len(rows)
        self.stand.take(pa.RecordBatch.from_pylist(facts, schema=RECORDS))

    def fill(self, batches: int = 4, each: int = 8) -> None:
        for number in range(batches):
            ids = range(number * each, (number + 1) * each)
            self.put(*(row(key, key % 2) for key in ids))

    # -- maintenance ---------------------------------------------------------------------------

    def rewriter(self, indexes: bool = True, **options: Any) -> Rewriter:
        options.setdefault("spark", Inline(lambda: _next(self.staged)))
        return Rewriter(
            tables=self.tables,
            open_catalog=catalog_for(self.stand.config.catalog).open,
            indexes=self.stand._pipeline.indexes if indexes else None,
            gate=self,
            **options,
        )

    @contextmanager
    def commit_window(self, table: str) -> Iterator[None]:
        assert table == "db.t"
        _next(self.entering)
        yield

    def _hooked_replace(self, *arguments: Any) -> None:
        _next(self.committing)
        self._replace(*arguments)

    def compact(self, files: Sequence[str] | None = None, **options: Any) -> list[ActionResult]:
        """Rewrite the data files, or some of them: the largest partition first."""
        rewriter = self.rewriter(**options)
        results = []
        for group in self.groups(files):
            action = Action("db.t", ActionKind.REWRITE_DATA_FILES, "", (group,))
            results.append(rewriter.rewrite(action, lambda: False, lambda done, total: None))
        rewriter.close()
        return results

    def merge_deletes(self, *files: str) -> ActionResult:
        """Merge delete files, all or those of the partitions of these."""
        rewriter = self.rewriter()
        groups = (FileGroup("", 0, files, 0, 0),) if files else ()
        action = Action("db.t", ActionKind.REWRITE_POSITION_DELETE_FILES, "", groups)
        result = rewriter.rewrite(action, lambda: False, lambda done, total: None)
        rewriter.close()
        return result

    def groups(self, files: Sequence[str] | None = None) -> list[FileGroup]:
        """Data files by partition, the largest first."""
        by_place: dict[Any, list[dict[str, Any]]] = {}
        for file in self.table().inspect.data_files().to_pylist():
            if files is None or file["file_path"] in files:
                place = (file["spec_id"], repr(file["partition"]))
                by_place.setdefault(place, []).append(file)
        return [
            FileGroup(
                place,
                spec_id,
                tuple(file["file_path"] for file in some),
                sum(file["file_size_in_bytes"] for file in some),
                sum(file["record_count"] for file in some),
            )
            for (spec_id, place), some in sorted(by_place.items(), key=lambda pair: -len(pair[1]))
        ]

    # -- what is there -------------------------------------------------------------------------

    def table(self) -> Any:
        return catalog_for(self.stand.config.catalog).open().load_table("db.t")

    def live(self, kind: str) -> list[str]:
        return [file["file_path"] for file in getattr(self.table().inspect, kind)().to_pylist()]

    def on_disk(self, part: str = "rewrite-") -> set[str]:
        return {str(path) for path in self._folder.glob(f"lake/**/*{part}*.parquet")}

    def followed(self) -> list[str]:
        """What the index had to read; the first time is no news."""
        return [e.how for e in self.stand.events if isinstance(e, IndexFollowed)][1:]

    def check(self) -> None:
        """The rows are right, and the index says where they are."""
        found = self.table().scan().to_arrow().to_pylist()
        assert {row["id"]: (row["region"], row["value"]) for row in found} == self.truth
        assert len(found) == len(self.truth)
        self.check_index()

    def check_index(self) -> None:
        """The run's index, brought to the table as at the next batch, and one made anew."""
        indexes = self.stand._pipeline.indexes
        tables = self.stand._pipeline._changes._tables
        mine = indexes.reader_at("db.t", tables.load("db.t"), ["id"])
        folder = self._folder / f"copy{next(self._copies)}"
        anew, built = build(self.table(), folder, ["id"])
        assert (built.rows, built.duplicates) == (len(self.truth), 0)
        expected = answers(anew.reader)
        assert answers(mine) == expected
        assert set(expected) == set(self.truth)

    def check_all(self) -> None:
        """Also by Spark, and every snapshot that there ever was."""
        self.check()
        rows = self.stand.sql("SELECT id, region, value FROM stand.db.t")
        assert sorted(tuple(r) for r in rows) == sorted((k, *v) for k, v in self.truth.items())
        assert verify(self.stand.config, all_snapshots=True).violations == ()


def _next(hooks: list[Callable[[], None]]) -> None:
    if hooks:
        hooks.pop(0)()


def row(key: int, value: Any = None, region: str = "north") -> dict[str, Any]:
    return {"id": key, "value": value, "region": region}


def gone(key: int) -> dict[str, Any]:
    return {"id": key, "op": "D"}


def answers(reader: Any) -> dict[int, tuple[str, int, bytes]]:
    """Key → data file, position and sequence, as an index has it."""
    hashes = key_hashes([pa.array(IDS, pa.int64())])
    places, found = bucket_of(hashes, reader.buckets), {}
    for bucket in np.unique(places).tolist():
        mine = np.flatnonzero(places == bucket)
        told = reader.lookup(bucket, hashes[mine])
        for at in np.flatnonzero(told.hit):
            sequence = (int(told.sequences.hi[at]), int(told.sequences.size[at]))
            path = reader.path(int(told.file[at]))
            found[IDS[mine[at]]] = (path, int(told.position[at]), sequence)
    return found


@pytest.fixture
def world(spark: Any, tmp_path: Path) -> Callable[..., World]:
    return lambda **rule: World(spark, tmp_path, **rule)


SCOPES = ("every second data file has its own", "shared")


@pytest.fixture(params=SCOPES)
def scope(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletes of a data file are in a file of their own, as where they are many, or are not."""
    shared = request.param == "shared"
    own = (lambda dead: set()) if shared else (lambda dead: set(sorted(dead)[::2]))
    monkeypatch.setattr(position_deletes, "_files_with_own_deletes", own)


SMALL = {"properties": {"write.parquet.row-group-size-bytes": "400"}}  # and a file for each
LAYOUTS = {"plain": {}, "partitioned": {"partition_by": ["region"]}, "many": SMALL}


@pytest.mark.usefixtures("scope")
@pytest.mark.parametrize(
    "scope, layout",
    [
        pytest.param(scope, layout, marks=[pytest.mark.long] if (at + number) % 2 else [])
        for at, scope in enumerate(SCOPES)
        for number, layout in enumerate(LAYOUTS)
    ],
    indirect=["scope"],
)
def test_a_batch_at_every_step(world, layout):
    one = world(**LAYOUTS[layout])
    target = {"target_bytes": 1} if layout == "many" else {}
    one.fill()
    one.put(row(0, 10), gone(1), row(9, 11), row(10, 12, "south"))  # dead before it begins
    before = one.groups()[0].files
    one.staged = [
        # Rows of the inputs that change, go, move, go and come again; and new ones.
        lambda: one.put(row(2, 20), gone(3), row(11, 21, "south"), row(40, 22)),
    ]
    one.entering = [lambda: one.put(row(3, 30), row(2, 31), gone(40), row(12, 32))]
    one.committing = [lambda: one.put(row(4, 40), gone(2), row(41, 41))]  # compare-and-set is lost
    first = one.compact(**target)[0]
    assert (first.ending, first.totals.attempts) == (Ending.DONE, 2), first
    assert first.totals.files_after > 1 if target else first.totals.files_after == 1
    assert first.totals.files_before > 4
    assert not set(before) & set(one.live("data_files"))
    one.check_all()
    # What comes next finds every row where it is now.
    one.put(row(5, 50), gone(6), row(4, 51), row(13, 52, "south"), row(3, 53), row(41, 54))
    one.check()
    assert one.compact(**target)[0].ending is Ending.DONE
    one.put(row(5, 60), row(7, 61), row(6, 62))
    one.check_all()
    assert one.followed() == [], "the index went along without reading a file"
    # What lost against a batch left nothing behind, and deletes of the old files went with them.
    assert set(one.live("all_files")) >= one.on_disk()
    summary = one.table().current_snapshot().summary.additional_properties
    assert REWRITE_ID not in summary  # a batch was last
    assert len(one.live("delete_files")) <= 3


@pytest.mark.usefixtures("scope")
@pytest.mark.parametrize(
    "scope, seed",
    [
        pytest.param(scope, seed, marks=[pytest.mark.long] if (at + seed) % 2 else [])
        for at, scope in enumerate(SCOPES)
        for seed in range(3)
    ],
    indirect=["scope"],
)
def test_any_schedule(world, seed, monkeypatch, pytestconfig):
    rounds = 10
    if not pytestconfig.getoption("--long"):
        rounds = ROUNDS
        monkeypatch.setattr(retry, "backoff", lambda attempt: attempt < retry.ATTEMPTS)
    chance = random.Random(seed)
    layout = [SMALL, {"partition_by": ["region"]}, {"sort_by": ["value"]}][seed % 3]
    one = world(**layout)

    def batch() -> None:
        changes = []
        for _ in range(chance.randint(1, 12)):
            key = chance.randrange(30)
            region = chance.choice(["north", "south"])
            changes.append(gone(key) if chance.random() < 0.3 else row(key, _value(chance), region))
        one.put(*changes)

    for _ in range(rounds):
        for _ in range(chance.randint(1, 3)):
            batch()
        for hooks in (one.staged, one.entering, one.committing):
            hooks[:] = [batch if chance.random() < 0.6 else lambda: None for _ in range(3)]
        what = chance.choice(["compact", "compact", "some", "deletes", "restart"])
        if what == "restart":
            one.stand.start()
        elif what == "deletes":
            assert one.merge_deletes().ending in (Ending.DONE, Ending.NOTHING)
        else:
            every = one.live("data_files")
            files = chance.sample(every, (len(every) + 1) // 2) if what == "some" else None
            for result in one.compact(files, target_bytes=chance.choice([None, 1])):
                assert result.ending in (Ending.DONE, Ending.NOTHING), result
        one.check()
    one.staged, one.entering, one.committing = [], [], []
    batch()
    one.check_all()
    assert not any("rebuilt" in how for how in one.followed())


def _value(chance: random.Random) -> int:
    return chance.randint(-5, 5)


def test_deletes_of_many_files(world):
    """One delete file for a partition is about inputs and others: it cannot simply go."""
    one = world()
    one.fill(3)
    keep, *some = one.live("data_files")
    kept = [r["id"] for r in pq.read_table(keep).to_pylist()]
    one.put(row(kept[0], 1), *(row(key, 2) for key in (0, 8, 9, 16)))
    one.staged = [lambda: one.put(row(kept[1], 3), row(1, 3), row(10, 3), gone(17), row(18, 4))]
    (result,) = one.compact(some)
    assert result.ending is Ending.DONE, result
    one.check_all()
    one.put(row(kept[1], 5), row(10, 5), row(2, 5))
    (result,) = one.compact()
    assert result.ending is Ending.DONE, result
    one.check_all()
    assert one.live("delete_files") == []
    assert one.followed() == []


def test_a_file_without_live_rows_goes(world):
    one = world()
    one.fill(2)
    before = one.live("data_files")
    one.put(*(gone(key) for key in IDS))
    assert one.truth == {}
    (result,) = one.compact()
    assert result.ending is Ending.DONE
    assert (result.totals.files_after, result.totals.files_before) == (0, len(before))
    assert one.live("data_files") == one.live("delete_files") == []
    one.check_all()
    one.put(row(1, 1))
    one.check()
    assert one.followed() == []
    assert one.compact(["no such file"]) == []


def test_a_new_column_while_rows_are_staged(world):
    one = world()
    one.fill(2)
    one.staged = [lambda: one.put({**row(1, 5), "extra": "new"}, {**row(50), "extra": "newer"})]
    (result,) = one.compact()
    assert result.ending is Ending.DONE, result
    one.check_all()
    (result,) = one.compact()  # files with the column and files without it into one
    one.check_all()
    rows = one.table().scan().to_arrow().to_pylist()
    assert {r["id"]: r["extra"] for r in rows if r["extra"]} == {1: "new", 50: "newer"}


def test_a_foreign_compaction_wins(world):
    one = world()
    one.fill(3)
    one.put(row(1, 9))
    one.staged = [lambda: one.stand.compact("db.t")]
    (result,) = one.compact()
    assert result.ending is Ending.GAVE_WAY
    assert "replaced its files" in result.detail
    assert one.on_disk() == set(), "what cannot be committed any more is removed"
    one.put(row(2, 9), gone(3))
    one.check_all()
    assert len(one.followed()) == 1


def test_a_foreign_delete_is_carried_over(world):
    one = world()
    one.fill(2)
    one.stand.sql("ALTER TABLE stand.db.t SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    one.staged = [lambda: one.stand.sql("DELETE FROM stand.db.t WHERE id IN (2, 3)")]
    (result,) = one.compact()
    assert result.ending is Ending.DONE, result
    del one.truth[2], one.truth[3]
    one.check_all()


@pytest.mark.parametrize("where", ["rewrite-staged", "rewrite-committed"])
def test_death_at(world, arm, where):
    one = world()
    one.fill(3)
    one.put(row(1, 9), gone(2))
    before = set(one.live("data_files"))
    arm(f"{where}:raise::1")
    one.staged = [lambda: one.put(row(3, 9), gone(4))]
    with pytest.raises(Failpoint):
        one.compact()
    landed = where == "rewrite-committed"
    assert (set(one.live("data_files")) >= before) is not landed
    one.stand.start()
    one.put(row(5, 9), gone(6), row(4, 10))
    one.check_all()
    assert not any("rebuilt" in how for how in one.followed())
    assert [each.ending for each in one.compact()] == [Ending.DONE]
    one.check_all()


def test_an_answer_that_is_lost(world):
    """The commit landed and nobody said so: it is found by its id, and not made twice."""
    one = world()
    one.fill(2)
    replace = one._replace

    def lost(*arguments: Any) -> None:
        replace(*arguments)
        one._replace = replace
        raise CommitFailed("no answer")

    one._replace = lost
    one.staged = [lambda: one.put(row(1, 9))]
    (result,) = one.compact()
    assert (result.ending, result.totals.attempts) == (Ending.DONE, 1)
    snapshots = one.table().metadata.snapshots
    assert sum(REWRITE_ID in each.summary.additional_properties for each in snapshots) == 1
    one.put(row(2, 9))
    one.check_all()
    assert one.followed() == []


def test_in_another_process(world):
    """Without the run's index: that follows by itself when it sees the rewrite."""
    one = world()
    one.fill(2)
    one.staged = [lambda: one.put(row(1, 9), gone(2))]
    (result,) = one.compact(indexes=False)
    assert result.ending is Ending.DONE
    one.put(row(3, 9), row(1, 10))
    one.check_all()
    (how,) = one.followed()
    assert how.startswith("followed 1 new, 0 changed")


def test_many_delete_files_become_few(world):
    one = world(partition_by=["region"])
    one.fill(1, 20)
    for key in range(0, 12, 2):
        one.put(row(key, 9), row(key + 1, 9, "south"))
    before = len(one.live("delete_files"))
    one.committing = [lambda: one.put(row(14, 10), gone(0), row(1, 10))]
    result = one.merge_deletes()
    assert result.ending is Ending.DONE, result
    assert result.totals.files_after < result.totals.files_before <= before
    one.put(row(15, 11), row(14, 11))
    one.check_all()
    assert one.followed() == []
    for path in one.live("delete_files"):
        assert one.merge_deletes(path).ending in (Ending.DONE, Ending.NOTHING)
    assert one.merge_deletes().ending is Ending.NOTHING
    one.check_all()
    # Deletes of files that are gone dangle.
    assert [each.ending for each in one.compact()] == [Ending.DONE] * 2
    one.check_all()
    assert one.live("delete_files") == []


@pytest.mark.parametrize("where", ["process", "task"])
def test_where_rows_are_staged(world, spark, where):
    one = world()
    one.fill(2)
    one.put(row(1, 9), gone(2))
    heard: list[tuple[int, int]] = []
    rewriter = one.rewriter(spark=spark)
    assert isinstance(rewriter._task_runner, ProcessTaskRunner)
    if where == "task":
        rewriter._task_runner = SparkTaskRunner(spark)
    (group,) = one.groups()
    action = Action("db.t", ActionKind.REWRITE_DATA_FILES, "", (group,))
    asked = iter([False, True])
    result = rewriter.rewrite(action, lambda: next(asked), lambda *told: heard.append(told))
    assert result.ending is Ending.CANCELLED
    assert set(group.files) == set(one.live("data_files")), "nothing has changed"
    result = rewriter.rewrite(action, lambda: False, lambda *told: heard.append(told))
    rewriter.close()
    assert (result.ending, result.totals.files_after) == (Ending.DONE, 1)
    assert heard == [(0, group.bytes), (0, group.bytes), (group.bytes, group.bytes)]
    one.check_all()
    assert one.followed() == []
