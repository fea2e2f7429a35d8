"""Systems that take events from Kafka into Iceberg: each has a module that says how to start it.

A module has `TITLE`, `VERSIONS`, `MAKES_TABLE` (or the campaign does), `prepare()` which fetches
what is missing into the cache folder, and `command(job)`.
"""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from lake import Lake
from measure import Command

from icestream.spark import jars
from icestream.spark.java import find_java

NAMES = ("icestream", "spark", "flink", "connect")
HEAP = "2g"
LOCK = Path(__file__).parent.parent / "peers.lock.toml"


@dataclass(frozen=True)
class Job:
    """One topic into one table, until stopped; `live` is a steady trickle, else a backlog."""

    folder: Path
    bootstrap: str
    topic: str
    lake: Lake
    live: bool
    records_per_commit: int  # for systems that commit by the amount

    @property
    def commit_ms(self) -> int:
        """How often systems commit that do so by the clock."""
        return 1_000 if self.live else 10_000


class Peer(Protocol):
    """What a module of this package has."""

    TITLE: str
    VERSIONS: Mapping[str, str]
    MAKES_TABLE: bool

    def prepare(self) -> None: ...
    def command(self, job: Job) -> Command: ...


def load(name: str) -> Peer:
    return cast(Peer, import_module(f"peers.{name}_"))


def fetch(*sets: str) -> list[Path]:
    """The jars of these sets of peers.lock.toml, from the cache or fetched and checked."""
    return jars.obtain([jar for jar in locked() if jar.set in sets])


def locked() -> list[jars.Jar]:
    return [jars.Jar(**entry) for entry in tomllib.loads(LOCK.read_text())["jar"]]


def version(artifact: str) -> str:
    return next(jar.version for jar in locked() if jar.artifact == artifact)


def java(*classpath: Path) -> list[str]:
    """A Java of that heap with that class path, and no other flag."""
    binary = find_java().home / "bin" / "java"
    return [str(binary), f"-Xmx{HEAP}", "-cp", os.pathsep.join(map(str, classpath))]
