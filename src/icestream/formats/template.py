"""Takes apart, by position instead of parsing, JSON objects that differ only in their values.

The records of a stream mostly come from a few producers that write the same keys in the same
order. A template is one flat object with its values cut out; a row fits when everything between
its values is byte for byte the template's. Whatever is doubtful (escapes, nesting, unusual numbers)
does not fit and goes to the parser. docs/design/json.md says why the result is the parser's.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, PrimitiveType

from icestream.formats.jsonbytes import characters, offsets
from icestream.formats.page import Flags, Places, TextBuffer

MAX_TEMPLATES = 4  # made for one batch; rows of further shapes are parsed
MAX_SLOTS = 256
_CHUNK = 8192  # rows at a time: their bytes stay in the processor's cache
_LONGEST_INTEGER = 18  # digits that a long holds for sure
_LONGEST_REAL = 16  # a double keeps 15 digits

_KEY = re.compile(rb' *"([^"\\]+)" *: *')
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]+")
_NEXT = re.compile(rb" *([,}])")
_WORDS = {b"null": None, b"true": "true", b"false": "false"}


@dataclass(frozen=True)
class Slot:
    """A value of a template: in quotes, or a number, true, false or null."""

    name: str
    quoted: bool


@dataclass(frozen=True)
class Template:
    """One flat object: its slots, and the literals before, between and behind them (one more)."""

    literals: tuple[bytes, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class TemplateRows:
    """Rows that fit one template, and the texts of their columns; JSON's null is null."""

    rows: Places
    texts: dict[str, pa.StringArray]
    names: tuple[str, ...]  # all keys of these rows, columns or not


def template_of(text: bytes) -> Template | None:
    """Make a template of a flat object by cutting its values out; None: it is no flat object."""
    opening = re.match(rb" *\{", text)
    literals: list[bytes] = []
    slots: dict[str, Slot] = {}
    position, literal_start = opening.end() if opening else len(text), 0
    while key := _KEY.match(text, position):
        name = key[1].decode()
        position = key.end()
        quoted = text[position : position + 1] == b'"'
        if quoted:
            literals.append(text[literal_start : position + 1])
            literal_start = text.find(b'"', position + 1)
            position = literal_start + 1
        else:
            scalar = _SCALAR.match(text, position)
            literals.append(text[literal_start:position])
            literal_start = position = scalar.end() if scalar else 0
        following = _NEXT.match(text, position)
        if not literal_start or not following or name in slots or len(slots) == MAX_SLOTS:
            return None
        slots[name] = Slot(name, quoted)
        position = following.end()
        if following[1] == b"}":
            literals.append(text[literal_start:])
            is_last = not text[position:].strip(b" ")
            return Template(tuple(literals), tuple(slots.values())) if is_last else None
    return None


def match_templates(
    texts: pa.StringArray,
    columns: Mapping[str, IcebergType],
    unwanted: Callable[[str], bool],
    raw: Collection[str] = (),
) -> tuple[list[TemplateRows], Places]:
    """Return the rows that fit templates, which it makes of rows of this batch, and the others.

    A key that is neither one of the columns nor `unwanted` is left to the parser. Strings of the
    `raw` columns keep their quotes.
    """
    matches: dict[int, list[TemplateRows]] = {}
    templates: list[Template] = []
    is_unmatched = np.ones(len(texts), bool)
    for start in range(0, len(texts), _CHUNK):
        page = _ObjectBuffer(texts.slice(start, _CHUNK))
        unmatched = page.candidates()
        for index in range(MAX_TEMPLATES):
            if not len(unmatched):
                break
            if index == len(templates):
                template = template_of(page.row(int(unmatched[0])))
                if template is None or not _has_known_keys(template, columns, unwanted):
                    break
                templates.append(template)
            match = _match(page, templates[index], unmatched, columns, raw)
            if len(match.rows):
                unmatched = np.setdiff1d(unmatched, match.rows, assume_unique=True)
                is_unmatched[start + match.rows] = False
                matches.setdefault(index, []).append(replace(match, rows=start + match.rows))
    return [_joined(parts) for parts in matches.values()], np.flatnonzero(is_unmatched)


def _joined(parts: Sequence[TemplateRows]) -> TemplateRows:
    """Put the rows of one template from all chunks together."""
    if len(parts) == 1:
        return parts[0]
    texts = {
        name: pa.concat_arrays([part.texts[name] for part in parts]) for name in parts[0].texts
    }
    rows = np.concatenate([part.rows for part in parts])
    return TemplateRows(rows, texts, parts[0].names)


def _has_known_keys(
    template: Template, columns: Mapping[str, IcebergType], unwanted: Callable[[str], bool]
) -> bool:
    """Return whether every key is a column of a plain type, or known to be left out."""
    return all(
        isinstance(columns[name], PrimitiveType) if name in columns else unwanted(name)
        for name in (slot.name for slot in template.slots)
    )


def _match(
    page: "_ObjectBuffer",
    template: Template,
    rows: Places,
    columns: Mapping[str, IcebergType],
    raw: Collection[str],
) -> TemplateRows:
    rows, spans = page.fit(template, rows)
    texts: dict[str, pa.StringArray] = {}
    is_good = np.ones(len(rows), bool)
    for slot, (start, length) in zip(template.slots, spans, strict=True):
        column_type = columns.get(slot.name)
        if slot.quoted and slot.name in raw:
            start, length = start - 1, length + 2
        values = page.texts(start, length)
        if not slot.quoted:  # unwanted ones too: a malformed number makes a bad row
            values, is_plain = _scalars(page, values, start, length, column_type)
            is_good &= is_plain
        if column_type is not None:
            texts[slot.name] = values
    if not is_good.all():
        mask = pa.array(is_good)
        rows, texts = rows[is_good], {name: column.filter(mask) for name, column in texts.items()}
    return TemplateRows(rows, texts, tuple(slot.name for slot in template.slots))


class _ObjectBuffer(TextBuffer):
    """A chunk of objects as bytes, with the positions of all quotes."""

    def __init__(self, texts: pa.StringArray) -> None:
        super().__init__(texts)
        body = self.body
        # Positions of backslashes and control characters; None: there are none.
        self._specials = None
        if _has_specials(body):
            self._specials = np.flatnonzero((body == ord("\\")) | (body < ord(" ")))
        self._quotes = np.flatnonzero(body == ord('"'))
        self._first = np.searchsorted(self._quotes, self.start)
        self._count = np.searchsorted(self._quotes, self.end) - self._first

    def candidates(self) -> Places:
        """Return the rows without escapes and control characters: each quote there is a quote."""
        is_plain = self.valid.copy()
        if self._specials is not None:
            is_plain[np.searchsorted(self.end, self._specials, side="right")] = False
        return np.flatnonzero(is_plain)

    def fit(self, template: Template, rows: Places) -> tuple[Places, list[tuple[Places, Places]]]:
        """Return the rows that fit, and start and length of each value in them."""
        quote_count = sum(literal.count(b'"') for literal in template.literals)
        if not (self._count == quote_count).all() or len(rows) < len(self.start):
            rows = rows[self._count[rows] == quote_count]
        first, start, end = self._first[rows], self.start[rows], self.end[rows]
        is_fit, place, quotes = np.ones(len(rows), bool), start, 0
        spans: list[tuple[Places, Places]] = []
        for index, literal in enumerate(template.literals):
            if index:
                quote = literal.find(b'"')
                # A literal stands at its quote; only the last one, behind a number, may have none.
                place = end - len(literal) if quote < 0 else self._quotes[quotes:][first] - quote
                value_start = spans[-1][0]
                length = place - value_start
                is_fit &= length >= (0 if template.slots[index - 1].quoted else 1)
                spans[-1] = (value_start, length)
            is_fit &= self.reads(place, literal)
            quotes += literal.count(b'"')
            spans.append((place + len(literal), end))
        is_fit &= spans.pop()[0] == end
        if is_fit.all():
            return rows, spans
        return rows[is_fit], [(start[is_fit], length[is_fit]) for start, length in spans]


def _scalars(
    page: _ObjectBuffer,
    texts: pa.StringArray,
    start: Places,
    length: Places,
    column_type: IcebergType | None,
) -> tuple[pa.StringArray, Flags]:
    """Return the texts of unquoted values, null for null, and which rows are plain enough."""
    is_plain, is_real = _numbers(texts, length)
    is_plain &= ~is_real | _may_be_real(column_type, texts)
    if is_plain.all():
        return texts, is_plain
    is_null = np.zeros(len(is_plain), bool)
    for word, meaning in _WORDS.items():
        is_word = (length == len(word)) & page.reads(start, word)
        is_plain |= is_word
        if meaning is None:
            is_null = is_word
    if is_null.any():
        texts = texts.take(pa.array(np.arange(len(texts)), mask=is_null))
    return texts, is_plain


def _numbers(texts: pa.StringArray, length: Places) -> tuple[Flags, Flags]:
    """Return which texts are short JSON numbers without exponent, and which have a point."""
    body, ends = characters(texts), offsets(texts).astype(np.int64)
    start = ends[:-1] - ends[0]
    stop = ends[1:] - ends[0]
    is_plain, is_real = (length > 0) & (length <= _LONGEST_INTEGER), np.zeros(len(texts), bool)
    is_negative = np.zeros(len(texts), bool)
    others = np.flatnonzero(body - np.uint8(ord("0")) > 9)
    if len(others):
        row = np.searchsorted(stop, others, side="right")
        is_sign, is_point = body[others] == ord("-"), body[others] == ord(".")
        is_sign &= others == start[row]
        is_negative[row[is_sign]] = True
        is_point &= (others > start[row] + is_negative[row]) & (others < stop[row] - 1)
        real_rows = row[is_point]
        is_real[real_rows] = True
        is_plain[row[~(is_sign | is_point)]] = False
        is_plain[real_rows[1:][np.diff(real_rows) == 0]] = False  # a second point
    is_plain &= ~is_real | (length <= _LONGEST_REAL)
    digits = length - is_negative
    is_plain &= digits > 0
    padded = np.append(body, np.zeros(2, np.uint8))
    leading = start + is_negative
    has_zero = padded[np.minimum(leading, len(body))] == ord("0")
    has_more = padded[np.minimum(leading + 1, len(body))] - np.uint8(ord("0")) <= 9
    is_plain &= ~(has_zero & (digits > 1) & has_more)
    is_plain &= ~(has_zero & is_negative & (digits == 1))  # the parser reads -0 as a double
    return is_plain, is_real


def _may_be_real(column_type: IcebergType | None, texts: pa.StringArray) -> Flags:
    """Return where a number with a point may stay as written: the parser drops zeros at its end."""
    if column_type is None or isinstance(column_type, DoubleType | FloatType):
        return np.ones(len(texts), bool)
    if not isinstance(column_type, DecimalType):
        return np.zeros(len(texts), bool)
    body, ends = characters(texts), offsets(texts).astype(np.int64)
    last = np.maximum(ends[1:] - ends[0] - 1, 0)
    ends_in_zero: Flags = np.append(body, np.uint8(0))[np.minimum(last, len(body))] == ord("0")
    return ~ends_in_zero


def _has_specials(body: npt.NDArray[np.uint8]) -> bool:
    return bool(body.min(initial=255) < ord(" ")) or bool((body == ord("\\")).any())


def row_order(parts: Sequence[Places]) -> pa.Array:
    """Return the indices that bring the rows of concatenated parts back into their order."""
    rows = np.concatenate(parts)
    indices = np.empty(len(rows), np.int64)
    indices[rows] = np.arange(len(rows))
    return pa.array(indices)
