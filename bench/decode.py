"""Print what decoding costs: CPU seconds per million records of about 250 bytes, and per million
change events of about 700.
"""

import json
import random
import time
from unittest.mock import patch

import changes
import numpy as np
import pyarrow as pa
from mirror import KINDS
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from icestream.formats import Format
from icestream.formats.debezium import DebeziumFormat, tails
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


def batches(
    values: list[bytes], size: int, keys: list[bytes] | None = None
) -> list[pa.RecordBatch]:
    """Wrap values as a source delivers them."""
    count = len(values)
    columns = {
        "topic": ["t"] * count,
        "partition": [0] * count,
        "offset": [0] * count,
        "timestamp": [0] * count,
        "key": keys or [None] * count,
        "value": values,
    }
    whole = [pa.array(columns[each.name], each.type) for each in RECORDS]
    made = pa.RecordBatch.from_arrays(whole, schema=RECORDS)
    return [made.slice(start, size) for start in range(0, count, size)]


def measure(what: str, values: list[bytes], rule: Rule, size: int = BATCH) -> None:
    """Decode three times, print the best."""
    timed(what, batches(values, size), JsonFormat(), TARGET, rule)


def timed(
    what: str, made: list[pa.RecordBatch], decoder: Format, target: Schema, rule: Rule
) -> None:
    """Decode three times, print the best."""
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        bad = sum(
            len(d.errors) - d.errors.null_count
            for d in (decoder.decode(b, target, rule) for b in made)
        )
        best = min(best, time.process_time() - start)
    count = sum(map(len, made))
    print(f"{what:44} {best / count * 1e6:5.2f} CPU-s/M   {bad} bad")


def change_events() -> None:
    """By their tails, and by the parser alone."""
    feed = changes.Feed(2 * BATCH)
    keys, values = changes.Maker().events(feed.changes(2 * BATCH))
    print(f"{sum(map(len, values)) / len(values):.0f} bytes a change event")
    fields = enumerate(changes.COLUMNS.items(), 1)
    target = Schema(*(NestedField(at, name, KINDS[kind]) for at, (name, kind) in fields))
    decoder = DebeziumFormat(decimal_handling_mode="string")
    none = patch.object(
        tails,
        "take_apart",
        lambda texts, _: tails.SplitEnvelopes(np.zeros(len(texts), bool), None, {}, {}),
    )
    for size in (BATCH, 20_000, 1_000):
        made = batches(values, size, keys)
        timed(f"change events, batches of {size}", made, decoder, target, "evolve")
        with none:
            timed("  the parser alone", made, decoder, target, "evolve")


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
    change_events()


if __name__ == "__main__":
    main()
