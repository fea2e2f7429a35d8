"""The ledger of a folder: the pieces of files that were read, in an order that never changes.

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
_MAX_LINKS = 64  # short lists that refer to one another, before the whole is written again


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
    """Splits in the order in which they were read, with a digest of all up to each."""

    def __init__(self, splits: Iterable[Split] = ()) -> None:
        self.splits: list[Split] = []
        self._digests = [hashlib.sha256().hexdigest()[:32]]
        self.extend(splits)

    def extend(self, splits: Iterable[Split]) -> None:
        """Append entries."""
        for split in splits:
            text = self._digests[-1] + json.dumps(astuple(split))
            self._digests.append(hashlib.sha256(text.encode()).hexdigest()[:32])
            self.splits.append(split)

    def __len__(self) -> int:
        return len(self.splits)

    def digest(self, count: int) -> str:
        """Return the digest that identifies the first `count` entries."""
        return self._digests[count]


def store_list(ledger: Ledger, count: int, location: str, commit_id: str, old: str | None) -> str:
    """Write the entries up to `count` to a list beside the table. Returns its name, for the marker.

    Only entries since the `old` list are written, until too many lists refer to one another.
    """
    previous = _read(location, old)[0] if old else None
    if previous and (previous["links"] >= _MAX_LINKS or previous["count"] > count):
        previous = None
    first = previous["count"] if previous else 0
    name = f"positions-{commit_id}.jsonl"
    header = {
        "version": 1,
        "from": first,
        "count": count,
        "digest": ledger.digest(count),
        "previous": old if previous else None,
        "links": previous["links"] + 1 if previous else 1,
    }
    lines = [header, *(list(astuple(split)) for split in ledger.splits[first:count])]
    system, path = _list_folder(location)
    system.create_dir(path, recursive=True)
    with system.open_output_stream(f"{path}/{name}") as out:
        out.write("".join(json.dumps(line) + "\n" for line in lines).encode())
    return name


def restore_ledger(location: str, name: str | None, count: int) -> Ledger:
    """Read the list that a marker names, and those before it back to the first entry."""
    pieces: list[list[Split]] = []
    expected = count
    digest = None
    list_name = name
    while list_name is not None:
        header, entries = _read(location, list_name)
        digest = digest or header["digest"]
        if header["count"] != expected:
            raise _broken(location, list_name)
        pieces.append(entries)
        expected, list_name = header["from"], header["previous"]
    ledger = Ledger(split for piece in reversed(pieces) for split in piece)
    if len(ledger) != count or (digest and ledger.digest(count) != digest):
        raise _broken(location, name)
    return ledger


def longest_ledger(ledgers: Sequence[Ledger]) -> Ledger:
    """Return the longest; raises SourceChanged unless all others are beginnings of it."""
    longest = max(ledgers, key=len, default=Ledger())
    for ledger in ledgers:
        if longest.digest(len(ledger)) != ledger.digest(len(ledger)):
            raise SourceChanged(
                "two tables of this pipeline remember different files of the same folder",
                hint="did they belong to another pipeline? give this one a name of its own",
            )
    return longest


def _read(location: str, name: str) -> tuple[dict[str, Any], list[Split]]:
    """Read one list; raises SourceChanged when it is missing or not consistent."""
    system, path = _list_folder(location)
    try:
        with system.open_input_stream(f"{path}/{name}") as file:
            header, *rows = [json.loads(line) for line in file.read().splitlines()]
        entries = [Split(*row) for row in rows]
        is_whole = header["from"] + len(entries) == header["count"]
        has_keys = {"digest", "previous", "links"} <= header.keys()
    except (OSError, ValueError, TypeError, KeyError):
        raise _broken(location, name) from None
    if not is_whole or not has_keys:
        raise _broken(location, name)
    return header, entries


def _list_folder(location: str) -> tuple[Any, str]:
    system, path = filesystem(location)
    return system, f"{path}/{FOLDER}"


def _broken(location: str, name: str | None) -> SourceChanged:
    return SourceChanged(
        f"position list `{FOLDER}/{name}` is missing or damaged",
        where=f"table location {location}",
        hint="restore the file; without it nobody knows which files were already taken",
    )
