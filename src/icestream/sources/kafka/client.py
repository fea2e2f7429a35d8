"""Questions to a Kafka cluster without a JVM: topics, offsets and a few records."""

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pyarrow as pa
from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec

from icestream.errors import ConfigError
from icestream.positions import Positions
from icestream.sources.kafka.causes import ClientErrors
from icestream.sources.kafka.properties import SECRETS, check_files, librdkafka
from icestream.sources.kafka.sample import SampleConsumer

REQUEST_SECONDS = 10.0
_SLICE_SECONDS = 0.1
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OURS = {
    "reconnect.backoff.max.ms": "1000",  # 10 s otherwise, as long as we wait for an answer
    "allow.auto.create.topics": "false",
    "enable.metrics.push": "false",
}
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"  # of a broker older than topic ids
_MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_EXCEPTION)  # or no name at all
_PASSING = (
    KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH, KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError._TRANSPORT,
)  # fmt: skip
_UNSETTLED = (KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART)  # no such topic, or a new one
_UNSETTLED_SECONDS = 3.0

Partitions = Mapping[str, Sequence[int]]
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class KafkaTopic:
    """A topic; its id differs from that of a topic of the same name created later."""

    name: str
    id: str
    partitions: tuple[int, ...]


class KafkaAdmin:
    """One connection for all questions, for any thread; raises Unreachable with the cause."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str]) -> None:
        check_files(options)
        self._options = options
        self._settings = {**librdkafka(bootstrap_servers, options), **_OURS}
        self._causes = ClientErrors(self._settings, SECRETS)
        self._stack = ExitStack()
        callbacks: dict[str, Any] = {"error_cb": self._causes.error, "logger": self._causes}
        try:
            self._admin = self._stack.enter_context(AdminClient({**self._settings, **callbacks}))
        except KafkaException as error:
            raise self._not_usable(error.args[0]) from None

    def close(self) -> None:
        """Release the connections."""
        self._stack.close()

    def names(self) -> list[str]:
        """List all topics that this user may see, but for Kafka's own."""
        self._ask("the cluster", lambda: {"": self._admin.describe_cluster(**_timeout())})
        try:
            topics = self._admin.list_topics(timeout=REQUEST_SECONDS).topics
        except KafkaException as error:
            raise self._causes.as_refused(error.args[0], "the cluster", REQUEST_SECONDS) from None
        return sorted(name for name in topics if not name.startswith("__"))

    def describe(self, names: Collection[str]) -> dict[str, KafkaTopic]:
        """Describe these topics; those that do not exist are left out."""
        if not names:
            return {}
        wanted = TopicCollection(list(names))
        topics = self._ask(
            "topic", lambda: self._admin.describe_topics(wanted, **_timeout()), but=_MISSING
        )
        return {
            name: KafkaTopic(name, _id(topic), tuple(sorted(p.id for p in topic.partitions)))
            for name, topic in topics.items()
        }

    def earliest(self, partitions: Partitions) -> Positions:
        """Ask for the first offset that retention has left."""
        return self._offsets(partitions, _EARLIEST, self._isolation)

    def latest(self, partitions: Partitions) -> Positions:
        """Ask for the end of what may be read: by default before the first open transaction."""
        return self._offsets(partitions, _LATEST, self._isolation)

    def high_watermark(self, partitions: Partitions) -> Positions:
        """Ask for the end of the log, open transactions included."""
        return self._offsets(partitions, _LATEST, IsolationLevel.READ_UNCOMMITTED)

    def at_time(self, partitions: Partitions, when: datetime) -> Positions:
        """Ask for the first offset of that time or later; the end where there is none."""
        millis = max(0, -((_EPOCH - when) // timedelta(milliseconds=1)))  # rounded up
        spec = OffsetSpec.for_timestamp(millis)
        by_time = self._offsets(partitions, spec, self._isolation)
        # Of a partition without a record of that time or later the offset is negative.
        too_old = {
            topic: numbers
            for topic, offsets in by_time.items()
            if (numbers := [partition for partition, offset in offsets.items() if offset < 0])
        }
        ends = self.latest(too_old) if too_old else {}
        return {topic: {**offsets, **ends.get(topic, {})} for topic, offsets in by_time.items()}

    def sample(self, start: Positions, count: int) -> Iterator[pa.RecordBatch]:
        """Yield up to `count` records from `start` on, spread over the partitions."""
        ends = self.latest({topic: list(offsets) for topic, offsets in start.items()})
        group = self._options.get("kafka.group.id") or (
            self._options.get("groupIdPrefix", "icestream") + "-sample"
        )
        try:
            sample = SampleConsumer({**self._settings, "group.id": group}, start, ends)
        except KafkaException as error:
            raise self._not_usable(error.args[0]) from None
        with sample:
            yield from sample.batches(count)

    @property
    def _isolation(self) -> IsolationLevel:
        return IsolationLevel[self._settings["isolation.level"].upper()]

    def _offsets(
        self, partitions: Partitions, spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[str, dict[int, int]]:
        offsets: dict[str, dict[int, int]] = {topic: {} for topic in partitions}
        wanted = {TopicPartition(t, n): spec for t, numbers in partitions.items() for n in numbers}
        if not wanted:
            return offsets
        answers = self._ask(
            "topic",
            lambda: self._admin.list_offsets(wanted, isolation_level=isolation, **_timeout()),
        )
        for partition, answer in answers.items():
            offsets[partition.topic][partition.partition] = answer.offset
        return offsets

    def _ask(
        self,
        about: str,
        request: Callable[[], Mapping[K, "Future[Any]"]],
        but: Collection[int] = (),
    ) -> dict[K, Any]:
        """Return the answers to one request, without those whose error is in `but`.

        After an error that passes, such as while a leader is elected, the request is made again.
        """
        begin = time.monotonic()
        self._causes.start_request()
        while True:
            futures = request()
            self._wait(next(iter(futures.values())), begin)
            answers, failed = {}, None
            for key, future in futures.items():
                error = _error(future)
                if error is None:
                    answers[key] = future.result()
                elif error.code() not in but:
                    failed = failed or (key, error)
            if failed is None:
                self._causes.clear()
                return answers
            key, error = failed
            passed = time.monotonic() - begin
            if passed > _patience(error):
                raise self._causes.as_refused(error, _subject(about, key), passed)
            if self._causes.is_hopeless(passed):
                raise self._causes.as_unreachable(passed)
            time.sleep(_SLICE_SECONDS)

    def _wait(self, future: "Future[Any]", begin: float) -> None:
        """Wait for a request, all of whose futures are done together; raises if it is hopeless."""
        while True:
            with suppress(TimeoutError):
                future.exception(timeout=_SLICE_SECONDS)
            self._admin.poll(0)  # librdkafka calls the callbacks from here
            if future.done():
                return
            passed = time.monotonic() - begin
            if self._causes.is_hopeless(passed):
                raise self._causes.as_unreachable(passed)

    def _not_usable(self, error: KafkaError) -> ConfigError:
        text = self._causes.redact(" ".join(error.str().split()))
        return ConfigError(
            f"the Kafka client does not accept its settings: {text}",
            where="source.options",
            hint="certificates and keys are read in PEM" if "ssl." in text else None,
        )


def _timeout() -> dict[str, float]:
    return {"request_timeout": REQUEST_SECONDS}


def _error(future: "Future[Any]") -> KafkaError | None:
    failure = future.exception(timeout=REQUEST_SECONDS)
    if failure is None:
        # When a connection breaks under a request for offsets, librdkafka may answer with this.
        unset = getattr(future.result(), "offset", None) == OFFSET_INVALID
        return KafkaError(KafkaError._TRANSPORT) if unset else None
    if isinstance(failure, KafkaException):
        error: KafkaError = failure.args[0]
        return error
    raise failure


def _patience(error: KafkaError) -> float:
    """Seconds for which a request that failed like this is made again."""
    if error.code() in _UNSETTLED:
        return _UNSETTLED_SECONDS
    return REQUEST_SECONDS if error.code() in _PASSING else 0


def _subject(about: str, key: object) -> str:
    if isinstance(key, TopicPartition):
        return f"{about} `{key.topic}`, partition {key.partition}"
    return f"{about} `{key}`" if key else about


def _id(topic: Any) -> str:
    text = str(topic.topic_id)
    return "" if text == _NO_ID else text
