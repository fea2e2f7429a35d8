"""An index manifest: one state of the key index, in one small file that never changes."""

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
    """One state of the key index: the table's snapshot, and the files that make the index up."""

    number: int  # +1 with every state
    owner: str  # the process that may write the next one
    whole: bool  # False: it is being built
    table_uuid: str
    keys: Mapping[str, int]  # key columns and their field ids, in order
    snapshot_id: int | None  # of the table, that the index describes
    sequence_number: int  # Iceberg's, of that snapshot
    commit_id: str | None
    next_file: int
    lists: tuple[FileListRef, ...]  # newest first
    runs: tuple[tuple[RunRef, ...], ...]  # by bucket, newest first

    @property
    def buckets(self) -> int:
        """The number of buckets that the keys are split into."""
        return len(self.runs)

    @property
    def name(self) -> str:
        """The name of the manifest's file."""
        return name_of(self.number)

    def names(self) -> set[str]:
        """Return the names of all file lists and runs that make up this state."""
        return {ref.name for ref in self.lists} | {
            run.name for bucket in self.runs for run in bucket
        }

    def following(self, **changes: Any) -> "IndexManifest":
        """Return the next state: this one with changes and the next number."""
        return replace(self, number=self.number + 1, **changes)


def publish(folder: Path, manifest: IndexManifest) -> None:
    """Write a manifest as the newest state; raises Fenced if another process has written one."""
    raw = {
        **vars(manifest),  # `asdict` would copy every run's facts, which takes longer than the rest
        "version": VERSION,
        "lists": [vars(ref) for ref in manifest.lists],
        "runs": [[vars(run) for run in bucket] for bucket in manifest.runs],
    }
    body = json.dumps(raw, separators=(",", ":"))
    text = json.dumps({"crc": zlib.crc32(body.encode()), "body": body})
    # A new owner removes older manifests, so the name alone may be free again: a later number
    # counts as well.
    is_passed = max(numbers(folder), default=0) >= manifest.number
    if is_passed or not write_once(folder / manifest.name, text.encode()):
        raise Fenced(
            "another process has taken over the key index",
            where=str(folder),
            hint="is the pipeline running twice, with the same `state_location`?",
        )


def numbers(folder: Path) -> list[int]:
    """List the numbers of the manifests in a folder, newest first."""
    texts = [path.stem.removeprefix(_PREFIX) for path in folder.glob(f"{_PREFIX}*.json")]
    return sorted((int(text) for text in texts if text.isdigit()), reverse=True)


def read(folder: Path, name: str) -> IndexManifest:
    """Read a manifest; raises IndexDamaged if it is torn or of another version."""
    path = folder / name
    try:
        outer = json.loads(path.read_bytes())
        body = outer["body"]
        if zlib.crc32(body.encode()) != outer["crc"]:
            raise ValueError("another checksum")
        raw = json.loads(body)
        if raw.pop("version") != VERSION:
            raise ValueError("another version")
        raw["lists"] = tuple(FileListRef(**ref) for ref in raw["lists"])
        raw["runs"] = tuple(tuple(_ref(run) for run in bucket) for bucket in raw["runs"])
        return IndexManifest(**raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as failure:
        raise damaged(f"manifest: {failure}", path) from None


def name_of(number: int) -> str:
    """Return the file name of the manifest with a number."""
    return f"{_PREFIX}{number:012d}.json"


def _ref(raw: dict[str, Any]) -> RunRef:
    files = raw["numbers"]
    return RunRef(raw["name"], raw["entries"], None if files is None else tuple(files))
