"""Every exception that icestream raises on purpose, with the exit code that a shell sees.

IcestreamError                 1   ran and failed
├── UsageError                 2   the command line does not make sense
├── Fenced                     3   another run of this pipeline took over; do not restart
├── Unreachable               69   broker, catalog, registry or package mirror does not answer
│   ├── JarsMissing           69   jars are not in the cache and could not be fetched
│   └── TopicMissing          69   the broker answers, and has no such topic
├── InternalError             70   a bug of ours
├── GaveUp                    75   gave up after retries; a restart is safe
│   ├── IndexDamaged          75   a file of the key index is missing, torn or foreign
│   ├── SparkEnded            75   Spark's Java process is gone; a restart is safe
│   └── StorageFailed         75   files cannot be written: disk full, no rights, no answer
├── ConfigError               78   the pipeline file is wrong
│   └── NotBuilt              78   the key is known, its feature does not exist yet
├── SetupError                 1   this machine lacks something (Java, disk, memory)
├── BadRecord                  1   `bad_records: fail` met one
├── SourceChanged              1   the source contradicts what was already taken from it
├── UnsafeCatalog              1   the catalog takes commits that contradict each other
└── TableRefused               1   the table is not in a state that we may write to
    ├── Gap                    1   records between the marker and the source's start are gone
    ├── Incarnation            1   the topic was deleted, or deleted and created again
    ├── Truncated              1   the source's log ends before the marker
    ├── Rewound                1   somebody moved the table back behind our marker
    ├── Replaced               1   the table is not the one that we wrote to
    ├── SchemaRefused          1   the incoming schema does not fit the table
    └── TooManyPartitions      1   a batch is scattered over more partitions than one may write
"""

from collections.abc import Mapping


class IcestreamError(Exception):
    """What went wrong, where it was seen, and the next thing to try."""

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def facts(self) -> dict[str, str | None]:
        """The error as plain data, for the way from another process."""
        return {
            "kind": type(self).__name__,
            "what": self.what,
            "where": self.where,
            "hint": self.hint,
        }

    @staticmethod
    def from_facts(facts: Mapping[str, str | None]) -> "IcestreamError":
        """The error again, of the same kind."""
        kind = globals()[facts["kind"] or "IcestreamError"]
        error: IcestreamError = kind(facts["what"], where=facts["where"], hint=facts["hint"])
        return error


class UsageError(IcestreamError):
    """The command line does not make sense."""

    exit_code = 2


class Fenced(IcestreamError):
    """Another run of the same pipeline has claimed the table."""

    exit_code = 3


class Unreachable(IcestreamError):
    """A server that we need does not answer."""

    exit_code = 69


class JarsMissing(Unreachable):
    """Jars are neither in the cache nor to be had."""


class TopicMissing(Unreachable):
    """The broker answers, and has no topic of this name."""


class InternalError(IcestreamError):
    """An invariant of ours is broken: report it."""

    exit_code = 70


class GaveUp(IcestreamError):
    """Retries are used up; nothing is lost and a restart is safe."""

    exit_code = 75


class IndexDamaged(GaveUp):
    """A file of the key index is missing, torn or foreign; a restart builds it again."""


class SparkEnded(GaveUp):
    """The JVM that we drive has died or was killed: only a new process has a new one."""


class StorageFailed(GaveUp):
    """Files cannot be written; nothing of the batch is committed, and it may be tried again."""


class ConfigError(IcestreamError):
    """The pipeline file is wrong."""

    exit_code = 78


class NotBuilt(ConfigError):
    """The pipeline file asks for something that is specified but does not exist yet."""


class SetupError(IcestreamError):
    """This machine lacks something that we need."""


class BadRecord(IcestreamError):
    """A record cannot be decoded and `bad_records: fail` is set."""


class SourceChanged(IcestreamError):
    """The source contradicts what was already taken from it."""


class UnsafeCatalog(IcestreamError):
    """The catalog takes commits that contradict each other: no writer is safe there."""


class TableRefused(IcestreamError):
    """The table is not in a state that we may write to."""


class Gap(TableRefused):
    """Records between the table's marker and the source's first position are gone."""


class Incarnation(TableRefused):
    """The topic was deleted, or deleted and created again under the same name."""


class Truncated(TableRefused):
    """The source's log ends before the table's marker: it lost records that we have."""


class Rewound(TableRefused):
    """Somebody moved the table back behind our marker."""


class Replaced(TableRefused):
    """The table is not the one that we wrote to."""


class SchemaRefused(TableRefused):
    """The incoming schema does not fit the table and may not change it."""


class TooManyPartitions(TableRefused):
    """A batch is scattered over more partitions than one commit may write."""
