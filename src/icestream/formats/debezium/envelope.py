"""Records → events: what each does, its row as JSON, its schema and its place in the source's log.

Everything is decided for whole batches. Envelopes that end as others do are taken apart by `tails`,
the rest by DuckDB. Only records that are no envelopes are looked at twice.
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
    """What the records of a batch are, row by row."""

    op: npt.NDArray[np.int8]
    rows: pa.StringArray  # the row after the change, or before it was deleted; null: none
    schema: Codes  # number of the embedded schema, -1: none
    schemas: list[ConnectSchema | None]
    flat: npt.NDArray[np.bool_]
    log: dict[str, pa.StringArray]  # fields of a log position
    extra: dict[str, pa.StringArray]  # what columns such as `__op` and `__source_ts_ms` ask for
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def groups(self) -> Codes:
        """Rows of one number are of one schema and one form."""
        return 2 * self.schema + self.flat


def events(
    values: pa.BinaryArray, topics: pa.StringArray, flattened: bool | None, columns: Iterable[str]
) -> EventBatch:
    """Take records apart; `flattened` None: each record shows whether it is."""
    texts, errors = casts.utf8(values)
    payloads, schema, schemas = unpacked(texts)
    asked = _asked(columns)
    found = _apart(payloads, asked.values(), flattened)
    source = found.source
    errors |= found.errors
    whole = EventBatch(
        op=np.full(len(texts), IGNORE, np.int8),
        rows=pa.nulls(len(texts), pa.string()),
        schema=schema,
        schemas=[described(text) for text in schemas],
        flat=np.zeros(len(texts), bool),
        log={name: source[name] for name in position.FIELDS},
        extra={name: _extra(each, found.outer, source) for name, each in asked.items()},
        errors=errors,
    )
    for number, each in enumerate(whole.schemas):
        if each is None and schemas[number] != "null":
            errors |= dict.fromkeys(np.flatnonzero(schema == number).tolist(), _NO_SCHEMA)
    envelopes = np.zeros(len(texts), bool)
    if not flattened:
        envelopes = _envelopes(found)
    _judge_envelopes(whole, found, envelopes)
    others = found.payloads.is_valid().to_numpy(zero_copy_only=False) & ~envelopes
    if others.any():
        _judge_others(whole, found.payloads, topics, others, flattened)
    if flattened:  # there a tombstone may be all that is left of a delete
        whole.op[where(values.is_null())] = DELETE
    return whole


@dataclass(frozen=True)
class _EnvelopeParts:
    """What was found in payloads, row by row; a payload that is no JSON became null."""

    payloads: pa.StringArray
    rows: pa.StringArray  # after the change, or before it was deleted; objects only
    images: npt.NDArray[np.bool_]  # there is a row, whether it counts or not
    outer: dict[str, pa.StringArray]  # `op`, perhaps times
    source: dict[str, pa.StringArray]
    errors: casts.Bad


def _apart(
    payloads: pa.StringArray, asked: Collection[str], flattened: bool | None
) -> _EnvelopeParts:
    """Take payloads apart: most of them by their tails, the others by the parser."""
    ours, fields = position.expected(_connector(payloads))
    structure = _structure(asked, fields)
    if flattened:
        return _parsed(payloads, structure, ours)
    quick = tails.take_apart(payloads, structure)
    fits = quick.fits
    if fits.any() and ours:  # of another connector other fields are wanted
        fits = fits & pc.is_in(quick.source["connector"], pa.array(ours)).to_numpy(False)
    if not fits.any():
        return _parsed(payloads, structure, ours)
    none = pa.nulls(len(payloads), pa.string())
    outer, source = quick.outer, dict.fromkeys(position.FIELDS, none) | quick.source
    rest = payloads.is_valid().to_numpy(zero_copy_only=False) & ~fits
    if not rest.any():
        return _EnvelopeParts(payloads, quick.rows, fits, outer, source, {})
    some = _parsed(payloads.filter(pa.array(rest)), structure, ours)
    rows, images = np.flatnonzero(rest), fits.copy()
    images[rows] = some.images
    return _EnvelopeParts(
        casts.without(payloads, rows[where(some.payloads.is_null())].tolist()),
        _put(quick.rows, rest, some.rows),
        images,
        {name: _put(each, rest, some.outer[name]) for name, each in outer.items()},
        {name: _put(each, rest, some.source[name]) for name, each in source.items()},
        {int(rows[row]): why for row, why in some.errors.items()},
    )


def _parsed(payloads: pa.StringArray, structure: Structure, ours: Sequence[str]) -> _EnvelopeParts:
    payloads, errors = without_bad_openings(
        casts.without(payloads, where(pc.equal(payloads, "null")))
    )
    found, malformed = duck.parts(payloads, {"after": "JSON", **structure})
    errors |= {row: why_malformed(payloads[row].as_py()) for row in malformed}
    payloads = casts.without(payloads, malformed)
    outer = _named(found)
    source = _whole_sources(payloads, _named(outer.pop("source")), ours)
    after = outer.pop("after")
    images = {"before": _before(payloads, outer["op"], after), "after": after}
    images |= _exact_rows(payloads, images)
    before, after = (_only_objects(images[name]) for name in ("before", "after"))
    either = pc.or_(before.is_valid(), after.is_valid()).to_numpy(zero_copy_only=False)
    deletes = pc.fill_null(pc.equal(outer["op"], "d"), False)
    rows = pc.if_else(deletes, before, after) if pc.any(deletes).as_py() else after
    return _EnvelopeParts(payloads, rows, either, outer, source, errors)


def _asked(columns: Iterable[str]) -> dict[str, str]:
    """Find columns that ask for what an event says of itself, and what each asks for."""
    taken = {name: name for name in position.FIELDS}
    found: dict[str, str] = {}
    for name in columns:
        wanted = name[2:].removeprefix("source_")
        # DuckDB has no two names that differ only in case.
        if name.startswith("__") and wanted and taken.setdefault(wanted.lower(), wanted) == wanted:
            found[name] = name[2:]
    return found


def _structure(asked: Iterable[str], of_log: Iterable[str]) -> dict[str, Any]:
    """Say what is wanted of an envelope besides its rows; all else is left alone."""
    fields = dict.fromkeys((*of_log, *(each.removeprefix("source_") for each in asked)))
    times = ("ts_ms", "ts_us", "ts_ns")
    outer = ("op", *times) if {*times} & {*asked} else ("op",)
    return {**dict.fromkeys(outer, "VARCHAR"), "source": dict.fromkeys(fields, "VARCHAR")}


def _connector(payloads: pa.StringArray) -> str:
    """Guess whose events these are from the first of them; what is there tells in the end."""
    at = pc.index(payloads.is_valid(), True).as_py()
    return (_CONNECTOR.findall(payloads[at].as_py()) or [""])[-1] if at >= 0 else ""


def _named(parts: pa.StructArray) -> dict[str, pa.Array]:
    return dict(zip((each.name for each in parts.type), parts.flatten(), strict=True))


def _whole_sources(
    payloads: pa.StringArray, source: dict[str, pa.StringArray], ours: Sequence[str]
) -> dict[str, pa.StringArray]:
    """Fill in the fields of the log, and ask again where an event is not of our connector."""
    none = pa.nulls(len(payloads), pa.string())
    source = dict.fromkeys(position.FIELDS, none) | source
    if not ours:  # all were asked for
        return source
    known = pc.fill_null(pc.is_in(source["connector"], pa.array(ours)), False)
    others = pc.and_(payloads.is_valid(), pc.invert(known))
    if not pc.any(others, min_count=0).as_py():
        return source
    wanted = {"source": dict.fromkeys(position.FIELDS, "VARCHAR")}
    again = _named(_named(duck.parts(payloads.filter(others), wanted)[0])["source"])
    mask = others.to_numpy(zero_copy_only=False)
    return source | {name: _put(source[name], mask, each) for name, each in again.items()}


def _before(payloads: pa.StringArray, op: pa.StringArray, after: pa.StringArray) -> pa.StringArray:
    """The row before the change, only where it counts: most events have one after it."""
    needed = pc.or_(pc.equal(op, "d"), pc.and_(op.is_valid(), pc.invert(_is_object(after))))
    mask = pc.fill_null(needed, False).to_numpy(zero_copy_only=False)
    none = pa.nulls(len(payloads), pa.string())
    if not mask.any():
        return none
    found, _ = duck.extract(payloads.filter(pa.array(mask)), ["before"], ["before"])
    return _put(none, mask, found[0])


def _exact_rows(
    payloads: pa.StringArray, parts: Mapping[str, pa.Array]
) -> dict[str, pa.StringArray]:
    """Take rows out again where a double lost digits on the way."""
    rows = jsonbytes.long_reals(payloads)
    mark = jsonbytes.free_mark(payloads) if len(rows) else None
    if mark is None:
        return {}
    marked = jsonbytes.mark_numbers(payloads.take(pa.array(rows)), mark)
    again, _ = duck.extract(marked, ["before", "after"], ["before", "after"])
    mask = np.zeros(len(payloads), bool)
    mask[rows] = True
    return {
        name: _put(parts[name], mask, jsonbytes.unmark_numbers(texts.cast(pa.string()), mark))
        for name, texts in zip(("before", "after"), again, strict=True)
    }


def _extra(
    asked: str, parts: Mapping[str, pa.Array], source: Mapping[str, pa.StringArray]
) -> pa.StringArray:
    """What ExtractNewRecordState would add under this name."""
    if asked == "deleted":
        return pc.if_else(pc.equal(parts["op"], "d"), "true", "false")
    if asked in ("op", "ts_ms", "ts_us", "ts_ns"):
        return parts[asked]
    return source[asked.removeprefix("source_")]


def _envelopes(found: _EnvelopeParts) -> npt.NDArray[np.bool_]:
    """Tell envelopes by their op, and a row or a source beside it."""
    op, connector = found.outer["op"].is_valid(), found.source["connector"].is_valid()
    has_op: npt.NDArray[np.bool_] = op.to_numpy(zero_copy_only=False)
    beside: npt.NDArray[np.bool_] = found.images | connector.to_numpy(zero_copy_only=False)
    return beside & has_op


def _is_object(texts: pa.StringArray) -> pa.BooleanArray:
    return pc.fill_null(pc.starts_with(texts, "{"), False)


def _judge_envelopes(
    whole: EventBatch, found: _EnvelopeParts, envelopes: npt.NDArray[np.bool_]
) -> None:
    """Say what each envelope does, and to which row."""
    ops, rows = found.outer["op"], found.rows
    codes = np.array([*_OPS.values(), -1], np.int8)
    known = pc.index_in(ops, pa.array(list(_OPS)))
    code = codes[pc.fill_null(known, len(_OPS)).to_numpy()]
    good = envelopes & (code >= 0)
    for row in np.flatnonzero(envelopes & ~good).tolist():
        op = casts.quote(ops[row].as_py())
        whole.errors.setdefault(row, f"`op` is {op}, none of r, c, u, d, t and m")
    whole.op[good] = code[good]
    given = rows.is_valid().to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(good & (code == UPSERT) & ~given).tolist():
        why = f"`op` is {ops[row].as_py()!r}, but there is no object in `after`"
        whole.errors.setdefault(row, why)
    unwanted = given & ~(good & ((code == DELETE) | (code == UPSERT)))
    whole.rows = casts.without(rows, np.flatnonzero(unwanted).tolist())


def _only_objects(texts: pa.Array) -> pa.StringArray:
    texts = texts.cast(pa.string())
    odd = where(pc.and_(texts.is_valid(), pc.invert(_is_object(texts))))
    return casts.without(texts, odd)


def _judge_others(
    whole: EventBatch,
    payloads: pa.StringArray,
    topics: pa.StringArray,
    others: npt.NDArray[np.bool_],
    flattened: bool | None,
) -> None:
    """Tell flattened rows and Debezium's own records from what does not belong here."""
    rows = np.flatnonzero(others)
    texts = payloads.take(pa.array(rows))
    own = _of_debezium(whole, texts, topics.take(pa.array(rows)), rows)
    if flattened is False:
        is_row = np.zeros(len(rows), bool)
    else:
        marks = _flat_fields(texts)
        op, deleted = marks["op"], marks["deleted"]
        marked = pc.or_(op.is_valid(), deleted.is_valid())
        is_row = ~own & (bool(flattened) | marked.to_numpy(zero_copy_only=False))
        _judge_flat(whole, texts, rows, is_row, marks)
    for row in rows[~own & ~is_row].tolist():
        whole.errors.setdefault(row, _NEITHER)


def _of_debezium(
    whole: EventBatch, texts: pa.StringArray, topics: pa.StringArray, rows: Codes
) -> npt.NDArray[np.bool_]:
    """Tell heartbeats, transactions and schema changes: by their schemas, else by their looks."""
    names = [each.name if each else "" for each in whole.schemas]
    by_name = np.array([name.endswith(_NO_EVENTS) for name in [*names, ""]])
    looks = pc.or_(
        pc.match_substring_regex(texts, _TRANSACTION), pc.match_substring_regex(texts, _HEARTBEAT)
    )
    looks = pc.or_(looks, pc.match_substring_regex(texts, _SCHEMA_CHANGE))
    looks = pc.or_(looks, pc.starts_with(topics, "__debezium-heartbeat"))
    flags = pc.fill_null(looks, False).to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.bool_] = by_name[whole.schema[rows]] | flags
    return found


def _flat_fields(texts: pa.StringArray) -> dict[str, pa.StringArray]:
    """Read what ExtractNewRecordState adds: `__op`, `__deleted`, and fields of the source."""
    names = ["__op", "__deleted"]
    for name in position.FIELDS:
        names += [f"__{name}", f"__source_{name}"]
    found, _ = duck.extract(texts, names)
    by_name = dict(zip(names, found, strict=True))
    fields = {
        name: pc.coalesce(by_name[f"__{name}"], by_name[f"__source_{name}"])
        for name in position.FIELDS
    }
    return fields | {"op": by_name["__op"], "deleted": by_name["__deleted"]}


def _judge_flat(
    whole: EventBatch,
    texts: pa.StringArray,
    rows: Codes,
    is_row: npt.NDArray[np.bool_],
    marks: Mapping[str, pa.StringArray],
) -> None:
    """Say what each flattened row does."""
    gone = pc.or_kleene(pc.equal(marks["deleted"], "true"), pc.equal(marks["op"], "d"))
    deletes = pc.fill_null(gone, False).to_numpy(zero_copy_only=False)
    whole.op[rows[is_row]] = np.where(deletes, DELETE, UPSERT)[is_row]
    whole.flat[rows[is_row]] = True
    chosen = pa.array(is_row)
    mask = np.zeros(len(whole.op), bool)
    mask[rows[is_row]] = True
    whole.rows = _put(whole.rows, mask, texts.filter(chosen))
    for name in position.FIELDS:
        whole.log[name] = _put(whole.log[name], mask, marks[name].filter(chosen))


def _put(
    texts: pa.StringArray, mask: npt.NDArray[np.bool_], values: pa.StringArray
) -> pa.StringArray:
    """Set the rows of the mask, one after the other."""
    if mask.all():
        return values
    return pc.replace_with_mask(texts.cast(pa.string()), pa.array(mask), values.cast(pa.string()))
