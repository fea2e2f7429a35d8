"""Debezium's change events → columns, and what each does to a mirror.

The steps: take the envelopes apart (`envelope`), decode their rows as JSON is decoded, but read by
what Debezium means (`values`, told by the embedded schema through `connect`), fill in keys
(`keys`), and encode the place in the source's log (`position`). Rows that share an embedded schema
are decoded together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, LongType, NestedField, StringType

from icestream.formats import (
    DELETE,
    IGNORE,
    UPSERT,
    DecodedBatch,
    Format,
    RowChanges,
    duck,
    reasons,
)
from icestream.formats.debezium import connect, keys, position
from icestream.formats.debezium.connect import ConnectType, Unit
from icestream.formats.debezium.envelope import EventBatch, events
from icestream.formats.debezium.values import BinaryMode, ConnectCaster, ConnectorModes, DecimalMode
from icestream.formats.json import decode_objects
from icestream.formats.jsonkeys import places, where
from icestream.formats.template import row_order
from icestream.schema import NewField, Rule, is_wider, merge_new_fields
from icestream.tables.arrow import arrow_schema

Rows = npt.NDArray[np.int64]

_NO_KEY = "a delete without `before`, and without a key that is one of the table"
_NO_COLUMN = 1 << 30  # as a field id: of none in the table
_SAMPLE = 1000  # records that are looked at for a key
_UNITS: tuple[Unit, ...] = ("ms", "us", "ns")


@dataclass(frozen=True)
class DebeziumFormat(Format):
    """Change events in JSON: with or without embedded schemas, whole or flattened."""

    flattened: bool | None = None
    decimal_handling_mode: DecimalMode = "precise"
    binary_handling_mode: BinaryMode = "base64"
    time_units: Mapping[str, Unit] = field(default_factory=dict)
    unavailable_value_placeholder: str = "__debezium_unavailable_value"

    log_columns: ClassVar[Mapping[str, IcebergType]] = {"__op": StringType()}

    def envelope_field(self, path: str) -> NestedField | None:
        """Give the column that `decode` fills with a field of the source: `source.lsn`."""
        first, _, name = path.partition(".")
        if first != "source" or not name:
            return None
        kind = LongType() if name in position.NUMBERS else StringType()
        return NestedField(_NO_COLUMN, f"__source_{name}", kind)

    def key_columns(self, records: pa.RecordBatch) -> tuple[str, ...] | None:
        """Give the names of the key columns, as the first row with a key has them; None: none."""
        keyed = records.filter(records.column("key").is_valid()).slice(0, _SAMPLE)
        found = events(keyed.column("value"), keyed.column("topic"), self.flattened, ())
        rows = np.flatnonzero((found.op == UPSERT) | (found.op == DELETE))
        rows = rows[~np.isin(rows, list(found.errors))]
        return keys.key_columns(keyed.column("key").take(pa.array(rows)))

    def decode(
        self,
        records: pa.RecordBatch,
        target: Schema,
        rule: Rule = "evolve",
        dropped: frozenset[str] = frozenset(),
    ) -> DecodedBatch:
        """Decode a batch; beside the columns stands what each row does."""
        names = [each.name for each in target.fields]
        found = events(records.column("value"), records.column("topic"), self.flattened, names)
        batch = _DebeziumBatch(records, found, target, rule, dropped, self._modes)
        parts = [batch.part(rows, fields) for rows, fields in _groups(found)]
        new = merge_new_fields([_widest([part.new_fields for part in parts])])
        columns = _together(parts, arrow_schema(target), len(records))
        if new:
            return DecodedBatch(columns, reasons(found.errors, len(records)), tuple(new))
        sequence, bad = position.sequence(found.log)
        for row, why in bad.items():
            found.errors.setdefault(row, why)
        columns = batch.with_extra(batch.with_keys(columns))
        missing = batch.missing()
        batch.demand(columns, missing)
        op = pa.array(found.op, pa.int8())
        changes = RowChanges(op, sequence, missing, batch.old_key())
        wider = _widest([part.widened for part in parts])
        return DecodedBatch(columns, reasons(found.errors, len(records)), (), changes, wider)

    @property
    def _modes(self) -> ConnectorModes:
        return ConnectorModes(
            self.decimal_handling_mode,
            self.binary_handling_mode,
            self.time_units,
            self.unavailable_value_placeholder,
        )


@dataclass(frozen=True)
class _DecodedPart:
    """Rows that share a schema, decoded."""

    rows: Rows
    columns: pa.RecordBatch
    new_fields: tuple[NewField, ...]
    widened: tuple[NewField, ...]


@dataclass
class _DebeziumBatch:
    """The state of one call."""

    records: pa.RecordBatch
    events: EventBatch
    target: Schema
    rule: Rule
    dropped: frozenset[str]
    modes: ConnectorModes
    readings: list[tuple[Rows, ConnectCaster]] = field(default_factory=list)

    def part(self, rows: Rows, fields: Mapping[str, ConnectType] | None) -> _DecodedPart:
        """Decode the rows of one schema, or those without."""
        texts = self.events.rows
        if len(rows) < len(texts):
            texts = texts.take(pa.array(rows))
        rule, dropped = self.rule, self.dropped | self._added(texts, rows)
        new: tuple[NewField, ...] = ()
        wider: tuple[NewField, ...] = ()
        if fields is not None and rule == "evolve":
            new, refused = connect.new_fields(fields, self.target, rule, dropped)
            wider = connect.widened(fields, self.target)
            rule = "evolve" if refused else "ignore"  # the schema has said what is new
        if new:  # nothing else will be used
            return _DecodedPart(rows[:0], pa.RecordBatch.from_pylist([]), new, ())
        reading = self._meant(fields)
        self.readings.append((rows, reading))
        decoded = decode_objects(texts, {}, keys.relaxed(self.target), rule, dropped, reading)
        for row in where(decoded.errors.is_valid()):
            self.events.errors.setdefault(int(rows[row]), decoded.errors[row].as_py())
        return _DecodedPart(rows, decoded.columns, decoded.new_fields, wider)

    def demand(self, columns: pa.RecordBatch, missing: Mapping[str, pa.BooleanArray]) -> None:
        """Blame rows without a value that the table requires; a delete needs but its key."""
        for each in self.target.fields:
            if each.required and columns.column(each.name).null_count:
                lacking = columns.column(each.name).is_null().to_numpy(zero_copy_only=False)
                lacking &= self.events.op == UPSERT
                if each.name in missing:
                    lacking &= ~missing[each.name].to_numpy(zero_copy_only=False)
                for row in np.flatnonzero(lacking).tolist():
                    self.events.errors.setdefault(row, f"`{each.name}`: required, but null")

    def _added(self, texts: pa.StringArray, rows: Rows) -> frozenset[str]:
        """Find what flattening added to the rows: known, and no columns unless declared."""
        flat = self.events.flat[rows]
        if self.rule == "ignore" or not flat.any():
            return frozenset()
        names = duck.keys(texts.filter(pa.array(flat)))
        return frozenset(name for name in names if name.startswith("__"))

    def with_keys(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Give deleted rows what only the record's key says; those that lack nothing need none."""
        lacking = np.full(len(self.records), not columns.num_columns)
        for column in columns.columns:
            if column.null_count:
                lacking |= column.is_null().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero((self.events.op == DELETE) & lacking)
        if not len(rows):
            return columns
        some = self.records.column("key").take(pa.array(rows))
        found = self._keys(some, rows)
        keyless = self.events.rows.take(pa.array(rows)).is_null()
        for key in found.columns if found else ():
            keyless = pc.and_(keyless, key.is_null())
        nothing = pc.and_(
            self.records.column("key").is_null(), self.records.column("value").is_null()
        )
        for row in rows[places(keyless)].tolist():
            if nothing[row].as_py():
                self.events.op[row] = IGNORE
            else:
                self.events.errors.setdefault(row, _NO_KEY)
        return keys.filled(columns, rows, found)

    def old_key(self) -> pa.RecordBatch | None:
        """Give the keys that rows had before, where the headers tell."""
        if "headers" not in self.records.schema.names:
            return None
        rows, values = keys.old_keys(self.records.column("headers"))
        if not len(rows):
            return None
        found = self._keys(values, rows)
        if found is None:
            return None
        place = np.zeros(len(self.records), np.int64)
        mask = np.ones(len(place), bool)
        place[rows], mask[rows] = np.arange(len(rows)), False
        return found.take(pa.array(place, mask=mask))

    def with_extra(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Fill columns such as `__op` and `__source_ts_ms`, if the table has them."""
        for name, texts in self.events.extra.items():
            at = columns.schema.get_field_index(name)
            kind, arrow = self.target.fields[at].field_type, columns.schema.field(at).type
            own = columns.column(at)
            unit = next((u for u in _UNITS if name.endswith(f"ts_{u}")), None)
            fields = {name: ConnectType(kind, "timestamp", unit)} if unit else {}
            made, bad = self._meant(fields).cast(texts, kind, arrow, (name,))
            for row, why in bad.items():
                self.events.errors.setdefault(row, f"`{name}`: {why}")
            place = np.arange(len(own))
            place[own.is_null().to_numpy(zero_copy_only=False)] += len(own)
            both = pa.concat_arrays([own, made]).take(pa.array(place))
            columns = columns.set_column(at, columns.schema.field(at), both)
        return columns

    def missing(self) -> dict[str, pa.BooleanArray]:
        """Say where an event did not carry a column's value."""
        found: dict[str, Any] = {}
        for rows, reading in self.readings:
            for name, hits in reading.missing.items():
                flags = found.setdefault(name, np.zeros(len(self.records), bool))
                flags[rows[np.concatenate(hits)]] = True
        return {name: pa.array(flags) for name, flags in found.items()}

    def _keys(self, values: pa.BinaryArray, rows: Rows) -> pa.RecordBatch | None:
        """Decode keys that belong to these rows."""
        groups = self.events.groups[rows]
        fields = partial(_fields, self.events)
        return keys.decode_keys(values, self.target, self.modes, groups, fields)

    def _meant(self, fields: Mapping[str, ConnectType] | None) -> ConnectCaster:
        return ConnectCaster(fields, self.modes, self.target)


def _groups(found: EventBatch) -> Iterator[tuple[Rows, Mapping[str, ConnectType] | None]]:
    """Rows that are decoded together, with what their fields mean; not those that have no row."""
    given = found.rows.is_valid().to_numpy(zero_copy_only=False)
    if found.errors:
        given[list(found.errors)] = False
    groups = found.groups
    if given.all() and len(groups) and (groups == groups[0]).all():
        yield np.arange(len(groups)), _fields(found, int(groups[0]))
        return
    for group in np.unique(groups[given]).tolist():
        yield np.flatnonzero(given & (groups == group)), _fields(found, group)


def _fields(found: EventBatch, group: int) -> Mapping[str, ConnectType] | None:
    number, flat = divmod(group, 2)
    schema = found.schemas[number] if number >= 0 else None
    if schema is None:
        return None
    return schema.fields if flat else schema.row


def _together(parts: list[_DecodedPart], arrow: pa.Schema, size: int) -> pa.RecordBatch:
    """Put the parts in the order of the records, with nulls where a record has no row."""
    if len(parts) == 1 and len(parts[0].rows) == size:
        return pa.RecordBatch.from_arrays(parts[0].columns.columns, schema=arrow)
    parts = [part for part in parts if len(part.rows)]
    rows = [part.rows for part in parts]
    rest = np.setdiff1d(np.arange(size), np.concatenate([np.empty(0, np.int64), *rows]))
    columns = [
        pa.concat_arrays([*(p.columns.column(i) for p in parts), pa.nulls(len(rest), each.type)])
        for i, each in enumerate(arrow)
    ]
    order = row_order([*rows, rest])
    return pa.RecordBatch.from_arrays([each.take(order) for each in columns], schema=arrow)


def _widest(wishes: list[tuple[NewField, ...]]) -> tuple[NewField, ...]:
    """Of several wishes for one column the widest, where one is wider than the other."""
    found: dict[tuple[tuple[str, ...], str], list[NewField]] = {}
    docs: dict[tuple[tuple[str, ...], str], str | None] = {}
    for each in (wish for some in wishes for wish in some):
        column = (each.parent, each.name)
        docs[column] = docs.get(column) or each.doc
        same = found.setdefault(column, [])
        kept = [old for old in same if not is_wider(each.type, old.type)]
        if not any(old.type == each.type or is_wider(old.type, each.type) for old in kept):
            kept.append(each)
        same[:] = kept
    return tuple(replace(each, doc=docs[column]) for column, same in found.items() for each in same)
