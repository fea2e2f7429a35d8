"""A manifest: one state of the index, in one small file that never changes."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from icestream.errors import Fenced
from icestream.index.disk import damaged, write_once
from icestream.index.files import FileListRef
from icestream.index.merge import RunRef

VERSION = 1
_PREFIX = "manifest-"


@dataclass(frozen=True)
class IndexManifest:
    """Where the index stands, and which files make it up."""

    number: int  # +1 with every state
    owner: str  # the process that may write the next one
    whole: bool  # False: it is being built
    table_uuid: str
    keys: Mapping[str, int]  # key columns and their field ids, in order
    snapshot_id: int | None  # of the table, at which the index stands
    sequence_number: int  # Iceberg's, of that snapshot
    commit_id: str | None
    next_file: int
    lists: tuple[FileListRef, ...]  # newest first
    runs: tuple[tuple[RunRef, ...], ...]  # by bucket, newest first

    @property
    def buckets(self) -> int:
        """How many shares the keys are split into."""
        return len(self.runs)

    @property
    def name(self) -> str:
        """The file it is kept in."""
        return name_of(self.number)

    def names(self) -> set[str]:
        """All files it refers to."""
        return {each.name for each in self.lists} | {
            run.name for bucket in self.runs for run in bucket
        }

    def following(self, **changes: Any) -> "IndexManifest":
        """The next state."""
        return replace(self, number=self.number + 1, **changes)


def publish(folder: Path, manifest: IndexManifest) -> None:
    """Make this the newest state; refused if somebody else has written this or a later one."""
    raw = {
        **vars(manifest),  # `asdict` would copy every run's facts, which takes longer than the rest
        "version": VERSION,
        "lists": [vars(each) for each in manifest.lists],
        "runs": [[vars(run) for run in bucket] for bucket in manifest.runs],
    }
    body = json.dumps(raw, separators=(",", ":"))
    text = json.dumps({"crc": zlib.crc32(body.encode()), "body": body})
    # Numbers that were swept away are free again, so a later one counts as well.
    passed = max(numbers(folder), default=0) >= manifest.number
    if passed or not write_once(folder / manifest.name, text.encode()):
        raise Fenced(
            "another process has taken over the key index",
            where=str(folder),
            hint="is the pipeline running twice, with the same `state_location`?",
        )


def numbers(folder: Path) -> list[int]:
    """Numbers of the manifests that are there, newest first."""
    found = [path.stem.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*.json")]
    return sorted((int(each) for each in found if each.isdigit()), reverse=True)


def read(folder: Path, name: str) -> IndexManifest:
    """Read a state back; what is not whole or not known is refused."""
    path = folder / name
    try:
        outer = json.loads(path.read_bytes())
        body = outer["body"]
        if zlib.crc32(body.encode()) != outer["crc"]:
            raise ValueError("another checksum")
        raw = json.loads(body)
        if raw.pop("version") != VERSION:
            raise ValueError("another version")
        raw["lists"] = tuple(FileListRef(**each) for each in raw["lists"])
        raw["runs"] = tuple(tuple(_ref(run) for run in bucket) for bucket in raw["runs"])
        return IndexManifest(**raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as failure:
        raise damaged(f"manifest: {failure}", path) from None


def name_of(number: int) -> str:
    """The file of a manifest by its number."""
    return f"{_PREFIX}{number:012d}.json"


def _ref(raw: dict[str, Any]) -> RunRef:
    own = raw["numbers"]
    return RunRef(raw["name"], raw["entries"], None if own is None else tuple(own))
