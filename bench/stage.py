"""Cost of staging: CPU seconds per million rows, peak memory and number of files."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa

from icestream.write.stage import Stager, StageTarget

ROWS = int(os.environ.get("ICESTREAM_BENCH_ROWS", "1000000"))
BATCH = 10_000
DAY = 86_400_000_000
FIELDS = {
    "event_id": "string",
    "user_id": "long",
    "event_time": "timestamptz",
    "kind": "string",
    "url": "string",
    "agent": "string",
    "amount": "double",
    "quantity": "int",
    "ok": "boolean",
    "country": "string",
    "address": "string",
    "note": "string",
}
BUCKET_AND_DAY = [
    {"source-id": 2, "field-id": 1000, "transform": "bucket[64]", "name": "user_id_bucket"},
    {"source-id": 3, "field-id": 1001, "transform": "day", "name": "event_time_day"},
]
BY_TIME = [
    {"transform": "identity", "source-id": 3, "direction": "asc", "null-order": "nulls-first"}
]
CASES = {
    "plain": ([], []),
    "sorted": ([], BY_TIME),
    "1,920 partitions": (BUCKET_AND_DAY, []),
    "1,920 partitions, sorted": (BUCKET_AND_DAY, BY_TIME),
}


def target(folder, partitions, order):
    fields = [
        {"id": position, "name": name, "required": False, "type": kind}
        for position, (name, kind) in enumerate(FIELDS.items(), 1)
    ]
    return StageTarget(
        json.dumps({"type": "struct", "schema-id": 0, "fields": fields}),
        json.dumps({"spec-id": 0, "fields": partitions}),
        json.dumps({"order-id": 1 if order else 0, "fields": order}),
        folder,
        "bench",
        {},
    )


def batches():
    rng = np.random.default_rng(7)
    agents = np.array(
        [f"Mozilla/5.0 agent {i}, with the longer tail they have" for i in range(200)]
    )
    for _ in range(ROWS // BATCH):
        texts = {
            "event_id": np.char.add("event-", rng.integers(0, 2**60, BATCH).astype(str)),
            "kind": np.array(["click", "view", "buy", "search"])[rng.integers(0, 4, BATCH)],
            "url": np.char.add("https://shop.example/", rng.integers(0, 50_000, BATCH).astype(str)),
            "agent": agents[rng.integers(0, 200, BATCH)],
            "country": np.array(["DE", "US", "FR"])[rng.integers(0, 3, BATCH)],
            "address": np.char.add("10.0.", rng.integers(0, 60_000, BATCH).astype(str)),
            "note": np.char.add("free text, number ", rng.integers(0, 10**9, BATCH).astype(str)),
        }
        times = 1_760_054_400_000_000 + rng.integers(0, 30 * DAY, BATCH)
        columns = {name: pa.array(text, pa.large_string()) for name, text in texts.items()} | {
            "user_id": pa.array(rng.integers(0, 100_000, BATCH)),
            "event_time": pa.array(times).cast(pa.timestamp("us", "UTC")),
            "amount": pa.array(rng.random(BATCH) * 100),
            "quantity": pa.array(rng.integers(0, 100, BATCH), pa.int32()),
            "ok": pa.array(rng.random(BATCH) > 0.5),
        }
        yield pa.record_batch({name: columns[name] for name in FIELDS})


def run(case):
    partitions, order = CASES[case]
    cpu = wall = size = 0.0
    with tempfile.TemporaryDirectory() as folder:
        stager = Stager(target(folder, partitions, order), "attempt")
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for batch in batches():
            size += batch.nbytes
            cpu, wall = cpu - time.process_time(), wall - time.perf_counter()
            stager.write(batch)
            cpu, wall = cpu + time.process_time(), wall + time.perf_counter()
        cpu, wall = cpu - time.process_time(), wall - time.perf_counter()
        files = stager.finish()
        cpu, wall = cpu + time.process_time(), wall + time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"{case:25} {cpu * 1e6 / ROWS:5.2f} CPU-s/M  {wall * 1e6 / ROWS:5.2f} s/M  "
        f"peak {peak >> 10:4} MB (before: {base >> 10})  {len(files):5} files  "
        f"{size / ROWS:.0f} -> {sum(file.bytes for file in files) / ROWS:.0f} bytes a row"
    )


def main():
    if len(sys.argv) > 1:
        run(sys.argv[1])
        return
    for case in CASES:  # a process each: peak memory is the process's
        subprocess.run([sys.executable, __file__, case], check=True)


if __name__ == "__main__":
    main()
