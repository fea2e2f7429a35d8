"""The ledger of a folder: which pieces of which files were taken, in order, once and for all.

The position of a `files` stream is a number of ledger entries. The list itself is stored beside
each table it was read into, in files named by commit id, and the marker points to the newest.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from icestream.errors import SourceChanged
from icestream.tables.storage import filesystem

FOLDER = "_icestream"
_LINKS = 64  # so many short lists may hang together before the whole is written again


@dataclass(frozen=True)
class ListedFile:
    """A file as a listing showed it."""

    path: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Split:
    """A piece of one file; `start` and `stop` are byte offsets (of the unpacked text)."""

    path: str
    size: int
    mtime_ns: int
    start: int
    stop: int
    lines: int


class Ledger:
    """Entries in the order in which they were taken, with a digest after each."""

    def __init__(self, splits: Iterable[Split] = ()) -> None:
        self.splits: list[Split] = []
        self._digests = [hashlib.sha256().hexdigest()[:32]]
        self.extend(splits)

    def extend(self, splits: Iterable[Split]) -> None:
        """Take more entries."""
        for split in splits:
            text = self._digests[-1] + json.dumps(astuple(split))
            self._digests.append(hashlib.sha256(text.encode()).hexdigest()[:32])
            self.splits.append(split)

    def __len__(self) -> int:
        return len(self.splits)

    def digest(self, count: int) -> str:
        """Identifies the first `count` entries."""
        return self._digests[count]


def store_list(ledger: Ledger, count: int, location: str, commit_id: str, old: str | None) -> str:
    """Write the entries up to `count` under the table; → the name for the marker.

    Only what came since the `old` list is written, until too many lists hang together.
    """
    previous = _read(location, old)[0] if old else None
    if previous and (previous["links"] >= _LINKS or previous["count"] > count):
        previous = None
    begin = previous["count"] if previous else 0
    name = f"positions-{commit_id}.jsonl"
    header = {
        "version": 1,
        "from": begin,
        "count": count,
        "digest": ledger.digest(count),
        "previous": old if previous else None,
        "links": previous["links"] + 1 if previous else 1,
    }
    lines = [header, *(list(astuple(split)) for split in ledger.splits[begin:count])]
    system, path = _at(location)
    system.create_dir(path, recursive=True)
    with system.open_output_stream(f"{path}/{name}") as out:
        out.write("".join(json.dumps(line) + "\n" for line in lines).encode())
    return name


def restore_ledger(location: str, name: str | None, count: int) -> Ledger:
    """Read the list that a marker points to, following it back to the whole."""
    pieces: list[list[Split]] = []
    expected = count
    digest = None
    at = name
    while at is not None:
        header, entries = _read(location, at)
        digest = digest or header["digest"]
        if header["count"] != expected:
            raise _broken(location, at)
        pieces.append(entries)
        expected, at = header["from"], header["previous"]
    ledger = Ledger(split for piece in reversed(pieces) for split in piece)
    if len(ledger) != count or (digest and ledger.digest(count) != digest):
        raise _broken(location, name)
    return ledger


def longest_ledger(ledgers: Sequence[Ledger]) -> Ledger:
    """The ledger that continues all others; tables of one pipeline can differ only in length."""
    best = max(ledgers, key=len, default=Ledger())
    for other in ledgers:
        if best.digest(len(other)) != other.digest(len(other)):
            raise SourceChanged(
                "two tables of this pipeline remember different files of the same folder",
                hint="did they belong to another pipeline? give this one a name of its own",
            )
    return best


def _read(location: str, name: str) -> tuple[dict[str, Any], list[Split]]:
    """One list; anything that does not add up is damage."""
    system, path = _at(location)
    try:
        with system.open_input_stream(f"{path}/{name}") as file:
            header, *rows = [json.loads(line) for line in file.read().splitlines()]
        entries = [Split(*row) for row in rows]
        whole = header["from"] + len(entries) == header["count"]
        known = {"digest", "previous", "links"} <= header.keys()
    except (OSError, ValueError, TypeError, KeyError):
        raise _broken(location, name) from None
    if not whole or not known:
        raise _broken(location, name)
    return header, entries


def _at(location: str) -> tuple[Any, str]:
    system, path = filesystem(location)
    return system, f"{path}/{FOLDER}"


def _broken(location: str, name: str | None) -> SourceChanged:
    return SourceChanged(
        f"position list `{FOLDER}/{name}` is missing or damaged",
        where=f"table location {location}",
        hint="restore the file; without it nobody knows which files were already taken",
    )
