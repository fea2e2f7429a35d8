"""Decodes Debezium's change events to columns, and to what each does to a mirror.

The steps: take the envelopes apart (`envelope`), decode their rows as JSON with values cast by what
Debezium means (`values`, from the embedded schema by `connect`), fill in keys (`keys`), and encode
the position in the source's log (`position`). Rows that share an embedded schema are decoded
together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
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
from icestream.formats.debezium.pieces import Rows
from icestream.formats.debezium.values import BinaryMode, ConnectCaster, ConnectorModes, DecimalMode
from icestream.formats.json import decode_objects
from icestream.formats.jsonkeys import places, where
from icestream.formats.template import row_order
from icestream.schema import NewField, Rule, is_wider, merge_new_fields
from icestream.tables.arrow import arrow_schema

_NO_KEY = "a delete without `before`, and without a key that is one of the table"
_NO_COLUMN = 1 << 30  # a field id that no column of a table has
_SAMPLE = 1000  # records that `key_columns` reads
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
        """Return the column that `decode` fills with a field of `source`, such as `source.lsn`."""
        first, _, name = path.partition(".")
        if first != "source" or not name:
            return None
        iceberg_type = LongType() if name in position.NUMBERS else StringType()
        return NestedField(_NO_COLUMN, f"__source_{name}", iceberg_type)

    def key_columns(self, records: pa.RecordBatch) -> tuple[str, ...] | None:
        """Return the names of the key columns, from the first row with a key; None: none has."""
        keyed = records.filter(records.column("key").is_valid()).slice(0, _SAMPLE)
        batch = events(keyed.column("value"), keyed.column("topic"), self.flattened, ())
        rows = np.flatnonzero((batch.op == UPSERT) | (batch.op == DELETE))
        rows = rows[~np.isin(rows, list(batch.errors))]
        return keys.key_columns(keyed.column("key").take(pa.array(rows)))

    def decode(
        self,
        records: pa.RecordBatch,
        target: Schema,
        rule: Rule = "evolve",
        dropped: frozenset[str] = frozenset(),
    ) -> DecodedBatch:
        """Decode a batch, with the `changes` to a mirror that its rows make."""
        names = [field.name for field in target.fields]
        event_batch = events(
            records.column("value"), records.column("topic"), self.flattened, names
        )
        batch = _DebeziumBatch(records, event_batch, target, rule, dropped, self._modes)
        parts = [batch.part(rows, fields) for rows, fields in _groups(event_batch)]
        new = merge_new_fields([_widest([part.new_fields for part in parts])])
        columns = _together(parts, arrow_schema(target), len(records))
        if new:
            return DecodedBatch(columns, reasons(event_batch.errors, len(records)), tuple(new))
        sequence, bad = position.sequence(event_batch.log)
        for row, reason in bad.items():
            event_batch.errors.setdefault(row, reason)
        columns = batch.with_extra(batch.with_keys(columns))
        missing = batch.missing()
        batch.demand(columns, missing)
        op = pa.array(event_batch.op, pa.int8())
        changes = RowChanges(op, sequence, missing, batch.old_key())
        wider = _widest([part.widened for part in parts])
        return DecodedBatch(columns, reasons(event_batch.errors, len(records)), (), changes, wider)

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
    """The state of one `DebeziumFormat.decode`."""

    records: pa.RecordBatch
    events: EventBatch
    target: Schema
    rule: Rule
    dropped: frozenset[str]
    modes: ConnectorModes
    casters: list[tuple[Rows, ConnectCaster]] = field(default_factory=list)

    def part(self, rows: Rows, fields: Mapping[str, ConnectType] | None) -> _DecodedPart:
        """Decode the rows of one schema; `fields` None: rows without a schema."""
        texts = self.events.rows
        if len(rows) < len(texts):
            texts = texts.take(pa.array(rows))
        rule, dropped = self.rule, self.dropped | self._added(texts, rows)
        new: tuple[NewField, ...] = ()
        wider: tuple[NewField, ...] = ()
        if fields is not None and rule == "evolve":
            new, refused = connect.new_fields(fields, self.target, rule, dropped)
            wider = connect.widened(fields, self.target)
            rule = "evolve" if refused else "ignore"  # the schema has named all new fields
        if new:  # nothing else will be used
            return _DecodedPart(rows[:0], pa.RecordBatch.from_pylist([]), new, ())
        caster = self._caster(fields)
        self.casters.append((rows, caster))
        decoded = decode_objects(texts, {}, keys.relaxed(self.target), rule, dropped, caster)
        for row in where(decoded.errors.is_valid()):
            self.events.errors.setdefault(int(rows[row]), decoded.errors[row].as_py())
        return _DecodedPart(rows, decoded.columns, decoded.new_fields, wider)

    def demand(self, decoded: pa.RecordBatch, missing: Mapping[str, pa.BooleanArray]) -> None:
        """Note rows without a required value as bad; a delete needs only its key."""
        for column in self.target.fields:
            if column.required and decoded.column(column.name).null_count:
                is_missing = decoded.column(column.name).is_null().to_numpy(zero_copy_only=False)
                is_missing &= self.events.op == UPSERT
                if column.name in missing:
                    is_missing &= ~missing[column.name].to_numpy(zero_copy_only=False)
                for row in np.flatnonzero(is_missing).tolist():
                    self.events.errors.setdefault(row, f"`{column.name}`: required, but null")

    def _added(self, texts: pa.StringArray, rows: Rows) -> frozenset[str]:
        """Return the names that flattening added: known, and no columns unless declared."""
        is_flat = self.events.flat[rows]
        if self.rule == "ignore" or not is_flat.any():
            return frozenset()
        names = duck.keys(texts.filter(pa.array(is_flat)))
        return frozenset(name for name in names if name.startswith("__"))

    def with_keys(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Fill nulls of deleted rows from the record's key; a delete without any key is bad."""
        has_null = np.full(len(self.records), not columns.num_columns)
        for column in columns.columns:
            if column.null_count:
                has_null |= column.is_null().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero((self.events.op == DELETE) & has_null)
        if not len(rows):
            return columns
        key_columns = self._keys(self.records.column("key").take(pa.array(rows)), rows)
        has_no_key = self.events.rows.take(pa.array(rows)).is_null()
        for key in key_columns.columns if key_columns else ():
            has_no_key = pc.and_(has_no_key, key.is_null())
        is_empty = pc.and_(
            self.records.column("key").is_null(), self.records.column("value").is_null()
        )
        for row in rows[places(has_no_key)].tolist():
            if is_empty[row].as_py():  # flattened: a null value without a key names no row
                self.events.op[row] = IGNORE
            else:
                self.events.errors.setdefault(row, _NO_KEY)
        return keys.filled(columns, rows, key_columns)

    def old_key(self) -> pa.RecordBatch | None:
        """Return the keys that rows had before, from the headers; None: no key was changed."""
        if "headers" not in self.records.schema.names:
            return None
        rows, values = keys.old_keys(self.records.column("headers"))
        if not len(rows):
            return None
        old_keys = self._keys(values, rows)
        if old_keys is None:
            return None
        indices = np.zeros(len(self.records), np.int64)
        mask = np.ones(len(indices), bool)
        indices[rows], mask[rows] = np.arange(len(rows)), False
        return old_keys.take(pa.array(indices, mask=mask))

    def with_extra(self, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Fill nulls of columns such as `__op` and `__source_ts_ms` from the envelope."""
        for name, texts in self.events.extra.items():
            index = columns.schema.get_field_index(name)
            iceberg_type, column = self.target.fields[index].field_type, columns.column(index)
            unit = next((u for u in _UNITS if name.endswith(f"ts_{u}")), None)
            fields = {name: ConnectType(iceberg_type, "timestamp", unit)} if unit else {}
            values, bad = self._caster(fields).cast(texts, iceberg_type, column.type, (name,))
            for row, reason in bad.items():
                self.events.errors.setdefault(row, f"`{name}`: {reason}")
            indices = np.arange(len(column))
            indices[column.is_null().to_numpy(zero_copy_only=False)] += len(column)
            filled = pa.concat_arrays([column, values]).take(pa.array(indices))
            columns = columns.set_column(index, columns.schema.field(index), filled)
        return columns

    def missing(self) -> dict[str, pa.BooleanArray]:
        """Return, by column, the rows whose event did not carry its value."""
        missing: dict[str, Any] = {}
        for rows, caster in self.casters:
            for name, hits in caster.missing.items():
                flags = missing.setdefault(name, np.zeros(len(self.records), bool))
                flags[rows[np.concatenate(hits)]] = True
        return {name: pa.array(flags) for name, flags in missing.items()}

    def _keys(self, values: pa.BinaryArray, rows: Rows) -> pa.RecordBatch | None:
        """Decode the keys of these rows; None: none of the table's columns is in them."""
        groups = self.events.groups[rows]
        fields = partial(_fields, self.events)
        return keys.decode_keys(values, self.target, self.modes, groups, fields)

    def _caster(self, fields: Mapping[str, ConnectType] | None) -> ConnectCaster:
        return ConnectCaster(fields, self.modes, self.target)


def _groups(batch: EventBatch) -> Iterator[tuple[Rows, Mapping[str, ConnectType] | None]]:
    """Yield rows that are decoded together, with the meaning of their fields."""
    has_row = batch.rows.is_valid().to_numpy(zero_copy_only=False)
    if batch.errors:
        has_row[list(batch.errors)] = False
    groups = batch.groups
    if has_row.all() and len(groups) and (groups == groups[0]).all():
        yield np.arange(len(groups)), _fields(batch, int(groups[0]))
        return
    for group in np.unique(groups[has_row]).tolist():
        yield np.flatnonzero(has_row & (groups == group)), _fields(batch, group)


def _fields(batch: EventBatch, group: int) -> Mapping[str, ConnectType] | None:
    schema_index, is_flat = divmod(group, 2)
    schema = batch.schemas[schema_index] if schema_index >= 0 else None
    if schema is None:
        return None
    return schema.fields if is_flat else schema.row


def _together(parts: list[_DecodedPart], schema: pa.Schema, size: int) -> pa.RecordBatch:
    """Put the parts in the order of the records; a record without a row is null."""
    if len(parts) == 1 and len(parts[0].rows) == size:
        return pa.RecordBatch.from_arrays(parts[0].columns.columns, schema=schema)
    parts = [part for part in parts if len(part.rows)]
    rows = [part.rows for part in parts]
    other_rows = np.setdiff1d(np.arange(size), np.concatenate([np.empty(0, np.int64), *rows]))
    columns = [
        pa.concat_arrays(
            [*(part.columns.column(i) for part in parts), pa.nulls(len(other_rows), t)]
        )
        for i, t in enumerate(schema.types)
    ]
    order = row_order([*rows, other_rows])
    return pa.RecordBatch.from_arrays([column.take(order) for column in columns], schema=schema)


def _widest(wishes: list[tuple[NewField, ...]]) -> tuple[NewField, ...]:
    """Return the new types of columns; of several for one column those that none is wider than."""
    widest: dict[tuple[tuple[str, ...], str], list[NewField]] = {}
    docs: dict[tuple[tuple[str, ...], str], str | None] = {}
    for wish in (wish for part_wishes in wishes for wish in part_wishes):
        column = (wish.parent, wish.name)
        docs[column] = docs.get(column) or wish.doc
        fields = widest.setdefault(column, [])
        kept = [old for old in fields if not is_wider(wish.type, old.type)]
        if not any(old.type == wish.type or is_wider(old.type, wish.type) for old in kept):
            kept.append(wish)
        fields[:] = kept
    return tuple(
        replace(field, doc=docs[column]) for column, fields in widest.items() for field in fields
    )
