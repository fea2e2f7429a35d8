"""The broker's records against the table's rows: none missing, none made up, no value changed."""

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

_NOT_COMPARED = {"_ingested_at", "_src_headers"}  # ours alone; not read here


def check_source(
    config: PipelineConfig, rule: TableRule, side: TableSide, findings: TableFindings
) -> None:
    """Read what the broker still has of the table's ranges, and compare."""
    options = config.source
    assert isinstance(options, KafkaSourceOptions), "the caller has looked"
    decoder = _RecordDecoder(config, rule, side.table.schema())
    with ExitStack() as stack:
        seen = comparable_ranges(options, side, findings)
        digests = RowDigests(stack.enter_context(database()), decoder.compared)
        for batch in read_records(options, seen.begin, seen.ends):
            good, bad = decoder.rows(batch)
            seen.good.add_rows(good.select(list(ORIGIN)))
            seen.bad.add_rows(bad.select(["topic", "partition", "offset"]))
            digests.add_expected(good)
        try:
            digests.add_table(side.table, side.live)
        except UNREADABLE as failure:
            told = str(failure).splitlines()[0][:200]
            findings.add("source", "unreadable", "rows to compare with", told)
        _missing(seen, side, findings)
        check_bad_records(seen, side, findings)
        _phantoms(seen, side, findings)
        _undecodable(seen, side, findings)
        _values(options, decoder, digests, side, findings)
    read = seen.good.rows + seen.bad.rows
    told = f"{read} records of the broker compared, {digests.compared} rows by value"
    if seen.unchecked:
        told += f"; {seen.unchecked} offsets are not on the broker any more: unchecked"
    findings.finish_check("source", told, looked=bool(side.chain.marker) and not seen.unchecked)


class _RecordDecoder:
    """Records to rows, as a task makes them."""

    def __init__(self, config: PipelineConfig, rule: TableRule, schema: Schema) -> None:
        self._format: Format = format_for(config.source.format)
        self._dropped = frozenset(rule.except_columns)
        self._data = Schema(*(f for f in schema.fields if f.name not in METADATA_NAMES))
        self._shape = RowLayout(arrow_schema(schema), config.name, datetime.now(UTC))
        self.compared = tuple(n for n in schema.column_names if n not in _NOT_COMPARED)

    def rows(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Good rows in the table's columns, and bad ones as quarantine has them."""
        # `ignore`: a field that the table has no column for says nothing about its rows.
        decoded = self._format.decode(records, self._data, "ignore", self._dropped)
        shaped = split_good_and_bad(records, decoded, self._shape)
        return shaped.good, shaped.bad


def _missing(seen: BrokerSide, side: TableSide, findings: TableFindings) -> None:
    """A record that decodes is in the table or was set aside."""
    for key, found in seen.good.sets.items():
        left = difference(found, side.landed.get(key), side.quarantined.get(key))
        findings.add_ranges(
            "source",
            "missing",
            "a row, or a record set aside",
            "neither, for {} records of the broker",
            key,
            contiguous_ranges(left, MOST),
            harm="lost",
        )


def _phantoms(seen: BrokerSide, side: TableSide, findings: TableFindings) -> None:
    """A row without a record, where the broker removes records from the front only."""
    for sets, what in ((side.landed, "row"), (side.quarantined, "record set aside")):
        for key, window in _windows(seen):
            if key not in sets:
                continue
            real = difference(sets[key] & window, seen.good.sets.get(key), seen.bad.sets.get(key))
            if real and key[0] in seen.compacted:
                seen.unchecked += len(real)
                findings.note(f"topic `{key[0]}` is compacted: rows may outlive their records")
                continue
            findings.add_ranges(
                "source",
                "phantom",
                f"a record on the broker for each {what}",
                "none for {}",
                key,
                contiguous_ranges(real, MOST),
                harm="phantom",
            )


def _undecodable(seen: BrokerSide, side: TableSide, findings: TableFindings) -> None:
    """A row whose record does not decode cannot have come from it."""
    for key, found in seen.bad.sets.items():
        both = found & side.landed[key] if key in side.landed else span(0, 0)
        findings.add_ranges(
            "source",
            "undecodable",
            "records that decode, as rows came from them",
            "{} that do not",
            key,
            contiguous_ranges(both, MOST),
            records=0,
        )


def _values(
    options: KafkaSourceOptions,
    decoder: _RecordDecoder,
    digests: RowDigests,
    side: TableSide,
    findings: TableFindings,
) -> None:
    """Name the columns of rows that differ from their record."""
    total, places = digests.differing(MOST)
    expected = {}
    for topic, partition, offset in places:
        rows, _ = decoder.rows(read_record(options, topic, partition, offset))
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


def _windows(seen: BrokerSide) -> Iterator[tuple[SourcePartition, Any]]:
    for stream, partitions in seen.begin.items():
        for number, first in partitions.items():
            yield (stream, number), span(first, seen.ends[stream][number])
