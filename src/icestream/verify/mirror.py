"""The broker's change records against a mirror's rows: what they make of each key is there."""

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
from icestream.verify.scratch import database
from icestream.verify.values import RecordId, shorten
from icestream.write.conform import conform_to

_PLACE = ("topic", "partition", "offset")
_NOT_COMPARED = {"_ingested_at", "_src_headers"}  # ours alone; not read here
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
    """Replay what the broker still has of the table's ranges, and compare."""
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
    seen = comparable_ranges(options, side, findings)
    lacking: set[str] = set()
    while True:
        reader = _ChangeReader(config, rule, side, keys)
        with database() as opened:
            always = [name for name in reader.columns.names if name in OUR_NAMES]
            replay = ChangeReplay(opened, reader.columns, keys, always, sorted(lacking))
            try:
                for batch in read_records(options, seen.begin, seen.ends):
                    replay.add_records(reader.changes(batch))
            except UncarriedColumns as more:  # from the beginning, with digests of their own
                lacking |= more.columns
                continue
            seen.bad = reader.bad
            _compare(options, reader, replay, seen, findings)
            return


def _compare(
    options: KafkaSourceOptions,
    reader: "_ChangeReader",
    replay: ChangeReplay,
    seen: BrokerSide,
    findings: TableFindings,
) -> None:
    check_bad_records(seen, reader.side, findings)
    thin = {(topic, n) for topic in seen.compacted for n in seen.begin.get(topic, ())}
    if not replay.fold(reader.truncates, seen.incomplete | thin):
        text = "a truncate without a place in a log, and several partitions: nothing is compared"
        findings.finish_check("source", text, looked=False)
        return
    try:
        reader.table_rows(replay)
    except UNREADABLE as failure:
        what = str(failure).splitlines()[0][:200]
        findings.add("source", "unreadable", "rows to compare with", what)
    replay.compare(lenient=reader.rule.bad_records == "drop")
    for kind in _EXPECTED:
        _report_mismatches(replay, kind, reader.keys, findings)
    single = _ChangeReader(reader.config, reader.rule, reader.side, reader.keys)
    _values(options, single, replay, findings)
    _report_compared(reader, replay, seen, findings)


@dataclass
class _ChangeReader:
    """Records to changes, as the pipeline file means them."""

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
        self._shape = RowLayout(arrow_schema(schema), self.config.name, datetime.now(UTC))

    def changes(self, given: pa.RecordBatch) -> ReplayBatch:
        """What some records of one partition do; keeps those that are bad, and truncates."""
        self.read += len(given)
        # `ignore`: a field that the table has no column for says nothing about its rows.
        dropped = frozenset(self.rule.except_columns)
        decoded = self._format.decode(given, self._data, "ignore", dropped)
        ops, sequence = self._ops(decoded), self._sequence(decoded)
        good = decoded.errors.is_null().to_numpy(zero_copy_only=False)
        about_a_row = (ops == UPSERT) | (ops == DELETE)
        for key in self.keys:
            null = decoded.columns.column(key).is_null().to_numpy(zero_copy_only=False)
            good &= ~(null & about_a_row)
        self.bad.add_rows(given.filter(pa.array(~good)).select(list(_PLACE)))
        good &= ~self._is_quarantined(given)
        if self.rule.truncate == "apply":
            self._truncated(given, sequence, good & (ops == TRUNCATE))
        return self._rows(given, decoded, ops, sequence, pa.array(good & about_a_row))

    def _rows(
        self,
        given: pa.RecordBatch,
        decoded: DecodedBatch,
        ops: NDArray[np.int8],
        sequence: pa.BinaryArray,
        kept: pa.BooleanArray,
    ) -> ReplayBatch:
        given, columns, sequence = (
            given.filter(kept),
            decoded.columns.filter(kept),
            sequence.filter(kept),
        )
        deleted = pa.array(ops == DELETE).filter(kept)
        columns = columns.append_column(SEQUENCE_COLUMN.name, sequence.cast(pa.large_binary()))
        columns = columns.append_column(DELETED_COLUMN.name, deleted)
        fine = DecodedBatch(columns, pa.nulls(len(given), pa.string()))
        rows = split_good_and_bad(given, fine, self._shape).good.select(self.columns.names)
        soft = self.rule.deletes == "soft"
        op = pc.if_else(deleted, pa.scalar(UPSERT if soft else DELETE, pa.int8()), UPSERT)
        missing = decoded.changes.missing if decoded.changes else {}
        return ReplayBatch(
            places=pa.Table.from_batches([given.select(list(_PLACE))]),
            rows=rows,
            op=op.cast(pa.int8()),
            sequence=sequence,
            carries=pc.invert(deleted),
            missing={name: flags.filter(kept) for name, flags in missing.items()},
        )

    def _ops(self, decoded: DecodedBatch) -> NDArray[np.int8]:
        """By the format, or by the condition of the pipeline file."""
        if decoded.changes:
            told: NDArray[np.int8] = decoded.changes.op.to_numpy()
            return told
        count = len(decoded.columns)
        if not self.rule.apply_as_deletes:
            return np.full(count, UPSERT, np.int8)
        con = duck.connection()
        con.register("t", pa.Table.from_batches([decoded.columns]))
        query = f"SELECT coalesce(({self.rule.apply_as_deletes})::BOOLEAN, false) AS x FROM t"
        holds = con.execute(query).to_arrow_table().column("x").to_numpy()
        con.unregister("t")
        return np.where(holds, np.int8(DELETE), np.int8(UPSERT))

    def _sequence(self, decoded: DecodedBatch) -> pa.BinaryArray:
        if self.rule.sequence_by:
            columns = [sequence_column(decoded.columns, name) for name in self.rule.sequence_by]
            return encode_sequence(columns).cast(pa.binary())
        if decoded.changes:
            return decoded.changes.sequence.cast(pa.binary())
        return pa.nulls(len(decoded.columns), pa.binary())

    def _is_quarantined(self, given: pa.RecordBatch) -> NDArray[np.bool_]:
        """Records that are in the quarantine, and so not in the mirror."""
        if not len(given):
            return np.zeros(0, bool)
        topic, partition = given.column("topic")[0].as_py(), given.column("partition")[0].as_py()
        offsets = given.column("offset").to_numpy()
        aside = self.side.quarantined.get((topic, partition))
        if aside is None:
            return np.zeros(len(offsets), bool)
        near = aside & span(int(offsets.min()), int(offsets.max()) + 1)
        return np.isin(offsets, np.fromiter(near, np.int64, len(near)))

    def _truncated(
        self, given: pa.RecordBatch, sequence: pa.BinaryArray, hit: NDArray[np.bool_]
    ) -> None:
        for at in np.flatnonzero(hit).tolist():
            one = given.slice(at, 1).to_pylist()[0]
            place = (one["topic"], one["partition"], one["offset"])
            self.truncates.append(TruncateEvent(sequence[at].as_py() or b"", place))

    def table_rows(self, replay: ChangeReplay) -> None:
        """Hand the rows of the table's current snapshot over."""
        table, columns = self.side.table, tuple(self.columns.names)
        for task in tasks(table, self.side.live):
            for batch in batches(table, task, columns):
                rows = conform_to(batch, self.columns)
                if rows.num_rows:
                    sequence = rows.column(SEQUENCE_COLUMN.name)
                    replay.add_rows(rows, _places(rows), sequence)


def _places(rows: pa.RecordBatch) -> pa.Table:
    """Where rows came from, or nulls where the table does not say."""
    kinds = (pa.string(), pa.int32(), pa.int64())
    there = set(ORIGIN) <= set(rows.schema.names)
    found = [
        rows.column(ours).cast(kind) if there else pa.nulls(len(rows), kind)
        for ours, kind in zip(ORIGIN, kinds, strict=True)
    ]
    return pa.table(found, names=list(_PLACE))


def _report_mismatches(
    replay: ChangeReplay, kind: MismatchKind, keys: Sequence[str], findings: TableFindings
) -> None:
    """The first keys by name, all of them by number."""
    total = replay.count(kind)
    first = list(replay.mismatches(kind, MOST))
    for at, one in enumerate(first, start=1):
        rest = total - at if at == len(first) else 0
        more = f"; and so for {rest} other keys" if rest else ""
        findings.add(
            "source",
            kind,
            _EXPECTED[kind].format(key=_key(keys, one)),
            _SEEN[kind] + more,
            **_where(one.place),
            records=1 + rest,
            harm="lost" if kind == "missing" else "phantom",
        )


def _values(
    options: KafkaSourceOptions,
    reader: _ChangeReader,
    replay: ChangeReplay,
    findings: TableFindings,
) -> None:
    """Name the columns of rows that are not as the records say."""
    total = replay.count("value-differs")
    first = [
        (one, _expected(options, reader, one)) for one in replay.mismatches("value-differs", MOST)
    ]
    named = 0
    for one, wanted, row in _matching_rows(reader, first):
        for column, value in wanted.items():
            if repr(value) != repr(row[column]):
                named += 1
                findings.add(
                    "source",
                    "value-differs",
                    f"{_key(reader.keys, one)}: `{column}` = {shorten(value)}",
                    shorten(row[column]),
                    **_where(one.place),
                )
    if total and not named:
        findings.add("source", "value-differs", "rows as their records say", f"{total} others")
    if total > len(first):
        findings.note(f"{total} rows differ from their records; the first {len(first)} are told")


def _expected(
    options: KafkaSourceOptions, reader: _ChangeReader, one: KeyMismatch
) -> dict[str, Any]:
    """A row as its records say it, without values that none of them told for sure."""
    assert one.place is not None, "a record says what the row should be"
    row = _record_values(options, reader, one.place)
    for column, place in one.carried.items():
        old = _record_values(options, reader, place)
        more = {column: old[column]} if column else old  # all of it: of a soft delete
        row = {**more, **row}
    return row


def _record_values(
    options: KafkaSourceOptions, reader: _ChangeReader, place: RecordId
) -> dict[str, Any]:
    """The values that one record carries."""
    changes = reader.changes(read_record(options, *place))
    row: dict[str, Any] = changes.rows.to_pylist()[0]
    silent = {name for name, flags in changes.missing.items() if flags[0].as_py()}
    if not changes.carries[0].as_py():
        silent |= {name for name in row if name not in {*OUR_NAMES, *reader.keys}}
    return {name: value for name, value in row.items() if name not in silent}


def _matching_rows(
    reader: _ChangeReader, first: Sequence[tuple[KeyMismatch, dict[str, Any]]]
) -> Iterator[tuple[KeyMismatch, dict[str, Any], dict[str, Any]]]:
    """The table's rows of these keys, beside what is expected."""
    keys, columns = reader.keys, tuple(reader.columns.names)
    by_key = {repr([row[name] for name in keys]): (one, row) for one, row in first}
    field_ = reader.columns.field(keys[0])
    some = pa.array([row[keys[0]] for _, row in first], field_.type)
    for task in tasks(reader.side.table, reader.side.live) if first else ():
        for batch in batches(reader.side.table, task, columns):
            rows = conform_to(batch, reader.columns)
            for row in rows.filter(pc.is_in(rows.column(keys[0]), some)).to_pylist():
                if known := by_key.get(repr([row[name] for name in keys])):
                    yield (*known, row)


def _key(keys: Sequence[str], one: KeyMismatch) -> str:
    return ", ".join(f"{name} = {shorten(v)}" for name, v in zip(keys, one.key, strict=True))


def _where(place: RecordId | None) -> dict[str, Any]:
    if place is None:
        return {}
    return {"stream": place[0], "partition": place[1], "start": place[2], "stop": place[2] + 1}


def _report_compared(
    reader: _ChangeReader, replay: ChangeReplay, seen: BrokerSide, findings: TableFindings
) -> None:
    """Say what was compared, and plainly what was not."""
    text = f"{reader.read} records of the broker make {replay.keys_read} keys"
    text += f", compared with {replay.rows_read} rows"
    parts = []
    if seen.unchecked:
        parts.append(f"{seen.unchecked} offsets are not on the broker any more")
    if seen.compacted:
        parts.append(f"{', '.join(sorted(seen.compacted))}: compacted")
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
