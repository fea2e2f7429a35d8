"""Takes apart, by position instead of parsing, envelopes that end alike.

What Debezium writes behind the rows of an event differs from that of the next one in digits alone:
times, log positions, transactions.

    {"before":{…},"after":{…},"source":{…,"lsn":4294967296},"op":"u","ts_ms":1767225600250}
                             └──────────────────────── the tail ─────────────────────────┘

One event of a kind is parsed. Others are of its kind when their last bytes are its tail, digits
aside: then each value stands where it stands in the tail, and what is before it are the two rows.
Rows are only cut out here; the decoder of the rows checks that they are JSON. The row before an
update is not needed, and so not checked. Whatever is doubtful is left to the parser.
docs/design/json.md says why the result is the parser's.
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

MAX_KINDS = 8  # parsed in one batch: three operations, and numbers of different lengths
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
# XOR with 0x30 makes digits 0 to 9; adding 0x76 to a byte above 9 sets its highest bit, 0x80.
_ZEROS, _TO_SIGN, _SIGNS = (np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x76, 0x80))

Structure = Mapping[str, Any]  # of DuckDB: names to types, or to structures one level deeper
Path = tuple[str, ...]
Span = tuple[int, int]


@dataclass(frozen=True)
class SplitEnvelopes:
    """Which envelopes were taken apart, and their parts; the parts of others are null."""

    fits: Flags
    rows: pa.StringArray | None  # after the change, or before it was deleted
    outer: dict[str, pa.StringArray]
    source: dict[str, pa.StringArray]


@dataclass(frozen=True)
class EnvelopeTail:
    """The end of an envelope: which rows stand before it, and where its values are within it."""

    text: bytes
    before: bool
    after: bool
    numbers: tuple[Span, ...]  # digits that are others in other envelopes
    values: Mapping[Path, Span | None]  # None: null, or not there

    @property
    def deletes(self) -> bool:
        """Whether the operation is a delete: then the row before is the one that counts."""
        return self.constant(_OP) == ("d",)

    def constant(self, path: Path) -> tuple[str | None] | None:
        """Return a value that all envelopes of this kind share, in a tuple; None: it differs."""
        span = self.values[path]
        if span is None:
            return (None,)
        if any(start < span[1] and span[0] < end for start, end in self.numbers):
            return None
        return (self.text[slice(*span)].decode(),)

    def matching_rows(self, page: TextBuffer, rows: Places) -> Places:
        """Return those of these rows that end with this tail, digits aside."""
        rows = rows[page.end[rows] - page.start[rows] >= len(self.text) + _LEAST]
        op = self.values[_OP] or (0, 0)
        for part in (op if op[0] < op[1] else (0, 1), (0, 8)):  # others mostly have another `op`
            place = page.end[rows] - len(self.text) + part[0]
            rows = rows[page.reads(place, self.text[slice(*part)])]
        if not len(rows):
            return rows
        tail_words, digits = self._words
        width = 8 * len(tail_words)  # up to seven bytes before were just compared
        words = page.pieces(page.end[rows] - width, width)
        columns = np.flatnonzero(digits)
        no_digit = (words[:, columns] ^ _ZEROS) & digits[columns]
        no_digit |= no_digit + _TO_SIGN
        no_digit &= _SIGNS
        words ^= tail_words
        words &= ~digits
        is_match = np.bitwise_or.reduce(words, axis=1) == 0
        is_match &= np.bitwise_or.reduce(no_digit, axis=1) == 0
        for start, end in self.numbers:
            if end > start + 1 and self.text[start] != ord("0"):  # JSON numbers do not begin with 0
                is_match &= page.bytes[page.end[rows] - len(self.text) + start] != ord("0")
        result: Places = rows[is_match]
        return result

    @cached_property
    def _words(self) -> tuple[Words, Words]:
        """The last bytes as words, and a mask with 0xff for each digit that may differ."""
        width = len(self.text) // 8 * 8
        digits = np.zeros(len(self.text), np.uint8)
        for start, end in self.numbers:
            digits[start:end] = 0xFF
        value = np.frombuffer(self.text, np.uint8)
        first, last = (data[len(self.text) - width :].view("<u8") for data in (value, digits))
        return first, last


def take_apart(texts: pa.StringArray, structure: Structure) -> SplitEnvelopes:
    """Take apart the envelopes that end alike: the row that counts, and the structure's parts."""
    paths = [*_paths(structure)]
    kinds: list[EnvelopeTail] = []
    tries = MAX_KINDS
    fits, parts = [], []
    for start in range(0, len(texts), _CHUNK):
        chunk = _EnvelopeChunk(TextBuffer(texts.slice(start, _CHUNK)))
        unassigned = np.flatnonzero(chunk.page.valid)
        for index, tail in enumerate(kinds):
            unassigned = chunk.assign(index, tail, unassigned)
        while len(unassigned) and tries:
            tries -= 1
            first, unassigned = int(unassigned[0]), unassigned[1:]
            if (new_tail := tail_of(chunk.page.row(first), structure)) is not None:
                kinds.append(new_tail)
                unassigned = chunk.assign(len(kinds) - 1, new_tail, np.append(first, unassigned))
                # Its tail makes a kind, even if its own rows do not stand where they should.
                unassigned = unassigned[unassigned != first]
        if not kinds and not tries:
            break
        fits.append(chunk.kind >= 0)
        # Now, while the chunk's bytes are in the processor's cache.
        parts.append([chunk.rows(), *(chunk.texts(path, kinds) for path in paths)])
    if not kinds:
        return SplitEnvelopes(np.zeros(len(texts), bool), None, {}, {})
    rows, *columns = map(pa.concat_arrays, zip(*parts, strict=True))
    by_path = dict(zip(paths, columns, strict=True))
    return SplitEnvelopes(
        np.concatenate(fits),
        rows,
        {path[0]: column for path, column in by_path.items() if len(path) == 1},
        {path[1]: column for path, column in by_path.items() if len(path) == 2},
    )


def tail_of(text: bytes, structure: Structure) -> EnvelopeTail | None:
    """Parse one envelope for its tail; None: others cannot be taken apart by it."""
    try:
        decoded = text.decode()
        before, position = _image(decoded, 0, _BEFORE)
        after, position = _image(decoded, position, _AFTER)
        raw = decoded[position:].encode("ascii")
        if not raw.startswith(_SOURCE):
            return None
        values = dict(_values("{" + decoded[position + 1 :], structure))
    except (ValueError, RecursionError):
        return None
    numbers = tuple(match.span(1) for match in _KEY_OR_DIGITS.finditer(raw) if match[1])
    tail = EnvelopeTail(raw, before, after, numbers, values)
    return None if tail.deletes and after else tail


class _EnvelopeChunk:
    """A chunk of envelopes: the kind of each, and where its row stands."""

    def __init__(self, page: TextBuffer) -> None:
        self.page = page
        self.kind = np.full(len(page.start), -1, np.int64)
        self._start = np.zeros(len(page.start), np.int64)  # of the row that counts
        self._length = np.full(len(page.start), -1, np.int64)
        self._afters: tuple[Places, Flags] | None = None

    def assign(self, index: int, tail: EnvelopeTail, rows: Places) -> Places:
        """Note which of these rows have this tail; returns the others."""
        matching = self._rows_of(tail, tail.matching_rows(self.page, rows))
        if not len(matching):
            return rows
        self.kind[matching] = index
        return rows[self.kind[rows] < 0]

    def rows(self) -> pa.StringArray:
        """Return the rows that count: after the change, or before a delete."""
        return self.page.texts(self._start, np.maximum(self._length, 0), self._length < 0)

    def texts(self, path: Path, kinds: Sequence[EnvelopeTail]) -> pa.StringArray:
        """Return the values at one path; null in envelopes of no kind."""
        has_no_kind = self.kind < 0
        if has_no_kind.all():
            return pa.nulls(len(has_no_kind), pa.string())
        constants = [tail.constant(path) for tail in kinds]
        if all(constants):
            words = pa.array([constant[0] for constant in constants if constant], pa.string())
            return words.take(pa.array(self.kind, mask=has_no_kind))
        spans = [tail.values[path] or (0, -1) for tail in kinds]
        first = np.array([start for start, _ in spans])
        size = np.array([end - start for start, end in spans])
        tail_start = self.page.end - np.array([len(tail.text) for tail in kinds])[self.kind]
        length = np.where(has_no_kind, -1, size[self.kind])
        start = np.where(length < 0, 0, tail_start + first[self.kind])
        return self.page.texts(start, np.maximum(length, 0), length < 0)

    def _rows_of(self, tail: EnvelopeTail, rows: Places) -> Places:
        """Note the row of each event; returns the events whose rows stand where they should."""
        page = self.page
        start, tail_start = page.start[rows], page.end[rows] - len(tail.text)
        if not tail.before and not tail.after:
            result: Places = rows[
                (tail_start - start == len(_NEITHER)) & page.reads(start, _NEITHER)
            ]
            return result
        if not tail.before:
            is_match = page.reads(start, _NO_BEFORE)
            return self._cut(rows, start + len(_NO_BEFORE), tail_start, is_match)
        is_match = page.reads(start, _BEFORE + b"{")
        if not tail.after:
            end = tail_start - len(_NO_AFTER)
            is_match &= page.reads(end, _NO_AFTER)
            return self._cut(rows, start + len(_BEFORE), end, is_match, tail.deletes)
        after, once = self._after(rows)
        is_match &= once & (page.bytes[after - 2] == ord("}")) & (page.bytes[after - 1] == ord(","))
        return self._cut(rows, after + len(_AFTER) - 1, tail_start, is_match)

    def _cut(
        self, rows: Places, start: Places, end: Places, is_match: Flags, counts: bool = True
    ) -> Places:
        """Note what stands there as the row that counts; returns the events where it has braces."""
        is_match = is_match & (end > start + 1) & (self.page.bytes[start] == ord("{"))
        is_match &= self.page.bytes[end - 1] == ord("}")
        result: Places = rows[is_match]
        if counts:
            self._start[result], self._length[result] = start[is_match], (end - start)[is_match]
        return result

    def _after(self, rows: Places) -> tuple[Places, Flags]:
        """Return where `"after":{` stands in each row, and whether it does so exactly once."""
        page = self.page
        if self._afters is None:
            braces = np.flatnonzero(page.body == ord("{"))
            braces = braces[braces > len(_BEFORE)]
            places = braces[page.words[braces - 8] == _AFTER_WORD] - 8
            first = np.searchsorted(places, page.start)
            is_once = np.searchsorted(places, page.end) - first == 1
            self._afters = np.where(is_once, np.append(places, 0)[first], page.start + 2), is_once
        after, is_once = self._afters
        return after[rows], is_once[rows]


def _image(text: str, position: int, opening: bytes) -> tuple[bool, int]:
    """Return whether a row or null is behind the opening, and its end; else raise ValueError."""
    if not text.startswith(opening.decode(), position):
        raise ValueError
    value, end = _DECODER.raw_decode(text, position + len(opening))
    if value is not None and not isinstance(value, dict):
        raise ValueError
    return value is not None, end


def _members(text: str, position: int) -> dict[str, Span]:
    """Return the spans of an object's values, written without spaces; else raise ValueError."""
    spans: dict[str, Span] = {}
    while text[position : position + 2] in ('{"', ',"'):
        name, position = _DECODER.raw_decode(text, position + 1)
        if name in spans or text[position] != ":":
            raise ValueError
        end = _DECODER.raw_decode(text, position + 1)[1]
        spans[name] = (position + 1, end)
        position = end
    if text[position : position + 1] != "}":
        raise ValueError
    return spans


def _paths(structure: Structure) -> Iterator[Path]:
    for name, part in structure.items():
        if isinstance(part, Mapping):
            yield from ((name, *path) for path in _paths(part))
        else:
            yield (name,)


def _values(tail: str, structure: Structure) -> Iterator[tuple[Path, Span | None]]:
    """Yield where the wanted values are; raise ValueError if one of them needs the parser."""
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
