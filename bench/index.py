"""Print what the key index costs: hashing, building, lookups, staging, merges; and its memory."""

import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, LongType, NestedField, StringType

from icestream.index.bucket import lookup
from icestream.index.build import BUCKETS, build
from icestream.index.entries import row_entries
from icestream.index.key_index import open_index
from icestream.index.keys import bucket_of, key_hashes
from icestream.index.sorted_run import RunIdentity, open_run, write_run

ROWS = int(os.environ.get("ICESTREAM_BENCH_ROWS", "10000000"))
FILES = 10
BATCH = 20_000
BATCHES = 100
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "_src_sequence", BinaryType()),
)


class Clock:
    """CPU and wall time of a block."""

    def __enter__(self):
        self.cpu, self.wall = -time.process_time(), -time.perf_counter()
        return self

    def __exit__(self, *_):
        self.cpu += time.process_time()
        self.wall += time.perf_counter()


def line(what, clock, note=""):
    print(f"{what:44} {clock.cpu:8.3f} CPU-s {clock.wall:8.3f} s  {note}", flush=True)


def memory(name):
    with Path("/proc/self/status").open() as file:
        return next(int(text.split()[1]) >> 10 for text in file if text.startswith(name))


def hashing():
    numbers = pa.array(np.random.default_rng(1).integers(0, 1 << 62, 1_000_000))
    texts = pa.array([f"{number:036x}" for number in numbers.to_pylist()])
    key_hashes([numbers])
    for what, columns in (("bigint", [numbers]), ("bigint and 36 characters", [numbers, texts])):
        best = None
        for _ in range(3):
            with Clock() as clock:
                key_hashes(columns)
            best = clock if best is None or clock.cpu < best.cpu else best
        line(f"hash 1 M keys: {what}", best)


def searching(folder):
    """One run of all keys, as large as it can get: the worst case for a search."""
    rng = np.random.default_rng(5)
    hashes = rng.integers(0, 1 << 64, (ROWS, 2), dtype=np.uint64)
    write_run(
        folder / "a.run", RunIdentity("", 0, ""), row_entries(hashes, 0, np.arange(ROWS)).newest()
    )
    asked = [hashes[rng.integers(0, ROWS, BATCH)] for _ in range(6)]
    del hashes
    run, live, times = open_run(folder / "a.run"), np.zeros(1, dtype=np.uint32), []
    for some in asked:
        with Clock() as clock:
            found = lookup([run], live, some)
        assert found.hit.all()
        times.append(clock)
    line(f"{BATCH:,} lookups in one run of {ROWS:,}: first", times[0])
    line("  best of the next five", min(times[1:], key=lambda each: each.wall))


def table(folder):
    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/c.db", warehouse=f"file://{folder}/lake")
    catalog.create_namespace("n")
    made = catalog.create_table("n.t", SCHEMA)
    rng, share = np.random.default_rng(2), ROWS // FILES
    for number in range(FILES):
        ids = np.arange(number * share, (number + 1) * share)
        block = pa.py_buffer(ids.astype(">u8"))
        sequences = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), share, [None, block])
        names = pa.array(rng.integers(0, 10_000, share)).cast(pa.string())
        columns = [pa.array(ids), names, sequences.cast(pa.binary())]
        made.append(pa.table(columns, names=["id", "name", "_src_sequence"]))
    return made


def changes(rng, number):
    """The keys of a batch: 80 % of rows that are there, 20 % new."""
    old = rng.choice(ROWS, int(BATCH * 0.8), replace=False)
    new = ROWS + number * BATCH + np.arange(BATCH - len(old))
    return key_hashes([pa.array(np.concatenate([old, new]))])


def one_batch(store, hashes, number):
    """Look up and stage all buckets; → CPU and wall time of both, share of keys that were there."""
    reader, names, hits = store.reader, [], 0
    places = bucket_of(hashes, store.manifest.buckets)
    groups = [np.flatnonzero(places == bucket) for bucket in range(store.manifest.buckets)]
    with Clock() as looking:
        for bucket, mine in enumerate(groups):
            hits += int(reader.lookup(bucket, hashes[mine]).hit.sum())
    sequence = pa.array([(number << 32).to_bytes(8, "big")] * BATCH)
    with Clock() as staging:
        for bucket, mine in enumerate(groups):
            entries = row_entries(
                hashes[mine], 0, np.arange(len(mine)), sequence.take(pa.array(mine))
            )
            names.append(reader.stage(bucket, f"c{number}", entries, [f"file{number}-{bucket}"]))
    with Clock() as confirming:
        store.prepare(f"c{number}", names)
        store.confirm(f"c{number}", number, number)
    return looking, staging, confirming, hits / BATCH


def mean(clocks):
    total = Clock()
    total.cpu = sum(each.cpu for each in clocks) / len(clocks)
    total.wall = sum(each.wall for each in clocks) / len(clocks)
    return total


def size(folder):
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def main():
    hashing()
    folder = Path(tempfile.mkdtemp(prefix="icestream-bench-"))
    try:
        made = table(folder)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        with Clock() as clock:
            store, built = build(made, folder / "index", ["id"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        bytes_ = size(folder / "index") / built.rows
        line(f"build from {built.rows:,} rows", clock,
             f"{bytes_:.1f} bytes a key, peak {peak} MB (before: {before})")  # fmt: skip
        with Clock() as clock:
            store = open_index(folder / "index", str(made.metadata.table_uuid), [1])
        line("open and check every checksum", clock)
        rng = np.random.default_rng(3)
        first, later, merges, runs = [], [], [], 0
        for number in range(2, 2 + BATCHES):
            hashes = changes(rng, number)
            spent = one_batch(store, hashes, number)
            (first if number < 12 else later).append(spent)
            with Clock() as clock:
                store.merge()
            merges.append(clock)
            runs = max(runs, *(len(each) for each in store.manifest.runs))
        for what, batches in (("first 10 batches", first), (f"the {len(later)} after", later)):
            for at, step in enumerate(("look up", "stage", "confirm")):
                note = f"{batches[0][3]:.0%} there" if at == 0 else ""
                line(f"{what}, {BATCH:,} keys: {step}", mean([each[at] for each in batches]), note)
        line("merges, per batch", mean(merges), f"at most {runs} runs in each of {BUCKETS} buckets")
        line("merges, dearest batch", max(merges, key=lambda each: each.wall))
        print(f"memory: {memory('RssAnon')} MB own, {memory('RssFile')} MB mapped; "
              f"index {size(folder / 'index') >> 20} MB on disk")  # fmt: skip
        searching(folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
