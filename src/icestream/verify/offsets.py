"""Sets of (topic, partition, offset) as compressed bitmaps: 100 million in a few hundred MB."""

import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

SourcePartition = tuple[str, int]
Sets = dict[SourcePartition, BitMap64]


@dataclass
class OffsetBitmaps:
    """The origins of some rows, and those that several rows have."""

    rows: int = 0
    unknown: int = 0  # rows that name no origin, so they are not ours
    sets: Sets = field(default_factory=dict)
    doubled: Sets = field(default_factory=dict)  # origins of more than one row
    extra: dict[SourcePartition, int] = field(default_factory=dict)  # rows but the first of each

    def add_rows(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch, whose first columns are topic, partition and offset."""
        self.rows += batch.num_rows
        valid = pc.and_(batch.column(0).is_valid(), batch.column(1).is_valid())
        valid = pc.and_(valid, batch.column(2).is_valid())
        if not pc.all(valid, min_count=0).as_py():
            batch = batch.filter(valid)
            self.unknown += len(valid) - batch.num_rows
        if not batch.num_rows:
            return
        topics = batch.column(0)
        if not pa.types.is_dictionary(topics.type):
            topics = topics.dictionary_encode()
        names = topics.dictionary.to_pylist()
        codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        partitions = batch.column(1).to_numpy(zero_copy_only=False).astype(np.int64)
        offsets = batch.column(2).to_numpy(zero_copy_only=False).astype(np.int64)
        keys = (codes << 32) | partitions  # one number for topic and partition
        distinct = np.unique(keys).tolist()
        for key in distinct:
            key_offsets = offsets if len(distinct) == 1 else offsets[keys == key]
            self._add((names[key >> 32], key & 0xFFFFFFFF), key_offsets)

    def merge(self, other: "OffsetBitmaps") -> None:
        """Add the rows of another file."""
        self.rows += other.rows
        self.unknown += other.unknown
        for partition, count in other.extra.items():
            self._doubled(partition, other.doubled[partition], count)
        for partition, more in other.sets.items():
            self._union(partition, more)

    def within(self, topics: Iterable[str]) -> int:
        """Count the rows of these topics."""
        wanted = set(topics)
        first = sum(len(offsets) for (topic, _), offsets in self.sets.items() if topic in wanted)
        return first + sum(count for (topic, _), count in self.extra.items() if topic in wanted)

    @property
    def topics(self) -> set[str]:
        """All topics that rows came from."""
        return {topic for topic, _ in self.sets}

    def _add(self, partition: SourcePartition, offsets: np.ndarray) -> None:
        distinct = bitmap(offsets)
        if len(distinct) < len(offsets):
            values, counts = np.unique(offsets, return_counts=True)
            doubled = bitmap(values[counts > 1])
            self._doubled(partition, doubled, len(offsets) - len(distinct))
        self._union(partition, distinct)

    def _union(self, partition: SourcePartition, more: BitMap64) -> None:
        offsets = self.sets.get(partition)
        if offsets is None:
            self.sets[partition] = more.copy()
            return
        both = offsets & more
        if both:
            self._doubled(partition, both, len(both))
        offsets |= more

    def _doubled(self, partition: SourcePartition, offsets: BitMap64, count: int) -> None:
        self.doubled[partition] = self.doubled.get(partition, BitMap64()) | offsets
        self.extra[partition] = self.extra.get(partition, 0) + count


def bitmap(offsets: np.ndarray) -> BitMap64:
    """Make a bitmap of an array, without a loop over its values."""
    values = array.array("Q")
    values.frombytes(np.ascontiguousarray(offsets, dtype=np.uint64).tobytes())
    return BitMap64(values)


def span(start: int, stop: int) -> BitMap64:
    """Return all offsets from `start` up to, not including, `stop`."""
    offsets = BitMap64()
    if stop > start:
        offsets.add_range(start, stop)
    return offsets


def contiguous_ranges(offsets: BitMap64, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield a set's first ranges: start, stop, count; the last of them takes all that remain."""
    covered, total = 0, len(offsets)
    start = offsets.min() if offsets else 0
    for index in range(most):
        if covered >= total:
            return
        if index == most - 1:
            yield start, offsets.max() + 1, total - covered
            return
        stop = _range_end(offsets, start)
        yield start, stop, stop - start
        covered += stop - start
        if covered < total:
            start = offsets.next_set_bit(stop)


def _range_end(offsets: BitMap64, start: int) -> int:
    """Find where a run of neighbours that begins at `start` ends: doubling steps, then halving."""
    step = 1
    while offsets.contains_range(start, start + step):
        step *= 2
    low, high = start + step // 2, start + step  # in up to low, not in up to high
    while high - low > 1:
        middle = (low + high) // 2
        if offsets.contains_range(start, middle):
            low = middle
        else:
            high = middle
    return low
