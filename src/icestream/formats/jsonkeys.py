"""Keys that a table does not know, and keys given twice: looked for in suspect objects only."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from icestream.formats import casts, duck
from icestream.formats.jsonbytes import Rows
from icestream.schema import (
    MAX_FIELDS,
    NewField,
    Rule,
    Structure,
    compare,
    judge,
    merge_new_fields,
    structure_of,
)

# A number, not digits within a string, that a long may not hold: 20 digits, or 19 from 92… on.
_LONG_INTEGER = r"[:,\[\s]-?(?:[0-9]{20}|9[2-9][0-9]{17})"


@dataclass(frozen=True)
class SuspectObjects:
    """Objects that hold more than the known keys: texts, their records, and where they sit."""

    texts: pa.StringArray
    rows: Rows
    path: tuple[str, ...]


def unknown(
    suspects: Iterable[SuspectObjects],
    errors: dict[int, str],
    target: Schema,
    rule: Rule,
    dropped: frozenset[str],
) -> tuple[NewField, ...]:
    """Give the new fields; add to `errors` the rows with a repeated or a refused key."""
    new: list[tuple[NewField, ...]] = []
    for found in suspects:
        texts, rows = _without_bad(found.texts, found.rows, errors)
        sizes, keys, values = duck.entries(texts)
        owner = np.repeat(np.arange(len(texts)), sizes)
        given = values.is_valid()
        verdicts = judge(
            target, pc.unique(keys.filter(given)).to_pylist(), rule, dropped, found.path
        )
        refused = {name: why for name, why in verdicts.items() if why is not None}
        bad = repeated(owner, keys, values)
        for i in where(pc.and_(given, _among(keys, refused))):
            bad.setdefault(i, refused[keys[i].as_py()])
        fresh = where(pc.and_(given, _among(keys, verdicts.keys() - refused.keys())))
        bad |= _not_together(owner[fresh], keys.take(pa.array(fresh, pa.int64())), fresh)
        for i, why in bad.items():
            errors.setdefault(int(rows[owner[i]]), why)

        hits = np.unique(owner[fresh])
        texts, _ = _without_bad(texts.take(pa.array(hits)), rows[hits], errors)
        if len(texts):
            seen = [*duck.structures(texts), *_beyond_long(texts)]
            new += [compare(target, s, rule, dropped, found.path).new for s in seen]
    return tuple(merge_new_fields(new))


def repeated(
    owner: Rows, keys: pa.StringArray, values: pa.StringArray | None = None
) -> dict[int, str]:
    """Find keys that their object has given before; with `values`, only where one is given."""
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = owner * (codes.max(initial=0) + 1) + codes
    order = np.argsort(pairs, kind="stable")
    again = order[1:][np.diff(pairs[order]) == 0]
    if values is not None:
        again = again[values.is_valid().to_numpy(zero_copy_only=False)[again]]
    return {i: f"key {casts.quote(keys[i].as_py())} is given twice" for i in again.tolist()}


def where(mask: pa.BooleanArray) -> list[int]:
    """Give the numbers of the rows for which the mask is true."""
    found: list[int] = places(mask).tolist()
    return found


def places(mask: pa.BooleanArray) -> Rows:
    """Give the same as an array: for masks that are true for many rows."""
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))


def _among(keys: pa.StringArray, names: Iterable[str]) -> pa.BooleanArray:
    return pc.is_in(keys, pa.array(sorted(names), pa.string()))


def _not_together(owner: Rows, keys: pa.StringArray, places: list[int]) -> dict[int, str]:
    """Find new names that one object may not bring at once: `a` with `A`, and far too many."""
    bad: dict[int, str] = {}
    for i in repeated(owner, pc.utf8_lower(keys)):
        name = casts.quote(keys[i].as_py())
        bad[places[i]] = f"field {name} differs from another one only in case"
    for i in np.flatnonzero(np.bincount(owner)[owner] > MAX_FIELDS).tolist():
        bad.setdefault(places[i], f"more than {MAX_FIELDS} new fields in one object")
    return bad


def _without_bad(
    texts: pa.StringArray, rows: Rows, errors: dict[int, str]
) -> tuple[pa.StringArray, Rows]:
    good = ~np.isin(rows, list(errors))
    return texts.filter(pa.array(good)), rows[good]


def _beyond_long(texts: pa.StringArray) -> list[Structure]:
    """Describe objects with huge integers, which DuckDB calls DOUBLE although digits would go."""
    found: dict[str, Structure] = {}
    for i in where(pc.match_substring_regex(texts, _LONG_INTEGER)):
        try:
            structure = structure_of(json.loads(texts[i].as_py()))
        except ValueError:
            continue  # a trailing comma, say: DuckDB's word stands
        found[json.dumps(structure)] = structure
    return list(found.values())
