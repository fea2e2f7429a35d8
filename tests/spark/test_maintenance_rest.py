"""Maintenance on a REST catalog on a bad day: whatever its answers, no live file is removed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from badproxy import BadProxy, Rule
from conftest import Lake
from icestream.catalogs import catalog_for
from icestream.commit.java_catalog import java_tables
from icestream.config.load import load
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.maintain.action import Action, ActionKind, ActionResult, Ending, FileGroup
from icestream.maintain.actions import ActionRunner
from icestream.maintain.gate import MaintenanceGate
from icestream.verify import verify
from rest_server import RestServer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CONFIG = """
name: p
catalog:
  type: rest
  uri: {uri}
  properties: {{rest.client.max-retries: 1}}
source: {{type: files, path: ./in, max_records_per_commit: 10}}
tables:
  - {{name: {table}, columns: {{id: bigint}}}}
"""
RETRY = {"Retry-After": "1"}
EAGER = {
    "expire_snapshots": {"older_than": "1ms", "retain_last": 1, "max_snapshots": 1},
    "rewrite_data_files": {"rewrite-job-order": "none"},  # only Iceberg's action knows it
}


@dataclass
class Shop:
    """A table of three commits, behind a proxy."""

    lake: Lake
    proxy: BadProxy
    table: str

    def act(self, kind: ActionKind) -> ActionResult:
        catalog = catalog_for(load(self.lake.file).pipeline.catalog)
        spark = self.lake.spark
        tables = java_tables(spark, catalog, "p")
        actions = ActionRunner(
            MaintenanceOptions.model_validate(EAGER), spark, tables, catalog.open, MaintenanceGate()
        )
        groups = (FileGroup("", 0, tuple(self.files()), 1000, 30),)
        action = Action(self.table, kind, "a test", groups)
        try:
            return actions.run(action, lambda: False, lambda done, total: None)
        finally:
            actions.close()

    def files(self) -> list[str]:
        tasks = self.lake.table(self.table).scan().plan_files()
        return [task.file.file_path for task in tasks]

    def is_whole(self) -> bool:
        """Every row once for two engines, and a stream that goes on."""
        assert sorted(n for (n,) in self.lake.values(self.table, "id")) == list(range(30))
        self.lake.put("9.jsonl", *({"id": n} for n in range(30, 35)))
        self.lake.run()
        query = f"SELECT id FROM lake.{self.table} ORDER BY id"
        assert [row[0] for row in self.lake.spark_rows(query)] == list(range(35))
        result = verify(load(self.lake.file).pipeline)
        assert result.clean, result.violations
        return True


@pytest.fixture
def shop(lake: Lake, rest: RestServer, request: Any) -> Iterator[Shop]:
    with BadProxy(rest.uri) as proxy:
        table = f"m{abs(hash(request.node.name))}.events"
        lake.configure(CONFIG.format(uri=proxy.uri, table=table))
        for at in range(3):
            lake.put(f"{at}.jsonl", *({"id": n} for n in range(at * 10, at * 10 + 10)))
        lake.run()
        yield Shop(lake, proxy, table)


FAULTS = {
    "the answer is dropped": Rule(cut="drop"),
    "503 with Retry-After after success": Rule(status=503, headers=RETRY),
    "the network replays": Rule(forwards=2),
    "500, nothing done": Rule(forwards=0, status=500),
    "409, nothing done": Rule(forwards=0, status=409),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_rewrite_is_in_once_whatever_its_answer(shop: Shop, name: str) -> None:
    rule = FAULTS[name]
    shop.proxy.add(Rule(**{**vars(rule), "body": "deleted-data-files"}))
    result = shop.act(ActionKind.REWRITE_DATA_FILES)
    assert shop.proxy.hit()
    totals = result.totals
    assert (result.ending, totals.files_before, totals.files_after) == (Ending.DONE, 3, 1)
    assert len(shop.files()) == 1
    assert shop.is_whole()


@pytest.mark.parametrize("name", ["the answer is dropped", "503 with Retry-After after success"])
def test_an_expiry_is_in_whatever_its_answer(shop: Shop, name: str) -> None:
    rule = FAULTS[name]
    shop.proxy.add(Rule(**{**vars(rule), "body": "remove-snapshots"}))
    result = shop.act(ActionKind.EXPIRE_SNAPSHOTS)
    assert shop.proxy.hit()
    assert result.ending in (Ending.DONE, Ending.NOTHING)
    assert len(shop.lake.table(shop.table).metadata.snapshots) == 1
    assert shop.is_whole()


def test_manifests_are_rewritten_whatever_the_answer(shop: Shop) -> None:
    shop.proxy.add(Rule(status=503, headers=RETRY, body="manifests-replaced"))
    result = shop.act(ActionKind.REWRITE_MANIFESTS)
    assert shop.proxy.hit()
    assert result.ending is Ending.DONE
    assert shop.is_whole()
