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
    """The origins of some rows; a row that is there again counts as doubled."""

    rows: int = 0
    unknown: int = 0  # rows that name no origin, so they are not ours
    sets: Sets = field(default_factory=dict)
    doubled: Sets = field(default_factory=dict)
    extra: dict[SourcePartition, int] = field(
        default_factory=dict
    )  # rows beyond the first of an origin

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
        keys = (codes << 32) | partitions
        found = np.unique(keys)
        for key in found.tolist():
            mine = offsets if len(found) == 1 else offsets[keys == key]
            self._add((names[key >> 32], key & 0xFFFFFFFF), mine)

    def merge(self, other: "OffsetBitmaps") -> None:
        """Add the rows of another file."""
        self.rows += other.rows
        self.unknown += other.unknown
        for partition, count in other.extra.items():
            self._doubled(partition, other.doubled[partition], count)
        for partition, more in other.sets.items():
            self._union(partition, more)

    def within(self, topics: Iterable[str]) -> int:
        """How many rows these topics have."""
        wanted = set(topics)
        kept = sum(len(found) for (topic, _), found in self.sets.items() if topic in wanted)
        return kept + sum(count for (topic, _), count in self.extra.items() if topic in wanted)

    @property
    def topics(self) -> set[str]:
        """All topics that rows came from."""
        return {topic for topic, _ in self.sets}

    def _add(self, partition: SourcePartition, offsets: np.ndarray) -> None:
        fresh = bitmap(offsets)
        if len(fresh) < len(offsets):
            values, counts = np.unique(offsets, return_counts=True)
            again = bitmap(values[counts > 1])
            self._doubled(partition, again, len(offsets) - len(fresh))
        self._union(partition, fresh)

    def _union(self, partition: SourcePartition, more: BitMap64) -> None:
        there = self.sets.get(partition)
        if there is None:
            self.sets[partition] = more.copy()
            return
        both = there & more
        if both:
            self._doubled(partition, both, len(both))
        there |= more

    def _doubled(self, partition: SourcePartition, again: BitMap64, count: int) -> None:
        self.doubled[partition] = self.doubled.get(partition, BitMap64()) | again
        self.extra[partition] = self.extra.get(partition, 0) + count


def bitmap(offsets: np.ndarray) -> BitMap64:
    """A bitmap of an array, without a loop over its values."""
    plain = array.array("Q")
    plain.frombytes(np.ascontiguousarray(offsets, dtype=np.uint64).tobytes())
    return BitMap64(plain)


def span(start: int, stop: int) -> BitMap64:
    """All offsets from `start` up to, not including, `stop`."""
    whole = BitMap64()
    if stop > start:
        whole.add_range(start, stop)
    return whole


def contiguous_ranges(found: BitMap64, most: int) -> Iterator[tuple[int, int, int]]:
    """The first ranges of a set: start, stop and how many are in it; the last takes the rest."""
    told, total = 0, len(found)
    at = found.min() if found else 0
    for number in range(most):
        if told >= total:
            return
        if number == most - 1:
            yield at, found.max() + 1, total - told
            return
        stop = _range_end(found, at)
        yield at, stop, stop - at
        told += stop - at
        if told < total:
            at = found.next_set_bit(stop)


def _range_end(found: BitMap64, start: int) -> int:
    """Where a run of neighbours that begins at `start` ends: doubling steps, then halving."""
    step = 1
    while found.contains_range(start, start + step):
        step *= 2
    low, high = start + step // 2, start + step  # in up to low, not in up to high
    while high - low > 1:
        middle = (low + high) // 2
        if found.contains_range(start, middle):
            low = middle
        else:
            high = middle
    return low
