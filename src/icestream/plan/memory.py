"""Memory: pure, what the settings of a run mean for the machine, by the code's own figures."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

MB = 1 << 20
# A test compares these with what the code does.
HEAP = "1g"
BATCH_RECORDS = 50_000
BATCH_BYTES = 64 * MB  # of a batch, where records are large or not known yet
LARGE_RECORD = 8 << 10
HELD_ROWS = 128 * MB  # for partitions and order, in a task
GROUP_BYTES = 128 * MB  # changes of some keys, that a task holds
KAFKA_FETCHES = 256 * MB
REWRITE_ROWS, REWRITE_ENTRIES = 64 * MB, 2_000_000
ENTRY_BYTES = 41  # of the key index, with a sequence of 16 bytes
# Measured: resident memory after all imports, and how the index grows (docs/design/index.md).
PYTHON, DRIVER = 120 * MB, 170 * MB
KEY_BYTES = 32
INDEX_BUILD = 250 * MB
_COPIES = 3  # of a batch while it is decoded: bytes, texts, columns
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

NeedKind = Literal["limit", "estimate"]


@dataclass(frozen=True)
class MemoryNeed:
    """What one part takes; `limit` is kept by a setting, `estimate` is not."""

    what: str
    memory_bytes: int | None
    disk_bytes: int | None
    kind: NeedKind
    why: str


@dataclass(frozen=True)
class MirrorSize:
    """An upsert table; None: how many keys it will have, nobody knows."""

    table: str
    keys: int | None


@dataclass(frozen=True)
class RunLoad:
    """What a run has to deal with, as far as a plan knows."""

    record_bytes: float | None = None  # of the average record; None: none was seen
    laid_out: bool = False  # a table has partitions or an order
    kafka: bool = False
    maintenance: bool = True
    mirrors: Sequence[MirrorSize] = ()


def needs(spark: Mapping[str, str], machine: int, load: RunLoad) -> list[MemoryNeed]:
    """Of each part of a run, on a machine with so many processors."""
    master = spark.get("spark.master", "local[*]")
    cores = cores_of(master, machine)
    found = [_heap(spark, load.kafka)]
    if cores is None:
        heap = size_of(spark.get("spark.executor.memory", "1g"))
        found.append(
            MemoryNeed(
                "each executor's heap", heap, None, "limit", "spark.executor.memory, on a cluster"
            )
        )
    found.append(_workers(cores, load))
    found.append(
        MemoryNeed("driver's Python", DRIVER, None, "estimate", "measured after its imports")
    )
    if load.maintenance:
        entries = REWRITE_ENTRIES * ENTRY_BYTES if load.mirrors else 0
        found.append(
            MemoryNeed(
                "a rewrite of maintenance",
                PYTHON + REWRITE_ROWS + entries,
                None,
                "estimate",
                "one at a time, in a process of its own: rows on their way into a file"
                + (", index entries of 2 million rows" if load.mirrors else ""),
            )
        )
    return [*found, *_indexes(load.mirrors)]


def _heap(spark: Mapping[str, str], kafka: bool) -> MemoryNeed:
    name = "spark.driver.memory"
    said = f"{name}: {spark[name]}" if name in spark else f"{name}, {HEAP} unless set"
    more = f"; Kafka's fetches take up to {_shown(KAFKA_FETCHES)} of it" if kafka else ""
    why = f"{said}{more}; Java's own needs come on top"
    return MemoryNeed("JVM heap", size_of(spark.get(name, HEAP)), None, "limit", why)


def _workers(cores: int | None, load: RunLoad) -> MemoryNeed:
    batch = batch_bytes(load.record_bytes)
    each = PYTHON + _COPIES * batch
    parts = [f"Arrow batches of {_shown(batch)}, {_COPIES} times while they are decoded"]
    if load.laid_out:
        each += HELD_ROWS
        parts.append(f"{_shown(HELD_ROWS)} of rows held back for partitions and order")
    if load.mirrors:
        each += GROUP_BYTES
        parts.append(f"{_shown(GROUP_BYTES)} of changes at a time")
    why = f"{_shown(PYTHON)} of Python each, mostly shared; {', '.join(parts)}"
    if cores is None:
        return MemoryNeed("each Python worker", each, None, "estimate", f"one per core; {why}")
    what = f"{cores} Python worker{'s' if cores > 1 else ''}"
    return MemoryNeed(what, cores * each, None, "estimate", why)


def _indexes(mirrors: Sequence[MirrorSize]) -> Iterator[MemoryNeed]:
    for each in mirrors:
        what = f"key index of {each.table}"
        why = f"{KEY_BYTES} bytes a key on local disk, mapped: it takes page cache, no memory"
        disk = None if each.keys is None else each.keys * KEY_BYTES
        if disk is None:
            why = f"{KEY_BYTES * 1_000_000 / 1e6:.0f} MB on local disk for a million keys, mapped"
        yield MemoryNeed(what, None, disk, "estimate", why)
    if mirrors:
        why = "only while an index is built from its table, one after the other"
        yield MemoryNeed("building a key index", INDEX_BUILD, None, "estimate", why)


def batch_bytes(record_bytes: float | None) -> int:
    """Of one Arrow batch on its way to Python."""
    if record_bytes is None or record_bytes > LARGE_RECORD:
        return BATCH_BYTES
    return round(record_bytes * BATCH_RECORDS)


def cores_of(master: str, machine: int) -> int | None:
    """Tasks at a time on this machine; None: they run on others."""
    told = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master.strip())
    if told is None:
        return None
    if told[1] is None:
        return 1
    return machine if told[1] == "*" else int(told[1])


def size_of(text: str) -> int | None:
    """Java's `512m`, `2g`; a bare number is in MB, as Spark has it. None: it is no size."""
    told = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    if told is None:
        return None
    return int(told[1]) * _UNITS[told[2] or "m"]


def total(found: Sequence[MemoryNeed]) -> int:
    """Of all that is at work at the same time, on this machine."""
    return sum(each.memory_bytes or 0 for each in found)


def _shown(size: int) -> str:
    return f"{size / MB:.0f} MiB" if size >= MB else f"{size / 1024:.0f} KiB"
