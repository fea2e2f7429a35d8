"""What the stream commits to a table: a claim, its part of a batch, accepted losses; pure.

A step gives the marker for whatever base is tried, always with the same commit id, and says what a
look at the table means after an attempt without a plain yes.
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
    """One commit of the stream, whichever base it is tried from."""

    @property
    def files(self) -> AddedFiles:
        """What comes with the marker."""
        ...

    def marker(self, state: TableState) -> Marker:
        """The marker, if the commit is made from this state."""
        ...

    def judge(self, seen: TableState, tried: Marker, planned: TableState) -> CommitOutcome:
        """After a failed attempt: what the table itself says of it."""
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
        """From what is there now: the run before us may have committed since we looked."""
        return protocol.marker_of_claim(
            state, self.claim, self.commit_id, self.start, self.stream_ids, self.details
        )

    def judge(self, seen: TableState, tried: Marker, planned: TableState) -> CommitOutcome:
        """Whether the claim is in, or may still be tried."""
        return protocol.claim_outcome(seen, self.claim)


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
        """Positions never move back."""
        return protocol.marker_after_batch(
            state,
            self.range,
            self.commit_id,
            self.counts,
            self.watermark_ms,
            self.details,
            self.stream_ids,
        )

    def judge(self, seen: TableState, tried: Marker, planned: TableState) -> CommitOutcome:
        """Whether the files are in, fit this base as well, or must be staged again."""
        return protocol.outcome_of_commit(seen, tried, planned, self.files.base_only)


@dataclass(frozen=True)
class LossStep:
    """Write down positions that the source can no longer give, and go on behind them."""

    commit_id: str
    losses: tuple[Loss, ...]
    resume: Positions
    stream_ids: Mapping[str, str]
    files: AddedFiles = field(default_factory=AddedFiles)

    def marker(self, state: TableState) -> Marker:
        """The streams concerned go on at `resume`, or are forgotten."""
        return protocol.marker_after_losses(
            state, self.commit_id, self.losses, self.resume, self.stream_ids
        )

    def judge(self, seen: TableState, tried: Marker, planned: TableState) -> CommitOutcome:
        """As for a batch."""
        return protocol.outcome_of_commit(seen, tried, planned)


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
        """One compare-and-set from this base."""
        self._tried = self._step.marker(state)
        before = state.marker.positions if state.marker else {}
        self._tables.commit(self.name, state.base, self._tried, before, self._step.files)

    def judge(self, seen: TableState) -> CommitOutcome:
        """What became of the last attempt."""
        assert self._tried is not None, "only an attempt is judged"
        return self._step.judge(seen, self._tried, self._planned)
