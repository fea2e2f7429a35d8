"""Objects that differ only in their values, taken apart by position instead of by parsing.

The records of a stream mostly come from a few producers that write the same keys in the same
order. A template is one flat object with its values cut out; a row fits when all that is left
between its quotes is byte for byte the template's. What fits is read as the parser would read it;
whatever is doubtful (escapes, nesting, odd numbers) does not fit and is left to the parser.
docs/design/json.md says why this is the same.
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

MAX_TEMPLATES = 4  # tried on one batch; more shapes than these are parsed
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
    """Where a value stands: between quotes, or a number, true, false or null."""

    name: str
    quoted: bool


@dataclass(frozen=True)
class Template:
    """`literals` has one more entry than `slots`: what stands before, between and behind them."""

    literals: tuple[bytes, ...]
    slots: tuple[Slot, ...]


@dataclass(frozen=True)
class TemplateRows:
    """Rows that fit one template, and the text of each wanted value; JSON's null is null."""

    rows: Places
    texts: dict[str, pa.StringArray]
    names: tuple[str, ...]  # all keys that they have


def template_of(text: bytes) -> Template | None:
    """Cut the values out of a flat object; None when it is anything else."""
    opening = re.match(rb" *\{", text)
    literals: list[bytes] = []
    slots: dict[str, Slot] = {}
    at, since = opening.end() if opening else len(text), 0
    while key := _KEY.match(text, at):
        name = key[1].decode()
        at = key.end()
        quoted = text[at : at + 1] == b'"'
        if quoted:
            literals.append(text[since : at + 1])
            since = text.find(b'"', at + 1)
            at = since + 1
        else:
            scalar = _SCALAR.match(text, at)
            literals.append(text[since:at])
            since = at = scalar.end() if scalar else 0
        following = _NEXT.match(text, at)
        if not since or not following or name in slots or len(slots) == MAX_SLOTS:
            return None
        slots[name] = Slot(name, quoted)
        at = following.end()
        if following[1] == b"}":
            literals.append(text[since:])
            return None if text[at:].strip(b" ") else Template(tuple(literals), (*slots.values(),))
    return None


def match_templates(
    texts: pa.StringArray,
    kinds: Mapping[str, IcebergType],
    unwanted: Callable[[str], bool],
    raw: Collection[str] = (),
) -> tuple[list[TemplateRows], Places]:
    """Rows that fit a template of this batch, and the rows that are left to the parser.

    `kinds` are the columns; a key that is neither one of them nor unwanted is the parser's matter.
    Strings of the `raw` columns keep their quotes.
    """
    taken: dict[int, list[TemplateRows]] = {}
    templates: list[Template] = []
    rest = np.ones(len(texts), bool)
    for begin in range(0, len(texts), _CHUNK):
        page = _ObjectBuffer(texts.slice(begin, _CHUNK))
        left = page.candidates()
        for number in range(MAX_TEMPLATES):
            if not len(left):
                break
            if number == len(templates):
                template = template_of(page.row(int(left[0])))
                if template is None or not _wanted(template, kinds, unwanted):
                    break
                templates.append(template)
            found = _fitting(page, templates[number], left, kinds, raw)
            if len(found.rows):
                left = np.setdiff1d(left, found.rows, assume_unique=True)
                rest[begin + found.rows] = False
                taken.setdefault(number, []).append(replace(found, rows=begin + found.rows))
    return [_joined(parts) for parts in taken.values()], np.flatnonzero(rest)


def _joined(parts: Sequence[TemplateRows]) -> TemplateRows:
    """What fits one template in all chunks."""
    if len(parts) == 1:
        return parts[0]
    texts = {
        name: pa.concat_arrays([part.texts[name] for part in parts]) for name in parts[0].texts
    }
    rows = np.concatenate([part.rows for part in parts])
    return TemplateRows(rows, texts, parts[0].names)


def _wanted(
    template: Template, kinds: Mapping[str, IcebergType], unwanted: Callable[[str], bool]
) -> bool:
    """Whether every key is a column of a plain type, or known to be left out."""
    return all(
        isinstance(kinds[slot.name], PrimitiveType) if slot.name in kinds else unwanted(slot.name)
        for slot in template.slots
    )


def _fitting(
    page: "_ObjectBuffer",
    template: Template,
    rows: Places,
    kinds: Mapping[str, IcebergType],
    raw: Collection[str],
) -> TemplateRows:
    rows, spans = page.fit(template, rows)
    texts: dict[str, pa.StringArray] = {}
    fine = np.ones(len(rows), bool)
    for slot, (start, length) in zip(template.slots, spans, strict=True):
        kind = kinds.get(slot.name)
        if slot.quoted and slot.name in raw:
            start, length = start - 1, length + 2
        values = page.texts(start, length)
        if not slot.quoted:  # unwanted ones too: a row with a malformed number is no row
            values, plain = _scalars(page, values, start, length, kind)
            fine &= plain
        if kind is not None:
            texts[slot.name] = values
    if not fine.all():
        kept = pa.array(fine)
        rows, texts = rows[fine], {name: each.filter(kept) for name, each in texts.items()}
    return TemplateRows(rows, texts, tuple(slot.name for slot in template.slots))


class _ObjectBuffer(TextBuffer):
    """With the place of every quote."""

    def __init__(self, texts: pa.StringArray) -> None:
        super().__init__(texts)
        body = self.body
        self._odd = np.flatnonzero((body == ord("\\")) | (body < ord(" "))) if _odd(body) else None
        self._quotes = np.flatnonzero(body == ord('"'))
        self._first = np.searchsorted(self._quotes, self.start)
        self._count = np.searchsorted(self._quotes, self.end) - self._first

    def candidates(self) -> Places:
        """Rows without escapes and control characters: a quote there is a quote."""
        fine = self.valid.copy()
        if self._odd is not None:
            fine[np.searchsorted(self.end, self._odd, side="right")] = False
        return np.flatnonzero(fine)

    def fit(self, template: Template, rows: Places) -> tuple[Places, list[tuple[Places, Places]]]:
        """The rows that fit, and start and length of each value in them."""
        total = sum(literal.count(b'"') for literal in template.literals)
        if not (self._count == total).all() or len(rows) < len(self.start):
            rows = rows[self._count[rows] == total]
        first, start, end = self._first[rows], self.start[rows], self.end[rows]
        fits, at, quotes = np.ones(len(rows), bool), start, 0
        spans: list[tuple[Places, Places]] = []
        for number, literal in enumerate(template.literals):
            if number:
                inside = literal.find(b'"')
                # Only the last one, behind a number, may have no quote.
                at = end - len(literal) if inside < 0 else self._quotes[quotes:][first] - inside
                value = spans[-1][0]
                length = at - value
                fits &= length >= (0 if template.slots[number - 1].quoted else 1)
                spans[-1] = (value, length)
            fits &= self.reads(at, literal)
            quotes += literal.count(b'"')
            spans.append((at + len(literal), end))
        fits &= spans.pop()[0] == end
        if fits.all():
            return rows, spans
        return rows[fits], [(start[fits], length[fits]) for start, length in spans]


def _scalars(
    page: _ObjectBuffer,
    texts: pa.StringArray,
    start: Places,
    length: Places,
    kind: IcebergType | None,
) -> tuple[pa.StringArray, Flags]:
    """The texts of numbers, true and false, null for null; and which rows are plain enough."""
    fine, real = _numbers(texts, length)
    fine &= ~real | _takes_reals(kind, texts)
    if fine.all():
        return texts, fine
    null = np.zeros(len(fine), bool)
    for word, meaning in _WORDS.items():
        same = (length == len(word)) & page.reads(start, word)
        fine |= same
        if meaning is None:
            null = same
    if null.any():
        texts = texts.take(pa.array(np.arange(len(texts)), mask=null))
    return texts, fine


def _numbers(texts: pa.StringArray, length: Places) -> tuple[Flags, Flags]:
    """Which texts are JSON numbers without exponent and of few digits, and which have a point."""
    body, ends = characters(texts), offsets(texts).astype(np.int64)
    begin = ends[:-1] - ends[0]
    stop = ends[1:] - ends[0]
    fine, real = (length > 0) & (length <= _LONGEST_INTEGER), np.zeros(len(texts), bool)
    negative = np.zeros(len(texts), bool)
    other = np.flatnonzero(body - np.uint8(ord("0")) > 9)
    if len(other):
        row = np.searchsorted(stop, other, side="right")
        sign, point = body[other] == ord("-"), body[other] == ord(".")
        sign &= other == begin[row]
        negative[row[sign]] = True
        point &= (other > begin[row] + negative[row]) & (other < stop[row] - 1)
        pointed = row[point]
        real[pointed] = True
        fine[row[~(sign | point)]] = False
        fine[pointed[1:][np.diff(pointed) == 0]] = False  # a second point
    fine &= ~real | (length <= _LONGEST_REAL)
    digits = length - negative
    fine &= digits > 0
    padded = np.append(body, np.zeros(2, np.uint8))
    leading = begin + negative
    zero = padded[np.minimum(leading, len(body))] == ord("0")
    more = padded[np.minimum(leading + 1, len(body))] - np.uint8(ord("0")) <= 9
    fine &= ~(zero & (digits > 1) & more)
    fine &= ~(zero & negative & (digits == 1))  # -0 is a real, says the parser
    return fine, real


def _takes_reals(kind: IcebergType | None, texts: pa.StringArray) -> Flags:
    """Where a real's text means what the parser's text of it means, which ends in no needless 0."""
    if kind is None or isinstance(kind, DoubleType | FloatType):
        return np.ones(len(texts), bool)
    if not isinstance(kind, DecimalType):
        return np.zeros(len(texts), bool)
    body, ends = characters(texts), offsets(texts).astype(np.int64)
    last = np.maximum(ends[1:] - ends[0] - 1, 0)
    needless: Flags = np.append(body, np.uint8(0))[np.minimum(last, len(body))] == ord("0")
    return ~needless


def _odd(body: npt.NDArray[np.uint8]) -> bool:
    return bool(body.min(initial=255) < ord(" ")) or bool((body == ord("\\")).any())


def row_order(parts: Sequence[Places]) -> pa.Array:
    """The way back: where each row stands after the parts were put one behind the other."""
    rows = np.concatenate(parts)
    order = np.empty(len(rows), np.int64)
    order[rows] = np.arange(len(rows))
    return pa.array(order)
