"""The interface of commits to a catalog: load a table, try a commit once; its files and errors.

Implemented by commit/java_catalog.py and commit/table_builder.py. Nothing here needs a JVM, so
that whatever uses the interface can be tested with a simulated catalog.
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
    """One attempt was refused, failed or went unanswered: only loading the table again tells."""


class InputsReplaced(CommitFailed):
    """Files to be replaced are no longer live: nothing was committed, and a retry is no use."""


@dataclass(frozen=True)
class AddedFiles:
    """Files to add, as the JSON that Iceberg's ContentFileParser reads; none for a claim."""

    files: Sequence[str] = ()
    records: int = 0
    deletes: Sequence[str] = ()  # position deletes of rows in the base snapshot
    base_only: bool = False  # the files fit no other base, as they rest on its row positions


@dataclass(frozen=True)
class ReplacedFiles:
    """Files that replace others with the same rows, in the same JSON."""

    rewrite_id: str  # in the summary, to find the snapshot again
    removed: Sequence[str] = ()  # data files
    added: Sequence[str] = ()
    removed_deletes: Sequence[str] = ()
    added_deletes: Sequence[str] = ()  # of rows in the added data files
    kept_deletes: Sequence[tuple[str, int]] = ()  # written anew, with the sequence number they had


class CommitCatalog(Protocol):
    """A catalog that loads tables and tries commits once, by compare-and-set."""

    def load(self, name: str) -> TableState:
        """Read the table's current state; raises Unreachable."""
        ...

    def commit(
        self, name: str, base: Any, marker: Marker, before: Positions, files: AddedFiles
    ) -> None:
        """Try once, from exactly `base`; raises CommitFailed whatever the reason was."""
        ...


class RewriteCatalog(CommitCatalog, Protocol):
    """A catalog that commits rewrites as well."""

    def commit_rewrite(self, name: str, base: Any, files: ReplacedFiles) -> None:
        """Try once, from exactly `base`; raises CommitFailed or InputsReplaced."""
        ...


class RunCatalog(CommitCatalog, Protocol):
    """A catalog that finds tables as well, for a run."""

    def exists(self, name: str) -> bool:
        """Whether the catalog knows the table."""
        ...

    def list_tables(self, reaches: Callable[[str], bool]) -> list[str]:
        """List tables in the namespaces that `reaches` says yes to, at any depth."""
        ...


class TableChanges(Protocol):
    """Creates and alters tables, in one attempt each; CommitFailed if another writer was faster."""

    def create(self, design: TableDesign) -> bool:
        """Create the table unless it exists. True: it was created here."""
        ...

    def evolve(
        self,
        design: TableDesign,
        base: Any,
        new: Sequence[NewField],
        wider: Sequence[NewField] = (),
    ) -> None:
        """Add and widen columns, and add partition spec and sort order if they had to wait."""
        ...

    def set_keys(self, design: TableDesign, base: Any, keys: Sequence[str]) -> None:
        """Store the key columns of a mirror, as its records name them, in the table."""
        ...
