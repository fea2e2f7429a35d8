"""Envelopes that end alike, taken apart by position instead of being parsed.

What Debezium writes behind the rows of an event differs from that of the next one in digits alone:
times, log positions, transactions.

    {"before":{…},"after":{…},"source":{…,"lsn":4294967296},"op":"u","ts_ms":1767225600250}
                             └──────────────────────── the tail ─────────────────────────┘

One event of a kind is parsed. Others are of its kind when their last bytes are its tail, digits
aside: then each value stands where it stands in the tail, and what is before it are the two rows.
Rows are only cut out here, as they are; who decodes them tells whether they are JSON. The row
before an update is not asked for by anybody, so nobody looks into it. Whatever is doubtful is left
to the parser. docs/design/json.md says why this is the same.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from icestream.formats.page import Flags, Places, TextBuffer, Words

MAX_KINDS = 8  # looked for in one batch: three operations, and numbers that become longer
_CHUNK = 2048  # rows at a time: their bytes stay in the processor's cache
_BEFORE, _AFTER = b'{"before":', b',"after":'
_NO_BEFORE, _NO_AFTER = _BEFORE + b"null" + _AFTER, _AFTER + b"null"
_NEITHER = _NO_BEFORE + b"null"
_LEAST = len(b'{"before":{},"after":{}')
_SOURCE = b',"source":{'
_AFTER_WORD = np.uint64(int.from_bytes(b'"after":', "little"))
_KEY_OR_DIGITS = re.compile(rb'"(?:[^"\\]|\\.)*":|([0-9]+)')
_PLAIN = re.compile(r'"[^"\\]*"|-?[0-9]+|true|false|null')
_OP = ("op",)
_DECODER = json.JSONDecoder()
# What makes 0 to 9 of digits, and a sign of what is more than that.
_ZEROS, _TO_SIGN, _SIGNS = (np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x76, 0x80))

Structure = Mapping[str, Any]  # as DuckDB has it: names to kinds, or to the same one level deeper
Path = tuple[str, ...]
Span = tuple[int, int]


@dataclass(frozen=True)
class SplitEnvelopes:
    """What was found of each envelope, and which ones were taken apart; of others all is null."""

    fits: Flags
    rows: pa.StringArray | None  # after the change, or before it was deleted
    outer: dict[str, pa.StringArray]
    source: dict[str, pa.StringArray]


@dataclass(frozen=True)
class EnvelopeTail:
    """The end of an envelope: which rows stand before it, and where its values are."""

    text: bytes
    before: bool
    after: bool
    numbers: tuple[Span, ...]  # digits that are others in other envelopes
    values: Mapping[Path, Span | None]  # None: null, or not there

    @property
    def deletes(self) -> bool:
        """Whether it is the row before that counts."""
        return self.constant(_OP) == ("d",)

    def constant(self, path: Path) -> tuple[str | None] | None:
        """A value that is the same in all envelopes of this kind; None: it is not."""
        span = self.values[path]
        if span is None:
            return (None,)
        if any(start < span[1] and span[0] < end for start, end in self.numbers):
            return None
        return (self.text[slice(*span)].decode(),)

    def matching_rows(self, page: TextBuffer, rows: Places) -> Places:
        """Those of these rows that end so."""
        rows = rows[page.end[rows] - page.start[rows] >= len(self.text) + _LEAST]
        op = self.values[_OP] or (0, 0)
        for part in (op if op[0] < op[1] else (0, 1), (0, 8)):  # others mostly have another `op`
            at = page.end[rows] - len(self.text) + part[0]
            rows = rows[page.reads(at, self.text[slice(*part)])]
        if not len(rows):
            return rows
        value, digits = self._words
        width = 8 * len(value)  # what is before was just read
        words = page.pieces(page.end[rows] - width, width)
        where = np.flatnonzero(digits)
        odd = (words[:, where] ^ _ZEROS) & digits[where]
        odd |= odd + _TO_SIGN
        odd &= _SIGNS
        words ^= value
        words &= ~digits
        fits = np.bitwise_or.reduce(words, axis=1) == 0
        fits &= np.bitwise_or.reduce(odd, axis=1) == 0
        for start, end in self.numbers:
            if end > start + 1 and self.text[start] != ord("0"):  # else no number, or another one
                fits &= page.bytes[page.end[rows] - len(self.text) + start] != ord("0")
        found: Places = rows[fits]
        return found

    @cached_property
    def _words(self) -> tuple[Words, Words]:
        """The last bytes in eights, and with 0xff for each digit that may be another one."""
        width = len(self.text) // 8 * 8
        digits = np.zeros(len(self.text), np.uint8)
        for start, end in self.numbers:
            digits[start:end] = 0xFF
        value = np.frombuffer(self.text, np.uint8)
        first, last = (each[len(self.text) - width :].view("<u8") for each in (value, digits))
        return first, last


def take_apart(texts: pa.StringArray, structure: Structure) -> SplitEnvelopes:
    """Find rows, and what the structure names."""
    paths = [*_paths(structure)]
    kinds: list[EnvelopeTail] = []
    tries = MAX_KINDS
    fits, parts = [], []
    for begin in range(0, len(texts), _CHUNK):
        chunk = _EnvelopeChunk(TextBuffer(texts.slice(begin, _CHUNK)))
        left = np.flatnonzero(chunk.page.valid)
        for number, tail in enumerate(kinds):
            left = chunk.assign(number, tail, left)
        while len(left) and tries:
            tries -= 1
            first, left = int(left[0]), left[1:]
            if (made := tail_of(chunk.page.row(first), structure)) is not None:
                kinds.append(made)
                left = chunk.assign(len(kinds) - 1, made, np.append(first, left))
                left = left[left != first]  # its tail is a kind, its rows may be odd
        if not kinds and not tries:
            break
        fits.append(chunk.kind >= 0)
        # While its bytes are at hand.
        parts.append([chunk.rows(), *(chunk.texts(path, kinds) for path in paths)])
    if not kinds:
        return SplitEnvelopes(np.zeros(len(texts), bool), None, {}, {})
    rows, *rest = map(pa.concat_arrays, zip(*parts, strict=True))
    whole = dict(zip(paths, rest, strict=True))
    return SplitEnvelopes(
        np.concatenate(fits),
        rows,
        {path[0]: each for path, each in whole.items() if len(path) == 1},
        {path[1]: each for path, each in whole.items() if len(path) == 2},
    )


def tail_of(text: bytes, structure: Structure) -> EnvelopeTail | None:
    """Parse one envelope; None: others cannot be taken apart like it."""
    try:
        whole = text.decode()
        before, at = _image(whole, 0, _BEFORE)
        after, at = _image(whole, at, _AFTER)
        raw = whole[at:].encode("ascii")
        if not raw.startswith(_SOURCE):
            return None
        values = dict(_values("{" + whole[at + 1 :], structure))
    except (ValueError, RecursionError):
        return None
    numbers = tuple(each.span(1) for each in _KEY_OR_DIGITS.finditer(raw) if each[1])
    made = EnvelopeTail(raw, before, after, numbers, values)
    return None if made.deletes and after else made


class _EnvelopeChunk:
    """Some envelopes: of which kind each is, and where its rows stand."""

    def __init__(self, page: TextBuffer) -> None:
        self.page = page
        self.kind = np.full(len(page.start), -1, np.int64)
        self._start = np.zeros(len(page.start), np.int64)  # of the row that counts
        self._length = np.full(len(page.start), -1, np.int64)
        self._afters: tuple[Places, Flags] | None = None

    def assign(self, number: int, tail: EnvelopeTail, rows: Places) -> Places:
        """Note those of these rows that end so; → the others."""
        fitting = self._rows_of(tail, tail.matching_rows(self.page, rows))
        if not len(fitting):
            return rows
        self.kind[fitting] = number
        return rows[self.kind[rows] < 0]

    def rows(self) -> pa.StringArray:
        """The rows that count."""
        return self.page.texts(self._start, np.maximum(self._length, 0), self._length < 0)

    def texts(self, path: Path, kinds: Sequence[EnvelopeTail]) -> pa.StringArray:
        """What was found there."""
        none = self.kind < 0
        if none.all():
            return pa.nulls(len(none), pa.string())
        constants = [each.constant(path) for each in kinds]
        if all(constants):
            words = pa.array([each[0] for each in constants if each], pa.string())
            return words.take(pa.array(self.kind, mask=none))
        spans = [each.values[path] or (0, -1) for each in kinds]
        first, size = (np.array(each) for each in zip(*((s, e - s) for s, e in spans), strict=True))
        behind = self.page.end - np.array([len(each.text) for each in kinds])[self.kind]
        length = np.where(none, -1, size[self.kind])
        start = np.where(length < 0, 0, behind + first[self.kind])
        return self.page.texts(start, np.maximum(length, 0), length < 0)

    def _rows_of(self, tail: EnvelopeTail, rows: Places) -> Places:
        """Find the two rows of an event; → the events whose rows stand where they should."""
        page = self.page
        start, behind = page.start[rows], page.end[rows] - len(tail.text)
        if not tail.before and not tail.after:
            found: Places = rows[(behind - start == len(_NEITHER)) & page.reads(start, _NEITHER)]
            return found
        if not tail.before:
            fits = page.reads(start, _NO_BEFORE)
            return self._cut(rows, start + len(_NO_BEFORE), behind, fits)
        fits = page.reads(start, _BEFORE + b"{")
        if not tail.after:
            end = behind - len(_NO_AFTER)
            fits &= page.reads(end, _NO_AFTER)
            return self._cut(rows, start + len(_BEFORE), end, fits, tail.deletes)
        after, once = self._after(rows)
        fits &= once & (page.bytes[after - 2] == ord("}")) & (page.bytes[after - 1] == ord(","))
        return self._cut(rows, after + len(_AFTER) - 1, behind, fits)

    def _cut(
        self, rows: Places, start: Places, end: Places, fits: Flags, counts: bool = True
    ) -> Places:
        """Take what stands there for a row, if it looks like one; → where it does."""
        fits = fits & (end > start + 1) & (self.page.bytes[start] == ord("{"))
        fits &= self.page.bytes[end - 1] == ord("}")
        found: Places = rows[fits]
        if counts:
            self._start[found], self._length[found] = start[fits], (end - start)[fits]
        return found

    def _after(self, rows: Places) -> tuple[Places, Flags]:
        """Where `"after":{` stands in each row, and whether it does so once and no more."""
        page = self.page
        if self._afters is None:
            braces = np.flatnonzero(page.body == ord("{"))
            braces = braces[braces > len(_BEFORE)]
            found = braces[page.words[braces - 8] == _AFTER_WORD] - 8
            first = np.searchsorted(found, page.start)
            once = np.searchsorted(found, page.end) - first == 1
            self._afters = np.where(once, np.append(found, 0)[first], page.start + 2), once
        at, once = self._afters
        return at[rows], once[rows]


def _image(text: str, at: int, opening: bytes) -> tuple[bool, int]:
    """Whether there is a row behind the opening or null, and where it ends; else a ValueError."""
    if not text.startswith(opening.decode(), at):
        raise ValueError
    value, end = _DECODER.raw_decode(text, at + len(opening))
    if value is not None and not isinstance(value, dict):
        raise ValueError
    return value is not None, end


def _members(text: str, at: int) -> dict[str, Span]:
    """Where the values of an object stand that is written without spaces; else a ValueError."""
    found: dict[str, Span] = {}
    while text[at : at + 2] in ('{"', ',"'):
        name, at = _DECODER.raw_decode(text, at + 1)
        if name in found or text[at] != ":":
            raise ValueError
        end = _DECODER.raw_decode(text, at + 1)[1]
        found[name] = (at + 1, end)
        at = end
    if text[at : at + 1] != "}":
        raise ValueError
    return found


def _paths(structure: Structure) -> Iterator[Path]:
    for name, kind in structure.items():
        if isinstance(kind, Mapping):
            yield from ((name, *path) for path in _paths(kind))
        else:
            yield (name,)


def _values(tail: str, structure: Structure) -> Iterator[tuple[Path, Span | None]]:
    """Where the wanted values are; a ValueError if the parser has more to say on one of them."""
    if _DECODER.raw_decode(tail)[1] < len(tail):
        raise ValueError
    outer = _members(tail, 0)
    inner = _members(tail, outer["source"][0])
    if {"before", "after"} & outer.keys():
        raise ValueError
    for path in _paths(structure):
        span = inner.get(path[1]) if path[0] == "source" else outer.get(path[0])
        if span is None:
            yield path, None
            continue
        start, end = span
        if not _PLAIN.fullmatch(tail, start, end):
            raise ValueError
        quotes = tail[start] == '"'
        yield path, None if tail[start:end] == "null" else (start + quotes, end - quotes)
