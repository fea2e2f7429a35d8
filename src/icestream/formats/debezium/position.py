"""Where in its log a source made a change, as bytes that compare as the positions do.

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

# Fields of a source that compare as numbers; others, such as a binlog's file, do as text.
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
    """Say what to read of a source whose events seem to be of this connector.

    → the connectors whose positions are whole with these fields, and the fields; (): all are.
    """
    for log in _LOGS:
        if connector in log.connectors:
            return log.connectors, ("connector", *log.needs, *log.may)
    return (), FIELDS


def sequence(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    """Encode the positions; null where an event has none, with a reason where it is no position."""
    connector = fields["connector"]
    pieces = []
    bad: Bad = {}
    for log in _LOGS:
        ours = pc.fill_null(pc.is_in(connector, pa.array(log.connectors)), False)
        if connector.null_count:  # flattened: what is there tells whose it is
            ours = pc.or_(ours, connector.is_null())
        for name in log.needs:
            ours = pc.and_(ours, fields[name].is_valid())
        rows = places(ours)
        if len(rows):
            some = fields
            if len(rows) < len(connector):
                some = {name: each.take(pa.array(rows)) for name, each in fields.items()}
            encoded, wrong = log.encode(some)
            bad |= {int(rows[row]): why for row, why in wrong.items()}
            pieces.append((rows, encoded))
    return spread(pieces, len(connector), pa.binary()), bad


def _postgres(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    words, bad = _words(fields, "lsn")
    return big_endian(words), bad


def _mysql(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    """File and row have four bytes each, the position within the file eight."""
    files = fields["file"].dictionary_encode()
    numbers = [_FILE_NUMBER.search(name) for name in files.dictionary.to_pylist()]
    number = np.array([int(each[1]) if each else 0 for each in numbers], np.uint32)
    nameless = np.array([each is None for each in numbers])
    codes = files.indices.to_numpy()
    pos, bad = _words(fields, "pos")
    row, wrong = _words(fields, "row")
    bad |= wrong
    for each in np.flatnonzero(nameless[codes]).tolist():
        given = casts.quote(fields["file"][each].as_py())
        bad[each] = f"`source.file`: {given} does not end in the number of a binlog"
    out = np.empty((len(codes), 16), np.uint8)
    out[:, :4] = number[codes].astype(">u4").view(np.uint8).reshape(-1, 4)
    out[:, 4:12] = pos.astype(">u8").view(np.uint8).reshape(-1, 8)
    out[:, 12:] = row.astype(">u4").view(np.uint8).reshape(-1, 4)
    return fixed(out), bad


def _sqlserver(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    commit, bad = _lsn(fields, "commit_lsn")
    change, wrong = _lsn(fields, "change_lsn")
    serial, odd = _words(fields, "event_serial_no")
    tail = serial.astype(">u4").view(np.uint8).reshape(-1, 4)
    return fixed(np.column_stack([commit, change, tail])), bad | wrong | odd


def _oracle(fields: Fields) -> tuple[pa.BinaryArray, Bad]:
    words, bad = _words(fields, "scn")
    return big_endian(words), bad


def _words(fields: Fields, name: str) -> tuple[Words, Bad]:
    """Read numbers; none is 0."""
    numbers, bad = casts.cast(fields[name], LongType(), pa.int64())
    words: Words = pc.fill_null(numbers, 0).to_numpy().view(np.uint64)
    return words, {row: f"`source.{name}`: {why}" for row, why in bad.items()}


def _lsn(fields: Fields, name: str) -> tuple[npt.NDArray[np.uint8], Bad]:
    """Read SQL Server's `00000027:00000ac0:0002`, ten bytes in hexadecimal."""
    texts = fields[name]
    good = pc.fill_null(pc.match_substring_regex(texts, _LSN), False)
    bad = {
        row: f"`source.{name}`: {casts.quote(texts[row].as_py())} is not a log position"
        for row in where(pc.and_(pc.invert(good), texts.is_valid()))
    }
    digits = pc.replace_substring(pc.if_else(good, texts, _NO_LSN), ":", "")
    raw = bytes.fromhex(characters(digits).tobytes().decode())
    return np.frombuffer(raw, np.uint8).reshape(-1, 10), bad


@dataclass(frozen=True)
class _LogEncoding:
    """Whose log, which fields a position cannot do without, and how it is written."""

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
