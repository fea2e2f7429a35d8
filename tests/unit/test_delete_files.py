"""Position deletes: which of them share a file, and that nothing is left out."""

from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

from icestream.tables.partition_values import PartitionKey
from icestream.write.position_deletes import write_deletes
from icestream.write.target import StageTarget

HERE, THERE = PartitionKey(0, ("a",)), PartitionKey(0, ("b",))
CASES = {
    "few in all": ({"f1": 5_000, "f2": 4_000}, [2]),
    "many in each": ({"f1": 8_000, "f2": 7_000, "f3": 1_500}, [1, 1, 1]),
    "many in one, few in others": ({"f1": 50_000, "f2": 3, "f3": 5, "f4": 900}, [1, 3]),
    "many in one, few in a hundred": ({"f1": 50_000, **{f"g{n}": 3 for n in range(100)}}, [1, 100]),
    "many in too many": ({f"f{n:02}": 2_000 for n in range(17)}, [17]),
}


def target(folder):
    return StageTarget(
        data_location=str(folder / "data"),
        file_prefix="p",
        schema_json="{}",
        spec_json="{}",
        sort_order_json="{}",
        properties={},
    )


@pytest.mark.parametrize("case", CASES)
def test_few_deletes_share_a_file(tmp_path, case):
    counts, told = CASES[case]
    dead = {path: np.arange(count) for path, count in counts.items()}
    files = write_deletes(dead, lambda _: HERE, target(tmp_path), "x")
    found = [Counter(pq.read_table(each.path)["file_path"].to_pylist()) for each in files]
    assert [len(each) for each in found] == told
    assert sum(found, Counter()) == Counter(counts)


def test_partitions_share_nothing(tmp_path):
    dead = {"f1": np.arange(20_000), "f2": np.arange(3), "g1": np.arange(4)}
    place = {"f1": HERE, "f2": HERE, "g1": THERE}.__getitem__
    files = write_deletes(dead, place, target(tmp_path), "x")
    assert sorted(each.records for each in files) == [3, 4, 20_000]
    assert [PartitionKey.of(each.content_json) for each in files] == [HERE, HERE, THERE]
