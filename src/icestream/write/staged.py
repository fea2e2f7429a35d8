"""Looks whether staged files are still there; somebody may have taken them for orphans."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from icestream.tables.storage import filesystem
from icestream.write.target import StagedFile

_AT_ONCE = 16  # an object store answers each question by itself


def changed_or_missing(files: Sequence[StagedFile]) -> list[str]:
    """Paths of one table's files that are gone or not as long as they were when finished."""
    if not files:
        return []
    shared = len(os.path.commonprefix([file.path for file in files]))  # noqa: RUF071 (letters)
    system, first = filesystem(files[0].path)  # opened once: a client of an object store is dear
    root = first[: len(first) - (len(files[0].path) - shared)]

    def whole(file: StagedFile) -> bool:
        try:
            return bool(system.get_file_info(root + file.path[shared:]).size == file.bytes)
        except OSError:
            return True  # nobody can tell; the commit itself needs the same storage

    with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
        found = pool.map(whole, files)
        return [file.path for file, there in zip(files, found, strict=True) if not there]


def discard(files: Iterable[StagedFile]) -> None:
    """Delete files of a staging round that has to be done again before any commit was tried."""
    for staged in files:
        system, path = filesystem(staged.path)
        with suppress(OSError):
            system.delete_file(path)
