"""`verify --source` of a mirror: each row is what the broker's change records make of its key."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.schema import Schema

from icestream.batch.row_layout import RowLayout, split_good_and_bad
from icestream.config.model import PipelineConfig
from icestream.config.options.source import KafkaSourceOptions
from icestream.config.options.table import TableRule
from icestream.formats import DELETE, TRUNCATE, UPSERT, DecodedBatch, Format, duck, format_for
from icestream.formats.sequence import encode_sequence
from icestream.schema import DELETED_COLUMN, OUR_NAMES, SEQUENCE_COLUMN
from icestream.tables.arrow import arrow_schema
from icestream.tables.inventory import first_line
from icestream.upsert.change_rules import order_only_fields, sequence_column
from icestream.verify.broker import (
    BrokerSide,
    TableSide,
    check_bad_records,
    comparable_ranges,
    read_record,
    read_records,
)
from icestream.verify.offsets import OffsetBitmaps, span
from icestream.verify.replay import (
    ChangeReplay,
    KeyMismatch,
    MismatchKind,
    ReplayBatch,
    TruncateEvent,
    UncarriedColumns,
)
from icestream.verify.report import MOST, TableFindings
from icestream.verify.scan import ORIGIN, UNREADABLE, batches, tasks
from icestream.verify.scratch import database, registered
from icestream.verify.values import RecordId, shorten
from icestream.write.conform import conform_to

_ORIGIN = ("topic", "partition", "offset")  # columns of a record
_NOT_COMPARED = {"_ingested_at", "_src_headers"}  # not of the record; not read here
_EXPECTED: dict[MismatchKind, str] = {
    "missing": "a row for {key}: so says its newest record",
    "resurrected": "no row for {key}: it was deleted",
    "phantom": "no row for {key}: no record speaks of it",
}
_SEEN: dict[MismatchKind, str] = {"missing": "none", "resurrected": "a row", "phantom": "a row"}


def check_mirror(
    config: PipelineConfig,
    rule: TableRule,
    keys: Sequence[str],
    side: TableSide,
    findings: TableFindings,
) -> None:
    """Replay the records that the broker still has of the table's ranges, and compare the rows."""
    options = config.source
    assert isinstance(options, KafkaSourceOptions), "the caller has looked"
    why = None
    if options.start != "earliest" and not side.chain.complete:
        why = "the commit that says where the table began has expired: nothing is compared"
    if not set(keys) <= set(side.table.schema().column_names):
        why = "the table has no key columns yet"
    if why:
        findings.finish_check("source", why, looked=False)
        return
    broker = comparable_ranges(options, side, findings)
    lacking: set[str] = set()
    while True:
        reader = _ChangeReader(config, rule, side, keys)
        with database() as connection:
            always = [name for name in reader.columns.names if name in OUR_NAMES]
            replay = ChangeReplay(connection, reader.columns, keys, always, sorted(lacking))
            try:
                for batch in read_records(options, broker.start, broker.stop):
                    replay.add_records(reader.changes(batch))
            except UncarriedColumns as failure:  # again, with a digest for each of these columns
                lacking |= failure.columns
                continue
            broker.bad = reader.bad
            _compare(options, reader, replay, broker, findings)
            return


def _compare(
    options: KafkaSourceOptions,
    reader: "_ChangeReader",
    replay: ChangeReplay,
    broker: BrokerSide,
    findings: TableFindings,
) -> None:
    check_bad_records(broker, reader.side, findings)
    compacted = {(topic, n) for topic in broker.compacted for n in broker.start.get(topic, ())}
    if not replay.fold(reader.truncates, broker.incomplete | compacted):
        text = "a truncate without a place in a log, and several partitions: nothing is compared"
        findings.finish_check("source", text, looked=False)
        return
    try:
        reader.table_rows(replay)
    except UNREADABLE as failure:
        findings.add("source", "unreadable", "rows to compare with", first_line(failure))
    replay.compare(lenient=reader.rule.bad_records == "drop")
    for kind in _EXPECTED:
        _report_mismatches(replay, kind, reader.keys, findings)
    # Another reader, for records that are read a second time: it must not count them again.
    rereader = _ChangeReader(reader.config, reader.rule, reader.side, reader.keys)
    _report_values(options, rereader, replay, findings)
    _report_compared(reader, replay, broker, findings)


@dataclass
class _ChangeReader:
    """Decodes records into changes, as the pipeline file says; collects bad ones and truncates."""

    config: PipelineConfig
    rule: TableRule
    side: TableSide
    keys: Sequence[str]
    read: int = 0
    bad: OffsetBitmaps = field(default_factory=OffsetBitmaps)
    truncates: list[TruncateEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        schema = self.side.table.schema()
        names = [n for n in schema.column_names if n not in _NOT_COMPARED]
        self.columns = arrow_schema(schema.select(*names))
        self._format: Format = format_for(self.config.source.format)
        data = Schema(*(f for f in schema.fields if f.name not in OUR_NAMES))
        order = order_only_fields(self.rule.sequence_by or (), data, self._format)
        self._data = Schema(*data.fields, *order)
        self._layout = RowLayout(arrow_schema(schema), self.config.name, datetime.now(UTC))

    def changes(self, records: pa.RecordBatch) -> ReplayBatch:
        """Decode records of one partition; remembers bad ones and truncates."""
        self.read += len(records)
        # `ignore`: a field that the table has no column for says nothing about its rows.
        dropped = frozenset(self.rule.except_columns)
        decoded = self._format.decode(records, self._data, "ignore", dropped)
        ops, sequence = self._ops(decoded), self._sequence(decoded)
        is_good = decoded.errors.is_null().to_numpy(zero_copy_only=False)
        has_row = (ops == UPSERT) | (ops == DELETE)
        for key in self.keys:
            is_null = decoded.columns.column(key).is_null().to_numpy(zero_copy_only=False)
            is_good &= ~(is_null & has_row)
        self.bad.add_rows(records.filter(pa.array(~is_good)).select(list(_ORIGIN)))
        is_good &= ~self._is_quarantined(records)
        if self.rule.truncate == "apply":
            self._add_truncates(records, sequence, is_good & (ops == TRUNCATE))
        return self._rows(records, decoded, ops, sequence, pa.array(is_good & has_row))

    def _rows(
        self,
        records: pa.RecordBatch,
        decoded: DecodedBatch,
        ops: NDArray[np.int8],
        sequence: pa.BinaryArray,
        kept: pa.BooleanArray,
    ) -> ReplayBatch:
        records, sequence = records.filter(kept), sequence.filter(kept)
        columns = decoded.columns.filter(kept)
        deleted = pa.array(ops == DELETE).filter(kept)
        columns = columns.append_column(SEQUENCE_COLUMN.name, sequence.cast(pa.large_binary()))
        columns = columns.append_column(DELETED_COLUMN.name, deleted)
        good = DecodedBatch(columns, pa.nulls(len(records), pa.string()))
        rows = split_good_and_bad(records, good, self._layout).good.select(self.columns.names)
        soft = self.rule.deletes == "soft"
        op = pc.if_else(deleted, pa.scalar(UPSERT if soft else DELETE, pa.int8()), UPSERT)
        missing = decoded.changes.missing if decoded.changes else {}
        return ReplayBatch(
            origins=pa.Table.from_batches([records.select(list(_ORIGIN))]),
            rows=rows,
            op=op.cast(pa.int8()),
            sequence=sequence,
            carries=pc.invert(deleted),
            missing={name: flags.filter(kept) for name, flags in missing.items()},
        )

    def _ops(self, decoded: DecodedBatch) -> NDArray[np.int8]:
        """Return each record's op: the format's, or by the condition of the pipeline file."""
        if decoded.changes:
            ops: NDArray[np.int8] = decoded.changes.op.to_numpy()
            return ops
        count = len(decoded.columns)
        if not self.rule.apply_as_deletes:
            return np.full(count, UPSERT, np.int8)
        connection = duck.connection()
        query = f"SELECT coalesce(({self.rule.apply_as_deletes})::BOOLEAN, false) AS x FROM t"
        with registered(connection, "t", pa.Table.from_batches([decoded.columns])):
            is_delete = connection.execute(query).to_arrow_table().column("x").to_numpy()
        return np.where(is_delete, np.int8(DELETE), np.int8(UPSERT))

    def _sequence(self, decoded: DecodedBatch) -> pa.BinaryArray:
        if self.rule.sequence_by:
            columns = [sequence_column(decoded.columns, name) for name in self.rule.sequence_by]
            return encode_sequence(columns).cast(pa.binary())
        if decoded.changes:
            return decoded.changes.sequence.cast(pa.binary())
        return pa.nulls(len(decoded.columns), pa.binary())

    def _is_quarantined(self, records: pa.RecordBatch) -> NDArray[np.bool_]:
        """Say which records are in the quarantine, and so not in the mirror."""
        if not len(records):
            return np.zeros(0, bool)
        # All of them are of one partition, as `read_records` yields them.
        first = records.slice(0, 1).to_pylist()[0]
        offsets = records.column("offset").to_numpy()
        quarantined = self.side.quarantined.get((first["topic"], first["partition"]))
        if quarantined is None:
            return np.zeros(len(offsets), bool)
        within = quarantined & span(int(offsets.min()), int(offsets.max()) + 1)
        return np.isin(offsets, np.fromiter(within, np.int64, len(within)))

    def _add_truncates(
        self, records: pa.RecordBatch, sequence: pa.BinaryArray, is_truncate: NDArray[np.bool_]
    ) -> None:
        for index in np.flatnonzero(is_truncate).tolist():
            record = records.slice(index, 1).to_pylist()[0]
            origin = (record["topic"], record["partition"], record["offset"])
            self.truncates.append(TruncateEvent(sequence[index].as_py() or b"", origin))

    def table_rows(self, replay: ChangeReplay) -> None:
        """Add the rows of the table's current snapshot to a replay."""
        table, columns = self.side.table, tuple(self.columns.names)
        for task in tasks(table, self.side.live):
            for batch in batches(table, task, columns):
                rows = conform_to(batch, self.columns)
                if rows.num_rows:
                    sequence = rows.column(SEQUENCE_COLUMN.name)
                    replay.add_rows(rows, _origins(rows), sequence)


def _origins(rows: pa.RecordBatch) -> pa.Table:
    """Return the origins of rows, or nulls if the table has no metadata columns."""
    types = (pa.string(), pa.int32(), pa.int64())
    has_origins = set(ORIGIN) <= set(rows.schema.names)
    columns = [
        rows.column(name).cast(arrow_type) if has_origins else pa.nulls(len(rows), arrow_type)
        for name, arrow_type in zip(ORIGIN, types, strict=True)
    ]
    return pa.table(columns, names=list(_ORIGIN))


def _report_mismatches(
    replay: ChangeReplay, kind: MismatchKind, keys: Sequence[str], findings: TableFindings
) -> None:
    """Report the first keys with this mismatch by name, the others by number."""
    total = replay.count(kind)
    first = list(replay.mismatches(kind, MOST))
    for index, mismatch in enumerate(first, start=1):
        others = total - index if index == len(first) else 0
        more = f"; and so for {others} other keys" if others else ""
        findings.add(
            "source",
            kind,
            _EXPECTED[kind].format(key=_key(keys, mismatch)),
            _SEEN[kind] + more,
            **_where(mismatch.origin),
            records=1 + others,
            harm="lost" if kind == "missing" else "phantom",
        )


def _report_values(
    options: KafkaSourceOptions,
    reader: _ChangeReader,
    replay: ChangeReplay,
    findings: TableFindings,
) -> None:
    """Report the columns of rows that are not as the records say."""
    total = replay.count("value-differs")
    mismatches = list(replay.mismatches("value-differs", MOST))
    first = [(mismatch, _expected_row(options, reader, mismatch)) for mismatch in mismatches]
    named = 0
    for mismatch, wanted, row in _matching_rows(reader, first):
        for column, value in wanted.items():
            if repr(value) != repr(row[column]):
                named += 1
                findings.add(
                    "source",
                    "value-differs",
                    f"{_key(reader.keys, mismatch)}: `{column}` = {shorten(value)}",
                    shorten(row[column]),
                    **_where(mismatch.origin),
                )
    if total and not named:
        findings.add("source", "value-differs", "rows as their records say", f"{total} others")
    if total > len(first):
        findings.note(f"{total} rows differ from their records; the first {len(first)} are told")


def _expected_row(
    options: KafkaSourceOptions, reader: _ChangeReader, mismatch: KeyMismatch
) -> dict[str, Any]:
    """Read a row's records again. Returns the values that they give for sure."""
    assert mismatch.origin is not None, "a record says what the row should be"
    row = _record_values(options, reader, mismatch.origin)
    for column, origin in mismatch.carried.items():
        older = _record_values(options, reader, origin)
        # No column: the newest record is a soft delete, and all values are from before.
        row = {**({column: older[column]} if column else older), **row}
    return row


def _record_values(
    options: KafkaSourceOptions, reader: _ChangeReader, origin: RecordId
) -> dict[str, Any]:
    """Read one record again. Returns the values that it carries."""
    changes = reader.changes(read_record(options, *origin))
    row: dict[str, Any] = changes.rows.to_pylist()[0]
    missing = {name for name, flags in changes.missing.items() if flags[0].as_py()}
    if not changes.carries[0].as_py():
        missing |= {name for name in row if name not in {*OUR_NAMES, *reader.keys}}
    return {name: value for name, value in row.items() if name not in missing}


def _matching_rows(
    reader: _ChangeReader, first: Sequence[tuple[KeyMismatch, dict[str, Any]]]
) -> Iterator[tuple[KeyMismatch, dict[str, Any], dict[str, Any]]]:
    """Yield the table's rows of these keys, beside what is expected of them."""
    keys, columns = reader.keys, tuple(reader.columns.names)
    by_key = {repr([row[name] for name in keys]): (mismatch, row) for mismatch, row in first}
    wanted = pa.array([row[keys[0]] for _, row in first], reader.columns.field(keys[0]).type)
    for task in tasks(reader.side.table, reader.side.live) if first else ():
        for batch in batches(reader.side.table, task, columns):
            rows = conform_to(batch, reader.columns)
            for row in rows.filter(pc.is_in(rows.column(keys[0]), wanted)).to_pylist():
                if expected := by_key.get(repr([row[name] for name in keys])):
                    yield (*expected, row)


def _key(keys: Sequence[str], mismatch: KeyMismatch) -> str:
    return ", ".join(f"{name} = {shorten(v)}" for name, v in zip(keys, mismatch.key, strict=True))


def _where(origin: RecordId | None) -> dict[str, Any]:
    if origin is None:
        return {}
    topic, partition, offset = origin
    return {"stream": topic, "partition": partition, "start": offset, "stop": offset + 1}


def _report_compared(
    reader: _ChangeReader, replay: ChangeReplay, broker: BrokerSide, findings: TableFindings
) -> None:
    """End the check: say what was compared, and what was not."""
    text = f"{reader.read} records of the broker make {replay.keys_read} keys"
    text += f", compared with {replay.rows_read} rows"
    parts = []
    if broker.unchecked:
        parts.append(f"{broker.unchecked} offsets are not on the broker any more")
    if broker.compacted:
        parts.append(f"{', '.join(sorted(broker.compacted))}: compacted")
    if parts:
        text += f"; not proven: {', '.join(parts)}. Rows whose records are there were compared"
    if replay.undecided:
        text += f"; {replay.undecided} keys cannot be judged by what is left or told"
    if replay.unknown:
        text += f"; {replay.unknown} rows have a value that no record told: not compared"
    findings.finish_check(
        "source",
        text,
        looked=bool(reader.side.chain.marker) and not (parts or replay.undecided or replay.unknown),
    )
