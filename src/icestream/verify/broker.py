"""The broker's side of a comparison: which ranges it still has, and its records there."""

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
    """The table's side."""

    table: Table
    live: Sequence[DataFile]
    chain: MarkerChain
    landed: Sets
    quarantined: Sets
    rules: RowCheckRules


@dataclass
class BrokerSide:
    """The broker's side, in the ranges that could be compared."""

    begin: dict[str, dict[int, int]] = field(default_factory=dict)
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    good: OffsetBitmaps = field(default_factory=OffsetBitmaps)
    bad: OffsetBitmaps = field(default_factory=OffsetBitmaps)  # records that do not decode
    compacted: frozenset[str] = frozenset()  # topics whose records compaction removes
    incomplete: set[SourcePartition] = field(
        default_factory=set
    )  # that lack records of the table's range
    unchecked: int = 0


def comparable_ranges(
    options: KafkaSourceOptions, side: TableSide, findings: TableFindings
) -> BrokerSide:
    """What to read: from the table's start to its marker, as far as the broker still has it."""
    marker = side.chain.marker
    seen = BrokerSide()
    if marker is None:
        return seen
    cluster = KafkaAdmin(options.bootstrap_servers, options.options)
    try:
        topics = cluster.describe(list(marker.positions))
        usable: dict[str, list[int]] = {}
        for stream, partitions in marker.positions.items():
            known = marker.stream_ids.get(stream)
            why = None
            if stream not in topics:
                why = "is not on the broker any more"
            elif known and topics[stream].id and topics[stream].id != known:
                why = "was created again: its records are others"
            elif stream in side.chain.reused or stream in side.rules.others:
                why = "has offsets that do not tell records apart"
            if why:
                findings.note(f"topic `{stream}` {why}; unchecked")
                seen.unchecked += sum(partitions.values())
                seen.incomplete |= {(stream, number) for number in partitions}
            else:
                usable[stream] = [n for n in partitions if n in topics[stream].partitions]
        earliest = cluster.earliest(usable)
    finally:
        cluster.close()
    for stream, numbers in usable.items():
        for number in numbers:
            stop = marker.positions[stream][number]
            start = _start(side, options, stream, number)
            first = min(stop, max(start, earliest[stream][number]))
            seen.unchecked += max(0, first - start)
            seen.begin.setdefault(stream, {})[number] = first
            seen.ends.setdefault(stream, {})[number] = stop
            if first > start:
                seen.incomplete.add((stream, number))
                findings.note(
                    f"{stream}/{number} {start} to {first}: removed from the broker, unchecked"
                )
    seen.compacted = _compacted_topics(options, list(usable), findings)
    return seen


def _start(side: TableSide, options: KafkaSourceOptions, stream: str, number: int) -> int:
    """Where the table began: by its first claim, or where that has expired by its first row."""
    known = side.chain.start.get(stream, {}).get(number)
    if known is not None:
        return known
    if (
        options.start == "earliest" or side.chain.complete
    ):  # one that came later has been read whole
        return 0
    found = [s[stream, number] for s in (side.landed, side.quarantined) if (stream, number) in s]
    marker = side.chain.marker
    end = marker.positions[stream][number] if marker else 0
    return min((each.min() for each in found if each), default=end)


def _compacted_topics(
    options: KafkaSourceOptions, topics: Sequence[str], findings: TableFindings
) -> frozenset[str]:
    """Topics with `cleanup.policy=compact`: there a row may outlive its record."""
    if not topics:
        return frozenset()
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    found = set()
    settings = _settings(options)
    quiet = ClientErrors(settings, SECRETS)  # librdkafka prints what nobody listens to
    callbacks: dict[str, Any] = {"error_cb": quiet.error, "logger": quiet}
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
                found.add(resource.name)
    return frozenset(found)


def _settings(options: KafkaSourceOptions) -> dict[str, Any]:
    return dict(librdkafka(options.bootstrap_servers, options.options))


def read_records(
    options: KafkaSourceOptions, begin: Positions, ends: Positions
) -> Iterator[pa.RecordBatch]:
    """The broker's records in these ranges, some thousands at a time, of one partition each."""
    group = options.options.get("kafka.group.id") or (
        options.options.get("groupIdPrefix", "icestream") + "-verify"
    )
    settings = {**_settings(options), "group.id": group}
    for stream, partitions in begin.items():
        for number, first in partitions.items():
            stop = {stream: {number: ends[stream][number]}}
            with SampleConsumer(settings, {stream: {number: first}}, stop) as sample:
                while batches := list(sample.batches(_AT_ONCE)):
                    yield from batches


def read_record(
    options: KafkaSourceOptions, topic: str, partition: int, offset: int
) -> pa.RecordBatch:
    """A single one."""
    return next(
        read_records(options, {topic: {partition: offset}}, {topic: {partition: offset + 1}})
    )


def check_bad_records(seen: BrokerSide, side: TableSide, findings: TableFindings) -> None:
    """Records that do not decode were set aside, or counted as dropped."""
    marker = side.chain.marker
    dropped = marker.counts.dropped if marker else 0
    gone = 0
    for key, found in seen.bad.sets.items():
        left = difference(found, side.landed.get(key), side.quarantined.get(key))
        gone += len(left)
        if gone > dropped:
            for start, stop, count in contiguous_ranges(left, MOST):
                findings.add(
                    "source",
                    "missing",
                    f"bad records set aside; {dropped} were dropped",
                    f"{gone} bad records are nowhere",
                    stream=key[0],
                    partition=key[1],
                    start=start,
                    stop=stop,
                    records=min(count, gone - dropped),
                    harm="lost",
                )


def difference(found: Any, *others: Any) -> Any:
    """One set without some others."""
    for other in others:
        if other is not None:
            found = found - other
    return found
