"""Unwraps records that carry their schema: `{"schema": …, "payload": …}` of Kafka Connect."""

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
_TRIES = 16  # schemas compared as text in one batch; records with further ones are parsed
_BOTH = """
    SELECT CASE WHEN two THEN v->'schema' END AS schema, CASE WHEN two THEN v->'payload' END AS x
    FROM (
        SELECT v, CASE WHEN json_valid(v)
                       THEN list_sort(json_keys(v)) = ['payload', 'schema'] END AS two
        FROM t
    )
"""


def unpacked(texts: pa.StringArray) -> tuple[pa.StringArray, Rows, list[str]]:
    """Split off embedded schemas.

    Returns the payloads, the index of each one's schema (-1: none), and the schemas' texts. The
    schema is mostly the same text in every record: then it is compared, not parsed.
    """
    schema = np.full(len(texts), -1, np.int64)
    schemas: list[str] = []
    pieces: list[tuple[Rows, pa.StringArray]] = []
    unread = places(pc.starts_with(texts, _SCHEMA))
    for _ in range(_TRIES):
        if not len(unread):
            break
        candidates = texts if len(unread) == len(texts) else texts.take(pa.array(unread))
        start = _prefix(candidates[0].as_py())
        hits = _with_prefix(candidates, start[1]) if start else np.empty(0, np.int64)
        if start and len(hits):
            if len(hits) < len(candidates):
                candidates = candidates.take(pa.array(hits))
            payload = pc.binary_slice(candidates.cast(pa.binary()), len(start[1].encode()), -1)
            pieces.append((unread[hits], payload.cast(pa.string())))
            schema[unread[hits]] = len(schemas)
            schemas.append(start[0])
        unread = np.delete(unread, hits) if len(hits) else unread[1:]
    rows = _others(texts, schema)
    if len(rows):
        parsed_schemas, payload = _parsed(texts.take(pa.array(rows)))
        is_wrapped = parsed_schemas.is_valid()
        rows = rows[places(is_wrapped)]
        distinct = parsed_schemas.filter(is_wrapped).dictionary_encode()
        pieces.append((rows, payload.filter(is_wrapped)))
        schema[rows] = distinct.indices.to_numpy() + len(schemas)
        schemas += distinct.dictionary.to_pylist()
    if not schemas:
        return texts, schema, []
    bare_rows = np.flatnonzero(schema < 0)
    if len(bare_rows):
        pieces.append((bare_rows, texts.take(pa.array(bare_rows))))
    return spread(pieces, len(texts), pa.string()), schema, schemas


def _prefix(text: str) -> tuple[str, str] | None:
    """Return a record's schema and all text before its payload; None: it does not begin so."""
    try:
        schema, end = json.JSONDecoder().raw_decode(text, len(_SCHEMA))
    except (ValueError, RecursionError):
        return None
    has_payload = text[end : end + len(_PAYLOAD)] == _PAYLOAD
    if not has_payload or not (schema is None or isinstance(schema, dict)):
        return None
    return text[len(_SCHEMA) : end], text[: end + len(_PAYLOAD)]


def _with_prefix(texts: pa.StringArray, prefix: str) -> npt.NDArray[np.int64]:
    """Return the records with this prefix whose last character is the wrapper's brace."""
    return places(pc.and_(pc.starts_with(texts, prefix), pc.ends_with(texts, "}")))


def _others(texts: pa.StringArray, schema: Rows) -> Rows:
    """Return the other records that look wrapped; a bare envelope is not."""
    is_bare = pc.fill_null(pc.starts_with(texts, _ENVELOPE), True).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero((schema < 0) & ~is_bare)
    if not len(rows):
        return rows
    return rows[places(pc.match_substring_regex(texts.take(pa.array(rows)), _LOOKS))]


def _parsed(texts: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
    """Return schema and payload of objects with just these two keys, else null."""
    answer = duck.ask(_BOTH, without_bad_openings(texts)[0])
    schemas, payloads = (duck.one_chunk(answer.column(i)).cast(pa.string()) for i in (0, 1))
    is_schema = pc.or_(pc.starts_with(schemas, "{"), pc.equal(schemas, "null"))
    return pc.if_else(is_schema, schemas, None), payloads
