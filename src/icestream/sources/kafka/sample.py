"""A few records of a topic, read without Spark, without a group and without taking anything."""

import time
from collections.abc import Iterator, Mapping
from types import TracebackType

import pyarrow as pa
from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Consumer, KafkaError, Message, TopicPartition

from icestream.positions import Positions
from icestream.records import RECORDS
from icestream.sources.kafka.causes import ClientErrors
from icestream.sources.kafka.properties import SECRETS

QUIET_SECONDS = 10.0
_SLICE_SECONDS = 0.5
_MOST = 10_000  # that one call asks for
_REFUSALS = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART)
_OURS = {
    "enable.auto.commit": "false",
    "enable.partition.eof": "true",
    "auto.offset.reset": "earliest",  # retention may be quicker than we are
}

SourcePartition = tuple[str, int]


class SampleConsumer:
    """Reads from `begin` to `ends` at most."""

    def __init__(self, settings: Mapping[str, str], begin: Positions, ends: Positions) -> None:
        self._causes = ClientErrors(settings, SECRETS)
        callbacks = {"error_cb": self._causes.error, "logger": self._causes}
        self._consumer = Consumer({**settings, **_OURS, **callbacks})
        self._ends = ends
        self._next: dict[SourcePartition, int] = {
            (topic, number): at
            for topic, partitions in begin.items()
            for number, at in partitions.items()
            if at < ends[topic][number]
        }
        self._kept: list[Message] = []  # that came beyond a portion's end
        self._paused: list[TopicPartition] = []
        self._consumer.assign([TopicPartition(*each, at) for each, at in self._next.items()])

    def __enter__(self) -> "SampleConsumer":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._consumer.close()

    def batches(self, count: int) -> Iterator[pa.RecordBatch]:
        """The same share of each partition; what short ones leave goes to the others."""
        while count > 0 and self._next:
            read = self._read(count)
            count -= len(read)
            if read:
                yield _batch(read)

    def _read(self, most: int) -> list[Message]:
        """An equal share of each partition that has more; forgets those that have not."""
        share = max(1, most // len(self._next))
        self._consumer.resume(self._paused)
        self._paused = []
        left = dict.fromkeys(list(self._next)[:most], share)
        for partition in list(self._next)[most:]:
            self._pause_partition(partition, left)
        kept, self._kept = self._kept, []
        read = [each for message in kept for each in self._accept(message, left)]
        heard = time.monotonic()
        while left:
            before = (len(read), len(left))
            for message in self._consumer.consume(min(share, _MOST), timeout=_SLICE_SECONDS):
                read += self._accept(message, left)
            if before != (len(read), len(left)):
                heard = time.monotonic()
                continue
            quiet = time.monotonic() - heard
            if quiet > QUIET_SECONDS or self._causes.is_hopeless(quiet):
                raise self._causes.as_unreachable(quiet)
        return read

    def _accept(self, message: Message, left: dict[SourcePartition, int]) -> list[Message]:
        """The message, if it counts; `left` loses its partition when that is through."""
        partition = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() in _REFUSALS:
                raise self._causes.as_refused(error, f"topic `{partition[0]}`", 0)
            return []  # whatever else it is passes, or we time out
        if partition not in left:
            if partition in self._next:
                self._kept.append(message)
            return []
        stop = self._ends[partition[0]][partition[1]]
        at = int(message.offset() or 0)
        if error is not None or at >= stop:
            self._finish_partition(partition, left)
            return []
        self._next[partition] = at + 1
        left[partition] -= 1
        if at + 1 >= stop:
            self._finish_partition(partition, left)
        elif not left[partition]:
            del left[partition]
            self._pause_partition(partition, left)
        return [message]

    def _pause_partition(
        self, partition: SourcePartition, left: dict[SourcePartition, int]
    ) -> None:
        """Let a quick partition not fill memory while a slow one has its share."""
        if left:
            self._paused.append(TopicPartition(*partition))
            self._consumer.pause(self._paused[-1:])

    def _finish_partition(
        self, partition: SourcePartition, left: dict[SourcePartition, int]
    ) -> None:
        left.pop(partition, None)
        self._next.pop(partition, None)


def _batch(messages: list[Message]) -> pa.RecordBatch:
    stamps = [message.timestamp() for message in messages]
    millis = [None if kind == TIMESTAMP_NOT_AVAILABLE else at for kind, at in stamps]
    columns = {
        "topic": [message.topic() for message in messages],
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        "timestamp": pa.array(millis, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
    }
    return pa.record_batch(columns, schema=RECORDS)
