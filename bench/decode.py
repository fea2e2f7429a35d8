"""Print what decoding costs: CPU seconds per million records of about 250 bytes."""

import json
import random
import time

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icestream.formats.json import JsonFormat
from icestream.records import RECORDS
from icestream.schema import Rule

RECORDS_EACH = 400_000
BATCH = 50_000
TARGET = Schema(
    NestedField(1, "event_id", StringType()),
    NestedField(2, "user_id", LongType()),
    NestedField(3, "session", StringType()),
    NestedField(4, "event_time", TimestamptzType()),
    NestedField(5, "kind", StringType()),
    NestedField(6, "price", DoubleType()),
    NestedField(7, "url", StringType()),
    NestedField(8, "quantity", LongType()),
    NestedField(9, "returning", BooleanType()),
    NestedField(10, "agent", StringType()),
)


def event(rng: random.Random, i: int) -> bytes:
    """Make one record."""
    row = {
        "event_id": f"{rng.getrandbits(128):032x}",
        "user_id": rng.randrange(10**6),
        "session": f"s-{rng.randrange(10**8):08d}",
        "event_time": f"2024-05-{1 + i % 28:02d}T{i % 24:02d}:{i % 60:02d}:00.{i % 10**6:06d}Z",
        "kind": rng.choice(["view", "click", "buy"]),
        "price": round(rng.random() * 100, 2),
        "url": f"https://shop.example/products/{i}",
        "quantity": i % 9,
        "returning": i % 2 == 0,
        "agent": "Mozilla/5.0",
    }
    return json.dumps(row, separators=(",", ":")).encode()


def batches(values: list[bytes], size: int) -> list[pa.RecordBatch]:
    """Wrap values as a source delivers them."""
    empty = {"topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "key": None}
    out = []
    for start in range(0, len(values), size):
        part = values[start : start + size]
        columns = [
            pa.array(part, f.type)
            if f.name == "value"
            else pa.array([empty[f.name]] * len(part), f.type)
            for f in RECORDS
        ]
        out.append(pa.RecordBatch.from_arrays(columns, schema=RECORDS))
    return out


def measure(what: str, values: list[bytes], rule: Rule, size: int = BATCH) -> None:
    """Decode three times, print the best."""
    made = batches(values, size)
    decoder = JsonFormat()
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        bad = sum(
            len(d.errors) - d.errors.null_count
            for d in (decoder.decode(b, TARGET, rule) for b in made)
        )
        best = min(best, time.process_time() - start)
    print(f"{what:44} {best / len(values) * 1e6:5.2f} CPU-s/M   {bad} bad")


def main() -> None:
    """Measure clean data, malformed data, wrong types, nulls and small batches."""
    rng = random.Random(7)
    clean = [event(rng, i) for i in range(RECORDS_EACH)]
    print(f"{sum(map(len, clean)) / len(clean):.0f} bytes a record, batches of {BATCH}")
    malformed = [v[:-5] if i % 1000 == 7 else v for i, v in enumerate(clean)]
    wrong = [
        v.replace(b'"quantity":', b'"quantity":1.5,"q":') if i % 1000 == 7 else v
        for i, v in enumerate(clean)
    ]
    nulls = [v.replace(b'"agent":"Mozilla/5.0"', b'"agent":null') for v in clean]
    measure("clean, unknown fields ignored", clean, "ignore")
    measure("clean, unknown fields looked for", clean, "evolve")
    measure("clean, batches of 10000", clean, "evolve", 10_000)
    measure("0.1 % malformed", malformed, "evolve")
    measure("0.1 % wrong type and unknown field, freeze", wrong, "freeze")
    measure("a null in every record", nulls, "evolve")


if __name__ == "__main__":
    main()
