"""When rows are gathered, and that none is lost on the way."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icestream.batch.shuffle import FileSpread, PartitionShuffler
from icestream.batch.write_task import WriteTask, _AppendTableWriter
from icestream.write.target import StagedFile
from unit.test_stage import ARROW, BUCKET, target

MB = 1 << 20


def files(partitions, each, size):
    return [
        StagedFile(f"/t/data/p={p}/{n}.parquet", 10, size, "{}")
        for p in range(partitions)
        for n in range(each)
    ]


@pytest.mark.parametrize(
    "partitions, each, size, gathers",
    [
        (8, 4, 10_000, True),
        (8, 1, 10_000, False),  # as few as can be
        (8, 4, 64 * MB, False),  # large enough as they are
        (1, 4, 10_000, False),  # one task would write all
        (1000, 2, 1 * MB, True),
    ],
)
def test_only_many_small_files_are_worth_a_shuffle(partitions, each, size, gathers):
    spread = FileSpread()
    assert not spread.shuffle_pays
    spread.observe(files(partitions, each, size), was_shuffled=False)
    assert spread.shuffle_pays == gathers


def test_it_stays_gathered_until_the_files_are_large():
    spread = FileSpread()
    spread.observe(files(8, 4, 10_000), was_shuffled=False)
    spread.observe(files(8, 1, 40_000), was_shuffled=True)
    assert spread.shuffle_pays
    spread.observe([], was_shuffled=True)
    assert spread.shuffle_pays
    spread.observe(files(8, 1, 256 * MB), was_shuffled=True)
    assert not spread.shuffle_pays


def test_rows_of_two_tasks_come_to_one_file_for_each_partition(tmp_path):
    place = target(tmp_path, [BUCKET])
    blocks: dict[int, list[bytes]] = {}
    for task in range(2):
        sharer = PartitionShuffler(place)
        for batch in range(2):
            first = (task * 2 + batch) * 50
            rows = pa.RecordBatch.from_pylist(
                [{"id": n} for n in range(first, first + 50)], schema=ARROW
            )
            for group, block in sharer.blocks_by_group(rows):
                blocks.setdefault(group, []).append(block)
    staged = []
    for group, some in blocks.items():
        table = SimpleNamespace(target=place)
        writer = _AppendTableWriter(WriteTask("p", {"t": table}, datetime.now(UTC)), "t")
        writer.process_group(group, some)
        staged += writer.finish().staged.files
    folders = [file.path.rpartition("/")[0] for file in staged]
    assert len(folders) == len(set(folders)) == 4
    ids = [id_ for file in staged for id_ in pq.read_table(file.path)["id"].to_pylist()]
    assert sorted(ids) == list(range(200))
