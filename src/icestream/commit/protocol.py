"""The rules of exactly-once, as pure functions: a table's state in, a verdict or marker out.

No Spark, no Iceberg, no clock, no randomness: those are behind the `CommitCatalog` interface and
in the arguments, so that a simulator can run the same code. docs/design/exactly-once.md says why.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from icestream.commit.table_state import TableState
from icestream.positions import PositionRange, Positions, max_positions
from icestream.tables.marker import Counts, Loss, Marker


@dataclass(frozen=True)
class GapRange:
    """Positions between a table's marker and the start of a range: nobody would write them."""

    stream: str
    partition: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}: {self.start} to {self.stop}"


class MarkerStatus(Enum):
    """Result of comparing the marker with the snapshots: new, ours, rolled back, other table."""

    NEW = "new"
    OURS = "ours"
    REWOUND = "rewound"
    REPLACED = "replaced"


class BatchVerdict(Enum):
    """What to do with a batch, for one table."""

    COMMIT = "commit"
    SKIP = "skip"
    GAP = "gap"
    INCARNATION = "incarnation"
    FENCED = "fenced"
    REWOUND = "rewound"
    REPLACED = "replaced"


class CommitOutcome(Enum):
    """What became of a commit whose answer was not a plain yes."""

    LANDED = "landed"
    AGAIN = "again"
    RESTAGE = "restage"
    FENCED = "fenced"
    REWOUND = "rewound"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Claim:
    """The right of one run to write, until another run claims a higher generation."""

    pipeline: str
    generation: int
    run_id: str


@dataclass(frozen=True)
class BatchPlan:
    """A verdict, and the floors below which the table holds the records already."""

    verdict: BatchVerdict
    floors: Positions
    gaps: tuple[GapRange, ...] = ()


def marker_status(state: TableState) -> MarkerStatus:
    """Compare the marker property with the newest own snapshot that is still retained."""
    own_commit = next((each.commit_id for each in state.ancestors if each.commit_id), None)
    marker = state.marker
    if marker is None:
        return MarkerStatus.NEW if own_commit is None else MarkerStatus.REWOUND
    if marker.table_uuid != state.uuid:
        return MarkerStatus.REPLACED
    if own_commit is not None:
        return MarkerStatus.OURS if own_commit == marker.commit_id else MarkerStatus.REWOUND
    # No own snapshot is left. Expiry explains that only if the oldest ancestor's parent is gone,
    # and the ancestor is not older than our commit.
    oldest = state.ancestors[-1] if state.ancestors else None
    if oldest is None or oldest.parent_id is None:
        return MarkerStatus.REPLACED
    is_later = oldest.sequence_number >= marker.snapshot_sequence
    return MarkerStatus.OURS if is_later else MarkerStatus.REPLACED


def next_generation(states: Iterable[TableState]) -> int:
    """Return a generation above those of all the pipeline's tables."""
    return 1 + max((state.marker.generation for state in states if state.marker), default=0)


def marker_of_claim(
    state: TableState,
    claim: Claim,
    commit_id: str,
    start: Positions,
    stream_ids: Mapping[str, str],
    details: Mapping[str, str],
) -> Marker:
    """Return the marker that claims a table; only a table without one begins at `start`."""
    old = state.marker
    return Marker(
        pipeline=claim.pipeline,
        generation=claim.generation,
        run_id=claim.run_id,
        commit_id=commit_id,
        previous_commit_id=old.commit_id if old else None,
        sequence=old.sequence + 1 if old else 1,
        table_uuid=state.uuid,
        snapshot_sequence=state.last_sequence + 1,
        positions=old.positions if old else start,
        stream_ids=old.stream_ids if old else stream_ids,
        counts=old.counts if old else Counts(),
        watermark_ms=old.watermark_ms if old else None,
        details=old.details if old else details,
        losses=old.losses if old else (),
    )


def claim_outcome(state: TableState, claim: Claim) -> CommitOutcome:
    """Whether `claim` may (still) be committed. AGAIN: yes, an attempt may start from `state`."""
    marker = state.marker
    # Our own claim, by an attempt whose answer was lost.
    if marker and marker.run_id == claim.run_id and marker.generation == claim.generation:
        return CommitOutcome.LANDED
    status = marker_status(state)
    if status is MarkerStatus.REWOUND:
        return CommitOutcome.REWOUND
    if status is MarkerStatus.REPLACED:
        return CommitOutcome.REPLACED
    if marker and marker.generation >= claim.generation:
        return CommitOutcome.FENCED
    return CommitOutcome.AGAIN


def claimed_by_another(states: Mapping[str, TableState], runs: Iterable[str]) -> str | None:
    """Return a table whose newest claim is none of these runs', if there is one.

    A process that restarts a failed run must not take the tables from a run that claimed them
    meanwhile. None: the restart may claim them.
    """
    claims = {name: state.marker for name, state in states.items() if state.marker}
    newest = max((marker.generation for marker in claims.values()), default=0)
    own_runs = set(runs)
    return min(
        (
            name
            for name, marker in claims.items()
            if marker.generation == newest and marker.run_id not in own_runs
        ),
        default=None,
    )


def plan_batch(
    state: TableState,
    claim: Claim,
    batch: PositionRange,
    consumed: Positions,
    stream_ids: Mapping[str, str],
) -> BatchPlan:
    """Judge a batch for one table, before anything is staged.

    `consumed` is how far this run has processed, with rows for the table or without. The marker
    follows only now and then: a range that starts after it, but not after `consumed`, is no gap.
    """
    status = marker_status(state)
    marker = state.marker
    if status is MarkerStatus.REWOUND:
        return BatchPlan(BatchVerdict.REWOUND, {})
    if status is not MarkerStatus.OURS or marker is None:
        return BatchPlan(BatchVerdict.REPLACED, {})
    if marker.generation != claim.generation or marker.run_id != claim.run_id:
        return BatchPlan(BatchVerdict.FENCED, {})
    # A stream without an id now (deleted, or an old broker) passes here; when all is read,
    # `refuse_recreated_streams` compares again.
    for stream, known_id in marker.stream_ids.items():
        if stream in batch.stop and stream_ids.get(stream, known_id) != known_id:
            return BatchPlan(BatchVerdict.INCARNATION, {})
    floors: dict[str, dict[int, int]] = {}
    gaps: list[GapRange] = []
    has_new = False
    for stream, partitions in batch.stop.items():
        for partition, stop in partitions.items():
            start = batch.start.get(stream, {}).get(partition, 0)
            known = _known_position(marker.positions, consumed, stream, partition)
            # A partition that came up during the run is read from its earliest record. Only one
            # with a known position can have a gap.
            if known is not None and start > known:
                gaps.append(GapRange(stream, partition, known, start))
            floor = start if known is None else max(start, known)
            floors.setdefault(stream, {})[partition] = floor
            has_new = has_new or stop > floor
    if gaps:
        return BatchPlan(BatchVerdict.GAP, floors, tuple(gaps))
    return BatchPlan(BatchVerdict.COMMIT if has_new else BatchVerdict.SKIP, floors)


def quarantine_floors(state: TableState | None, batch: PositionRange) -> Positions:
    """Return the floors of a quarantine table: its marker never means a gap or a start."""
    committed = state.marker.positions if state and state.marker else {}
    return {
        stream: {
            partition: max(
                batch.start.get(stream, {}).get(partition, 0),
                committed.get(stream, {}).get(partition, 0),
            )
            for partition in partitions
        }
        for stream, partitions in batch.stop.items()
    }


def marker_after_batch(
    state: TableState,
    batch: PositionRange,
    commit_id: str,
    counts: Counts,
    watermark_ms: int | None,
    details: Mapping[str, str],
    stream_ids: Mapping[str, str],
) -> Marker:
    """Return the marker after this batch; positions never move back."""
    old = state.marker
    assert old is not None, "a table is claimed before anything is planned for it"
    watermarks = [time_ms for time_ms in (old.watermark_ms, watermark_ms) if time_ms is not None]
    return replace(
        old,
        commit_id=commit_id,
        previous_commit_id=old.commit_id,
        sequence=old.sequence + 1,
        snapshot_sequence=state.last_sequence + 1,
        positions=max_positions(old.positions, batch.stop),
        stream_ids={**{s: stream_ids[s] for s in batch.stop if s in stream_ids}, **old.stream_ids},
        counts=old.counts + counts,
        watermark_ms=max(watermarks, default=None),
        details={**old.details, **details},
    )


def marker_after_losses(
    state: TableState,
    commit_id: str,
    losses: Iterable[Loss],
    resume: Positions,
    stream_ids: Mapping[str, str],
) -> Marker:
    """Return the marker after losses: their streams go on at `resume`, or are forgotten."""
    old = state.marker
    assert old is not None, "a table is claimed before its losses are looked at"
    accepted = tuple(losses)
    lost = {loss.stream for loss in accepted}
    positions = {stream: part for stream, part in old.positions.items() if stream not in lost}
    known_ids = {stream: id_ for stream, id_ in old.stream_ids.items() if stream not in lost}
    return replace(
        old,
        commit_id=commit_id,
        previous_commit_id=old.commit_id,
        sequence=old.sequence + 1,
        snapshot_sequence=state.last_sequence + 1,
        positions={**positions, **resume},
        stream_ids={**known_ids, **stream_ids},
        losses=(*old.losses, *accepted),
    )


def outcome_of_commit(
    state: TableState, tried: Marker, planned: TableState, base_only: bool = False
) -> CommitOutcome:
    """After an attempt that failed or went unanswered: what the table itself says of it.

    `base_only`: the files name rows by their positions, which are those of the planned snapshot.
    """
    # Ancestors first: others may have committed on top. Then the property: expiry may have removed
    # our snapshot.
    if state.uuid == tried.table_uuid and any(
        ancestor.commit_id == tried.commit_id for ancestor in state.ancestors
    ):
        return CommitOutcome.LANDED
    if state.marker and state.marker.commit_id == tried.commit_id:
        return CommitOutcome.LANDED
    marker, before = state.marker, planned.marker
    if marker and (marker.generation > tried.generation or marker.run_id != tried.run_id):
        return CommitOutcome.FENCED
    status = marker_status(state)
    if status is MarkerStatus.REWOUND:
        return CommitOutcome.REWOUND
    if status is MarkerStatus.REPLACED:
        return CommitOutcome.REPLACED
    has_moved = marker is None or before is None or marker.commit_id != before.commit_id
    if has_moved or state.schema_id != planned.schema_id:
        return CommitOutcome.RESTAGE
    if base_only and state.snapshot_ids[:1] != planned.snapshot_ids[:1]:
        return CommitOutcome.RESTAGE
    return CommitOutcome.AGAIN


def _known_position(
    committed: Positions, consumed: Positions, stream: str, partition: int
) -> int | None:
    known = [
        positions[stream][partition]
        for positions in (committed, consumed)
        if partition in positions.get(stream, {})
    ]
    return max(known, default=None)
