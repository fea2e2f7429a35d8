"""JSON objects → typed columns.

Flat objects of the usual shapes are taken apart by `template`, all others by DuckDB, one query per
level of nesting; `casts` makes typed arrays of the texts. What is wrong with a row is noted under
its number in the batch. The rules, one by one:
- A record is one JSON object. Trailing commas and NaN/Infinity pass; a BOM, comments, bytes after
  the object, lone surrogates, a null value and more than 100 levels of nesting make a bad row.
- A key is matched by its exact name. Given twice it is a bad row, unless all but the first are null
  (with `schema_evolution: ignore` the first one counts).
- A string that holds a number, a date or JSON is taken for what it holds, where such is declared.
- Numbers keep all digits in integer, decimal and string columns. A string column keeps any scalar,
  and an object or array as JSON text.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from icestream.formats import (
    DecodedBatch,
    Format,
    casts,
    duck,
    jsonbytes,
    jsonkeys,
    reasons,
    template,
)
from icestream.formats.jsonbytes import Rows
from icestream.formats.jsonkeys import SuspectObjects
from icestream.schema import Rule
from icestream.tables.arrow import arrow_schema

Path = tuple[str, ...]

_EXACT = (StringType, IntegerType, LongType, DecimalType)  # types that a rounded number would hurt
_REAL_OR_NESTED = r"^[{\[]|^-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?$"
_NULL = "required, but null"


class TextCaster:
    """How texts become values. A format whose texts mean more than JSON says has its own."""

    raw: frozenset[str] = frozenset()  # top-level columns whose strings keep their quotes

    def before_cast(
        self, texts: pa.StringArray, kind: IcebergType, rows: Rows, path: Path
    ) -> pa.StringArray:
        """Look at the texts of a column before anything is made of them."""
        return texts

    def cast(
        self, texts: pa.StringArray, kind: IcebergType, arrow: pa.DataType, path: Path
    ) -> tuple[pa.Array, casts.Bad]:
        """Turn texts into an array of a plain type."""
        return casts.cast(texts, kind, arrow)


@dataclass(frozen=True)
class JsonFormat(Format):
    """One JSON object per record; columns are found by name, unknown ones follow the rule."""

    def decode(
        self,
        records: pa.RecordBatch,
        target: Schema,
        rule: Rule = "evolve",
        dropped: frozenset[str] = frozenset(),
    ) -> DecodedBatch:
        """Decode a batch; rows that are bad for any reason never bring new fields."""
        values = records.column("value")
        texts, bad = casts.utf8(values)
        bad |= dict.fromkeys(jsonkeys.where(values.is_null()), "null value")
        return decode_objects(texts, bad, target, rule, dropped)


def decode_objects(
    texts: pa.StringArray,
    bad: Mapping[int, str],
    target: Schema,
    rule: Rule,
    dropped: frozenset[str],
    reading: TextCaster | None = None,
) -> DecodedBatch:
    """Decode one object per row; `bad` says what is wrong with rows whose text is null."""
    known = {f.name: f.field_type for f in target.fields}
    batch = _JsonBatch(rule, dropped, reading or TextCaster())
    taken, rest = template.match_templates(
        texts, known, lambda name: rule == "ignore" or name in dropped, batch.reading.raw
    )
    if len(rest) > len(texts) // 2:
        taken, rest = [], np.arange(len(texts))
    batch.note_errors(np.arange(len(texts)), bad)
    parts = [batch.plain(each, target) for each in taken]
    if len(rest) or not taken:
        left = texts if not taken else texts.take(pa.array(rest))
        parts.append(batch.parse(left, target, rest))
    new = jsonkeys.unknown(batch.suspects, batch.errors, target, rule, dropped)
    columns = parts[0]
    if len(parts) > 1 and target.fields:  # a batch without columns has no rows to put in order
        order = template.row_order([*(each.rows for each in taken), rest])
        columns = pa.Table.from_batches(parts).take(order).combine_chunks().to_batches()[0]
    return DecodedBatch(columns, reasons(batch.errors, len(texts)), new)


@dataclass
class _JsonBatch:
    """The state of one call: what is wrong with which row, and what is to be looked into later."""

    rule: Rule
    dropped: frozenset[str]
    reading: TextCaster
    errors: dict[int, str] = field(default_factory=dict)
    suspects: list[SuspectObjects] = field(default_factory=list)
    mark: str | None = None  # stands before numbers in the texts of nested columns

    def parse(self, texts: pa.StringArray, target: Schema, rows: Rows) -> pa.RecordBatch:
        """Decode what no template fits, or everything."""
        arrow = arrow_schema(target)
        columns = self.objects(texts, target.as_struct(), arrow, rows, ())
        return pa.RecordBatch.from_arrays(columns, schema=arrow)

    def note_errors(self, rows: Rows, bad: Mapping[int, str], path: Path = ()) -> None:
        """Note reasons; the first one found for a row stays."""
        prefix = f"`{'.'.join(path)}`: " if path else ""
        for i, why in bad.items():
            self.errors.setdefault(int(rows[i]), prefix + why)

    def column(
        self, texts: pa.StringArray, kind: IcebergType, arrow: pa.DataType, rows: Rows, path: Path
    ) -> pa.Array:
        """Turn texts into an array of any type; `rows` says to which record each text belongs."""
        texts = self.reading.before_cast(texts, kind, rows, path)
        if texts.null_count == len(texts):
            return pa.nulls(len(texts), arrow)
        if isinstance(kind, StructType):
            children = self.objects(texts, kind, arrow, rows, path)
            return pa.StructArray.from_arrays(children, type=arrow, mask=texts.is_null())
        if isinstance(kind, ListType):
            return self.lists(texts, kind, arrow, rows, path)
        if isinstance(kind, MapType):
            return self.maps(texts, kind, arrow, rows, path)
        if self.mark and len(path) > 1:
            texts = jsonbytes.unmark_numbers(texts, self.mark)
        out, bad = self.reading.cast(texts, kind, arrow, path)
        self.note_errors(rows, bad, path)
        return out

    def objects(
        self,
        texts: pa.StringArray,
        kind: StructType,
        arrow: Iterable[pa.Field],
        rows: Rows,
        path: Path,
    ) -> list[pa.Array]:
        """Turn objects into one array per field of the struct."""
        texts = self.without_bad_openings(texts, "{", rows, path)
        names = [f.name for f in kind.fields]
        # Columns that are not wanted are taken apart too, so that their keys count as known.
        others = sorted(self.dropped - {*names}) if self.rule != "ignore" and not path else []
        raw = frozenset() if path else self.reading.raw
        found, malformed = duck.extract(texts, [*names, *others], raw)
        texts = self.without_malformed(texts, malformed, rows, path)
        if self.rule != "ignore":
            odd = jsonbytes.unexplained(texts, zip([*names, *others], found, strict=True))
            if len(odd):
                plain = texts.take(pa.array(odd))
                if self.mark:
                    plain = jsonbytes.unmark_numbers(plain, self.mark)
                self.suspects.append(SuspectObjects(plain, rows[odd], path))
        if not path:
            found = self.exact(texts, kind, found)
        return [
            self.member(f, values, out.type, texts.is_valid(), rows, path)
            for f, values, out in zip(kind.fields, found, arrow, strict=False)
        ]

    def member(
        self,
        field: NestedField,
        values: pa.StringArray,
        arrow: pa.DataType,
        present: pa.BooleanArray,
        rows: Rows,
        path: Path,
    ) -> pa.Array:
        """Turn the texts of one field into an array; `present` says which objects there are."""
        path = (*path, field.name)
        if field.required and values.null_count:
            missing = jsonkeys.where(pc.and_(values.is_null(), present))
            self.note_errors(rows, dict.fromkeys(missing, _NULL), path)
        return self.column(values, field.field_type, arrow, rows, path)

    def plain(self, taken: template.TemplateRows, target: Schema) -> pa.RecordBatch:
        """Give columns to texts that a template took apart; all their objects are there."""
        arrow = arrow_schema(target)
        size = len(taken.rows)
        none, present = pa.nulls(size, pa.string()), pa.repeat(True, size)
        columns = [
            self.member(f, taken.texts.get(f.name, none), out.type, present, taken.rows, ())
            for f, out in zip(target.fields, arrow, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=arrow)

    def lists(
        self, texts: pa.StringArray, kind: ListType, arrow: pa.DataType, rows: Rows, path: Path
    ) -> pa.Array:
        """Turn arrays into lists; what is wrong with an element is wrong with its record."""
        texts = self.parsed(texts, "[", rows, path)
        sizes, values = duck.elements(texts)
        inner, path = np.repeat(rows, sizes), (*path, "element")
        out = self.column(values, kind.element_type, arrow.value_type, inner, path)
        if kind.element_required:
            missing = jsonkeys.where(values.is_null())
            self.note_errors(inner, dict.fromkeys(missing, _NULL), path)
        ends = pa.array(np.append(0, np.cumsum(sizes)), pa.int64())
        return pa.LargeListArray.from_arrays(ends, out, type=arrow, mask=texts.is_null())

    def maps(
        self, texts: pa.StringArray, kind: MapType, arrow: pa.DataType, rows: Rows, path: Path
    ) -> pa.Array:
        """Turn objects into maps; a key given twice is always an error here."""
        texts = self.parsed(texts, "{", rows, path)
        sizes, keys, values = duck.entries(texts)
        owner, inner = np.repeat(np.arange(len(texts)), sizes), np.repeat(rows, sizes)
        self.note_errors(inner, jsonkeys.repeated(owner, keys), path)
        names = self.column(keys, kind.key_type, arrow.key_type, inner, (*path, "key"))
        out = self.column(values, kind.value_type, arrow.item_type, inner, (*path, "value"))
        if kind.value_required:
            missing = jsonkeys.where(values.is_null())
            self.note_errors(inner, dict.fromkeys(missing, _NULL), (*path, "value"))
        if names.null_count:  # keys of bad rows; a map cannot hold them
            kept = names.is_valid()
            names, out = names.filter(kept), out.filter(kept)
            sizes = np.bincount(owner[jsonkeys.where(kept)], minlength=len(texts))
        ends = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
        return pa.MapArray.from_arrays(ends, names, out, type=arrow, mask=texts.is_null())

    def without_bad_openings(
        self, texts: pa.StringArray, opening: str, rows: Rows, path: Path
    ) -> pa.StringArray:
        """Make null what nests too deep or cannot be an object or array, before it is parsed."""
        texts, bad = without_bad_openings(texts, opening, path)
        self.note_errors(rows, bad, path)
        return texts

    def parsed(self, texts: pa.StringArray, opening: str, rows: Rows, path: Path) -> pa.StringArray:
        """Check as `sound` does, and that every text is JSON: a string may hold anything."""
        texts = self.without_bad_openings(texts, opening, rows, path)
        malformed = jsonkeys.where(pc.invert(duck.valid(texts)))
        return self.without_malformed(texts, malformed, rows, path)

    def without_malformed(
        self, texts: pa.StringArray, malformed: list[int], rows: Rows, path: Path
    ) -> pa.StringArray:
        """Blame malformed texts and make them null."""
        self.note_errors(rows, {i: why_malformed(texts[i].as_py()) for i in malformed}, path)
        return casts.without(texts, malformed)

    def exact(
        self, texts: pa.StringArray, kind: StructType, found: list[pa.StringArray]
    ) -> list[pa.StringArray]:
        """Take objects apart again where a double lost digits and a column would show it."""
        rows = jsonbytes.long_reals(texts)
        wanted = [i for i, f in enumerate(kind.fields) if _holds(f.field_type, _EXACT)]
        if len(rows) == 0 or not wanted:
            return found
        shown = np.zeros(len(rows), bool)
        for i in wanted:
            hits = pc.match_substring_regex(found[i].take(pa.array(rows)), _REAL_OR_NESTED)
            shown[jsonkeys.where(hits)] = True
        rows = rows[shown]
        self.mark = jsonbytes.free_mark(texts) if len(rows) else None
        if self.mark is None:
            return found
        marked = jsonbytes.mark_numbers(texts.take(pa.array(rows)), self.mark)
        again, _ = duck.extract(marked, [f.name for f in kind.fields], self.reading.raw)
        mask = np.zeros(len(texts), bool)
        mask[rows] = True
        for i, f in enumerate(kind.fields):
            if not isinstance(f.field_type, StructType | ListType | MapType):
                again[i] = jsonbytes.unmark_numbers(again[i], self.mark)
            found[i] = pc.replace_with_mask(found[i], pa.array(mask), again[i])
        return found


def without_bad_openings(
    texts: pa.StringArray, opening: str = "{", path: Path = ()
) -> tuple[pa.StringArray, casts.Bad]:
    """Make null what nests too deep or cannot be an object or array, and say why."""
    why = f"nested deeper than {jsonbytes.MAX_DEPTH} levels"
    bad = dict.fromkeys(jsonbytes.too_deep(texts), why)
    for i in jsonbytes.not_starting_with(texts, opening).tolist():
        if texts[i].is_valid and i not in bad:
            bad[i] = _not_a(opening, texts[i].as_py(), path)
    return casts.without(texts, bad), bad


def _holds(kind: IcebergType, wanted: tuple[type[IcebergType], ...]) -> bool:
    if isinstance(kind, StructType):
        return any(_holds(f.field_type, wanted) for f in kind.fields)
    if isinstance(kind, ListType):
        return _holds(kind.element_type, wanted)
    if isinstance(kind, MapType):
        return _holds(kind.value_type, wanted)
    return isinstance(kind, wanted)


def _not_a(opening: str, text: str, path: Path) -> str:
    """Say what stands where an object or an array is wanted."""
    wanted = "an object" if opening == "{" else "an array"
    if path:
        return f"{casts.quote(text)} is not {wanted}"
    try:
        kind = type(json.loads(text))
    except (ValueError, RecursionError):
        return why_malformed(text)
    names = {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}
    return f"the record is {names.get(kind, 'a number')}, not {wanted}"


def why_malformed(text: str) -> str:
    """Say where a text stops being JSON."""
    try:
        json.loads(text)
    except json.JSONDecodeError as e:
        return f"malformed JSON: {e.msg} at character {e.pos}"
    except (ValueError, RecursionError):
        pass
    return duck.complaint(text)
