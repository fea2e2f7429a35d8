"""Iceberg's own actions on tables of a pipeline: rows stay, conflicts give way, nothing is lost."""

import os
import shutil
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from icestream.catalogs import catalog_for
from icestream.commit.java_catalog import IcebergTables, java_tables
from icestream.commit.port import CommitFailed
from icestream.config.load import load
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.maintain.action import Action, ActionKind, Ending, FileGroup
from icestream.maintain.actions import ActionRunner
from icestream.maintain.gate import MaintenanceGate
from icestream.maintain.health import HealthReader
from icestream.verify import verify
from servers import soon

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("maintenance")]

PAGES, ORDERS = "shop.pages", "shop.orders"
CONFIG = f"""
    name: p
    source: {{{{type: generator, rows: {{rows}}, max_records_per_commit: 100}}}}
    tables:
      - {{{{match: page_events, name: {PAGES}}}}}
      - match: order_changes
        name: {ORDERS}
        columns: {{{{change_time: timestamp}}}}
        partition_by: [days(change_time), status]
        sort_by: [order_id desc]
"""
KEPT = {}


@pytest.fixture
def made(lake, tmp_path_factory):
    """Six commits of the generator, made once and put back before each test."""
    if not KEPT:
        kept = KEPT["lake"] = type(lake)(tmp_path_factory.mktemp("kept"), lake.spark)
        kept.configure(CONFIG.format(rows=600))
        kept.run()
        shutil.copytree(kept.folder / "warehouse", kept.folder / "as-made")
    kept = KEPT["lake"]
    kept.configure(CONFIG.format(rows=600))
    shutil.rmtree(kept.folder / "warehouse")
    shutil.copytree(kept.folder / "as-made", kept.folder / "warehouse")
    return kept


def acting(lake, turns=None, **options):
    """Maintenance as a run has it, with the most eager options."""
    eager = {
        "expire_snapshots": {"older_than": "1ms", "retain_last": 1, "max_snapshots": 1},
    }
    catalog = catalog_for(load(lake.file).pipeline.catalog)
    tables = java_tables(lake.spark, catalog, "p")
    chosen = MaintenanceOptions.model_validate({**eager, **options})
    runner = ActionRunner(chosen, lake.spark, tables, catalog.open, turns or MaintenanceGate())
    OPEN.append(runner)
    return runner


OPEN = []


@pytest.fixture(autouse=True)
def _closed():
    """No process of a rewrite outlives its test."""
    yield
    while OPEN:
        OPEN.pop().close()


def act(lake, kind, table=PAGES, actions=None, stopped=lambda: False, groups=None, **options):
    """One action, on all that the table has."""
    if kind is ActionKind.REWRITE_DATA_FILES and groups is None:
        groups = groups_of(lake, table)
    seen = []
    actions = actions or acting(lake, **options)
    result = actions.run(
        Action(table, kind, "a test", tuple(groups or ())),
        stopped,
        lambda done, total: seen.append((done, total)),
    )
    assert all(done <= total for done, total in seen)
    return result


def groups_of(lake, table):
    """A group for each partition, as the health of the table sees it."""
    found = HealthReader(MaintenanceOptions()).read(table, lake.table(table)).contents
    groups = []
    for place, partition in enumerate(found.partitions):
        some = [at for at in range(len(found.data)) if found.data.partition_numbers[at] == place]
        paths = [found.data.paths[at].as_py() for at in some]
        size = int(sum(found.data.bytes[at] for at in some))
        groups.append(
            FileGroup(partition.name, partition.spec_id, tuple(paths), size, 0, partition.values)
        )
    return groups


def files(lake, table=PAGES):
    return [task.file for task in lake.table(table).scan().plan_files()]


def origins(lake, table=PAGES):
    """Where each row came from, by two engines that did not write the table."""
    found = lake.values(table, "_src_partition", "_src_offset")
    query = f"SELECT _src_partition, _src_offset FROM lake.{table}"
    assert Counter(tuple(row) for row in lake.spark_rows(query)) == Counter(found)
    return found


def clean(lake):
    result = verify(load(lake.file).pipeline)
    assert result.clean, result.violations
    return True


def goes_on(lake):
    """A run after all that brings in what is missing, and no more."""
    lake.configure(CONFIG.format(rows=800))
    lake.run()
    found = lake.values(PAGES, "_src_topic", "_src_offset")
    found += lake.values(ORDERS, "_src_topic", "_src_offset")
    assert len(found) == len(set(found)) == 800
    return clean(lake)


# -- what they do -------------------------------------------------------------------------------


def test_small_files_are_joined_and_the_stream_goes_on(made):
    before, marker = origins(made), made.marker(PAGES)
    result = act(made, ActionKind.REWRITE_DATA_FILES)
    totals = result.totals
    assert (result.ending, totals.files_before, totals.files_after) == (Ending.DONE, 6, 1)
    assert result.totals.bytes_before == sum(f.file_size_in_bytes for f in files_of_parent(made))
    assert result.totals.bytes_after == files(made)[0].file_size_in_bytes
    assert result.seconds > 0
    assert len(files(made)) == 1
    assert origins(made) == before
    assert made.marker(PAGES) == marker
    assert "icestream.commit-id" not in newest(made).summary.additional_properties
    again = act(made, ActionKind.REWRITE_DATA_FILES)
    assert (again.ending, again.totals.files_before) == (Ending.NOTHING, 0)
    assert goes_on(made)


def files_of_parent(lake):
    table = lake.table(PAGES)
    parent = table.current_snapshot().parent_snapshot_id
    return [task.file for task in table.scan(snapshot_id=parent).plan_files()]


def newest(lake, table=PAGES):
    return lake.table(table).current_snapshot()


def test_only_the_partitions_of_the_groups_and_sorted_as_the_table_is(made):
    import pyarrow.parquet as pq

    before = origins(made, ORDERS)
    groups = groups_of(made, ORDERS)
    chosen = [group for group in groups if "paid" in group.partition]
    assert 0 < len(chosen) < len(groups)
    result = act(made, ActionKind.REWRITE_DATA_FILES, ORDERS, groups=chosen)
    assert result.ending is Ending.DONE
    assert result.totals.files_before == sum(len(group.files) for group in chosen)
    assert result.totals.files_after == len(chosen)
    left = {file.file_path for file in files(made, ORDERS)}
    kept = {path for group in groups if group not in chosen for path in group.files}
    assert kept < left
    for path in left - kept:
        numbers = pq.read_table(path.removeprefix("file:")).column("order_id").to_pylist()
        assert numbers == sorted(numbers, reverse=True)
    assert origins(made, ORDERS) == before
    assert clean(made)


def test_manifests_become_few(made):
    before = origins(made)
    result = act(made, ActionKind.REWRITE_MANIFESTS)
    assert result.ending is Ending.DONE
    assert result.totals.files_before >= 6
    assert result.totals.files_after == 1
    assert len(newest(made).manifests(made.table(PAGES).io)) == 1
    assert origins(made) == before
    assert goes_on(made)


def test_expiry_at_its_most_aggressive_keeps_the_marker(made):
    act(made, ActionKind.REWRITE_DATA_FILES)
    result = act(made, ActionKind.EXPIRE_SNAPSHOTS)
    assert (result.ending, result.totals.files_after) == (Ending.DONE, 1)
    table = made.table(PAGES)
    assert len(table.metadata.snapshots) == 1
    assert act(made, ActionKind.EXPIRE_SNAPSHOTS).ending is Ending.NOTHING
    assert goes_on(made)
    # Files that a snapshot replaced go when that one does, and what only the others named is gone.
    assert act(made, ActionKind.EXPIRE_SNAPSHOTS).ending is Ending.DONE
    folder = local(table.location()) / "data"
    live = {local(file.file_path) for file in files(made)}
    assert set(folder.rglob("*.parquet")) == live
    assert clean(made)


def test_expiry_keeps_what_is_named_and_as_many_as_it_is_told(made):
    table = made.table(PAGES)
    first = table.metadata.snapshots[0].snapshot_id
    with table.manage_snapshots() as named:
        named.create_tag(first, "kept")
    rules = {"older_than": "1ms", "retain_last": 3, "max_snapshots": 1}
    result = act(made, ActionKind.EXPIRE_SNAPSHOTS, expire_snapshots=rules)
    assert result.ending is Ending.DONE
    left = {each.snapshot_id for each in made.table(PAGES).metadata.snapshots}
    assert first in left
    assert len(left) == 4
    assert made.table(PAGES).scan(snapshot_id=first).to_arrow() is not None


def test_a_table_that_was_moved_back_is_not_expired(made):
    table = made.table(PAGES)
    parent = table.current_snapshot().parent_snapshot_id
    made.spark_rows(f"CALL lake.system.rollback_to_snapshot('{PAGES}', {parent})")
    count = len(made.table(PAGES).metadata.snapshots)
    result = act(made, ActionKind.EXPIRE_SNAPSHOTS)
    assert result.ending is Ending.GAVE_WAY
    assert "disagree" in result.detail
    assert len(made.table(PAGES).metadata.snapshots) == count


# -- conflicts, lost answers, deaths ------------------------------------------------------------


@contextmanager
def at_commit(monkeypatch, before=None, after=None):
    """Something happens right before or after the first attempt of a rewrite."""
    real, left = IcebergTables.transact, [1]

    def transact(self, name, base, build):
        mine = left.pop() if left else 0
        if mine and before:
            before()
        real(self, name, base, build)
        if mine and after:
            after()

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTables, "transact", transact)
        yield


def more_rows(lake):
    lake.configure(CONFIG.format(rows=700))
    lake.run()


def test_a_batch_that_comes_first_costs_one_more_attempt(made, monkeypatch):
    with at_commit(monkeypatch, before=lambda: more_rows(made)):
        result = act(made, ActionKind.REWRITE_DATA_FILES)
    totals = result.totals
    assert (result.ending, totals.files_before, totals.attempts) == (Ending.DONE, 6, 2)
    assert len(files(made)) == 2  # the new batch's beside ours
    assert goes_on(made)


def test_a_lost_answer_is_found_in_the_table(made, monkeypatch):
    def lose():
        raise CommitFailed("no answer")

    before = origins(made)
    with at_commit(monkeypatch, after=lose):
        result = act(made, ActionKind.REWRITE_DATA_FILES)
    totals = result.totals
    assert (result.ending, totals.files_before, totals.attempts) == (Ending.DONE, 6, 1)
    assert len(files(made)) == 1
    assert origins(made) == before
    assert goes_on(made)


def test_a_foreign_compaction_in_the_middle_is_given_way_to(made, monkeypatch):
    before = origins(made)
    call = f"CALL lake.system.rewrite_data_files('{PAGES}', options => map('min-input-files','2'))"
    with at_commit(monkeypatch, before=lambda: made.spark_rows(call)):
        result = act(made, ActionKind.REWRITE_DATA_FILES)
    assert result.ending is Ending.GAVE_WAY
    assert "delete" in result.detail  # Iceberg's words: files to delete are missing
    assert len(files(made)) == 1
    assert origins(made) == before
    assert goes_on(made)


@pytest.mark.parametrize(
    "point, left",
    [
        ("rewrite-begun", 6),
        ("rewrite-staged", 6),  # new files are there, and nobody names them
        ("rewrite-committed", 1),
    ],
)
def test_a_rewrite_that_dies_somewhere_loses_nothing(made, arm, point, left):
    before = origins(made)
    arm(f"{point}:raise:1:1")
    result = act(made, ActionKind.REWRITE_DATA_FILES)
    assert result.ending is Ending.FAILED
    assert "raised by a failpoint" in result.detail
    assert len(files(made)) == left
    assert origins(made) == before
    assert clean(made)


def test_what_an_expiry_leaves_behind_is_collected(made, arm):
    act(made, ActionKind.REWRITE_DATA_FILES)
    arm("snapshots-expired:raise:1:1")
    result = act(made, ActionKind.EXPIRE_SNAPSHOTS)
    assert result.ending is Ending.NOTHING  # at the second look
    assert len(made.table(PAGES).metadata.snapshots) == 1
    folder = local(made.table(PAGES).location())
    assert len(list(folder.rglob("*.parquet"))) == 7
    age(folder, days=5)
    # Data of commits that are no longer in the snapshots is in doubt until the next start.
    assert act(made, ActionKind.REMOVE_ORPHAN_FILES).ending is Ending.DONE
    assert goes_on(made)
    age(folder, days=5)
    assert act(made, ActionKind.REMOVE_ORPHAN_FILES).ending is Ending.DONE
    live = {local(file.file_path) for file in files(made)}
    older = {p for p in folder.rglob("p-00001-*.parquet") if p not in live}
    assert older == set()
    assert clean(made)


def test_a_rewrite_that_waits_for_its_turn_is_called_off(made):
    stop = threading.Event()
    turns = MaintenanceGate(stopped=stop.is_set)
    before = origins(made)
    with ThreadPoolExecutor(1) as pool, turns.batch():  # of a stream that takes its time
        result = pool.submit(
            act, made, ActionKind.REWRITE_DATA_FILES, PAGES, acting(made, turns), stop.is_set
        )
        assert soon(lambda: turns._commits_waiting or result.done(), 240)
        stop.set()
        assert result.result().ending is Ending.CANCELLED
    assert len(files(made)) == 6
    assert origins(made) == before


def test_no_connection_to_python_is_left_by_a_rewrite(made):
    """The threads of an action must not ask Python: each would keep a connection for ever."""
    actions = acting(made)
    act(made, ActionKind.REWRITE_DATA_FILES, actions=actions)
    before = threading.active_count()
    for kind in (
        ActionKind.REMOVE_ORPHAN_FILES,
        ActionKind.EXPIRE_SNAPSHOTS,
        ActionKind.REWRITE_MANIFESTS,
    ):
        act(made, kind, actions=actions)
    act(made, ActionKind.REWRITE_DATA_FILES, ORDERS, actions=actions)
    assert threading.active_count() <= before


def local(path):
    return Path(path.removeprefix("file:").removeprefix("//"))


def age(folder, days):
    """All files below look older than they are."""
    then = time.time() - timedelta(days=days).total_seconds()
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))
