"""A disk that takes no more, in plain words, whoever met it first: Python, Java or SQLite."""

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


DEATH_SECONDS = 5.0  # from the first sign of the JVM's death to its exit code


def is_connection_loss(failure: BaseException) -> bool:
    """Whether Java did not answer; it does when it says what failed."""
    return isinstance(failure, Py4JError | ConnectionError) and not isinstance(
        failure, Py4JJavaError
    )


def spark_death(config: PipelineConfig, failure: BaseException) -> SparkEnded | None:
    """The end of the JVM, if that is behind a failure."""
    # A connection that breaks may be to another server; Java is alive then, all that time.
    code = exit_code(DEATH_SECONDS if is_connection_loss(failure) else 0)
    return None if code is None else spark_ended(config, code)


@contextmanager
def translate_spark_death(config: PipelineConfig) -> Iterator[None]:
    """What fails because the JVM is gone says so."""
    try:
        yield
    except Exception as failure:
        if not isinstance(failure, IcestreamError) and (ended := spark_death(config, failure)):
            raise ended from None
        raise


def unknown_failure(config: PipelineConfig, failure: BaseException) -> GaveUp:
    """A failure that nobody knows, for the log in full and for people in one line."""
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
