"""A disk that takes no more is named, whoever says it."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from icestream.errors import ConfigError, StorageFailed
from icestream.run import failures


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EROFS, os.strerror(errno.EROFS), "history.db"),
        RuntimeError("o12.start\n: java.io.IOException: No space left on device\n\tat java.base"),
        sqlite3.OperationalError("database or disk is full"),
    ],
)
def test_a_full_disk_is_told_in_plain_words(failure):
    with pytest.raises(StorageFailed) as caught, failures.translate_disk_errors(Path("state")):
        raise failure
    assert "`state`" in caught.value.where
    assert caught.value.exit_code == 75


@pytest.mark.parametrize("failure", [ValueError("nine"), ConfigError("No space left on device")])
def test_other_failures_stay_what_they_are(failure):
    with pytest.raises(type(failure)) as caught, failures.translate_disk_errors(Path("state")):
        raise failure
    assert caught.value is failure
