"""Small files avoided: rows of a partition from all tasks come to one file."""

import pytest

from icestream.events import TableCommitted

pytestmark = pytest.mark.spark

PARTS = 8
CONFIG = """
    name: p
    source: {type: files, path: ./in, max_records_per_commit: 400}
    tables:
      - {name: db.events, match: "events.*", columns: {id: bigint, part: int}, partition_by: [part]}
      - {name: db.whole, match: 'whole.*'}
"""


def test_a_partition_is_one_file_from_the_second_commit_on(lake):
    lake.configure(CONFIG)
    for batch in range(3):
        for file in range(4):
            first = (batch * 4 + file) * 100
            name = f"events-{batch}-{file}.jsonl"
            lake.put(name, *({"id": n, "part": n % PARTS} for n in range(first, first + 100)))
    lake.run()
    commits = [e for e in lake.events if isinstance(e, TableCommitted)]
    assert [commit.landed for commit in commits] == [400, 400, 400]
    assert commits[0].files > PARTS  # nobody knew yet
    assert [commit.files for commit in commits[1:]] == [PARTS, PARTS]
    [(count, ids)] = lake.spark_rows("SELECT count(*), count(DISTINCT id) FROM lake.db.events")
    assert (count, ids) == (1200, 1200)
    assert all(id_ % PARTS == part for id_, part in lake.values("db.events", "id", "part"))


def test_bad_records_and_other_tables_go_along(lake):
    lake.configure(CONFIG)
    for batch in range(3):
        for file in range(3):
            first = (batch * 3 + file) * 100
            name = f"events-{batch}-{file}.jsonl"
            path = lake.put(name, *({"id": n, "part": n % PARTS} for n in range(first, first + 99)))
            with path.open("a") as out:
                out.write("{broken\n")
        lake.put(f"whole-{batch}.jsonl", *({"n": n} for n in range(batch * 100, batch * 100 + 100)))
        lake.run()
    assert len(lake.values("db.events", "id")) == 891
    assert lake.rows("db.events__quarantine").num_rows == 9
    assert lake.values("db.whole", "n") == sorted(((n,) for n in range(300)), key=repr)
    assert lake.marker("db.events")["counts"] == {"landed": 891, "quarantined": 9, "dropped": 0}
