"""Checks before a commit that staged files still exist: they may have been taken for orphans."""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from icestream.tables.storage import filesystem
from icestream.write.target import StagedFile

_AT_ONCE = 16  # an object store answers each question by itself


def changed_or_missing(files: Sequence[StagedFile]) -> list[str]:
    """Return the paths of one table's files that are missing or have another length."""
    if not files:
        return []
    prefix = len(os.path.commonprefix([file.path for file in files]))  # noqa: RUF071 (letters)
    system, first = filesystem(files[0].path)  # opened once: a client of an object store is dear
    root = first[: len(first) - (len(files[0].path) - prefix)]

    def is_whole(file: StagedFile) -> bool:
        try:
            return bool(system.get_file_info(root + file.path[prefix:]).size == file.bytes)
        except OSError:
            return True  # nobody can tell; the commit itself needs the same storage

    with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
        results = pool.map(is_whole, files)
        return [file.path for file, is_good in zip(files, results, strict=True) if not is_good]


def discard(files: Iterable[StagedFile]) -> None:
    """Delete staged files with which no commit was tried, or that no commit can name any more."""
    for staged in files:
        system, path = filesystem(staged.path)
        with suppress(OSError):
            system.delete_file(path)
