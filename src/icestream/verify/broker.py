"""The broker's side of `verify --source`: which ranges it still has, and its records there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from icestream.config.options.source import KafkaSourceOptions
from icestream.positions import Positions
from icestream.sources.kafka.causes import ClientErrors
from icestream.sources.kafka.client import REQUEST_SECONDS, KafkaAdmin
from icestream.sources.kafka.properties import SECRETS, librdkafka
from icestream.sources.kafka.sample import SampleConsumer
from icestream.verify.chain import MarkerChain
from icestream.verify.offsets import OffsetBitmaps, Sets, SourcePartition, contiguous_ranges
from icestream.verify.report import MOST, TableFindings
from icestream.verify.rows import RowCheckRules

_AT_ONCE = 20_000  # records that are held at a time


@dataclass(frozen=True)
class TableSide:
    """What a table has: its live files, its marker chain and the origins of its rows."""

    table: Table
    live: Sequence[DataFile]
    chain: MarkerChain
    landed: Sets
    quarantined: Sets
    rules: RowCheckRules


@dataclass
class BrokerSide:
    """The ranges that can be compared, and the records that the broker has in them."""

    start: dict[str, dict[int, int]] = field(default_factory=dict)
    stop: dict[str, dict[int, int]] = field(default_factory=dict)
    good: OffsetBitmaps = field(default_factory=OffsetBitmaps)
    bad: OffsetBitmaps = field(default_factory=OffsetBitmaps)  # records that do not decode
    compacted: frozenset[str] = frozenset()  # topics whose records compaction removes
    incomplete: set[SourcePartition] = field(default_factory=set)  # lack some of the range
    unchecked: int = 0  # offsets of the table's range that cannot be compared


def comparable_ranges(
    options: KafkaSourceOptions, side: TableSide, findings: TableFindings
) -> BrokerSide:
    """Find what to read: from the table's start to its marker, as far as the broker has it."""
    marker = side.chain.marker
    broker = BrokerSide()
    if marker is None:
        return broker
    cluster = KafkaAdmin(options.bootstrap_servers, options.options)
    try:
        topics = cluster.describe(list(marker.positions))
        usable: dict[str, list[int]] = {}
        for stream, partitions in marker.positions.items():
            known_id = marker.stream_ids.get(stream)
            why = None
            if stream not in topics:
                why = "is not on the broker any more"
            elif known_id and topics[stream].id and topics[stream].id != known_id:
                why = "was created again: its records are others"
            elif stream in side.chain.reused or stream in side.rules.others:
                why = "has offsets that do not tell records apart"
            if why:
                findings.note(f"topic `{stream}` {why}; unchecked")
                broker.unchecked += sum(partitions.values())
                broker.incomplete |= {(stream, partition) for partition in partitions}
            else:
                usable[stream] = [n for n in partitions if n in topics[stream].partitions]
        earliest = cluster.earliest(usable)
    finally:
        cluster.close()
    for stream, numbers in usable.items():
        for partition in numbers:
            stop = marker.positions[stream][partition]
            start = _start(side, options, stream, partition)
            first = min(stop, max(start, earliest[stream][partition]))
            broker.unchecked += max(0, first - start)
            broker.start.setdefault(stream, {})[partition] = first
            broker.stop.setdefault(stream, {})[partition] = stop
            if first > start:
                broker.incomplete.add((stream, partition))
                findings.note(
                    f"{stream}/{partition} {start} to {first}: removed from the broker, unchecked"
                )
    broker.compacted = _compacted_topics(options, list(usable), findings)
    return broker


def _start(side: TableSide, options: KafkaSourceOptions, stream: str, partition: int) -> int:
    """Find where the table began: by its first claim; if that has expired, by its first row."""
    known = side.chain.start.get(stream, {}).get(partition)
    if known is not None:
        return known
    # A partition that the complete chain does not begin with came later, and was read whole.
    if options.start == "earliest" or side.chain.complete:
        return 0
    offsets = [sets.get((stream, partition)) for sets in (side.landed, side.quarantined)]
    marker = side.chain.marker
    end = marker.positions[stream][partition] if marker else 0
    return min((bitmap.min() for bitmap in offsets if bitmap), default=end)


def _compacted_topics(
    options: KafkaSourceOptions, topics: Sequence[str], findings: TableFindings
) -> frozenset[str]:
    """Find topics with `cleanup.policy=compact`: there a row may outlive its record."""
    if not topics:
        return frozenset()
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    compacted = set()
    settings = _settings(options)
    causes = ClientErrors(settings, SECRETS)  # librdkafka prints what no callback takes
    callbacks: dict[str, Any] = {"error_cb": causes.error, "logger": causes}
    with AdminClient({**settings, **callbacks}) as admin:
        answers = admin.describe_configs(resources, request_timeout=REQUEST_SECONDS)
        for resource, future in answers.items():
            try:
                policy = future.result(REQUEST_SECONDS)["cleanup.policy"].value
            except (KafkaException, TimeoutError):
                findings.note(
                    f"topic `{resource.name}`: we may not read whether it is compacted, so that "
                    "rows without a record are no finding"
                )
                policy = "compact"
            if "compact" in str(policy):
                compacted.add(resource.name)
    return frozenset(compacted)


def _settings(options: KafkaSourceOptions) -> dict[str, Any]:
    return dict(librdkafka(options.bootstrap_servers, options.options))


def read_records(
    options: KafkaSourceOptions, start: Positions, stop: Positions
) -> Iterator[pa.RecordBatch]:
    """Yield the broker's records in these ranges, in batches of one partition each."""
    group = options.options.get("kafka.group.id") or (
        options.options.get("groupIdPrefix", "icestream") + "-verify"
    )
    settings = {**_settings(options), "group.id": group}
    for stream, partitions in start.items():
        for partition, first in partitions.items():
            end = {stream: {partition: stop[stream][partition]}}
            with SampleConsumer(settings, {stream: {partition: first}}, end) as consumer:
                while batches := list(consumer.batches(_AT_ONCE)):
                    yield from batches


def read_record(
    options: KafkaSourceOptions, topic: str, partition: int, offset: int
) -> pa.RecordBatch:
    """Read one record of the broker again, to name the columns in which a row differs from it."""
    start, stop = {topic: {partition: offset}}, {topic: {partition: offset + 1}}
    return next(read_records(options, start, stop))


def check_bad_records(broker: BrokerSide, side: TableSide, findings: TableFindings) -> None:
    """Records that do not decode were quarantined, or counted as dropped."""
    marker = side.chain.marker
    dropped = marker.counts.dropped if marker else 0
    missing = 0
    for partition, bad in broker.bad.sets.items():
        offsets = difference(bad, side.landed.get(partition), side.quarantined.get(partition))
        missing += len(offsets)
        if missing > dropped:
            for start, stop, count in contiguous_ranges(offsets, MOST):
                findings.add(
                    "source",
                    "missing",
                    f"bad records set aside; {dropped} were dropped",
                    f"{missing} bad records are nowhere",
                    stream=partition[0],
                    partition=partition[1],
                    start=start,
                    stop=stop,
                    records=min(count, missing - dropped),
                    harm="lost",
                )


def difference(offsets: Any, *others: Any) -> Any:
    """Return a set of offsets without those of other sets; None: no other set."""
    for other in others:
        if other is not None:
            offsets = offsets - other
    return offsets
