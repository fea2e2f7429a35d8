"""Positions in the streams of a source: per stream and partition, the next offset to read."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

# stream → partition → the next position to read. A stream is a topic, or the ledger of a folder.
Positions = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True)
class PositionRange:
    """What one micro-batch covers: from `start` up to, not including, `stop`."""

    start: Positions
    stop: Positions

    @property
    def records(self) -> int:
        """How many positions it covers, which for Kafka is how many records at most."""
        return sum(
            position - self.start.get(stream, {}).get(partition, 0)
            for stream, partitions in self.stop.items()
            for partition, position in partitions.items()
        )


def max_positions(*several: Positions) -> Positions:
    """Per partition, the largest position."""
    return _merge_positions(max, several)


def min_positions(*several: Positions) -> Positions:
    """Per partition, the smallest of the positions that are known."""
    return _merge_positions(min, several)


def _merge_positions(choose: Callable[[int, int], int], several: Iterable[Positions]) -> Positions:
    result: dict[str, dict[int, int]] = {}
    for positions in several:
        for stream, partitions in positions.items():
            into = result.setdefault(stream, {})
            for partition, position in partitions.items():
                known = into.get(partition, position)
                into[partition] = choose(known, position)
    return result


def describe_range(batch: PositionRange) -> str:
    """Describe a range for people: `orders/0 120 to 180`."""
    return ", ".join(
        f"{stream}/{partition} {batch.start.get(stream, {}).get(partition, 0)} to {stop}"
        for stream, partitions in batch.stop.items()
        for partition, stop in partitions.items()
    )


def flat(positions: Positions) -> dict[tuple[str, int], int]:
    """Return positions by (stream, partition)."""
    return {
        (stream, partition): position
        for stream, partitions in positions.items()
        for partition, position in partitions.items()
    }


def nested(positions: Mapping[tuple[str, int], int]) -> Positions:
    """Undo `flat`: return positions by stream, then by partition."""
    result: dict[str, dict[int, int]] = {}
    for (stream, partition), position in positions.items():
        result.setdefault(stream, {})[partition] = position
    return result
