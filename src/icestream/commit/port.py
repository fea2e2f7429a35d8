"""What commits ask of a catalog: a fresh look, one attempt; what an attempt carries, how it fails.

commit/java_catalog.py and commit/table_builder.py are the real ones. Nothing here needs a JVM, so
that all who use the port can be driven by a simulated catalog.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from icestream.commit.table_state import TableState
from icestream.positions import Positions
from icestream.schema import NewField
from icestream.tables.design import TableDesign
from icestream.tables.marker import Marker


class CommitFailed(Exception):
    """One attempt was refused, failed or went unanswered: only a fresh look tells which."""


class InputsReplaced(CommitFailed):
    """What was to be replaced is no longer there: nothing was committed, and trying is no use."""


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


class CommitCatalog(Protocol):
    """A fresh look at a table, and single compare-and-set attempts."""

    def load(self, name: str) -> TableState:
        """Read the table's current state; raises Unreachable."""
        ...

    def commit(
        self, name: str, base: Any, marker: Marker, before: Positions, files: AddedFiles
    ) -> None:
        """Try once, from exactly `base`; raises CommitFailed whatever the reason was."""
        ...


class RewriteCatalog(CommitCatalog, Protocol):
    """A catalog that takes rewrites as well."""

    def commit_rewrite(self, name: str, base: Any, files: ReplacedFiles) -> None:
        """Try once, from exactly `base`; raises CommitFailed or InputsReplaced."""
        ...


class RunCatalog(CommitCatalog, Protocol):
    """What a run asks of its catalog besides."""

    def exists(self, name: str) -> bool:
        """Whether the catalog knows the table."""
        ...

    def list_tables(self, reaches: Callable[[str], bool]) -> list[str]:
        """Tables in the namespaces that `reaches` says yes to, at any depth."""
        ...


class TableChanges(Protocol):
    """Changes of tables, each a single attempt; raise CommitFailed when another was faster."""

    def create(self, design: TableDesign) -> bool:
        """Create the table unless it is there. True: it was created here."""
        ...

    def evolve(
        self,
        design: TableDesign,
        base: Any,
        new: Sequence[NewField],
        wider: Sequence[NewField] = (),
    ) -> None:
        """Add columns and widen others, lay the table out if that had to wait."""
        ...

    def set_keys(self, design: TableDesign, base: Any, keys: Sequence[str]) -> None:
        """Write down the key columns of a mirror, as its records name them."""
        ...
