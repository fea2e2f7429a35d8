"""End offsets of partitions, asked for in the background so that no commit waits for them."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from icestream.errors import Unreachable
from icestream.positions import Positions
from icestream.sources.kafka.client import KafkaAdmin

_SECONDS = 2.0


class EndOffsetWatcher:
    """Asks every two seconds; while brokers do not answer, the last answer is used."""

    def __init__(self, cluster: KafkaAdmin, partitions: Mapping[str, Sequence[int]]) -> None:
        self._cluster = cluster
        self._partitions: dict[str, set[int]] = {t: set(ns) for t, ns in partitions.items()}
        self._ends: Positions = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="kafka ends", daemon=True)
        self._thread.start()

    def records_behind(self, positions: Positions) -> Positions:
        """Count the records of each partition from its position on, as of the last answer."""
        for topic, partitions in positions.items():  # some may be new since the last call
            self._partitions[topic] = self._partitions.get(topic, set()) | set(partitions)
        ends = self._ends
        return {
            topic: {
                partition: max(0, ends.get(topic, {}).get(partition, position) - position)
                for partition, position in partitions.items()
            }
            for topic, partitions in positions.items()
        }

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            with suppress(Unreachable):
                self._ends = self._cluster.latest(
                    {topic: sorted(numbers) for topic, numbers in self._partitions.copy().items()}
                )
            if self._closed.wait(_SECONDS):
                return
