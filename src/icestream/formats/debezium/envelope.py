"""Takes records apart into events: operation, row as JSON, schema, and fields of the log position.

Everything is decided for whole batches. Envelopes with a common tail are taken apart by `tails`,
the others by DuckDB. Only records that are no envelopes are parsed twice.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats import DELETE, IGNORE, TRUNCATE, UPSERT, casts, duck, jsonbytes
from icestream.formats.debezium import position, tails
from icestream.formats.debezium.connect import ConnectSchema, described
from icestream.formats.debezium.tails import Structure
from icestream.formats.debezium.wrapping import unpacked
from icestream.formats.json import why_malformed, without_bad_openings
from icestream.formats.jsonkeys import where

Codes = npt.NDArray[np.int64]

_OPS = {"c": UPSERT, "r": UPSERT, "u": UPSERT, "d": DELETE, "t": TRUNCATE, "m": IGNORE}
_NO_EVENTS = ("TransactionMetadataValue", "SchemaChangeValue", "Heartbeat")  # ends of schema names
_TRANSACTION = r'^\{"status":"(?:BEGIN|END)","id":"[^"]*","event_count":'
_SCHEMA_CHANGE = r'^\{"source":\{.*"databaseName":.*"tableChanges":\['
_HEARTBEAT = r'^\{"ts_ms":[0-9]+\}$'
_CONNECTOR = re.compile(r'"connector":"(\w+)"')
_NO_SCHEMA = "the embedded schema is not one of Kafka Connect"
_NEITHER = (
    "neither an envelope of Debezium nor a flattened row with `__op` or `__deleted`: "
    "see `format.flattened`"
)


@dataclass
class EventBatch:
    """The events of a batch, one per record."""

    op: npt.NDArray[np.int8]
    rows: pa.StringArray  # the row after the change, or before it was deleted; null: none
    schema: Codes  # index into `schemas`, -1: none
    schemas: list[ConnectSchema | None]
    flat: npt.NDArray[np.bool_]  # flattened rows
    log: dict[str, pa.StringArray]  # fields of a log position
    extra: dict[str, pa.StringArray]  # values of columns such as `__op` and `__source_ts_ms`
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def groups(self) -> Codes:
        """Rows with the same number have the same schema, and are flattened or not."""
        return 2 * self.schema + self.flat


def events(
    values: pa.BinaryArray, topics: pa.StringArray, flattened: bool | None, columns: Iterable[str]
) -> EventBatch:
    """Take records apart; `flattened` None: decided for each record by its fields."""
    texts, errors = casts.utf8(values)
    payloads, schema, schemas = unpacked(texts)
    event_fields = _event_fields(columns)
    parts = _apart(payloads, event_fields.values(), flattened)
    source = parts.source
    errors |= parts.errors
    batch = EventBatch(
        op=np.full(len(texts), IGNORE, np.int8),
        rows=pa.nulls(len(texts), pa.string()),
        schema=schema,
        schemas=[described(text) for text in schemas],
        flat=np.zeros(len(texts), bool),
        log={name: source[name] for name in position.FIELDS},
        extra={name: _extra(wanted, parts.outer, source) for name, wanted in event_fields.items()},
        errors=errors,
    )
    for index, described_schema in enumerate(batch.schemas):
        if described_schema is None and schemas[index] != "null":
            errors |= dict.fromkeys(np.flatnonzero(schema == index).tolist(), _NO_SCHEMA)
    is_envelope = np.zeros(len(texts), bool)
    if not flattened:
        is_envelope = _envelopes(parts)
    _judge_envelopes(batch, parts, is_envelope)
    is_other = parts.payloads.is_valid().to_numpy(zero_copy_only=False) & ~is_envelope
    if is_other.any():
        _judge_others(batch, parts.payloads, topics, is_other, flattened)
    if flattened:  # the SMT's default leaves of a delete nothing but a null value
        batch.op[where(values.is_null())] = DELETE
    return batch


@dataclass(frozen=True)
class _EnvelopeParts:
    """The parts of payloads, row by row; a payload that is malformed became null."""

    payloads: pa.StringArray
    rows: pa.StringArray  # after the change, or before it was deleted; objects only
    images: npt.NDArray[np.bool_]  # has a row, before or after the change
    outer: dict[str, pa.StringArray]  # `op`, perhaps times
    source: dict[str, pa.StringArray]
    errors: casts.Bad


def _apart(
    payloads: pa.StringArray, event_fields: Collection[str], flattened: bool | None
) -> _EnvelopeParts:
    """Take payloads apart: most of them by their tails, the others by DuckDB."""
    connectors, fields = position.expected(_connector(payloads))
    structure = _structure(event_fields, fields)
    if flattened:
        return _parsed(payloads, structure, connectors)
    split = tails.take_apart(payloads, structure)
    is_split = split.fits
    if is_split.any() and connectors:  # events of another connector need other fields
        is_split = is_split & pc.is_in(split.source["connector"], pa.array(connectors)).to_numpy(
            False
        )
    if not is_split.any():
        return _parsed(payloads, structure, connectors)
    nulls = pa.nulls(len(payloads), pa.string())
    outer, source = split.outer, dict.fromkeys(position.FIELDS, nulls) | split.source
    is_unsplit = payloads.is_valid().to_numpy(zero_copy_only=False) & ~is_split
    if not is_unsplit.any():
        return _EnvelopeParts(payloads, split.rows, is_split, outer, source, {})
    parsed = _parsed(payloads.filter(pa.array(is_unsplit)), structure, connectors)
    rows, images = np.flatnonzero(is_unsplit), is_split.copy()
    images[rows] = parsed.images
    return _EnvelopeParts(
        casts.without(payloads, rows[where(parsed.payloads.is_null())].tolist()),
        _put(split.rows, is_unsplit, parsed.rows),
        images,
        {name: _put(texts, is_unsplit, parsed.outer[name]) for name, texts in outer.items()},
        {name: _put(texts, is_unsplit, parsed.source[name]) for name, texts in source.items()},
        {int(rows[row]): reason for row, reason in parsed.errors.items()},
    )


def _parsed(
    payloads: pa.StringArray, structure: Structure, connectors: Sequence[str]
) -> _EnvelopeParts:
    payloads, errors = without_bad_openings(
        casts.without(payloads, where(pc.equal(payloads, "null")))
    )
    parts, malformed = duck.parts(payloads, {"after": "JSON", **structure})
    errors |= {row: why_malformed(payloads[row].as_py()) for row in malformed}
    payloads = casts.without(payloads, malformed)
    outer = _named(parts)
    source = _whole_sources(payloads, _named(outer.pop("source")), connectors)
    after = outer.pop("after")
    images = {"before": _before(payloads, outer["op"], after), "after": after}
    images |= _exact_rows(payloads, images)
    before, after = (_only_objects(images[name]) for name in ("before", "after"))
    has_row = pc.or_(before.is_valid(), after.is_valid()).to_numpy(zero_copy_only=False)
    is_delete = pc.fill_null(pc.equal(outer["op"], "d"), False)
    rows = pc.if_else(is_delete, before, after) if pc.any(is_delete).as_py() else after
    return _EnvelopeParts(payloads, rows, has_row, outer, source, errors)


def _event_fields(columns: Iterable[str]) -> dict[str, str]:
    """Return columns such as `__op`, declared to be filled from the envelope, with its field."""
    spellings = {name: name for name in position.FIELDS}
    event_fields: dict[str, str] = {}
    for name in columns:
        field = name[2:].removeprefix("source_")
        # DuckDB does not tell names apart that differ only in case: the first spelling counts.
        if name.startswith("__") and field and spellings.setdefault(field.lower(), field) == field:
            event_fields[name] = name[2:]
    return event_fields


def _structure(event_fields: Iterable[str], log_fields: Iterable[str]) -> dict[str, Any]:
    """Return DuckDB's structure of what is read of an envelope besides its rows."""
    fields = dict.fromkeys((*log_fields, *(name.removeprefix("source_") for name in event_fields)))
    times = ("ts_ms", "ts_us", "ts_ns")
    outer = ("op", *times) if {*times} & {*event_fields} else ("op",)
    return {**dict.fromkeys(outer, "VARCHAR"), "source": dict.fromkeys(fields, "VARCHAR")}


def _connector(payloads: pa.StringArray) -> str:
    """Guess the connector from the first event; events of others are found and read again."""
    index = pc.index(payloads.is_valid(), True).as_py()
    return (_CONNECTOR.findall(payloads[index].as_py()) or [""])[-1] if index >= 0 else ""


def _named(parts: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((field.name for field in parts.type), parts.flatten(), strict=True))


def _whole_sources(
    payloads: pa.StringArray, source: dict[str, pa.StringArray], connectors: Sequence[str]
) -> dict[str, pa.StringArray]:
    """Add missing log fields as nulls; read events again that are not of these connectors."""
    nulls = pa.nulls(len(payloads), pa.string())
    source = dict.fromkeys(position.FIELDS, nulls) | source
    if not connectors:  # all fields were read
        return source
    is_known = pc.fill_null(pc.is_in(source["connector"], pa.array(connectors)), False)
    is_other = pc.and_(payloads.is_valid(), pc.invert(is_known))
    if not pc.any(is_other, min_count=0).as_py():
        return source
    structure = {"source": dict.fromkeys(position.FIELDS, "VARCHAR")}
    reread = _named(_named(duck.parts(payloads.filter(is_other), structure)[0])["source"])
    mask = is_other.to_numpy(zero_copy_only=False)
    return source | {name: _put(source[name], mask, texts) for name, texts in reread.items()}


def _before(payloads: pa.StringArray, op: pa.StringArray, after: pa.StringArray) -> pa.StringArray:
    """Extract `before` only where it is needed: deletes, and events without an `after`."""
    is_needed = pc.or_(pc.equal(op, "d"), pc.and_(op.is_valid(), pc.invert(_is_object(after))))
    mask = pc.fill_null(is_needed, False).to_numpy(zero_copy_only=False)
    nulls = pa.nulls(len(payloads), pa.string())
    if not mask.any():
        return nulls
    texts, _ = duck.extract(payloads.filter(pa.array(mask)), ["before"], ["before"])
    return _put(nulls, mask, texts[0])


def _exact_rows(
    payloads: pa.StringArray, parts: Mapping[str, pa.Array]
) -> dict[str, pa.StringArray]:
    """Extract rows again where DuckDB's doubles lost digits."""
    rows = jsonbytes.long_reals(payloads)
    mark = jsonbytes.free_mark(payloads) if len(rows) else None
    if mark is None:
        return {}
    marked = jsonbytes.mark_numbers(payloads.take(pa.array(rows)), mark)
    extracted, _ = duck.extract(marked, ["before", "after"], ["before", "after"])
    mask = np.zeros(len(payloads), bool)
    mask[rows] = True
    return {
        name: _put(parts[name], mask, jsonbytes.unmark_numbers(texts.cast(pa.string()), mark))
        for name, texts in zip(("before", "after"), extracted, strict=True)
    }


def _extra(
    field: str, parts: Mapping[str, pa.Array], source: Mapping[str, pa.StringArray]
) -> pa.StringArray:
    """Return the texts that ExtractNewRecordState would add under this name."""
    if field == "deleted":
        return pc.if_else(pc.equal(parts["op"], "d"), "true", "false")
    if field in ("op", "ts_ms", "ts_us", "ts_ns"):
        return parts[field]
    return source[field.removeprefix("source_")]


def _envelopes(parts: _EnvelopeParts) -> npt.NDArray[np.bool_]:
    """Return which payloads are envelopes: they have an op, and a row or a source's connector."""
    op, connector = parts.outer["op"].is_valid(), parts.source["connector"].is_valid()
    has_op: npt.NDArray[np.bool_] = op.to_numpy(zero_copy_only=False)
    has_part: npt.NDArray[np.bool_] = parts.images | connector.to_numpy(zero_copy_only=False)
    return has_part & has_op


def _is_object(texts: pa.StringArray) -> pa.BooleanArray:
    return pc.fill_null(pc.starts_with(texts, "{"), False)


def _judge_envelopes(
    batch: EventBatch, parts: _EnvelopeParts, is_envelope: npt.NDArray[np.bool_]
) -> None:
    """Set operation and row of each envelope in the batch."""
    ops, rows = parts.outer["op"], parts.rows
    codes = np.array([*_OPS.values(), -1], np.int8)
    indices = pc.index_in(ops, pa.array(list(_OPS)))
    code = codes[pc.fill_null(indices, len(_OPS)).to_numpy()]
    is_good = is_envelope & (code >= 0)
    for row in np.flatnonzero(is_envelope & ~is_good).tolist():
        op = casts.quote(ops[row].as_py())
        batch.errors.setdefault(row, f"`op` is {op}, none of r, c, u, d, t and m")
    batch.op[is_good] = code[is_good]
    has_row = rows.is_valid().to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(is_good & (code == UPSERT) & ~has_row).tolist():
        reason = f"`op` is {ops[row].as_py()!r}, but there is no object in `after`"
        batch.errors.setdefault(row, reason)
    is_unwanted = has_row & ~(is_good & ((code == DELETE) | (code == UPSERT)))
    batch.rows = casts.without(rows, np.flatnonzero(is_unwanted).tolist())


def _only_objects(texts: pa.Array) -> pa.StringArray:
    texts = texts.cast(pa.string())
    other_rows = where(pc.and_(texts.is_valid(), pc.invert(_is_object(texts))))
    return casts.without(texts, other_rows)


def _judge_others(
    batch: EventBatch,
    payloads: pa.StringArray,
    topics: pa.StringArray,
    is_other: npt.NDArray[np.bool_],
    flattened: bool | None,
) -> None:
    """Set flattened rows in the batch, leave Debezium's own records ignored, note others as bad."""
    rows = np.flatnonzero(is_other)
    texts = payloads.take(pa.array(rows))
    is_ignored = _of_debezium(batch, texts, topics.take(pa.array(rows)), rows)
    if flattened is False:
        is_row = np.zeros(len(rows), bool)
    else:
        marks = _flat_fields(texts)
        op, deleted = marks["op"], marks["deleted"]
        has_mark = pc.or_(op.is_valid(), deleted.is_valid())
        is_row = ~is_ignored & (bool(flattened) | has_mark.to_numpy(zero_copy_only=False))
        _judge_flat(batch, texts, rows, is_row, marks)
    for row in rows[~is_ignored & ~is_row].tolist():
        batch.errors.setdefault(row, _NEITHER)


def _of_debezium(
    batch: EventBatch, texts: pa.StringArray, topics: pa.StringArray, rows: Codes
) -> npt.NDArray[np.bool_]:
    """Return which are heartbeats, transactions or schema changes, by schema or by shape."""
    names = [schema.name if schema else "" for schema in batch.schemas]
    is_named = np.array([name.endswith(_NO_EVENTS) for name in [*names, ""]])
    is_alike = pc.or_(
        pc.match_substring_regex(texts, _TRANSACTION), pc.match_substring_regex(texts, _HEARTBEAT)
    )
    is_alike = pc.or_(is_alike, pc.match_substring_regex(texts, _SCHEMA_CHANGE))
    is_alike = pc.or_(is_alike, pc.starts_with(topics, "__debezium-heartbeat"))
    has_shape = pc.fill_null(is_alike, False).to_numpy(zero_copy_only=False)
    result: npt.NDArray[np.bool_] = is_named[batch.schema[rows]] | has_shape
    return result


def _flat_fields(texts: pa.StringArray) -> dict[str, pa.StringArray]:
    """Read what ExtractNewRecordState adds: `__op`, `__deleted`, and fields of the source."""
    names = ["__op", "__deleted"]
    for name in position.FIELDS:
        names += [f"__{name}", f"__source_{name}"]
    values, _ = duck.extract(texts, names)
    by_name = dict(zip(names, values, strict=True))
    fields = {
        name: pc.coalesce(by_name[f"__{name}"], by_name[f"__source_{name}"])
        for name in position.FIELDS
    }
    return fields | {"op": by_name["__op"], "deleted": by_name["__deleted"]}


def _judge_flat(
    batch: EventBatch,
    texts: pa.StringArray,
    rows: Codes,
    is_row: npt.NDArray[np.bool_],
    marks: Mapping[str, pa.StringArray],
) -> None:
    """Set operation, row and log fields of each flattened row in the batch."""
    is_deleted = pc.or_kleene(pc.equal(marks["deleted"], "true"), pc.equal(marks["op"], "d"))
    is_delete = pc.fill_null(is_deleted, False).to_numpy(zero_copy_only=False)
    batch.op[rows[is_row]] = np.where(is_delete, DELETE, UPSERT)[is_row]
    batch.flat[rows[is_row]] = True
    row_mask = pa.array(is_row)
    mask = np.zeros(len(batch.op), bool)
    mask[rows[is_row]] = True
    batch.rows = _put(batch.rows, mask, texts.filter(row_mask))
    for name in position.FIELDS:
        batch.log[name] = _put(batch.log[name], mask, marks[name].filter(row_mask))


def _put(
    texts: pa.StringArray, mask: npt.NDArray[np.bool_], values: pa.StringArray
) -> pa.StringArray:
    """Replace the texts where the mask is true by the values, in order."""
    if mask.all():
        return values
    return pc.replace_with_mask(texts.cast(pa.string()), pa.array(mask), values.cast(pa.string()))
