"""Memory and disk that the parts of a run need, by its settings and the code's limits; pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

MB = 1 << 20
# A test compares these with what the code does.
HEAP = "1g"
BATCH_RECORDS = 50_000
BATCH_BYTES = 64 * MB  # of an Arrow batch, where records are large or not known yet
LARGE_RECORD = 8 << 10
HELD_ROWS = 128 * MB  # that a task holds back for partitions and order
GROUP_BYTES = 128 * MB  # of changes that a task holds, by key group
KAFKA_FETCHES = 256 * MB
REWRITE_ROWS, REWRITE_ENTRIES = 64 * MB, 2_000_000
ENTRY_BYTES = 41  # of the key index, with a sequence of 16 bytes
# Measured: resident memory after all imports, and how the index grows (docs/design/index.md).
PYTHON, DRIVER = 120 * MB, 170 * MB
KEY_BYTES = 32
INDEX_BUILD = 250 * MB
_COPIES = 3  # of an Arrow batch while it is decoded: bytes, texts, columns
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

NeedKind = Literal["limit", "estimate"]


@dataclass(frozen=True)
class MemoryNeed:
    """What one part of a run needs; a `limit` is kept by a setting, an `estimate` is not."""

    what: str
    memory_bytes: int | None
    disk_bytes: int | None
    kind: NeedKind
    why: str


@dataclass(frozen=True)
class MirrorSize:
    """An upsert table; keys None: how many it will have is not known."""

    table: str
    keys: int | None


@dataclass(frozen=True)
class RunLoad:
    """Properties of a run that decide what memory it needs, as far as a plan knows them."""

    record_bytes: float | None = None  # of the average record; None: none was seen
    laid_out: bool = False  # a table has partitions or an order
    kafka: bool = False
    maintenance: bool = True
    mirrors: Sequence[MirrorSize] = ()


def needs(spark: Mapping[str, str], machine: int, load: RunLoad) -> list[MemoryNeed]:
    """List the needs of each part of a run, on a machine with so many processors."""
    master = spark.get("spark.master", "local[*]")
    cores = cores_of(master, machine)
    parts = [_heap(spark, load.kafka)]
    if cores is None:
        heap = size_of(spark.get("spark.executor.memory", "1g"))
        why = "spark.executor.memory, on a cluster"
        parts.append(MemoryNeed("each executor's heap", heap, None, "limit", why))
    parts.append(_workers(cores, load))
    why = "measured after its imports"
    parts.append(MemoryNeed("driver's Python", DRIVER, None, "estimate", why))
    if load.maintenance:
        entries = REWRITE_ENTRIES * ENTRY_BYTES if load.mirrors else 0
        size = PYTHON + REWRITE_ROWS + entries
        why = "one at a time, in a process of its own: rows on their way into a file"
        why += ", index entries of 2 million rows" if load.mirrors else ""
        parts.append(MemoryNeed("a rewrite of maintenance", size, None, "estimate", why))
    return [*parts, *_indexes(load.mirrors)]


def _heap(spark: Mapping[str, str], kafka: bool) -> MemoryNeed:
    name = "spark.driver.memory"
    setting = f"{name}: {spark[name]}" if name in spark else f"{name}, {HEAP} unless set"
    fetches = f"; Kafka's fetches take up to {_shown(KAFKA_FETCHES)} of it" if kafka else ""
    why = f"{setting}{fetches}; Java's own needs come on top"
    return MemoryNeed("JVM heap", size_of(spark.get(name, HEAP)), None, "limit", why)


def _workers(cores: int | None, load: RunLoad) -> MemoryNeed:
    batch = batch_bytes(load.record_bytes)
    worker = PYTHON + _COPIES * batch
    parts = [f"Arrow batches of {_shown(batch)}, {_COPIES} times while they are decoded"]
    if load.laid_out:
        worker += HELD_ROWS
        parts.append(f"{_shown(HELD_ROWS)} of rows held back for partitions and order")
    if load.mirrors:
        worker += GROUP_BYTES
        parts.append(f"{_shown(GROUP_BYTES)} of changes at a time")
    why = f"{_shown(PYTHON)} of Python each, mostly shared; {', '.join(parts)}"
    if cores is None:
        return MemoryNeed("each Python worker", worker, None, "estimate", f"one per core; {why}")
    what = f"{cores} Python worker{'s' if cores > 1 else ''}"
    return MemoryNeed(what, cores * worker, None, "estimate", why)


def _indexes(mirrors: Sequence[MirrorSize]) -> Iterator[MemoryNeed]:
    for mirror in mirrors:
        what = f"key index of {mirror.table}"
        why = f"{KEY_BYTES} bytes a key on local disk, mapped: it takes page cache, no memory"
        disk = None if mirror.keys is None else mirror.keys * KEY_BYTES
        if disk is None:
            why = f"{KEY_BYTES * 1_000_000 / 1e6:.0f} MB on local disk for a million keys, mapped"
        yield MemoryNeed(what, None, disk, "estimate", why)
    if mirrors:
        why = "only while an index is built from its table, one after the other"
        yield MemoryNeed("building a key index", INDEX_BUILD, None, "estimate", why)


def batch_bytes(record_bytes: float | None) -> int:
    """Size of one Arrow batch on its way to Python, by the size of the average record."""
    if record_bytes is None or record_bytes > LARGE_RECORD:
        return BATCH_BYTES
    return round(record_bytes * BATCH_RECORDS)


def cores_of(master: str, machine: int) -> int | None:
    """Count the tasks that run at a time on this machine; None: they run on a cluster."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\s*\d+)?\])?", master.strip())
    if match is None:
        return None
    if match[1] is None:
        return 1
    return machine if match[1] == "*" else int(match[1])


def size_of(text: str) -> int | None:
    """Bytes of Java's `512m`, `2g`; a bare number is in MB, as in Spark. None: it is no size."""
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)b?", text.strip().lower())
    return int(match[1]) * _UNITS[match[2] or "m"] if match else None


def total(needs: Sequence[MemoryNeed]) -> int:
    """Memory of all parts together, as far as it is known."""
    return sum(need.memory_bytes or 0 for need in needs)


def _shown(size: int) -> str:
    return f"{size / MB:.0f} MiB" if size >= MB else f"{size / 1024:.0f} KiB"
