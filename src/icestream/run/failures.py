"""A disk that takes no more, in plain words, whoever met it first: Python, Java or SQLite."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from icestream.errors import IcestreamError, StorageFailed

_SIGNS = (
    *(os.strerror(each) for each in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)),
    "database or disk is full",
)


def disk_error(failure: BaseException, state: Path) -> StorageFailed | None:
    """The error for a failure behind which a disk is, as its text says; None for any other."""
    text = str(failure)
    cause = next((sign for sign in _SIGNS if sign in text), None)
    if cause is None:
        return None
    return StorageFailed(
        f"files cannot be written: {cause}",
        where=f"the state folder `{state}`, or a warehouse on this machine",
        hint="make room, or set `state_location` to another disk; nothing is lost",
    )


@contextmanager
def translate_disk_errors(state: Path) -> Iterator[None]:
    """What fails because of a disk says so."""
    try:
        yield
    except Exception as failure:
        if not isinstance(failure, IcestreamError) and (full := disk_error(failure, state)):
            raise full from None
        raise
