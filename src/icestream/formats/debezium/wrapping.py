"""Records that carry their schema: `{"schema": …, "payload": …}`, as Kafka Connect writes them."""

import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats import duck
from icestream.formats.debezium.pieces import Rows, spread
from icestream.formats.json import without_bad_openings
from icestream.formats.jsonkeys import places

_SCHEMA, _PAYLOAD = '{"schema":', ',"payload":'
_ENVELOPE = '{"before":'
_LOOKS = r'^\s*\{\s*"(?:schema|payload)"'
_TRIES = 16  # schemas that are compared as text in one batch; records with yet others are parsed
_BOTH = """
    SELECT CASE WHEN two THEN v->'schema' END AS schema, CASE WHEN two THEN v->'payload' END AS x
    FROM (
        SELECT v, CASE WHEN json_valid(v)
                       THEN list_sort(json_keys(v)) = ['payload', 'schema'] END AS two
        FROM t
    )
"""


def unpacked(texts: pa.StringArray) -> tuple[pa.StringArray, Rows, list[str]]:
    """Split off embedded schemas: payloads, the number of each one's schema (-1: none), schemas.

    The schema is mostly the same text in every record: then it is compared, not parsed.
    """
    schema = np.full(len(texts), -1, np.int64)
    schemas: list[str] = []
    pieces: list[tuple[Rows, pa.StringArray]] = []
    left = places(pc.starts_with(texts, _SCHEMA))
    for _ in range(_TRIES):
        if not len(left):
            break
        some = texts if len(left) == len(texts) else texts.take(pa.array(left))
        found = _prefix(some[0].as_py())
        hits = _same(some, found[1]) if found else np.empty(0, np.int64)
        if found and len(hits):
            if len(hits) < len(some):
                some = some.take(pa.array(hits))
            payload = pc.binary_slice(some.cast(pa.binary()), len(found[1].encode()), -1)
            pieces.append((left[hits], payload.cast(pa.string())))
            schema[left[hits]] = len(schemas)
            schemas.append(found[0])
        left = np.delete(left, hits) if len(hits) else left[1:]
    odd = _others(texts, schema)
    if len(odd):
        kinds, payload = _parsed(texts.take(pa.array(odd)))
        odd, given = odd[places(kinds.is_valid())], kinds.is_valid()
        coded = kinds.filter(given).dictionary_encode()
        pieces.append((odd, payload.filter(given)))
        schema[odd] = coded.indices.to_numpy() + len(schemas)
        schemas += coded.dictionary.to_pylist()
    if not schemas:
        return texts, schema, []
    rest = np.flatnonzero(schema < 0)
    if len(rest):
        pieces.append((rest, texts.take(pa.array(rest))))
    return spread(pieces, len(texts), pa.string()), schema, schemas


def _prefix(text: str) -> tuple[str, str] | None:
    """Give the schema that a record begins with, and all that stands before its payload."""
    try:
        schema, end = json.JSONDecoder().raw_decode(text, len(_SCHEMA))
    except (ValueError, RecursionError):
        return None
    found = text[end : end + len(_PAYLOAD)] == _PAYLOAD
    if not found or not (schema is None or isinstance(schema, dict)):
        return None
    return text[len(_SCHEMA) : end], text[: end + len(_PAYLOAD)]


def _same(texts: pa.StringArray, prefix: str) -> npt.NDArray[np.int64]:
    """Find the records with this schema, whose last brace then belongs to it."""
    return places(pc.and_(pc.starts_with(texts, prefix), pc.ends_with(texts, "}")))


def _others(texts: pa.StringArray, schema: Rows) -> Rows:
    """Find records that may have a schema all the same; a bare envelope has none."""
    bare = pc.fill_null(pc.starts_with(texts, _ENVELOPE), True).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero((schema < 0) & ~bare)
    if not len(odd):
        return odd
    return odd[places(pc.match_substring_regex(texts.take(pa.array(odd)), _LOOKS))]


def _parsed(texts: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
    """Give schema and payload where they stand otherwise; null where there are not just the two."""
    asked = duck.ask(_BOTH, without_bad_openings(texts)[0])
    kinds, payloads = (duck.one_chunk(asked.column(i)).cast(pa.string()) for i in (0, 1))
    is_schema = pc.or_(pc.starts_with(kinds, "{"), pc.equal(kinds, "null"))
    return pc.if_else(is_schema, kinds, None), payloads
