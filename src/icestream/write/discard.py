"""Removes staged files that were never offered to a commit; on any doubt they stay, as orphans."""

from collections.abc import Iterable
from contextlib import suppress

from icestream.tables.storage import filesystem
from icestream.write.target import StagedFile


def discard(files: Iterable[StagedFile]) -> None:
    """Delete files of a staging round that has to be done again before any commit was tried."""
    for staged in files:
        system, path = filesystem(staged.path)
        with suppress(OSError):
            system.delete_file(path)
