"""Tests that the catalog refuses a stale commit, once per run, at the first claim of a new table.

All of exactly-once rests on it, and a catalog in which the last write wins looks like any other
until two writers meet. docs/design/exactly-once.md says why the test does no harm.
"""

from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError

from icestream.commit.attempt import CommitBase
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.port import CommitFailed
from icestream.errors import UnsafeCatalog

# Compares in SQL itself; and its refused attempt would leave a metadata file behind.
_KNOWN_TO_COMPARE = "JdbcTableOperations"


def refuse_unsafe(tables: IcebergTables, name: str, stale: CommitBase) -> None:
    """Try an empty append from a base that our claim has replaced; raises UnsafeCatalog."""
    if stale.operations.getClass().getSimpleName() == _KNOWN_TO_COMPARE:
        return
    tried: list[Any] = []

    def build(transaction: Any) -> None:
        update = transaction.newFastAppend()
        update.set("icestream.self-test", "a catalog that compares refuses this")
        update.commit()
        tried.append(transaction.table().currentSnapshot())

    with suppress(CommitFailed, Py4JError):  # whether it was committed, the table itself tells
        tables.transact(name, stale, build)
    if not tried:
        return
    [snapshot] = tried
    if snapshot.snapshotId() in tables.load(name).snapshot_ids:
        raise UnsafeCatalog(
            f"the catalog took a commit to table `{name}` that it had to refuse",
            where=f"snapshot {snapshot.snapshotId()} replaced our claim, which it did not build on",
            hint="concurrent writers would lose rows in it without a word; use a catalog that "
            "checks the requirements of a commit, and drop this (empty) table",
        )
    with suppress(Py4JError):
        stale.operations.io().deleteFile(snapshot.manifestListLocation())
