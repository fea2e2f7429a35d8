"""A batch that died before its commit leaves nothing in a mirror, even if the next is shorter."""

import json
import shutil

import pyarrow as pa
import pytest

from conformance.stand import Stand
from icestream.batch import spark_job
from icestream.catalogs import catalog_for
from icestream.records import RECORDS

pytestmark = pytest.mark.spark

FACTS = {
    "source": {"format": {"type": "json"}},
    "tables": [
        {
            "name": "db.t",
            "mode": "upsert",
            "keys": ["id"],
            "sequence_by": ["v"],
            "apply_as_deletes": "gone",
            "columns": {"id": "bigint", "v": "bigint", "gone": "boolean"},
        }
    ],
}
# Key 1 is gone, comes back, is deleted for good; an older change of it comes late.
CHANGES = [(1, 1, False), (1, 2, True), (2, 3, False), (1, 4, False), (1, 6, True), (1, 5, False)]


class Died(Exception):
    pass


def records(first, stop):
    rows = [
        {
            "topic": "t",
            "partition": 0,
            "offset": at,
            "timestamp": 0,
            "key": None,
            "value": json.dumps(dict(zip(("id", "v", "gone"), CHANGES[at], strict=True))).encode(),
        }
        for at in range(first, stop)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORDS)


def versions(stand):
    found = catalog_for(stand.config.catalog).open().load_table("db.t").scan().to_arrow()
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


@pytest.mark.parametrize("state", ["is kept", "is lost", "is of yesterday"])
def test_a_delete_that_was_staged_is_not_known_before_it_comes(spark, tmp_path, monkeypatch, state):
    stand = Stand(spark, tmp_path, ["t"], FACTS)
    stand.take(records(0, 1))
    shutil.copytree(tmp_path / "state", tmp_path / "yesterday")
    stand.take(records(1, 2))
    stand.take(records(2, 3))
    assert versions(stand) == {2: 3}

    def die(name):
        if name == "files-staged":
            raise Died

    with monkeypatch.context() as patch:
        patch.setattr(spark_job, "failpoint", die)
        with pytest.raises(Died):
            stand.take(records(3, 6))
    if state != "is kept":
        shutil.rmtree(tmp_path / "state")
    if state == "is of yesterday":
        shutil.copytree(tmp_path / "yesterday", tmp_path / "state")
        stand.sql("CALL stand.system.expire_snapshots('db.t', TIMESTAMP '2999-01-01', 1)")
    stand.start()
    stand.take(records(3, 4))
    assert versions(stand) == {1: 4, 2: 3}
    stand.take(records(4, 6))
    assert versions(stand) == {2: 3}
