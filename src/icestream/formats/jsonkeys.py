"""Finds keys that a table does not know, and keys given twice, in suspect objects only."""

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
    """Objects that may hold more than the known keys: texts, rows of their records, column path."""

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
    """Return the new fields; add to `errors` the rows with a repeated or a refused key."""
    new: list[tuple[NewField, ...]] = []
    for suspect in suspects:
        texts, rows = _without_bad(suspect.texts, suspect.rows, errors)
        sizes, keys, values = duck.entries(texts)
        owners = np.repeat(np.arange(len(texts)), sizes)
        is_given = values.is_valid()
        verdicts = judge(
            target, pc.unique(keys.filter(is_given)).to_pylist(), rule, dropped, suspect.path
        )
        refused = {name: reason for name, reason in verdicts.items() if reason is not None}
        bad = repeated(owners, keys, values)
        for entry in where(pc.and_(is_given, _among(keys, refused))):
            bad.setdefault(entry, refused[keys[entry].as_py()])
        fresh = where(pc.and_(is_given, _among(keys, verdicts.keys() - refused.keys())))
        bad |= _not_together(owners[fresh], keys.take(pa.array(fresh, pa.int64())), fresh)
        for entry, reason in bad.items():
            errors.setdefault(int(rows[owners[entry]]), reason)

        objects = np.unique(owners[fresh])
        # Rows that are bad for any reason bring no fields.
        texts, _ = _without_bad(texts.take(pa.array(objects)), rows[objects], errors)
        if len(texts):
            for structure in (*duck.structures(texts), *_beyond_long(texts)):
                new.append(compare(target, structure, rule, dropped, suspect.path).new)
    return tuple(merge_new_fields(new))


def repeated(
    owners: Rows, keys: pa.StringArray, values: pa.StringArray | None = None
) -> dict[int, str]:
    """Return reasons for keys that their object had before; null `values` do not count."""
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    pairs = owners * (codes.max(initial=0) + 1) + codes
    order = np.argsort(pairs, kind="stable")
    repeats = order[1:][np.diff(pairs[order]) == 0]
    if values is not None:
        repeats = repeats[values.is_valid().to_numpy(zero_copy_only=False)[repeats]]
    return {i: f"key {casts.quote(keys[i].as_py())} is given twice" for i in repeats.tolist()}


def where(mask: pa.BooleanArray) -> list[int]:
    """Return the rows for which the mask is true, as a list."""
    rows: list[int] = places(mask).tolist()
    return rows


def places(mask: pa.BooleanArray) -> Rows:
    """Return the rows for which the mask is true, as an array: faster than `where` for many."""
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False))


def _among(keys: pa.StringArray, names: Iterable[str]) -> pa.BooleanArray:
    return pc.is_in(keys, pa.array(sorted(names), pa.string()))


def _not_together(owners: Rows, keys: pa.StringArray, entries: list[int]) -> dict[int, str]:
    """Return reasons for new names that one object may not have at once: `a` with `A`, too many."""
    bad: dict[int, str] = {}
    for i in repeated(owners, pc.utf8_lower(keys)):
        name = casts.quote(keys[i].as_py())
        bad[entries[i]] = f"field {name} differs from another one only in case"
    for i in np.flatnonzero(np.bincount(owners)[owners] > MAX_FIELDS).tolist():
        bad.setdefault(entries[i], f"more than {MAX_FIELDS} new fields in one object")
    return bad


def _without_bad(
    texts: pa.StringArray, rows: Rows, errors: dict[int, str]
) -> tuple[pa.StringArray, Rows]:
    is_good = ~np.isin(rows, list(errors))
    return texts.filter(pa.array(is_good)), rows[is_good]


def _beyond_long(texts: pa.StringArray) -> list[Structure]:
    """Return structures of objects with huge integers: DuckDB says DOUBLE, which loses digits."""
    structures: dict[str, Structure] = {}
    for i in where(pc.match_substring_regex(texts, _LONG_INTEGER)):
        try:
            structure = structure_of(json.loads(texts[i].as_py()))
        except ValueError:
            continue  # a trailing comma, say: DuckDB's structure is used
        structures[json.dumps(structure)] = structure
    return list(structures.values())
