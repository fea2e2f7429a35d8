"""What can be told about JSON texts from their bytes, before and beside a parser; numpy only."""

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
_BLOCK = 1 << 18  # bytes that are searched at once: what a search leaves behind stays in the cache


def characters(texts: pa.StringArray) -> Bytes:
    """Give the bytes of all texts, one behind the other, without a copy."""
    ends, data = offsets(texts), texts.buffers()[2]
    if data is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]


def offsets(texts: pa.StringArray) -> npt.NDArray[np.int32]:
    """Give where each text starts and the last one ends, as positions in Arrow's buffer."""
    buffer = texts.buffers()[1]
    if buffer is None or len(texts) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32)[texts.offset : texts.offset + len(texts) + 1]


def too_deep(texts: pa.StringArray) -> list[int]:
    """Find the texts that nest deeper than MAX_DEPTH, so that no parser has to."""
    blocks = _blocks(characters(texts))
    found = [start + np.flatnonzero((some & 0xDF) == 0x5B) for start, some in blocks]  # [ or {
    opening = np.concatenate(found) if found else np.empty(0, np.intp)
    if len(opening) <= MAX_DEPTH:
        return []
    ends = offsets(texts)
    many = np.diff(np.searchsorted(opening, ends - ends[0])) > MAX_DEPTH
    return [i for i in np.flatnonzero(many).tolist() if _depth(texts[i].as_py()) > MAX_DEPTH]


def not_starting_with(texts: pa.StringArray, opening: str) -> Rows:
    """Find the texts whose first character, white space aside, is another one."""
    data, ends = characters(texts), offsets(texts)
    if len(data) == 0:
        odd = np.arange(len(texts))
    else:  # the first byte of an empty text is its neighbour's, hence the length
        first = data.take(ends[:-1] - ends[0], mode="clip")
        odd = np.flatnonzero((first != ord(opening)) | (np.diff(ends) == 0))
    if len(odd) == 0:
        return odd
    trimmed = pc.ascii_ltrim(texts.take(pa.array(odd)), " \t\r\n")
    starts = pc.fill_null(pc.starts_with(trimmed, opening), True)
    wrong: Rows = odd[~starts.to_numpy(zero_copy_only=False)]
    return wrong


def unexplained(texts: pa.StringArray, known: Iterable[tuple[str, pa.StringArray]]) -> Rows:
    """Find the objects that may hold more than their known keys: unknown or repeated ones.

    Every key brings a colon. So an object has the colons inside its known values, one more for each
    such value, and those in known names; any other belongs to an unknown or repeated key. Colons
    before null do not count on either side: an unknown null is nobody's loss.
    """
    known = list(known)
    hidden = np.zeros(len(texts), bool)
    if (characters(texts) == ord("\\")).any():
        # It becomes a colon in the value and would make up for one of an unknown key.
        escaped = pc.match_substring(texts, "\\u003a", ignore_case=True)
        hidden = pc.fill_null(escaped, False).to_numpy(zero_copy_only=False)
    left = np.count_nonzero(characters(texts) == _COLON)
    for name, values in known:
        left -= (len(values) - values.null_count) * (1 + name.count(":"))
        left -= np.count_nonzero(characters(values) == _COLON)
    if left == 0:
        return np.flatnonzero(hidden)
    rest = _colons(texts)
    for name, values in known:
        given = values.is_valid().to_numpy(zero_copy_only=False)
        rest -= given * (1 + len(_COLON_NOT_NULL.findall(name))) + _colons(values)
    return np.flatnonzero((rest != 0) | hidden)


def long_reals(texts: pa.StringArray) -> Rows:
    """Find the objects with a number that has a point and more digits than a double keeps."""
    data, ends = characters(texts), offsets(texts)
    found = [_long_points(data, start, some) for start, some in _blocks(data)]
    points = np.concatenate(found) if found else np.empty(0, np.intp)
    points = points[_run(data, points, -1) + _run(data, points, 1) > _DIGITS]
    return np.unique(np.searchsorted(ends - ends[0], points, side="right") - 1)


def free_mark(texts: pa.StringArray) -> str | None:
    """Choose a mark that occurs in none of the texts, neither plain nor escaped."""
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
    """Take the marks away again: from a number, and from numbers inside a JSON text."""
    inside = pc.replace_substring_regex(texts, f'"{mark}([^"]*)"', r"\1")
    return pc.replace_substring(inside, mark, "")


def _depth(text: str) -> int:
    """Measure the exact nesting: brackets inside strings do not count."""
    data = np.frombuffer(_STRING.sub(b"", text.encode()), np.uint8)
    steps = np.zeros(len(data), np.int32)
    steps[(data & 0xDF) == 0x5B] = 1
    steps[(data & 0xDF) == 0x5D] = -1
    return int(steps.cumsum().max(initial=0))


def _colons(texts: pa.StringArray) -> Rows:
    """Count the colons of each text, except before `null` with or without one space."""
    data, ends = characters(texts), offsets(texts)
    colons = np.flatnonzero(data == _COLON)
    value = colons + 1
    value += data.take(value, mode="clip") == ord(" ")
    null = np.flatnonzero(data.take(value, mode="clip") == ord("n"))
    for i, letter in enumerate(b"ull", start=1):
        null = null[data.take(value[null] + i, mode="clip") == letter]
    colons = np.delete(colons, null)
    return np.diff(np.searchsorted(colons, ends - ends[0])) if len(texts) else np.empty(0, np.intp)


def _long_points(data: Bytes, start: int, some: Bytes) -> Rows:
    """Find the points of a block that have digits on both sides, and perhaps too many.

    So many digits in all means that one side has eight or more: this test leaves few points, not
    those of a time, which has a colon three places before.
    """
    points = start + np.flatnonzero(some == ord("."))
    points = points[_digit(data, points - 1) & _digit(data, points + 1)]
    before = _digit(data, points - 8) & _digit(data, points - 3)
    return points[before | (_digit(data, points + 8) & _digit(data, points + 3))]


def _blocks(data: Bytes) -> Iterator[tuple[int, Bytes]]:
    """Cut the bytes into pieces, each with its place."""
    for start in range(0, len(data), _BLOCK):
        yield start, data[start : start + _BLOCK]


def _digit(data: Bytes, at: Rows) -> npt.NDArray[np.bool_]:
    return (data.take(at, mode="clip") - np.uint8(ord("0"))) < 10


def _run(data: Bytes, points: Rows, step: int) -> Rows:
    """Count the digits beside each point, in one direction, as far as it matters."""
    runs = np.zeros(len(points), np.intp)
    alive, here = np.arange(len(points)), points
    for _ in range(_DIGITS + 1):
        here = here + step
        still = _digit(data, here)
        alive, here = alive[still], here[still]
        if len(alive) == 0:
            break
        runs[alive] += 1
    return runs
