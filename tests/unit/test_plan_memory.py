"""What the settings of a run mean for memory, and that the figures are the code's own."""

import pytest

from icestream.batch import arrow_batches, decode_task, table_modes
from icestream.batch import write_task as upsert_task
from icestream.index.entries import COLUMNS
from icestream.maintain.rewrite import rewriter, stage
from icestream.plan import memory
from icestream.plan.memory import MB, MirrorSize, RunLoad, needs
from icestream.sources.kafka import source
from icestream.spark import session


def test_the_figures_are_those_of_the_code():
    settings, entry = session._SETTINGS, sum(kind.itemsize for kind in COLUMNS.values())
    assert settings["spark.driver.memory"] == memory.HEAP
    assert settings["spark.sql.execution.arrow.maxRecordsPerBatch"] == str(memory.BATCH_RECORDS)
    assert memory.BATCH_BYTES == arrow_batches._BYTE_LIMIT
    assert arrow_batches._SMALL_RECORD == memory.LARGE_RECORD
    assert decode_task._MEMORY == upsert_task._MEMORY == memory.HELD_ROWS
    assert table_modes._BYTES_PER_GROUP == memory.GROUP_BYTES
    assert source._FETCH_MEMORY == memory.KAFKA_FETCHES
    assert stage._MEMORY == memory.REWRITE_ROWS
    assert rewriter._MOST_RECORDS == memory.REWRITE_ENTRIES
    assert entry == memory.ENTRY_BYTES
    assert memory.cores_of(settings["spark.master"], 6) == 6


@pytest.mark.parametrize(
    "master, cores",
    [
        ("local", 1), ("local[*]", 6), ("local[3]", 3), ("local[*,3]", 6), ("local[2, 4]", 2),
        ("yarn", None), ("spark://host:7077", None), ("local-cluster[2,1,1024]", None),
    ],
)  # fmt: skip
def test_cores(master, cores):
    assert memory.cores_of(master, 6) == cores


@pytest.mark.parametrize(
    "text, size",
    [("1g", 1024 * MB), ("512m", 512 * MB), ("2048", 2048 * MB), ("1T", 1 << 40), ("much", None)],
)
def test_sizes_as_java_has_them(text, size):
    assert memory.size_of(text) == size


def test_batches_are_bounded_by_records_or_by_bytes():
    assert memory.batch_bytes(200.0) == 10_000_000
    assert memory.batch_bytes(8192.0) == 8192 * 50_000
    assert memory.batch_bytes(8193.0) == memory.batch_bytes(None) == 64 * MB


def of(found, what):
    (only,) = [each for each in found if what in each.what]
    return only


def test_a_plain_run():
    found = needs({}, 2, RunLoad(record_bytes=200.0, maintenance=False))
    assert [each.what for each in found] == ["JVM heap", "2 Python workers", "driver's Python"]
    assert of(found, "heap").memory_bytes == 1024 * MB
    assert of(found, "heap").kind == "limit"
    assert of(found, "workers").memory_bytes == 2 * (memory.PYTHON + 3 * 10_000_000)
    assert of(found, "workers").kind == "estimate"
    assert memory.total(found) == sum(each.memory_bytes for each in found)


def test_what_a_run_does_more_takes_more():
    plain = needs({}, 2, RunLoad(record_bytes=200.0))
    mirrored = RunLoad(record_bytes=200.0, laid_out=True, mirrors=[MirrorSize("shop.a", 5_000_000)])
    more = needs({}, 2, mirrored)
    assert of(more, "workers").memory_bytes == of(plain, "workers").memory_bytes + 2 * 256 * MB
    assert of(more, "a rewrite").memory_bytes == of(plain, "a rewrite").memory_bytes + 82_000_000
    assert of(more, "key index of shop.a").disk_bytes == 160_000_000
    assert of(more, "key index of shop.a").memory_bytes is None
    unknown = of(needs({}, 2, RunLoad(mirrors=[MirrorSize("shop.b", None)])), "key index of shop.b")
    assert unknown.disk_bytes is None
    assert "32 MB on local disk for a million keys" in unknown.why


def test_settings_of_the_file():
    found = needs({"spark.driver.memory": "4g", "spark.master": "local[8]"}, 2, RunLoad(kafka=True))
    assert of(found, "heap").memory_bytes == 4096 * MB
    assert "Kafka's fetches take up to 256 MiB of it" in of(found, "heap").why
    assert of(found, "workers").what == "8 Python workers"
    cluster = needs({"spark.master": "yarn", "spark.executor.memory": "3g"}, 2, RunLoad())
    assert of(cluster, "executor").memory_bytes == 3072 * MB
    assert of(cluster, "worker").what == "each Python worker"
