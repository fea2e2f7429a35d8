"""Encodes the source sequence: where in its log a source made a change, as bytes that compare so.

| connector | position | bytes |
|---|---|---|
| postgresql | `lsn` | 8 |
| mysql, mariadb | number of the binlog file, `pos`, `row` | 16 |
| sqlserver | `commit_lsn`, `change_lsn`, `event_serial_no` | 24 |
| oracle | `scn` | 8 |

Any other connector has none here, and the offset alone decides: its clock (`ts_ms`) may go back,
and an update would then be taken for an old one. Rows of a snapshot carry the position that it was
taken at. GTIDs have no order across servers and are not looked at.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import LongType

from icestream.formats import casts
from icestream.formats.casts import Bad
from icestream.formats.debezium.pieces import spread
from icestream.formats.jsonbytes import characters
from icestream.formats.jsonkeys import places, where
from icestream.formats.sequence import big_endian, fixed

# Fields of a source that compare as numbers; others, such as a binlog's file, compare as text.
NUMBERS = frozenset(
    {"lsn", "pos", "row", "scn", "commit_scn", "event_serial_no", "txId", "xmin"}
    | {"ts_ms", "ts_us", "ts_ns"}
)

Fields = Mapping[str, pa.StringArray]
Words = npt.NDArray[np.uint64]

_FILE_NUMBER = re.compile(r"\.([0-9]{1,9})\Z")
_LSN = "^[0-9a-fA-F]{8}:[0-9a-fA-F]{8}:[0-9a-fA-F]{4}$"
_NO_LSN = "00000000:00000000:0000"


def expected(connector: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what to read of `source` for events that seem to be of this connector.

    The connectors whose positions need only these fields (empty: an unknown connector), and the
    fields. `envelope` reads events of other connectors again, with all fields.
    """
    for log in _LOGS:
        if connector in log.connectors:
            return log.connectors, ("connector", *log.needs, *log.may)
    return (), FIELDS


def sequence(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    """Encode the positions: null where an event has none, and reasons for malformed ones."""
    connector = fields["connector"]
    pieces = []
    bad: Bad = {}
    for log in _LOGS:
        is_of_log = pc.fill_null(pc.is_in(connector, pa.array(log.connectors)), False)
        if connector.null_count:  # flattened rows: the fields that are there tell the connector
            is_of_log = pc.or_(is_of_log, connector.is_null())
        for name in log.needs:
            is_of_log = pc.and_(is_of_log, fields[name].is_valid())
        rows = places(is_of_log)
        if len(rows):
            log_fields = fields
            if len(rows) < len(connector):
                log_fields = {name: texts.take(pa.array(rows)) for name, texts in fields.items()}
            encoded, log_bad = log.encode(log_fields)
            bad |= {int(rows[row]): reason for row, reason in log_bad.items()}
            pieces.append((rows, encoded))
    return spread(pieces, len(connector), pa.binary()), bad


def _postgres(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    words, bad = _words(fields, "lsn")
    return big_endian(words), bad


def _mysql(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    """Encode the binlog's number in four bytes, the position in it in eight, the row in four."""
    files = fields["file"].dictionary_encode()
    matches = [_FILE_NUMBER.search(name) for name in files.dictionary.to_pylist()]
    numbers = np.array([int(match[1]) if match else 0 for match in matches], np.uint32)
    is_unnumbered = np.array([match is None for match in matches])
    codes = files.indices.to_numpy()
    pos, bad = _words(fields, "pos")
    row, bad_rows = _words(fields, "row")
    bad |= bad_rows
    for index in np.flatnonzero(is_unnumbered[codes]).tolist():
        name = casts.quote(fields["file"][index].as_py())
        bad[index] = f"`source.file`: {name} does not end in the number of a binlog"
    out = np.empty((len(codes), 16), np.uint8)
    out[:, :4] = numbers[codes].astype(">u4").view(np.uint8).reshape(-1, 4)
    out[:, 4:12] = pos.astype(">u8").view(np.uint8).reshape(-1, 8)
    out[:, 12:] = row.astype(">u4").view(np.uint8).reshape(-1, 4)
    return fixed(out), bad


def _sqlserver(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    commit, bad = _lsn(fields, "commit_lsn")
    change, wrong_change = _lsn(fields, "change_lsn")
    serial, wrong_serial = _words(fields, "event_serial_no")
    serial_bytes = serial.astype(">u4").view(np.uint8).reshape(-1, 4)
    bad |= wrong_change | wrong_serial
    return fixed(np.column_stack([commit, change, serial_bytes])), bad


def _oracle(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    words, bad = _words(fields, "scn")
    return big_endian(words), bad


def _words(fields: Fields, name: str) -> tuple[Words, Bad]:
    """Read a field of whole numbers; null is 0."""
    numbers, bad = casts.cast(fields[name], LongType(), pa.int64())
    words: Words = pc.fill_null(numbers, 0).to_numpy().view(np.uint64)
    return words, {row: f"`source.{name}`: {reason}" for row, reason in bad.items()}


def _lsn(fields: Fields, name: str) -> tuple[npt.NDArray[np.uint8], Bad]:
    """Read SQL Server's `00000027:00000ac0:0002`, ten bytes in hexadecimal."""
    texts = fields[name]
    is_lsn = pc.fill_null(pc.match_substring_regex(texts, _LSN), False)
    bad = {
        row: f"`source.{name}`: {casts.quote(texts[row].as_py())} is not a log position"
        for row in where(pc.and_(pc.invert(is_lsn), texts.is_valid()))
    }
    digits = pc.replace_substring(pc.if_else(is_lsn, texts, _NO_LSN), ":", "")
    data = bytes.fromhex(characters(digits).tobytes().decode())
    return np.frombuffer(data, np.uint8).reshape(-1, 10), bad


@dataclass(frozen=True)
class _LogEncoding:
    """Connectors with the same log, the fields of its positions (`may`: optional), the encoder."""

    connectors: tuple[str, ...]
    needs: tuple[str, ...]
    may: tuple[str, ...]
    encode: Callable[[Fields], tuple[pa.BinaryArray, Bad]]


_LOGS = (
    _LogEncoding(("postgresql",), ("lsn",), (), _postgres),
    _LogEncoding(("mysql", "mariadb"), ("file", "pos"), ("row",), _mysql),
    _LogEncoding(("sqlserver",), ("commit_lsn",), ("change_lsn", "event_serial_no"), _sqlserver),
    _LogEncoding(("oracle",), ("scn",), (), _oracle),
)
FIELDS = ("connector", *dict.fromkeys(name for log in _LOGS for name in (*log.needs, *log.may)))
