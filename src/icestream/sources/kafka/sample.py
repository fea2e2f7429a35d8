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
    """Reads the records from `start` up to, not including, `stop`; commits no offsets."""

    def __init__(self, settings: Mapping[str, str], start: Positions, stop: Positions) -> None:
        self._causes = ClientErrors(settings, SECRETS)
        callbacks = {"error_cb": self._causes.error, "logger": self._causes}
        self._consumer = Consumer({**settings, **_OURS, **callbacks})
        self._stop = stop
        self._next: dict[SourcePartition, int] = {
            (topic, partition): position
            for topic, partitions in start.items()
            for partition, position in partitions.items()
            if position < stop[topic][partition]
        }
        self._kept: list[Message] = []  # that came after their partition's share was full
        self._paused: list[TopicPartition] = []
        self._consumer.assign([TopicPartition(*key, at) for key, at in self._next.items()])

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
        """Yield up to `count` records: a like share of each partition, more of the long ones."""
        while count > 0 and self._next:
            read = self._read(count)
            count -= len(read)
            if read:
                yield _batch(read)

    def _read(self, most: int) -> list[Message]:
        """Read an equal share of each partition that has more; forget those that have not."""
        share = max(1, most // len(self._next))
        self._consumer.resume(self._paused)
        self._paused = []
        wanted = dict.fromkeys(list(self._next)[:most], share)
        for partition in list(self._next)[most:]:
            self._pause_partition(partition, wanted)
        kept, self._kept = self._kept, []
        read: list[Message] = []
        for message in kept:
            read += self._accept(message, wanted)
        heard = time.monotonic()
        while wanted:
            before = (len(read), len(wanted))
            for message in self._consumer.consume(min(share, _MOST), timeout=_SLICE_SECONDS):
                read += self._accept(message, wanted)
            if before != (len(read), len(wanted)):
                heard = time.monotonic()
                continue
            quiet = time.monotonic() - heard
            if quiet > QUIET_SECONDS or self._causes.is_hopeless(quiet):
                raise self._causes.as_unreachable(quiet)
        return read

    def _accept(self, message: Message, wanted: dict[SourcePartition, int]) -> list[Message]:
        """Count a message against `wanted`. Returns it, or nothing if it is none of these records.

        A partition that has ended, or whose share is full, is removed from `wanted`.
        """
        partition = (str(message.topic()), int(message.partition() or 0))
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.code() in _REFUSALS:
                raise self._causes.as_refused(error, f"topic `{partition[0]}`", 0)
            return []  # any other error passes, or `_read` times out
        if partition not in wanted:
            if partition in self._next:
                self._kept.append(message)
            return []
        stop = self._stop[partition[0]][partition[1]]
        offset = int(message.offset() or 0)
        if error is not None or offset >= stop:
            self._finish_partition(partition, wanted)
            return []
        self._next[partition] = offset + 1
        wanted[partition] -= 1
        if offset + 1 >= stop:
            self._finish_partition(partition, wanted)
        elif not wanted[partition]:
            del wanted[partition]
            self._pause_partition(partition, wanted)
        return [message]

    def _pause_partition(
        self, partition: SourcePartition, wanted: dict[SourcePartition, int]
    ) -> None:
        """Keep a quick partition from filling memory while others are still wanted."""
        if wanted:
            self._paused.append(TopicPartition(*partition))
            self._consumer.pause(self._paused[-1:])

    def _finish_partition(
        self, partition: SourcePartition, wanted: dict[SourcePartition, int]
    ) -> None:
        wanted.pop(partition, None)
        self._next.pop(partition, None)


def _batch(messages: list[Message]) -> pa.RecordBatch:
    stamps = [message.timestamp() for message in messages]
    millis = [None if kind == TIMESTAMP_NOT_AVAILABLE else time_ms for kind, time_ms in stamps]
    columns = {
        "topic": [message.topic() for message in messages],
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        "timestamp": pa.array(millis, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
    }
    return pa.record_batch(columns, schema=RECORDS)
