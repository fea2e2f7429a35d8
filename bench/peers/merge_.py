"""Spark's MERGE INTO, as those who mirror without streams write it; bench/batches.py runs it."""

from measure import Command

from icestream.spark import jars
from peers import Job
from peers.spark_ import VERSIONS

__all__ = ["MAKES_TABLE", "TITLE", "VERSIONS", "command", "prepare"]

TITLE = "Spark MERGE INTO (merge-on-read)"
MAKES_TABLE = False


def prepare() -> None:
    jars.ensure(("core",))


def command(job: Job) -> Command:
    raise NotImplementedError("it takes batches, not a topic")
