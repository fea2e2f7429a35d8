"""`verify --source`: no row of the broker's records is missing, invented or changed."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema

from icestream.batch.row_layout import RowLayout, split_good_and_bad
from icestream.config.model import PipelineConfig
from icestream.config.options.source import KafkaSourceOptions
from icestream.config.options.table import TableRule
from icestream.formats import Format, format_for
from icestream.schema import METADATA_NAMES
from icestream.tables.arrow import arrow_schema
from icestream.tables.inventory import first_line
from icestream.verify.broker import (
    BrokerSide,
    TableSide,
    check_bad_records,
    comparable_ranges,
    difference,
    read_record,
    read_records,
)
from icestream.verify.offsets import SourcePartition, contiguous_ranges, span
from icestream.verify.report import MOST, TableFindings
from icestream.verify.scan import ORIGIN, UNREADABLE
from icestream.verify.scratch import database
from icestream.verify.values import RowDigests, differing

_NOT_COMPARED = {"_ingested_at", "_src_headers"}  # not of the record; not read here


def check_source(
    config: PipelineConfig, rule: TableRule, side: TableSide, findings: TableFindings
) -> None:
    """Read the records that the broker still has of the table's ranges, and compare the rows."""
    options = config.source
    assert isinstance(options, KafkaSourceOptions), "the caller has looked"
    decoder = _RecordDecoder(config, rule, side.table.schema())
    with ExitStack() as stack:
        broker = comparable_ranges(options, side, findings)
        digests = RowDigests(stack.enter_context(database()), decoder.compared)
        for batch in read_records(options, broker.start, broker.stop):
            good, bad = decoder.rows(batch)
            broker.good.add_rows(good.select(list(ORIGIN)))
            broker.bad.add_rows(bad.select(["topic", "partition", "offset"]))
            digests.add_expected(good)
        try:
            digests.add_table(side.table, side.live)
        except UNREADABLE as failure:
            findings.add("source", "unreadable", "rows to compare with", first_line(failure))
        _check_missing(broker, side, findings)
        check_bad_records(broker, side, findings)
        _check_phantoms(broker, side, findings)
        _check_undecodable(broker, side, findings)
        _check_values(options, decoder, digests, side, findings)
    read = broker.good.rows + broker.bad.rows
    detail = f"{read} records of the broker compared, {digests.compared} rows by value"
    if broker.unchecked:
        detail += f"; {broker.unchecked} offsets are not on the broker any more: unchecked"
    findings.finish_check("source", detail, looked=bool(side.chain.marker) and not broker.unchecked)


class _RecordDecoder:
    """Decodes records into rows as a task of a run does."""

    def __init__(self, config: PipelineConfig, rule: TableRule, schema: Schema) -> None:
        self._format: Format = format_for(config.source.format)
        self._dropped = frozenset(rule.except_columns)
        self._data = Schema(*(f for f in schema.fields if f.name not in METADATA_NAMES))
        self._layout = RowLayout(arrow_schema(schema), config.name, datetime.now(UTC))
        self.compared = tuple(n for n in schema.column_names if n not in _NOT_COMPARED)

    def rows(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return good rows in the table's columns, and bad ones in quarantine's."""
        # `ignore`: a field that the table has no column for says nothing about its rows.
        decoded = self._format.decode(records, self._data, "ignore", self._dropped)
        split = split_good_and_bad(records, decoded, self._layout)
        return split.good, split.bad


def _check_missing(broker: BrokerSide, side: TableSide, findings: TableFindings) -> None:
    """A record that decodes is in the table or in its quarantine."""
    for partition, offsets in broker.good.sets.items():
        missing = difference(offsets, side.landed.get(partition), side.quarantined.get(partition))
        findings.add_ranges(
            "source",
            "missing",
            "a row, or a record set aside",
            "neither, for {} records of the broker",
            partition,
            contiguous_ranges(missing, MOST),
            harm="lost",
        )


def _check_phantoms(broker: BrokerSide, side: TableSide, findings: TableFindings) -> None:
    """A row has a record, where the broker removes records at the front only."""
    good, bad = broker.good.sets, broker.bad.sets
    for sets, what in ((side.landed, "row"), (side.quarantined, "record set aside")):
        for partition, compared in _compared_ranges(broker):
            if partition not in sets:
                continue
            phantom = difference(
                sets[partition] & compared, good.get(partition), bad.get(partition)
            )
            if phantom and partition[0] in broker.compacted:
                broker.unchecked += len(phantom)
                topic = partition[0]
                findings.note(f"topic `{topic}` is compacted: rows may outlive their records")
                continue
            findings.add_ranges(
                "source",
                "phantom",
                f"a record on the broker for each {what}",
                "none for {}",
                partition,
                contiguous_ranges(phantom, MOST),
                harm="phantom",
            )


def _check_undecodable(broker: BrokerSide, side: TableSide, findings: TableFindings) -> None:
    """A row has a record that decodes: it cannot have come from one that does not."""
    for partition, offsets in broker.bad.sets.items():
        both = offsets & side.landed[partition] if partition in side.landed else span(0, 0)
        findings.add_ranges(
            "source",
            "undecodable",
            "records that decode, as rows came from them",
            "{} that do not",
            partition,
            contiguous_ranges(both, MOST),
            records=0,
        )


def _check_values(
    options: KafkaSourceOptions,
    decoder: _RecordDecoder,
    digests: RowDigests,
    side: TableSide,
    findings: TableFindings,
) -> None:
    """Rows have the values of their records; report the columns that differ."""
    total, origins = digests.differing(MOST)
    expected = {}
    for origin in origins:
        rows, _ = decoder.rows(read_record(options, *origin))
        expected[origin] = rows.to_pylist()[0]
    named = False
    for origin, column, wanted, actual in differing(
        side.table, side.live, expected, decoder.compared
    ):
        named = True
        topic, partition, offset = origin
        findings.add(
            "source",
            "value-differs",
            f"`{column}` = {wanted}",
            actual,
            stream=topic,
            partition=partition,
            start=offset,
            stop=offset + 1,
        )
    if total and not named:
        findings.add("source", "value-differs", "rows as their records", f"{total} that differ")
    if total > len(origins):
        findings.note(f"{total} rows differ from their records; the first {len(origins)} are told")


def _compared_ranges(broker: BrokerSide) -> Iterator[tuple[SourcePartition, Any]]:
    for stream, partitions in broker.start.items():
        for partition, start in partitions.items():
            yield (stream, partition), span(start, broker.stop[stream][partition])
