"""Maintenance beside a running stream: at its most eager, by others, and as another process."""

import json
import os
import subprocess
import textwrap
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.exceptions import CommitFailedException

from commands import COMMAND
from icestream.catalogs import catalog_for
from icestream.commit.java_catalog import java_tables
from icestream.config.load import load
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.events import (
    MaintenanceFailed,
    MaintenanceFinished,
    MaintenanceStarted,
    RunFailed,
    RunRestarting,
    TableCommitted,
)
from icestream.maintain.action import Action, ActionKind, Ending
from icestream.maintain.actions import ActionRunner
from icestream.maintain.gate import MaintenanceGate
from icestream.maintain.policy import Budget
from icestream.sources.shop import make
from icestream.verify import verify
from servers import soon

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PAGES, ORDERS = "shop.pages", "shop.orders"
STREAM = f"""\
name: p
source: {{type: generator, topics: [page_events], rate: 200}}
commit_interval: 1s
tables: [{{name: {PAGES}}}]
"""
EAGER = """\
maintenance:
  every: 1s
  rewrite_data_files: {min-input-files: "2"}
  expire_snapshots: {older_than: 1ms, retain_last: 1, max_snapshots: 1}
"""
PATIENCE = 240.0


@pytest.fixture
def no_rest(monkeypatch):
    """Expiry at each look, however long the last one took."""
    monkeypatch.setattr("icestream.maintain.policy.Budget", lambda: Budget(expiry=1e9))


def configure(lake, text):
    lake.file.write_text(textwrap.dedent(text))


def commits(lake):
    return [each for each in lake.events if isinstance(each, TableCommitted)]


def finished(lake, kind, ending="done"):
    return [
        each
        for each in lake.events
        if isinstance(each, MaintenanceFinished) and (each.action, each.ending) == (kind, ending)
    ]


def files(lake):
    return [task.file for task in lake.table(PAGES).scan().plan_files()]


def exact(lake, landed):
    """Each record is in the table once, and the table can be proved."""
    offsets = sorted(row[0] for row in lake.values(PAGES, "_src_offset"))
    assert offsets == list(range(landed))
    result = verify(load(lake.file).pipeline)
    assert result.clean, result.violations
    return True


def unharmed(events):
    """No batch failed, and no look did."""
    return not [e for e in events if isinstance(e, RunRestarting | RunFailed | MaintenanceFailed)]


def test_an_append_stream_at_its_most_eager(lake, no_rest):
    configure(lake, STREAM + EAGER)

    def busy():
        done = finished(lake, "rewrite_data_files"), finished(lake, "expire_snapshots")
        return len(commits(lake)) >= 10 and min(map(len, done)) >= 2

    with lake.running():
        assert soon(busy, PATIENCE), lake.events[-5:]
    first = commits(lake)
    assert unharmed(lake.events)
    landed = sum(each.landed for each in first)
    assert exact(lake, landed)
    # Fewer than were written, by as many as the rewrites say that they have saved.
    rewrites = [
        each
        for each in lake.events
        if isinstance(each, MaintenanceFinished) and each.action == "rewrite_data_files"
    ]
    saved = sum(each.files_before - each.files_after for each in rewrites)
    assert saved >= 2  # at least two rewrites, each of two files or more
    assert len(files(lake)) == sum(each.files for each in first) - saved
    assert len(lake.table(PAGES).metadata.snapshots) < len(first)
    # The marker outlived all of that: a restart goes on where the stream stood.
    with lake.running():
        assert soon(lambda: len(commits(lake)) >= 2, PATIENCE)
    assert unharmed(lake.events)
    assert exact(lake, landed + sum(each.landed for each in commits(lake)))


def test_a_mirror_at_its_most_eager(lake, no_rest):
    source = "{type: generator, topics: [order_changes], rate: 300}"
    table = f"{{name: {ORDERS}, mode: upsert, keys: [order_id]}}"
    configure(
        lake,
        f"name: p\nsource: {source}\ncommit_interval: 1s\ntables: [{table}]\n{EAGER}",
    )

    def busy():
        done = finished(lake, "rewrite_data_files"), finished(lake, "expire_snapshots")
        return len(commits(lake)) >= 10 and min(map(len, done)) >= 2

    with lake.running():
        assert soon(busy, PATIENCE), lake.events[-5:]
    assert unharmed(lake.events)
    changes = make("order_changes", 0, sum(each.landed for each in commits(lake)), 0, 0, None, 0.0)
    told = [json.loads(text) for text in changes.column("value").to_pylist()]
    truth = {change["order_id"]: change["status"] for change in told}
    assert lake.values(ORDERS, "order_id", "status") == sorted(truth.items(), key=repr)
    result = verify(load(lake.file).pipeline)
    assert result.clean, result.violations


def test_without_maintenance_nothing_runs(lake):
    configure(lake, STREAM + "maintenance: false\n")
    with lake.running():
        assert soon(lambda: len(commits(lake)) >= 3, PATIENCE)
        assert "maintenance" not in {each.name for each in threading.enumerate()}
    assert not [e for e in lake.events if isinstance(e, MaintenanceStarted | MaintenanceFinished)]


def test_others_maintain_the_table_in_the_middle(lake):
    # Ours at its most eager would make theirs fail, which is not the question here.
    configure(lake, STREAM + "maintenance: false\n")
    foreign = (
        f"CALL lake.system.rewrite_data_files('{PAGES}', options => map('min-input-files','2'))"
    )
    with lake.running():
        for wanted in (4, 8):
            assert soon(lambda n=wanted: len(commits(lake)) >= n, PATIENCE)
            lake.spark_rows(foreign)
            expire_by_pyiceberg(lake)
        assert soon(lambda: len(commits(lake)) >= 12, PATIENCE)
    assert unharmed(lake.events)
    assert exact(lake, sum(each.landed for each in commits(lake)))


def expire_by_pyiceberg(lake):
    """As anybody would who meets other commits: until it is through."""
    while True:
        try:
            table = lake.table(PAGES)
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
            return
        except CommitFailedException:
            continue


# -- orphans ------------------------------------------------------------------------------------


@contextmanager
def held_batch(lake, monkeypatch):
    """A run whose batch is staged and not committed until the end of the block; → its files."""
    staged, go_on = threading.Event(), threading.Event()

    def failpoint(name):
        if name == "files-staged":
            staged.set()
            assert go_on.wait(PATIENCE)

    before = data_files(lake)
    monkeypatch.setattr("icestream.batch.spark_job.failpoint", failpoint)
    with lake.running() as run:
        assert soon(lambda: staged.is_set() or run.done(), PATIENCE)
        try:
            yield data_files(lake) - before
        finally:
            go_on.set()
        assert soon(lambda: len(commits(lake)) >= 1, PATIENCE)


def data_files(lake):
    folder = lake.folder / "warehouse" / "shop" / "pages" / "data"
    return set(folder.rglob("*.parquet")) if folder.exists() else set()


def plant(lake):
    """A file that a run of the first generation left behind."""
    path = next(iter(data_files(lake))).parent / f"p-00001-{'a' * 32}-dead-00000.parquet"
    path.write_bytes(b"PAR1")
    return path


def some_rows(lake):
    configure(lake, STREAM + "maintenance: {remove_orphan_files: {older_than: 1d}}\n")
    with lake.running():
        assert soon(lambda: len(commits(lake)) >= 2, PATIENCE)
    return sum(each.landed for each in commits(lake))


def test_a_staged_file_of_a_running_batch_is_no_orphan_at_any_age(lake, monkeypatch):
    landed = some_rows(lake)
    left = plant(lake)
    catalog = catalog_for(load(lake.file).pipeline.catalog)
    with held_batch(lake, monkeypatch) as staged:
        assert staged
        actions = ActionRunner(
            MaintenanceOptions.model_validate({"remove_orphan_files": {"older_than": "1ms"}}),
            lake.spark,
            java_tables(lake.spark, catalog, "p"),
            catalog.open,
            MaintenanceGate(),
        )
        action = Action(PAGES, ActionKind.REMOVE_ORPHAN_FILES, "a test")
        result = actions.run(action, lambda: False, lambda done, total: None)
        assert result.ending is Ending.DONE, result.detail
        assert not left.exists()
        assert {path for path in staged if path.exists()} == staged
    assert unharmed(lake.events)
    assert exact(lake, landed + sum(each.landed for each in commits(lake)))


def test_not_even_an_old_one_for_another_process(lake, monkeypatch):
    landed = some_rows(lake)
    left = plant(lake)
    with held_batch(lake, monkeypatch) as staged:
        assert staged
        for path in (left, *staged):
            then = time.time() - timedelta(days=10).total_seconds()
            os.utime(path, (then, then))
        ran = maintain(lake, "--action", "remove_orphan_files", "--json")
        assert ran.returncode == 0, ran.stderr
        [result] = json.loads(ran.stdout)["results"]
        assert result["ending"] == "done", result
        assert not left.exists()
        assert {path for path in staged if path.exists()} == staged
    assert unharmed(lake.events)
    assert exact(lake, landed + sum(each.landed for each in commits(lake)))
    told = json.loads(maintain(lake, "--history", "--json").stdout)["runs"]
    assert [(run["action"], run["ending"]) for run in told] == [("remove_orphan_files", "done")]


def maintain(lake, *arguments):
    """`icestream maintain`, as a process of its own."""
    return subprocess.run(
        [*COMMAND, "--log-format", "json", "maintain", str(lake.file), *arguments],
        cwd=Path(lake.folder),
        capture_output=True,
        text=True,
    )
