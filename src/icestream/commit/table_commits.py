"""Commits of a run to one table; commit/protocol.py decides, this module carries it out.

claim_table      claim a table for this run
commit_files     commit a table's part of a batch, or of its quarantine
accept_losses    record positions that the source can no longer give
commit_consumed  record consumed positions that had no rows
"""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from icestream import events
from icestream.commit import protocol, retry
from icestream.commit.port import CommitCatalog
from icestream.commit.protocol import Claim, CommitOutcome, MarkerStatus
from icestream.commit.refusals import refusal
from icestream.commit.retry import CommitResult
from icestream.commit.steps import BatchStep, ClaimStep, CommitStep, LossStep, StepAttempts
from icestream.commit.table_state import TableState, located_marker
from icestream.errors import GaveUp
from icestream.events import EventBus
from icestream.failpoints import failpoint
from icestream.positions import PositionRange, Positions, max_positions
from icestream.sources import LossReport, Source, StartPositions

_CLOCKS_DIFFER = 60.0  # seconds that Iceberg accepts

# Raises if the catalog accepts a commit from a stale base; gets the table's name and that base.
CatalogTest = Callable[[str, TableState], None]


class TableCommitter:
    """Commits for one run; used by one thread per table."""

    def __init__(
        self,
        tables: CommitCatalog,
        source: Source,
        bus: EventBus,
        claim: Claim,
        catalog_test: CatalogTest | None = None,
    ) -> None:
        self._tables = tables
        self._source = source
        self._bus = bus
        self.claim = claim
        self._catalog_test = catalog_test  # None: passed, or not to be asked
        self._sequences: dict[str, int] = {}  # commit sequence of this run's last commit, by table

    def owns(self, state: TableState) -> bool:
        """Whether the newest claim of the table is this run's."""
        marker = state.marker
        return marker is not None and (marker.generation, marker.run_id) == (
            self.claim.generation,
            self.claim.run_id,
        )

    def claim_table(self, name: str, state: TableState, start: StartPositions) -> TableState:
        """Claim a table for this run: an empty append that raises the generation in its marker.

        Returns the table's new state; raises Fenced, Rewound or Replaced.
        """
        outcome = protocol.claim_outcome(state, self.claim)
        if outcome is not CommitOutcome.AGAIN:
            raise refusal(name, outcome, state)
        _refuse_slow_clock(name, state)
        commit_id = uuid.uuid4().hex
        details: Mapping[str, str] = {}
        if state.marker is None and start.positions:
            details = self._source.store_details(
                start.positions, state.metadata.location, commit_id, {}
            )
        step = ClaimStep(self.claim, commit_id, start.positions, start.stream_ids, details)
        self._raise_unless_landed(name, self._commit(name, state, step))
        failpoint("claimed")
        # Only on a table without snapshots: the stale base has no `main`, and from now on there
        # always is one, so the test commit can never land late.
        if self._catalog_test and not state.ancestors:
            self._catalog_test(name, state)
            self._catalog_test = None
        return self._tables.load(name)

    def commit_files(self, name: str, state: TableState, step: BatchStep) -> int | None:
        """Commit files and marker. Returns the attempts; None: plan the batch again."""
        self.refuse_unless_ours(name, state)
        known_details = state.marker.details if state.marker else {}
        details = self._source.store_details(
            step.range.stop, state.metadata.location, step.commit_id, known_details
        )
        failpoint("marker-checked")
        result = self._commit(name, state, replace(step, details=details))
        if result.outcome is CommitOutcome.RESTAGE:
            return None
        self._raise_unless_landed(name, result)
        return result.attempts

    def accept_losses(self, name: str, state: TableState, losses: LossReport) -> TableState:
        """Write losses that `--accept-loss` gives up into the marker, by an empty append.

        Its positions move behind them. Returns the table's new state.
        """
        self.refuse_unless_ours(name, state)
        step = LossStep(uuid.uuid4().hex, losses.lost, losses.resume, losses.stream_ids)
        result = self._commit(name, state, step)
        if result.outcome is CommitOutcome.RESTAGE:  # the schema changed: nothing is staged here
            return self.accept_losses(name, self._tables.load(name), losses)
        self._raise_unless_landed(name, result)
        ranges = tuple(str(loss) for loss in losses.lost)
        self._bus.emit(events.LossAccepted(self.claim.pipeline, table=name, ranges=ranges))
        return self._tables.load(name)

    def commit_consumed(self, name: str, consumed: Positions) -> None:
        """Commit positions that this run has consumed without rows for the table."""
        state = self._tables.load(name)
        self.refuse_unless_ours(name, state)
        committed = located_marker(state).marker.positions
        if max_positions(committed, consumed) == committed:
            return
        # An empty append and not just a property: REST catalogs assert nothing about properties.
        step = BatchStep(
            PositionRange(committed, consumed),
            uuid.uuid4().hex,
            self._source.stream_ids(consumed),
        )
        if self.commit_files(name, state, step) is not None:
            self.note_commit(name, state)

    def note_commit(self, name: str, before: TableState) -> None:
        """Remember this run's commit: a table that is behind it later was restored."""
        self._sequences[name] = before.marker.sequence + 1 if before.marker else 1

    def refuse_unless_ours(self, name: str, state: TableState) -> None:
        """Raise unless the table is as our last commit left it.

        Planning has checked a table with rows already, but not a quiet one or a quarantine.
        """
        status = protocol.marker_status(state)
        if status in (MarkerStatus.REWOUND, MarkerStatus.REPLACED):
            raise refusal(name, status, state)
        if not self.owns(state):
            raise refusal(name, CommitOutcome.FENCED, state)
        if state.marker and state.marker.sequence < self._sequences.get(name, 0):
            # Marker and snapshots agree, but our last commit is gone: the catalog was restored.
            raise refusal(name, MarkerStatus.REWOUND, state)
        _refuse_slow_clock(name, state)

    def _commit(self, name: str, planned: TableState, step: CommitStep) -> CommitResult:
        attempts = StepAttempts(self._tables, name, planned, step)
        return retry.commit_with_retries(self._tables, attempts, planned, retry.backoff)

    def _raise_unless_landed(self, name: str, result: CommitResult) -> None:
        """Emit `commit_retried` if there was a failure; raise the error of any other outcome."""
        if result.reason:
            self._bus.emit(
                events.CommitRetried(
                    pipeline=self.claim.pipeline,
                    table=name,
                    attempts=result.attempts,
                    outcome=result.outcome.value,
                    reason=result.reason,
                )
            )
        if result.outcome is CommitOutcome.LANDED:
            return
        if result.outcome is CommitOutcome.AGAIN:
            raise GaveUp(
                f"table `{name}`: {result.attempts} commits failed: {result.reason}",
                hint="nothing is lost; start again when the catalog answers",
            )
        raise refusal(name, result.outcome)


def _refuse_slow_clock(name: str, state: TableState) -> None:
    """Raise if our clock is behind: Iceberg refuses snapshots a minute older than the newest."""
    current = state.metadata.current
    ahead = current.at_ms / 1000 - time.time() if current else 0.0
    if ahead > _CLOCKS_DIFFER:
        raise GaveUp(
            f"table `{name}`: its newest snapshot is {ahead:,.0f} s ahead of this machine's clock",
            hint="nothing is lost; set the clock right, here or where the others write",
        )
