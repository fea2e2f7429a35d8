"""The marker: how far a pipeline has come, written into the table with the rows themselves."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from icestream.errors import Replaced
from icestream.positions import Positions

VERSION = 1

LossKind = Literal["retention", "truncated", "recreated", "deleted"]


@dataclass(frozen=True)
class Loss:
    """Positions of one partition that the source can no longer give, and why."""

    kind: LossKind
    stream: str
    partition: int
    start: int
    stop: int | None  # None: nobody can tell any more

    def __str__(self) -> str:
        upto = "the end" if self.stop is None else f"{self.stop} ({self.stop - self.start} records)"
        return f"{self.stream}/{self.partition}: {self.start} to {upto}"


@dataclass(frozen=True)
class Counts:
    """Records that a table has taken from its source: read = landed + quarantined + dropped."""

    landed: int = 0
    quarantined: int = 0
    dropped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.landed + other.landed,
            self.quarantined + other.quarantined,
            self.dropped + other.dropped,
        )

    @property
    def read(self) -> int:
        """Number of all records that were read."""
        return self.landed + self.quarantined + self.dropped


@dataclass(frozen=True)
class Marker:
    """How far one pipeline has come in one table; stored as a table property with each commit.

    A batch is known by its offset range, never by a batch number.
    """

    pipeline: str
    generation: int  # +1 with every start of the pipeline: the newest claim owns the table
    run_id: str
    commit_id: str
    previous_commit_id: str | None
    sequence: int  # +1 with every commit of this pipeline to this table
    table_uuid: str
    snapshot_sequence: int  # Iceberg's sequence number of the snapshot that carries this marker
    positions: Positions = field(default_factory=dict)
    stream_ids: Mapping[str, str] = field(default_factory=dict)  # tells a re-created topic
    counts: Counts = Counts()
    watermark_ms: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)  # of the source, e.g. its ledger
    losses: tuple[Loss, ...] = ()  # accepted by `--accept-loss`

    def to_json(self) -> str:
        """Serialize as compact JSON, the value of the table property."""
        return compact_json({"version": VERSION, **asdict(self)})

    @staticmethod
    def from_json(text: str) -> "Marker":
        """Read the value of the table property; raises Replaced if its version is not known."""
        try:
            raw: dict[str, Any] = json.loads(text)
            version = raw.pop("version", None)
        except (ValueError, AttributeError):
            raise Replaced(
                f"the table's marker is not one: {text[:60]}",
                hint="somebody changed the table property; restore it",
            ) from None
        if version != VERSION:
            raise Replaced(
                f"the table's marker has version {version}, this icestream reads {VERSION}",
                hint="run the newer icestream that wrote it",
            )
        raw["positions"] = int_partitions(raw["positions"])
        raw["counts"] = Counts(**raw["counts"])
        raw["losses"] = tuple(Loss(**loss) for loss in raw.get("losses", ()))
        return Marker(**raw)


def int_partitions(raw: Mapping[str, Mapping[str, int]]) -> Positions:
    """Return positions read from JSON, where partitions are texts."""
    return {
        stream: {int(partition): position for partition, position in partitions.items()}
        for stream, partitions in raw.items()
    }


def property_name(pipeline: str) -> str:
    """Return the name of the table property that holds a pipeline's marker."""
    return f"icestream.{pipeline}.marker"


def compact_json(value: object) -> str:
    """Return JSON without spaces, keys in order: it goes into metadata with each commit."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


@dataclass(frozen=True)
class LocatedMarker:
    """A marker and the table location that its details are relative to."""

    marker: Marker
    location: str
