"""Decodes JSON objects to typed columns.

Flat objects of the usual shapes are taken apart by `template`, all others by DuckDB, one query per
level of nesting; `casts` makes typed arrays of the texts. What is wrong with a row is noted under
its number in the batch. The rules, one by one (docs/design/json.md has them all):
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

# In these types a number that went through a double would show other digits.
_EXACT = (StringType, IntegerType, LongType, DecimalType)
_REAL_OR_NESTED = r"^[{\[]|^-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?$"
_NULL = "required, but null"


class TextCaster:
    """Casts texts to values. Debezium, whose texts mean more than JSON says, has its own."""

    raw: frozenset[str] = frozenset()  # top-level columns whose strings keep their quotes

    def before_cast(
        self, texts: pa.StringArray, iceberg_type: IcebergType, rows: Rows, path: Path
    ) -> pa.StringArray:
        """Return the texts to cast; called for each column and nested field before it is cast."""
        return texts

    def cast(
        self, texts: pa.StringArray, iceberg_type: IcebergType, arrow_type: pa.DataType, path: Path
    ) -> tuple[pa.Array, casts.Bad]:
        """Cast texts to a plain type; returns the array and a reason per bad row."""
        return casts.cast(texts, iceberg_type, arrow_type)


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
    caster: TextCaster | None = None,
) -> DecodedBatch:
    """Decode one object per row; `bad` says what is wrong with rows whose text is null."""
    column_types = {column.name: column.field_type for column in target.fields}
    batch = _JsonBatch(rule, dropped, caster or TextCaster())
    matches, other_rows = template.match_templates(
        texts, column_types, lambda name: rule == "ignore" or name in dropped, batch.caster.raw
    )
    if len(other_rows) > len(texts) // 2:  # most must be parsed anyway
        matches, other_rows = [], np.arange(len(texts))
    batch.note_errors(np.arange(len(texts)), bad)
    parts = [batch.decode_match(match, target) for match in matches]
    if len(other_rows) or not matches:
        other_texts = texts if not matches else texts.take(pa.array(other_rows))
        parts.append(batch.parse(other_texts, target, other_rows))
    new = jsonkeys.unknown(batch.suspects, batch.errors, target, rule, dropped)
    columns = parts[0]
    if len(parts) > 1 and target.fields:  # a batch without columns has no rows to put in order
        order = template.row_order([*(match.rows for match in matches), other_rows])
        columns = pa.Table.from_batches(parts).take(order).combine_chunks().to_batches()[0]
    return DecodedBatch(columns, reasons(batch.errors, len(texts)), new)


@dataclass
class _JsonBatch:
    """The state of one `decode_objects`: reasons by row, and objects to search for unknown keys."""

    rule: Rule
    dropped: frozenset[str]
    caster: TextCaster
    errors: dict[int, str] = field(default_factory=dict)
    suspects: list[SuspectObjects] = field(default_factory=list)
    mark: str | None = None  # `exact` put it before numbers in the texts of nested columns

    def parse(self, texts: pa.StringArray, target: Schema, rows: Rows) -> pa.RecordBatch:
        """Decode the rows that fit no template, or all rows."""
        schema = arrow_schema(target)
        columns = self.objects(texts, target.as_struct(), schema, rows, ())
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def note_errors(self, rows: Rows, bad: Mapping[int, str], path: Path = ()) -> None:
        """Note the reasons of bad rows; the first one that is found for a row stays."""
        prefix = f"`{'.'.join(path)}`: " if path else ""
        for index, reason in bad.items():
            self.errors.setdefault(int(rows[index]), prefix + reason)

    def column(
        self,
        texts: pa.StringArray,
        iceberg_type: IcebergType,
        arrow: pa.DataType,
        rows: Rows,
        path: Path,
    ) -> pa.Array:
        """Turn texts into an array of any type; `rows` says to which record each text belongs."""
        texts = self.caster.before_cast(texts, iceberg_type, rows, path)
        if texts.null_count == len(texts):
            return pa.nulls(len(texts), arrow)
        if isinstance(iceberg_type, StructType):
            children = self.objects(texts, iceberg_type, arrow, rows, path)
            return pa.StructArray.from_arrays(children, type=arrow, mask=texts.is_null())
        if isinstance(iceberg_type, ListType):
            return self.lists(texts, iceberg_type, arrow, rows, path)
        if isinstance(iceberg_type, MapType):
            return self.maps(texts, iceberg_type, arrow, rows, path)
        if self.mark and len(path) > 1:
            texts = jsonbytes.unmark_numbers(texts, self.mark)
        values, bad = self.caster.cast(texts, iceberg_type, arrow, path)
        self.note_errors(rows, bad, path)
        return values

    def objects(
        self,
        texts: pa.StringArray,
        struct: StructType,
        arrow_fields: Iterable[pa.Field],
        rows: Rows,
        path: Path,
    ) -> list[pa.Array]:
        """Turn objects into one array per field of the struct."""
        texts = self.without_bad_openings(texts, "{", rows, path)
        names = [f.name for f in struct.fields]
        # Dropped fields are extracted too, so that their keys count as known.
        unwanted = sorted(self.dropped - {*names}) if self.rule != "ignore" and not path else []
        raw = frozenset() if path else self.caster.raw
        members, malformed = duck.extract(texts, [*names, *unwanted], raw)
        texts = self.without_malformed(texts, malformed, rows, path)
        if self.rule != "ignore":
            suspects = jsonbytes.unexplained(texts, zip([*names, *unwanted], members, strict=True))
            if len(suspects):
                suspect_texts = texts.take(pa.array(suspects))
                if self.mark:
                    suspect_texts = jsonbytes.unmark_numbers(suspect_texts, self.mark)
                self.suspects.append(SuspectObjects(suspect_texts, rows[suspects], path))
        if not path:
            members = self.exact(texts, struct, members)
        return [
            self.member(f, values, out.type, texts.is_valid(), rows, path)
            for f, values, out in zip(struct.fields, members, arrow_fields, strict=False)
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
        """Turn the texts of one field into an array; `present`: rows whose object is not null."""
        path = (*path, field.name)
        if field.required and values.null_count:
            missing = jsonkeys.where(pc.and_(values.is_null(), present))
            self.note_errors(rows, dict.fromkeys(missing, _NULL), path)
        return self.column(values, field.field_type, arrow, rows, path)

    def decode_match(self, match: template.TemplateRows, target: Schema) -> pa.RecordBatch:
        """Decode the rows that fit one template."""
        schema = arrow_schema(target)
        size = len(match.rows)
        nulls, present = pa.nulls(size, pa.string()), pa.repeat(True, size)
        columns = [
            self.member(f, match.texts.get(f.name, nulls), out.type, present, match.rows, ())
            for f, out in zip(target.fields, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def lists(
        self, texts: pa.StringArray, list_type: ListType, arrow: pa.DataType, rows: Rows, path: Path
    ) -> pa.Array:
        """Turn JSON arrays into lists; a bad element makes its record bad."""
        texts = self.parsed(texts, "[", rows, path)
        sizes, values = duck.elements(texts)
        element_rows, path = np.repeat(rows, sizes), (*path, "element")
        elements = self.column(values, list_type.element_type, arrow.value_type, element_rows, path)
        if list_type.element_required:
            missing = jsonkeys.where(values.is_null())
            self.note_errors(element_rows, dict.fromkeys(missing, _NULL), path)
        ends = pa.array(np.append(0, np.cumsum(sizes)), pa.int64())
        return pa.LargeListArray.from_arrays(ends, elements, type=arrow, mask=texts.is_null())

    def maps(
        self, texts: pa.StringArray, map_type: MapType, arrow: pa.DataType, rows: Rows, path: Path
    ) -> pa.Array:
        """Turn objects into maps; a key given twice is always an error here."""
        texts = self.parsed(texts, "{", rows, path)
        sizes, keys, values = duck.entries(texts)
        owners, entry_rows = np.repeat(np.arange(len(texts)), sizes), np.repeat(rows, sizes)
        self.note_errors(entry_rows, jsonkeys.repeated(owners, keys), path)
        map_keys = self.column(keys, map_type.key_type, arrow.key_type, entry_rows, (*path, "key"))
        path = (*path, "value")
        items = self.column(values, map_type.value_type, arrow.item_type, entry_rows, path)
        if map_type.value_required:
            missing = jsonkeys.where(values.is_null())
            self.note_errors(entry_rows, dict.fromkeys(missing, _NULL), path)
        if map_keys.null_count:  # of bad rows: Arrow's maps hold no null keys
            is_kept = map_keys.is_valid()
            map_keys, items = map_keys.filter(is_kept), items.filter(is_kept)
            sizes = np.bincount(owners[jsonkeys.where(is_kept)], minlength=len(texts))
        ends = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
        return pa.MapArray.from_arrays(ends, map_keys, items, type=arrow, mask=texts.is_null())

    def without_bad_openings(
        self, texts: pa.StringArray, opening: str, rows: Rows, path: Path
    ) -> pa.StringArray:
        """Note and make null, before parsing, what nests too deep or is no object or array."""
        texts, bad = without_bad_openings(texts, opening, path)
        self.note_errors(rows, bad, path)
        return texts

    def parsed(self, texts: pa.StringArray, opening: str, rows: Rows, path: Path) -> pa.StringArray:
        """Check the opening, and that every text is JSON: it may have come from a JSON string."""
        texts = self.without_bad_openings(texts, opening, rows, path)
        malformed = jsonkeys.where(pc.invert(duck.valid(texts)))
        return self.without_malformed(texts, malformed, rows, path)

    def without_malformed(
        self, texts: pa.StringArray, malformed: list[int], rows: Rows, path: Path
    ) -> pa.StringArray:
        """Note malformed texts as bad and make them null."""
        self.note_errors(rows, {i: why_malformed(texts[i].as_py()) for i in malformed}, path)
        return casts.without(texts, malformed)

    def exact(
        self, texts: pa.StringArray, struct: StructType, members: list[pa.StringArray]
    ) -> list[pa.StringArray]:
        """Extract objects again where DuckDB's doubles lost digits that a column would show."""
        rows = jsonbytes.long_reals(texts)
        exact_fields = [i for i, f in enumerate(struct.fields) if _holds(f.field_type, _EXACT)]
        if len(rows) == 0 or not exact_fields:
            return members
        is_shown = np.zeros(len(rows), bool)
        for i in exact_fields:
            is_hit = pc.match_substring_regex(members[i].take(pa.array(rows)), _REAL_OR_NESTED)
            is_shown[jsonkeys.where(is_hit)] = True
        rows = rows[is_shown]
        self.mark = jsonbytes.free_mark(texts) if len(rows) else None
        if self.mark is None:
            return members
        marked = jsonbytes.mark_numbers(texts.take(pa.array(rows)), self.mark)
        exact_texts, _ = duck.extract(marked, [f.name for f in struct.fields], self.caster.raw)
        mask = np.zeros(len(texts), bool)
        mask[rows] = True
        for i, f in enumerate(struct.fields):
            if not isinstance(f.field_type, StructType | ListType | MapType):
                exact_texts[i] = jsonbytes.unmark_numbers(exact_texts[i], self.mark)
            members[i] = pc.replace_with_mask(members[i], pa.array(mask), exact_texts[i])
        return members


def without_bad_openings(
    texts: pa.StringArray, opening: str = "{", path: Path = ()
) -> tuple[pa.StringArray, casts.Bad]:
    """Make null what nests too deep or is no object or array; returns the reasons too."""
    too_deep = f"nested deeper than {jsonbytes.MAX_DEPTH} levels"
    bad = dict.fromkeys(jsonbytes.too_deep(texts), too_deep)
    for i in jsonbytes.not_starting_with(texts, opening).tolist():
        if texts[i].is_valid and i not in bad:
            bad[i] = _not_a(opening, texts[i].as_py(), path)
    return casts.without(texts, bad), bad


def _holds(iceberg_type: IcebergType, types: tuple[type[IcebergType], ...]) -> bool:
    if isinstance(iceberg_type, StructType):
        return any(_holds(field.field_type, types) for field in iceberg_type.fields)
    if isinstance(iceberg_type, ListType):
        return _holds(iceberg_type.element_type, types)
    if isinstance(iceberg_type, MapType):
        return _holds(iceberg_type.value_type, types)
    return isinstance(iceberg_type, types)


def _not_a(opening: str, text: str, path: Path) -> str:
    """Give the reason of a text that does not begin as an object or array does."""
    wanted = "an object" if opening == "{" else "an array"
    if path:
        return f"{casts.quote(text)} is not {wanted}"
    try:
        json_type = type(json.loads(text))
    except (ValueError, RecursionError):
        return why_malformed(text)
    names = {list: "an array", str: "a string", type(None): "null", bool: "a boolean"}
    return f"the record is {names.get(json_type, 'a number')}, not {wanted}"


def why_malformed(text: str) -> str:
    """Give the reason of a text that is not JSON: what is wrong, and at which character."""
    try:
        json.loads(text)
    except json.JSONDecodeError as e:
        return f"malformed JSON: {e.msg} at character {e.pos}"
    except (ValueError, RecursionError):
        pass
    return duck.complaint(text)
