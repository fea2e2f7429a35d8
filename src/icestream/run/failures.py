"""Turns failures of any library into errors for users: full disks, the JVM's end, the unknown."""

import errno
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError

from icestream.config.model import PipelineConfig
from icestream.errors import GaveUp, IcestreamError, SparkEnded, StorageFailed
from icestream.spark.ended import exit_code, spark_ended

# In the text of a failure, whoever met it first: Python, Java or SQLite.
_DISK_SIGNS = (
    *(os.strerror(code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)),
    "database or disk is full",
)


def disk_error(failure: BaseException, state: Path) -> StorageFailed | None:
    """Return the error for a failure whose text shows a full or read-only disk; else None."""
    text = str(failure)
    cause = next((sign for sign in _DISK_SIGNS if sign in text), None)
    if cause is None:
        return None
    return StorageFailed(
        f"files cannot be written: {cause}",
        where=f"the state folder `{state}`, or a warehouse on this machine",
        hint="make room, or set `state_location` to another disk; nothing is lost",
    )


@contextmanager
def translate_disk_errors(state: Path) -> Iterator[None]:
    """Turn an error inside the block into StorageFailed if a disk is full or read-only."""
    try:
        yield
    except Exception as failure:
        if not isinstance(failure, IcestreamError) and (error := disk_error(failure, state)):
            raise error from None
        raise


DEATH_SECONDS = 5.0  # from the first sign that the JVM has died to its exit code


def is_connection_loss(failure: BaseException) -> bool:
    """Whether Java did not answer at all; a Py4JJavaError is an answer."""
    return isinstance(failure, Py4JError | ConnectionError) and not isinstance(
        failure, Py4JJavaError
    )


def spark_death(config: PipelineConfig, failure: BaseException) -> SparkEnded | None:
    """Return the error for the JVM's end if that is behind a failure; else None."""
    # A connection that breaks may be to another server; then Java stays alive all that time.
    code = exit_code(DEATH_SECONDS if is_connection_loss(failure) else 0)
    return None if code is None else spark_ended(config, code)


@contextmanager
def translate_spark_death(config: PipelineConfig) -> Iterator[None]:
    """Turn an error inside the block into SparkEnded if Spark's JVM has ended."""
    try:
        yield
    except Exception as failure:
        if not isinstance(failure, IcestreamError) and (ended := spark_death(config, failure)):
            raise ended from None
        raise


def unknown_failure(config: PipelineConfig, failure: BaseException) -> GaveUp:
    """Return an error with the first line of an unknown failure; the log gets all of it."""
    if ended := spark_death(config, failure):
        return ended
    logs = Path(config.state_location) / "logs"
    text = str(failure).strip().splitlines()
    first = text[0] if text else type(failure).__name__
    with suppress(OSError):  # a full disk may be what failed
        logs.mkdir(parents=True, exist_ok=True)
        with (logs / "failures.log").open("a") as log:
            traceback.print_exception(failure, file=log)
    return GaveUp(
        f"pipeline `{config.name}`: {type(failure).__name__}: {first}",
        where=str(logs),
        hint="nothing is lost; the logs have the details, and a restart is safe",
    )
