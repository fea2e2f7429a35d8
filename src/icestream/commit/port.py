"""What the rules ask of a catalog: a fresh look, one attempt; what it carries, how it fails."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from icestream.commit.table_state import TableState
from icestream.positions import Positions
from icestream.tables.marker import Marker


class CommitFailed(Exception):
    """One attempt was refused, failed or went unanswered: only a fresh look tells which."""


class CommitCatalog(Protocol):
    """The port to the catalog: a fresh look, and a single compare-and-set attempt."""

    def load(self, name: str) -> TableState:
        """Read the table's current state; raises Unreachable."""
        ...

    def commit(self, name: str, base: Any, marker: Marker, before: Positions, work: Any) -> None:
        """Try once, from exactly `base`; raises CommitFailed whatever the reason was."""
        ...


@dataclass(frozen=True)
class AddedFiles:
    """Files to add, as the JSON that Iceberg's ContentFileParser reads; may be none."""

    files: Sequence[str] = ()
    records: int = 0
    deletes: Sequence[str] = ()  # position deletes, of rows in the snapshot that is the base
    base_only: bool = False  # it fits that snapshot alone


@dataclass(frozen=True)
class ReplacedFiles:
    """Files that take the place of others with the same rows, in the same JSON."""

    rewrite_id: str  # by which its snapshot is found again
    removed: Sequence[str] = ()  # data files
    added: Sequence[str] = ()
    removed_deletes: Sequence[str] = ()
    added_deletes: Sequence[str] = ()  # of rows in the added data files
    kept_deletes: Sequence[tuple[str, int]] = ()  # written anew, with the sequence number they had


class InputsReplaced(CommitFailed):
    """What was to be replaced is no longer there: nothing was committed, and trying is no use."""
