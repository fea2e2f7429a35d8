"""What a run commits to a table: a claim, its part of a batch, accepted losses; pure.

A step makes the marker for any base, always with the same commit id, and judges by the table what
became of an attempt that failed or went unanswered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from icestream.commit import protocol
from icestream.commit.port import AddedFiles, CommitCatalog
from icestream.commit.protocol import Claim, CommitOutcome
from icestream.commit.table_state import TableState
from icestream.positions import PositionRange, Positions
from icestream.tables.marker import Counts, Loss, Marker


class CommitStep(Protocol):
    """One commit of a run, whichever base it is tried from."""

    @property
    def files(self) -> AddedFiles:
        """The files that are committed with the marker; may be none."""
        ...

    def marker(self, state: TableState) -> Marker:
        """Return the marker for an attempt from this state."""
        ...

    def judge(self, state: TableState, tried: Marker, planned: TableState) -> CommitOutcome:
        """After a failed attempt: return what the table's state says of it."""
        ...


@dataclass(frozen=True)
class ClaimStep:
    """Raise the generation in a table's marker; only a table without one begins at `start`."""

    claim: Claim
    commit_id: str
    start: Positions
    stream_ids: Mapping[str, str]
    details: Mapping[str, str]
    files: AddedFiles = field(default_factory=AddedFiles)

    def marker(self, state: TableState) -> Marker:
        """Return the marker from the current state: the run before us may still have committed."""
        return protocol.marker_of_claim(
            state, self.claim, self.commit_id, self.start, self.stream_ids, self.details
        )

    def judge(self, state: TableState, tried: Marker, planned: TableState) -> CommitOutcome:
        """Whether the claim was committed, or may still be tried."""
        return protocol.claim_outcome(state, self.claim)


@dataclass(frozen=True)
class BatchStep:
    """Add the files of a batch and move the positions behind its range."""

    range: PositionRange
    commit_id: str
    stream_ids: Mapping[str, str]
    files: AddedFiles = field(default_factory=AddedFiles)
    counts: Counts = field(default_factory=Counts)
    watermark_ms: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)

    def marker(self, state: TableState) -> Marker:
        """Return the marker with the positions after the range; they never move back."""
        return protocol.marker_after_batch(
            state,
            self.range,
            self.commit_id,
            self.counts,
            self.watermark_ms,
            self.details,
            self.stream_ids,
        )

    def judge(self, state: TableState, tried: Marker, planned: TableState) -> CommitOutcome:
        """Whether the files were committed, fit this base as well, or must be staged again."""
        return protocol.outcome_of_commit(state, tried, planned, self.files.base_only)


@dataclass(frozen=True)
class LossStep:
    """Record positions that the source can no longer give, and go on behind them."""

    commit_id: str
    losses: tuple[Loss, ...]
    resume: Positions
    stream_ids: Mapping[str, str]
    files: AddedFiles = field(default_factory=AddedFiles)

    def marker(self, state: TableState) -> Marker:
        """Return the marker in which the streams concerned go on at `resume`, or are forgotten."""
        return protocol.marker_after_losses(
            state, self.commit_id, self.losses, self.resume, self.stream_ids
        )

    def judge(self, state: TableState, tried: Marker, planned: TableState) -> CommitOutcome:
        """As for a batch."""
        return protocol.outcome_of_commit(state, tried, planned)


class StepAttempts:
    """The attempts of one step at one table, for `commit_with_retries`."""

    def __init__(
        self, tables: CommitCatalog, name: str, planned: TableState, step: CommitStep
    ) -> None:
        self.name = name
        self._tables = tables
        self._planned = planned
        self._step = step
        self._tried: Marker | None = None

    def try_once(self, state: TableState) -> None:
        """Commit by one compare-and-set from this base."""
        self._tried = self._step.marker(state)
        before = state.marker.positions if state.marker else {}
        self._tables.commit(self.name, state.base, self._tried, before, self._step.files)

    def judge(self, state: TableState) -> CommitOutcome:
        """Return what became of the last attempt."""
        assert self._tried is not None, "judged before an attempt"
        return self._step.judge(state, self._tried, self._planned)
