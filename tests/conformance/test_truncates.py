"""A truncate empties the table for good: what was before it in the log never comes back."""

import json
import shutil
from typing import Any

import pyarrow as pa
import pytest

from conformance.stand import Stand
from icestream.catalogs import catalog_for
from icestream.records import RECORDS

pytestmark = pytest.mark.spark

TABLE = {"name": "db.t", "mode": "upsert", "columns": {"id": "bigint", "n": "bigint"}}
FACTS = {
    "source": {"format": {"type": "debezium"}},
    "tables": [{**TABLE, "keys": ["id"], "truncate": "apply"}],
}


class Mirror:
    """A table and its change events, in batches as a test cuts them."""

    def __init__(self, spark: Any, folder: Any) -> None:
        self.stand = Stand(spark, folder, ["t"], FACTS)
        self._offset = 0

    def take(self, *events: tuple[str, int | None, int]) -> None:
        """What is done, to which key, at which place in the log."""
        rows = []
        for op, key, lsn in events:
            after = None if op == "t" else {"id": key, "n": lsn}
            source = {"connector": "postgresql", "lsn": lsn}
            value = {"op": op, "before": None, "after": after, "source": source}
            rows.append(
                {
                    "topic": "t",
                    "partition": 0,
                    "offset": self._offset,
                    "timestamp": 0,
                    "key": None if key is None else json.dumps({"id": key}).encode(),
                    "value": json.dumps(value).encode(),
                }
            )
            self._offset += 1
        self.stand.take(pa.RecordBatch.from_pylist(rows, schema=RECORDS))

    def rows(self) -> dict[int, int]:
        table = catalog_for(self.stand.config.catalog).open().load_table("db.t")
        found = table.scan().to_arrow()
        return dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))


@pytest.fixture
def mirror(spark, tmp_path):
    made = Mirror(spark, tmp_path)
    made.take(("c", 1, 100), ("c", 2, 101))
    made.take(("t", None, 110), ("c", 3, 111))
    assert made.rows() == {3: 111}
    return made


def test_rows_that_are_older_and_come_late_stay_away(mirror):
    mirror.take(("c", 1, 100), ("c", 5, 105), ("u", 3, 112))
    assert mirror.rows() == {3: 112}
    mirror.take(("c", 5, 120), ("c", 6, 109))
    assert mirror.rows() == {3: 112, 5: 120}


def test_an_older_truncate_that_comes_late_changes_nothing(mirror):
    mirror.take(("t", None, 50))
    mirror.take(("c", 5, 105), ("c", 6, 113))
    assert mirror.rows() == {3: 111, 6: 113}


def test_it_is_known_after_the_index_was_lost(mirror):
    shutil.rmtree(mirror.stand.folder / "state")
    mirror.stand.start()
    mirror.take(("c", 5, 105), ("c", 6, 113))
    assert mirror.rows() == {3: 111, 6: 113}
