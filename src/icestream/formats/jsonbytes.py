"""Checks of JSON texts by their bytes, before and beside a parser; numpy only."""

import re
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Rows = npt.NDArray[np.intp]
Bytes = npt.NDArray[np.uint8]

MAX_DEPTH = 100

# Noncharacters of Unicode. One stands before a number that was quoted to keep its digits.
_MARKS = [chr(c) for c in range(0xFDD0, 0xFDF0)]
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NUMBERS = (
    r'((?:"(?:[^"\\]|\\.)*"|[^"\-0-9]|-[^0-9])*)'
    r"(-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|$)"
)
_COLON = ord(":")
_COLON_NOT_NULL = re.compile(":(?! ?null)")
_DIGITS = 15  # a double keeps this many significant digits, whatever they are
_BLOCK = 1 << 18  # bytes searched at once: intermediate arrays stay in the processor's cache


def characters(texts: pa.StringArray) -> Bytes:
    """Return the bytes of all texts, one behind the other, without a copy."""
    ends, data = offsets(texts), texts.buffers()[2]
    if data is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def offsets(texts: pa.StringArray) -> npt.NDArray[np.int32]:
    """Return where each text starts, and the last one ends, in Arrow's buffer of bytes."""
    buffer = texts.buffers()[1]
    if buffer is None or len(texts) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]


def too_deep(texts: pa.StringArray) -> list[int]:
    """Return the rows that nest deeper than MAX_DEPTH, before a recursive parser meets them."""
    blocks = _blocks(characters(texts))
    parts = [start + np.flatnonzero((block & 0xDF) == 0x5B) for start, block in blocks]  # [ or {
    openings = np.concatenate(parts) if parts else np.empty(0, np.intp)
    if len(openings) <= MAX_DEPTH:
        return []
    ends = offsets(texts)
    has_many = np.diff(np.searchsorted(openings, ends - ends[0])) > MAX_DEPTH
    return [i for i in np.flatnonzero(has_many).tolist() if _depth(texts[i].as_py()) > MAX_DEPTH]


def not_starting_with(texts: pa.StringArray, opening: str) -> Rows:
    """Return the rows whose first character, white space aside, is not `opening`."""
    data, ends = characters(texts), offsets(texts)
    if len(data) == 0:
        suspect_rows = np.arange(len(texts))
    else:  # the first byte of an empty text is its neighbour's, hence the length
        first = data.take(ends[:-1] - ends[0], mode="clip")
        suspect_rows = np.flatnonzero((first != ord(opening)) | (np.diff(ends) == 0))
    if len(suspect_rows) == 0:
        return suspect_rows
    trimmed = pc.ascii_ltrim(texts.take(pa.array(suspect_rows)), " \t\r\n")
    starts = pc.fill_null(pc.starts_with(trimmed, opening), True)
    result: Rows = suspect_rows[~starts.to_numpy(zero_copy_only=False)]
    return result


def unexplained(texts: pa.StringArray, known: Iterable[tuple[str, pa.StringArray]]) -> Rows:
    """Return the objects that may hold more than their known keys: unknown or repeated ones.

    Every key brings a colon. So an object has the colons inside its known values, one more for each
    such value, and those in known names; any other belongs to an unknown or repeated key. Colons
    before null do not count on either side: an unknown null makes no column and is no error.
    """
    known = list(known)
    is_escaped = np.zeros(len(texts), bool)
    if (characters(texts) == ord("\\")).any():
        # An escaped colon is one in the value only: it would hide the colon of an unknown key.
        escaped = pc.match_substring(texts, "\\u003a", ignore_case=True)
        is_escaped = pc.fill_null(escaped, False).to_numpy(zero_copy_only=False)
    total = np.count_nonzero(characters(texts) == _COLON)
    for name, values in known:
        total -= (len(values) - values.null_count) * (1 + name.count(":"))
        total -= np.count_nonzero(characters(values) == _COLON)
    if total == 0:
        return np.flatnonzero(is_escaped)
    colons = _colons(texts)
    for name, values in known:
        is_given = values.is_valid().to_numpy(zero_copy_only=False)
        colons -= is_given * (1 + len(_COLON_NOT_NULL.findall(name))) + _colons(values)
    return np.flatnonzero((colons != 0) | is_escaped)


def long_reals(texts: pa.StringArray) -> Rows:
    """Return the objects with a number that has a point and more digits than a double keeps."""
    data, ends = characters(texts), offsets(texts)
    parts = [_long_points(data, start, block) for start, block in _blocks(data)]
    points = np.concatenate(parts) if parts else np.empty(0, np.intp)
    points = points[_run(data, points, -1) + _run(data, points, 1) > _DIGITS]
    return np.unique(np.searchsorted(ends - ends[0], points, side="right") - 1)


def free_mark(texts: pa.StringArray) -> str | None:
    """Return a mark that occurs in none of the texts, plain or escaped; None: all of them occur."""
    for mark in _MARKS:
        pattern = rf"{mark}|(?i:\\u{ord(mark):04x})"
        if not pc.any(pc.match_substring_regex(texts, pattern)).as_py():
            return mark
    return None


def mark_numbers(texts: pa.StringArray, mark: str) -> pa.StringArray:
    """Quote every number behind a mark, so that a parser hands its digits through."""
    # What follows the last number is matched too, lest a search begin inside a string.
    marked = pc.replace_substring_regex(texts, _NUMBERS, rf'\1"{mark}\2"')
    return pc.replace_substring_regex(marked, f'(?:"{mark}")+$', "")


def unmark_numbers(texts: pa.StringArray, mark: str) -> pa.StringArray:
    """Undo `mark_numbers`: for a number, and for numbers inside a JSON text."""
    unquoted = pc.replace_substring_regex(texts, f'"{mark}([^"]*)"', r"\1")
    return pc.replace_substring(unquoted, mark, "")


def _depth(text: str) -> int:
    """Return the exact nesting of one text: brackets inside strings do not count."""
    data = np.frombuffer(_STRING.sub(b"", text.encode()), np.uint8)
    steps = np.zeros(len(data), np.int32)
    steps[(data & 0xDF) == 0x5B] = 1
    steps[(data & 0xDF) == 0x5D] = -1
    return int(steps.cumsum().max(initial=0))


def _colons(texts: pa.StringArray) -> Rows:
    """Count the colons of each text, except before `null` with or without one space."""
    data, ends = characters(texts), offsets(texts)
    colons = np.flatnonzero(data == _COLON)
    values = colons + 1
    values += data.take(values, mode="clip") == ord(" ")
    nulls = np.flatnonzero(data.take(values, mode="clip") == ord("n"))
    for step, letter in enumerate(b"ull", start=1):
        nulls = nulls[data.take(values[nulls] + step, mode="clip") == letter]
    colons = np.delete(colons, nulls)
    return np.diff(np.searchsorted(colons, ends - ends[0])) if len(texts) else np.empty(0, np.intp)


def _long_points(data: Bytes, start: int, block: Bytes) -> Rows:
    """Return the points of a block that have digits on both sides, and perhaps too many.

    More than 15 digits in all means that one side has eight or more: few points pass this test,
    and none of a time, which has a colon three bytes before the point.
    """
    points = start + np.flatnonzero(block == ord("."))
    points = points[_digit(data, points - 1) & _digit(data, points + 1)]
    before = _digit(data, points - 8) & _digit(data, points - 3)
    return points[before | (_digit(data, points + 8) & _digit(data, points + 3))]


def _blocks(data: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Cut the bytes into blocks, each with its start; a number may go on in the next block."""
    for start in range(0, len(data), _BLOCK):
        yield start, data[start : start + _BLOCK]


def _digit(data: Bytes, indices: Rows) -> npt.NDArray[np.bool_]:
    return (data.take(indices, mode="clip") - np.uint8(ord("0"))) < 10


def _run(data: Bytes, points: Rows, step: int) -> Rows:
    """Count the digits beside each point in one direction, up to one more than a double keeps."""
    runs = np.zeros(len(points), np.intp)
    open_runs, indices = np.arange(len(points)), points
    for _ in range(_DIGITS + 1):
        indices = indices + step
        is_digit = _digit(data, indices)
        open_runs, indices = open_runs[is_digit], indices[is_digit]
        if len(open_runs) == 0:
            break
        runs[open_runs] += 1
    return runs
