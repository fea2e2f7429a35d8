"""The broker's records against the table's rows: none missing, none made up, no value changed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from icestream.arrow import arrow_schema
from icestream.commit.marker import Positions
from icestream.config.model import Pipeline as Config
from icestream.config.options.source import KafkaSource
from icestream.config.options.table import TableRule
from icestream.formats import Format, format_for
from icestream.schema import METADATA_NAMES
from icestream.shape import Shape, split
from icestream.sources.kafka.causes import Causes
from icestream.sources.kafka.client import REQUEST_SECONDS, Cluster
from icestream.sources.kafka.properties import SECRETS, librdkafka
from icestream.sources.kafka.sample import Sample
from icestream.verify.chain import Chain
from icestream.verify.offsets import Offsets, Partition, Sets, runs, span
from icestream.verify.report import MOST, Findings
from icestream.verify.rows import Terms
from icestream.verify.scan import ORIGIN, UNREADABLE
from icestream.verify.values import Digests, differing

_AT_ONCE = 20_000  # records that are held at a time
_NOT_COMPARED = {"_ingested_at", "_src_headers"}  # ours alone; not read here


@dataclass(frozen=True)
class Compared:
    """The table's side."""

    table: Table
    live: Sequence[DataFile]
    chain: Chain
    landed: Sets
    aside: Sets
    terms: Terms


@dataclass
class Seen:
    """The broker's side, in the ranges that could be compared."""

    begin: dict[str, dict[int, int]] = field(default_factory=dict)
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    good: Offsets = field(default_factory=Offsets)
    bad: Offsets = field(default_factory=Offsets)  # records that do not decode
    thinned: frozenset[str] = frozenset()  # topics whose records compaction removes
    unchecked: int = 0


def check_source(config: Config, rule: TableRule, side: Compared, findings: Findings) -> None:
    """Read what the broker still has of the table's ranges, and compare."""
    options = config.source
    assert isinstance(options, KafkaSource), "the caller has looked"
    decoder = _Decoder(config, rule, side.table.schema())
    with ExitStack() as stack:
        cluster = Cluster(options.bootstrap_servers, options.options)
        stack.callback(cluster.close)
        seen = _ranges(cluster, options, side, findings)
        digests = stack.enter_context(Digests(decoder.compared))
        for records in _records(options, seen.begin, seen.ends):
            good, bad = decoder.rows(records)
            seen.good.take(good.select(list(ORIGIN)))
            seen.bad.take(bad.select(["topic", "partition", "offset"]))
            digests.expect(good)
        try:
            digests.take(side.table, side.live)
        except UNREADABLE as failure:
            told = str(failure).splitlines()[0][:200]
            findings.add("source", "unreadable", "rows to compare with", told)
        _missing(seen, side, findings)
        _phantoms(seen, side, findings)
        _undecodable(seen, side, findings)
        _values(options, decoder, digests, side, findings)
    read = seen.good.rows + seen.bad.rows
    told = f"{read} records of the broker compared, {digests.compared} rows by value"
    if seen.unchecked:
        told += f"; {seen.unchecked} offsets are not on the broker any more: unchecked"
    findings.done("source", told, looked=bool(side.chain.marker) and not seen.unchecked)


class _Decoder:
    """Records to rows, as a task makes them."""

    def __init__(self, config: Config, rule: TableRule, schema: Schema) -> None:
        self._format: Format = format_for(config.source.format)
        self._dropped = frozenset(rule.except_columns)
        self._data = Schema(*(f for f in schema.fields if f.name not in METADATA_NAMES))
        self._shape = Shape(arrow_schema(schema), config.name, datetime.now(UTC))
        self.compared = tuple(n for n in schema.column_names if n not in _NOT_COMPARED)

    def rows(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Good rows in the table's columns, and bad ones as quarantine has them."""
        # `ignore`: a field that the table has no column for says nothing about its rows.
        decoded = self._format.decode(records, self._data, "ignore", self._dropped)
        shaped = split(records, decoded, self._shape)
        return shaped.good, shaped.bad


def _ranges(cluster: Cluster, options: KafkaSource, side: Compared, findings: Findings) -> Seen:
    """What to read: from the table's start to its marker, as far as the broker still has it."""
    marker = side.chain.marker
    seen = Seen()
    if marker is None:
        return seen
    topics = cluster.describe(list(marker.positions))
    usable: dict[str, list[int]] = {}
    for stream, partitions in marker.positions.items():
        known = marker.stream_ids.get(stream)
        why = None
        if stream not in topics:
            why = "is not on the broker any more"
        elif known and topics[stream].id and topics[stream].id != known:
            why = "was created again: its records are others"
        elif stream in side.chain.reused or stream in side.terms.others:
            why = "has offsets that do not tell records apart"
        if why:
            findings.note(f"topic `{stream}` {why}; unchecked")
            seen.unchecked += sum(partitions.values())
        else:
            usable[stream] = [n for n in partitions if n in topics[stream].partitions]
    earliest = cluster.earliest(usable)
    for stream, numbers in usable.items():
        for number in numbers:
            stop = marker.positions[stream][number]
            start = _start(side, options, stream, number)
            first = min(stop, max(start, earliest[stream][number]))
            seen.unchecked += max(0, first - start)
            seen.begin.setdefault(stream, {})[number] = first
            seen.ends.setdefault(stream, {})[number] = stop
            if first > start:
                findings.note(
                    f"{stream}/{number} {start} to {first}: removed from the broker, unchecked"
                )
    seen.thinned = _thinned(options, list(usable), findings)
    return seen


def _start(side: Compared, options: KafkaSource, stream: str, number: int) -> int:
    """Where the table began: by its first claim, or where that has expired by its first row."""
    known = side.chain.start.get(stream, {}).get(number)
    if known is not None:
        return known
    if options.start == "earliest":
        return 0
    found = [s[stream, number] for s in (side.landed, side.aside) if (stream, number) in s]
    marker = side.chain.marker
    end = marker.positions[stream][number] if marker else 0
    return min((each.min() for each in found if each), default=end)


def _thinned(options: KafkaSource, topics: Sequence[str], findings: Findings) -> frozenset[str]:
    """Topics with `cleanup.policy=compact`: there a row may outlive its record."""
    if not topics:
        return frozenset()
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    found = set()
    settings = _settings(options)
    quiet = Causes(settings, SECRETS)  # librdkafka prints what nobody listens to
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


def _settings(options: KafkaSource) -> dict[str, Any]:
    return dict(librdkafka(options.bootstrap_servers, options.options))


def _records(options: KafkaSource, begin: Positions, ends: Positions) -> Iterator[pa.RecordBatch]:
    """The broker's records in these ranges, some thousands at a time."""
    group = options.options.get("kafka.group.id") or (
        options.options.get("groupIdPrefix", "icestream") + "-verify"
    )
    settings = {**_settings(options), "group.id": group}
    # One partition after the other: of several, a sample may leave out a record at a round's end.
    for stream, partitions in begin.items():
        for number, first in partitions.items():
            stop = {stream: {number: ends[stream][number]}}
            with Sample(settings, {stream: {number: first}}, stop) as sample:
                while batches := list(sample.batches(_AT_ONCE)):
                    yield from batches


def _missing(seen: Seen, side: Compared, findings: Findings) -> None:
    """A record that decodes is in the table or was set aside; one that does not may be dropped."""
    marker = side.chain.marker
    dropped = marker.counts.dropped if marker else 0
    gone_bad = 0
    for key, found in seen.good.sets.items():
        left = _minus(found, side.landed.get(key), side.aside.get(key))
        findings.add_ranges(
            "source",
            "missing",
            "a row, or a record set aside",
            "neither, for {} records of the broker",
            key,
            runs(left, MOST),
            harm="lost",
        )
    for key, found in seen.bad.sets.items():
        left = _minus(found, side.landed.get(key), side.aside.get(key))
        gone_bad += len(left)
        if gone_bad > dropped:
            for start, stop, count in runs(left, MOST):
                findings.add(
                    "source",
                    "missing",
                    f"bad records set aside; {dropped} were dropped",
                    f"{gone_bad} bad records are nowhere",
                    stream=key[0],
                    partition=key[1],
                    start=start,
                    stop=stop,
                    records=min(count, gone_bad - dropped),
                    harm="lost",
                )


def _phantoms(seen: Seen, side: Compared, findings: Findings) -> None:
    """A row without a record, where the broker removes records from the front only."""
    for sets, what in ((side.landed, "row"), (side.aside, "record set aside")):
        for key, window in _windows(seen):
            if key not in sets:
                continue
            real = _minus(sets[key] & window, seen.good.sets.get(key), seen.bad.sets.get(key))
            if real and key[0] in seen.thinned:
                seen.unchecked += len(real)
                findings.note(f"topic `{key[0]}` is compacted: rows may outlive their records")
                continue
            findings.add_ranges(
                "source",
                "phantom",
                f"a record on the broker for each {what}",
                "none for {}",
                key,
                runs(real, MOST),
                harm="phantom",
            )


def _undecodable(seen: Seen, side: Compared, findings: Findings) -> None:
    """A row whose record does not decode cannot have come from it."""
    for key, found in seen.bad.sets.items():
        both = found & side.landed[key] if key in side.landed else span(0, 0)
        findings.add_ranges(
            "source",
            "undecodable",
            "records that decode, as rows came from them",
            "{} that do not",
            key,
            runs(both, MOST),
            records=0,
        )


def _values(
    options: KafkaSource,
    decoder: _Decoder,
    digests: Digests,
    side: Compared,
    findings: Findings,
) -> None:
    """Name the columns of rows that differ from their record."""
    total, places = digests.differing(MOST)
    expected = {}
    for topic, partition, offset in places:
        one = {topic: {partition: offset}}, {topic: {partition: offset + 1}}
        rows, _ = decoder.rows(next(_records(options, *one)))
        expected[topic, partition, offset] = rows.to_pylist()[0]
    told = False
    for place, column, wanted, seen in differing(side.table, side.live, expected, decoder.compared):
        told = True
        findings.add(
            "source",
            "value-differs",
            f"`{column}` = {wanted}",
            seen,
            stream=place[0],
            partition=place[1],
            start=place[2],
            stop=place[2] + 1,
        )
    if total and not told:
        findings.add("source", "value-differs", "rows as their records", f"{total} that differ")
    if total > len(places):
        findings.note(f"{total} rows differ from their records; the first {len(places)} are told")


def _windows(seen: Seen) -> Iterator[tuple[Partition, Any]]:
    for stream, partitions in seen.begin.items():
        for number, first in partitions.items():
            yield (stream, number), span(first, seen.ends[stream][number])


def _minus(found: Any, *others: Any) -> Any:
    for other in others:
        if other is not None:
            found = found - other
    return found
