"""The pure part of the protocol: facts about a table in, a verdict or the next marker out.

No Spark, no Iceberg, no clock, no randomness: those come in through the `CommitCatalog` port and
the arguments, so that a simulator can run the very same code. docs/design/exactly-once.md says why.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from icestream.commit.table_state import TableState
from icestream.positions import PositionRange, Positions, max_positions
from icestream.tables.marker import Counts, Loss, Marker


@dataclass(frozen=True)
class GapRange:
    """Positions that the source no longer has."""

    stream: str
    partition: int
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}: {self.start} to {self.stop}"


class MarkerStatus(Enum):
    """Whether a table is the one that our marker speaks of."""

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
    """The right of one run to write, until somebody claims a higher generation."""

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
    own = next((each.commit_id for each in state.ancestors if each.commit_id), None)
    marker = state.marker
    if marker is None:
        return MarkerStatus.NEW if own is None else MarkerStatus.REWOUND
    if marker.table_uuid != state.uuid:
        return MarkerStatus.REPLACED
    if own is not None:
        return MarkerStatus.OURS if own == marker.commit_id else MarkerStatus.REWOUND
    # No own snapshot is left. Expiry explains that only if the walk was cut short, behind us.
    oldest = state.ancestors[-1] if state.ancestors else None
    if oldest is None or oldest.parent_id is None:
        return MarkerStatus.REPLACED
    behind = oldest.sequence_number >= marker.snapshot_sequence
    return MarkerStatus.OURS if behind else MarkerStatus.REPLACED


def next_generation(states: Iterable[TableState]) -> int:
    """One above every generation seen in the pipeline's tables."""
    return 1 + max((state.marker.generation for state in states if state.marker), default=0)


def marker_of_claim(
    state: TableState,
    claim: Claim,
    commit_id: str,
    start: Positions,
    stream_ids: Mapping[str, str],
    details: Mapping[str, str],
) -> Marker:
    """The marker that claims a table; only a table without one begins at `start`."""
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
    """Whether `claim` may (still) take the table: AGAIN means yes, try from this view."""
    marker = state.marker
    if marker and marker.run_id == claim.run_id and marker.generation == claim.generation:
        return CommitOutcome.LANDED
    stand = marker_status(state)
    if stand is MarkerStatus.REWOUND:
        return CommitOutcome.REWOUND
    if stand is MarkerStatus.REPLACED:
        return CommitOutcome.REPLACED
    if marker and marker.generation >= claim.generation:
        return CommitOutcome.FENCED
    return CommitOutcome.AGAIN


def claimed_by_another(states: Mapping[str, TableState], runs: Iterable[str]) -> str | None:
    """Name a table whose newest claim is none of these runs', or None: they may begin again.

    A process that begins a broken run anew must not take its tables from whoever came meanwhile.
    """
    claims = {name: state.marker for name, state in states.items() if state.marker}
    newest = max((marker.generation for marker in claims.values()), default=0)
    known = set(runs)
    return min(
        (
            name
            for name, marker in claims.items()
            if marker.generation == newest and marker.run_id not in known
        ),
        default=None,
    )


def plan_batch(
    state: TableState,
    claim: Claim,
    batch: PositionRange,
    progress: Positions,
    stream_ids: Mapping[str, str],
) -> BatchPlan:
    """Judge a batch for one table, before anything is staged.

    `progress` is what this run has seen go by without rows for the table: the marker in the
    table only follows now and then, and a range that starts behind it is no gap.
    """
    stand = marker_status(state)
    marker = state.marker
    if stand is MarkerStatus.REWOUND:
        return BatchPlan(BatchVerdict.REWOUND, {})
    if stand is not MarkerStatus.OURS or marker is None:
        return BatchPlan(BatchVerdict.REPLACED, {})
    if marker.generation != claim.generation or marker.run_id != claim.run_id:
        return BatchPlan(BatchVerdict.FENCED, {})
    for stream, known in marker.stream_ids.items():
        if stream in batch.stop and stream_ids.get(stream, known) != known:
            return BatchPlan(BatchVerdict.INCARNATION, {})
    floors: dict[str, dict[int, int]] = {}
    missing: list[GapRange] = []
    fresh = False
    for stream, partitions in batch.stop.items():
        for number, stop in partitions.items():
            start = batch.start.get(stream, {}).get(number, 0)
            known_at = _known_position(marker.positions, progress, stream, number)
            if known_at is not None and start > known_at:
                missing.append(GapRange(stream, number, known_at, start))
            floor = start if known_at is None else max(start, known_at)
            floors.setdefault(stream, {})[number] = floor
            fresh = fresh or stop > floor
    if missing:
        return BatchPlan(BatchVerdict.GAP, floors, tuple(missing))
    return BatchPlan(BatchVerdict.COMMIT if fresh else BatchVerdict.SKIP, floors)


def quarantine_floors(state: TableState | None, batch: PositionRange) -> Positions:
    """Floors of a quarantine table: its marker trims, but never means a gap or a start."""
    kept = state.marker.positions if state and state.marker else {}
    return {
        stream: {
            number: max(
                batch.start.get(stream, {}).get(number, 0), kept.get(stream, {}).get(number, 0)
            )
            for number in partitions
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
    """The marker after this batch; positions never move back."""
    old = state.marker
    assert old is not None, "a table is claimed before anything is planned for it"
    marks = [mark for mark in (old.watermark_ms, watermark_ms) if mark is not None]
    return replace(
        old,
        commit_id=commit_id,
        previous_commit_id=old.commit_id,
        sequence=old.sequence + 1,
        snapshot_sequence=state.last_sequence + 1,
        positions=max_positions(old.positions, batch.stop),
        stream_ids={**{s: stream_ids[s] for s in batch.stop if s in stream_ids}, **old.stream_ids},
        counts=old.counts + counts,
        watermark_ms=max(marks, default=None),
        details={**old.details, **details},
    )


def marker_after_losses(
    state: TableState,
    commit_id: str,
    losses: Iterable[Loss],
    resume: Positions,
    stream_ids: Mapping[str, str],
) -> Marker:
    """The marker after accepted losses: their streams go on at `resume`, or are forgotten."""
    old = state.marker
    assert old is not None, "a table is claimed before its losses are looked at"
    accepted = tuple(losses)
    hurt = {loss.stream for loss in accepted}
    return replace(
        old,
        commit_id=commit_id,
        previous_commit_id=old.commit_id,
        sequence=old.sequence + 1,
        snapshot_sequence=state.last_sequence + 1,
        positions={**{s: at for s, at in old.positions.items() if s not in hurt}, **resume},
        stream_ids={**{s: i for s, i in old.stream_ids.items() if s not in hurt}, **stream_ids},
        losses=(*old.losses, *accepted),
    )


def outcome_of_commit(
    state: TableState, tried: Marker, planned: TableState, pinned: bool = False
) -> CommitOutcome:
    """After a commit without a plain yes: what does the table itself say?

    `pinned` work speaks of rows at their positions: it only fits the snapshot it was made for.
    """
    if state.uuid == tried.table_uuid and any(
        a.commit_id == tried.commit_id for a in state.ancestors
    ):
        return CommitOutcome.LANDED
    if state.marker and state.marker.commit_id == tried.commit_id:
        return CommitOutcome.LANDED
    marker, before = state.marker, planned.marker
    if marker and (marker.generation > tried.generation or marker.run_id != tried.run_id):
        return CommitOutcome.FENCED
    stand = marker_status(state)
    if stand is MarkerStatus.REWOUND:
        return CommitOutcome.REWOUND
    if stand is MarkerStatus.REPLACED:
        return CommitOutcome.REPLACED
    moved = marker is None or before is None or marker.commit_id != before.commit_id
    if moved or state.schema_id != planned.schema_id:
        return CommitOutcome.RESTAGE
    if pinned and [a.snapshot_id for a in state.ancestors[:1]] != [
        a.snapshot_id for a in planned.ancestors[:1]
    ]:
        return CommitOutcome.RESTAGE
    return CommitOutcome.AGAIN


def _known_position(marker: Positions, progress: Positions, stream: str, number: int) -> int | None:
    seen = [
        positions[stream][number]
        for positions in (marker, progress)
        if number in positions.get(stream, {})
    ]
    return max(seen, default=None)
