"""`verify --source` of mirrors that a real pipeline made from a real broker's records."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyiceberg.expressions import EqualTo

from feeds import TABLE, Feed
from icestream.cli import main as entry
from icestream.config.load import load
from icestream.verify import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ABSENT = "__debezium_unavailable_value"
COLUMNS = {"id": "bigint", "v": "bigint", "big": "string"}


@dataclass
class Source:
    """A table of PostgreSQL in a topic of two partitions; changes of a key are in one of them."""

    feed: Feed
    lsn: int = 100
    told: list[int] = field(default_factory=list)

    def configure(self, **rule: Any) -> None:
        table = {"name": TABLE, "mode": "upsert", "columns": COLUMNS, **rule}
        self.feed.configure({"format": {"type": "debezium"}}, [table])

    def tell(self, op: str, key: int, **after: Any) -> None:
        self.lsn += 1
        value = {
            "op": op,
            "before": {"id": key} if op == "d" else None,
            "after": {"id": key, **after} if after else None,
            "source": {"connector": "postgresql", "lsn": self.lsn},
        }
        self.feed.put([value], keys=[json.dumps({"id": key})], partition=key % 2)


@pytest.fixture
def source(feed: Feed) -> Source:
    """Two runs: rows come, change, go and come back; one record is bad."""
    made = Source(feed)
    feed.create(partitions=2)
    made.configure()
    for key in range(8):
        made.tell("c", key, v=key, big=f"big {key}")
    feed.put(["{broken"], partition=0)
    feed.lake.run()
    made.tell("u", 1, v=11, big=ABSENT)
    made.tell("d", 2)
    made.tell("d", 3)
    made.tell("c", 3, v=33, big="back")
    feed.lake.run()
    return made


def compared(source: Source) -> tuple[list[str], Any, Any]:
    """The kinds of findings, how the comparison ended, and all of it."""
    result = verify(load(source.feed.lake.file).pipeline, source=True)
    [check] = [c for c in result.tables[0].checks if c.name == "source"]
    return [f.kind for f in result.violations], check, result


def change(source: Source, key: int, **values: Any) -> None:
    """Somebody puts another row in the place of one, or where there is none."""
    table = source.feed.lake.table(TABLE)
    rows = table.scan(row_filter=EqualTo("id", key)).to_arrow()
    rows = rows if rows.num_rows else table.scan(row_filter=EqualTo("id", 0)).to_arrow()
    table.delete(EqualTo("id", key))
    new = [{**rows.to_pylist()[0], "id": key, **values}]
    table.append(type(rows).from_pylist(new, schema=rows.schema))


def test_a_mirror_and_its_records(source, capsys, monkeypatch):
    kinds, check, result = compared(source)
    assert kinds == [], result.violations
    assert check.status == "ok"
    assert check.detail == "13 records of the broker make 8 keys, compared with 7 rows"

    change(source, 1, big="other")  # which its newest record does not carry
    kinds, check, result = compared(source)
    assert (kinds, result.violations[0].expected) == (
        ["value-differs"],
        "id = 1: `big` = 'big 1'",
    )
    change(source, 2)
    assert compared(source)[0] == ["resurrected", "value-differs"]
    source.feed.lake.table(TABLE).delete(EqualTo("id", 3))
    kinds, check, result = compared(source)
    assert kinds == ["missing", "resurrected", "value-differs"]
    assert (result.lost, result.phantom, check.status) == (1, 1, "violated")

    monkeypatch.chdir(source.feed.lake.folder)
    with pytest.raises(SystemExit) as ended:
        entry.main(["verify", "--source", "--json"])
    assert ended.value.code == 1
    told = json.loads(capsys.readouterr().out)
    assert [f["kind"] for f in told["tables"][0]["findings"]] == kinds
    with pytest.raises(SystemExit) as ended:
        entry.main(["verify", "--json"])  # from the table alone nobody can tell
    assert not ended.value.code


def test_what_the_broker_no_longer_has_is_not_proven(source):
    with AdminClient({"bootstrap.servers": source.feed.bootstrap}) as admin:
        for done in admin.delete_records([TopicPartition(source.feed.topic, 0, 3)]).values():
            done.result(20)
    kinds, check, _ = compared(source)
    assert (kinds, check.status) == ([], "unchecked")
    assert "not proven: 3 offsets are not on the broker any more" in check.detail
    change(source, 0, v=5)  # its record is gone
    assert compared(source)[0] == []
    change(source, 1, v=5)
    assert compared(source)[0] == ["value-differs"]


def test_a_compacted_topic_is_not_proven(feed):
    made = Source(feed)
    feed.create(cleanup_policy="compact", partitions=2)
    made.configure(deletes="soft")
    for key in range(4):
        made.tell("c", key, v=key, big="b")
    made.tell("d", 2)
    feed.lake.run()
    kinds, check, result = compared(made)
    assert (kinds, check.status) == ([], "unchecked"), result.violations
    assert f"not proven: {feed.topic}: compacted" in check.detail
    change(made, 2, _is_deleted=False)
    kinds, _, result = compared(made)
    assert kinds == ["value-differs"]
    assert result.violations[0].expected == "id = 2: `_is_deleted` = True"
