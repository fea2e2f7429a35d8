"""A table's history by its snapshots: which marker it had at which; pure, metadata in.

A summary holds the ids of its commit and the partitions that moved. The whole marker of an older
snapshot is put together from the summaries up to it and, for what expiry has hidden, from what has
not moved since. What cannot be known is refused, never guessed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from icestream.commit.protocol import MarkerStatus, marker_status
from icestream.commit.refusals import refusal
from icestream.commit.table_state import table_state
from icestream.errors import TableRefused
from icestream.positions import Positions, flat, nested
from icestream.tables.commits import GENERATION, SEQUENCE, WATERMARK, Snapshot
from icestream.tables.marker import Counts, Loss, Marker
from icestream.tables.metadata import Metadata

# Losses after which positions mean other records than before, or none.
_REUSED_AFTER = ("recreated", "truncated", "deleted")


class _MarkerUnknown(Exception):
    """The marker of a snapshot cannot be put together; the text says why."""


@dataclass(frozen=True)
class TableHistory:
    """One table with every retained snapshot and its present marker."""

    table: str
    pipeline: str
    marker: Marker
    current_id: int
    last_sequence: int
    location: str
    snapshots: Mapping[int, Snapshot]

    def ancestors(self, snapshot_id: int) -> tuple[Snapshot, ...]:
        """List the snapshots from one back to its oldest retained ancestor, newest first."""
        ancestors: list[Snapshot] = []
        snapshot = self.snapshots.get(snapshot_id)
        # The bound ends a ring, which only damaged metadata can hold.
        while snapshot and len(ancestors) < len(self.snapshots):
            ancestors.append(snapshot)
            parent_id = snapshot.parent_id
            snapshot = self.snapshots.get(parent_id) if parent_id is not None else None
        return tuple(ancestors)

    def own_commits(self, snapshot_id: int) -> list[Snapshot]:
        """List this pipeline's commits among a snapshot and its ancestors, newest first."""
        return [s for s in self.ancestors(snapshot_id) if s.pipeline == self.pipeline]

    def marker_at(self, snapshot_id: int) -> Marker:
        """Put together the marker at a snapshot; counts of bad records are still those of today.

        Raises TableRefused, with the oldest snapshot that can be reached as its hint.
        """
        try:
            return self._marker_at(snapshot_id)
        except _MarkerUnknown as why:
            raise TableRefused(
                f"table `{self.table}` cannot go back to snapshot {snapshot_id}: {why}",
                hint=self._oldest(),
            ) from None

    def knows_marker_at(self, snapshot_id: int) -> bool:
        """Whether the marker at a snapshot can be put together."""
        try:
            self._marker_at(snapshot_id)
        except _MarkerUnknown:
            return False
        return True

    def _marker_at(self, snapshot_id: int) -> Marker:
        own = self.own_commits(snapshot_id)
        if not own:
            raise _MarkerUnknown("no commit of this pipeline is retained at or before it")
        tip = next((s for s in self.snapshots.values() if self._is_tip(s)), None)
        if tip is None:
            raise _MarkerUnknown("the commit that the marker speaks of has expired")
        newer = self.own_commits(tip.snapshot_id)
        # Usually the snapshot is an ancestor of the marker's commit, and nothing is `added`.
        undone, added = not_among(newer, own), not_among(own, newer)
        complete = own[-1].previous_id is None  # retained back to the first claim
        if not complete and len(added) == len(own):
            raise _MarkerUnknown("its history has no commit in common with the table's")
        self._refuse_other_records(newer, undone)
        landed = self.marker.counts.landed + _rows(added) - _rows(undone)
        newest = own[0]
        positions = self._positions(own, undone, complete)
        watermark = newest.summary.get(WATERMARK)
        return replace(
            self.marker,
            generation=newest.number(GENERATION),
            commit_id=newest.commit_id or "",
            previous_commit_id=newest.previous_id,
            sequence=newest.number(SEQUENCE),
            positions=positions,
            stream_ids={s: i for s, i in self.marker.stream_ids.items() if s in positions},
            counts=replace(self.marker.counts, landed=_rows(own) if complete else landed),
            watermark_ms=int(watermark) if watermark else None,
            details=self._details(own, complete),
            losses=tuple(loss for loss in self.marker.losses if _was_accepted(loss, positions)),
        )

    def _is_tip(self, snapshot: Snapshot) -> bool:
        return snapshot.pipeline == self.pipeline and snapshot.commit_id == self.marker.commit_id

    def _positions(
        self, own: Sequence[Snapshot], undone: Sequence[Snapshot], complete: bool
    ) -> Positions:
        """Find the positions after the commits `own`, of which the oldest may have expired."""
        known = flat_positions(own)
        if not complete:
            moved_since = flat_positions(undone)
            for partition, position in flat(self.marker.positions).items():
                if partition not in known and partition in moved_since:
                    raise _MarkerUnknown(
                        f"the position of {partition[0]}/{partition[1]} at that time has expired"
                    )
                known.setdefault(partition, position)  # it has not moved since
        deleted = self._streams("deleted") - self.marker.positions.keys()
        return nested({p: position for p, position in known.items() if p[0] not in deleted})

    def _refuse_other_records(self, newer: Sequence[Snapshot], undone: Sequence[Snapshot]) -> None:
        """Before an accepted loss, the positions of its topic meant records that are lost."""
        deleted = self._streams("deleted") - self.marker.positions.keys()
        lossy, undone_ids = self._streams(*_REUSED_AFTER), {s.snapshot_id for s in undone}
        current: dict[tuple[str, int], int] = {}
        for snapshot in reversed(newer):
            for (stream, partition), position in flat(snapshot.moved).items():
                fell = position < current.get((stream, partition), position)
                is_undone = snapshot.snapshot_id in undone_ids
                if stream in lossy and is_undone and (fell or stream in deleted):
                    raise _MarkerUnknown(
                        f"`{stream}` was deleted, created again or truncated after it, and its "
                        "records cannot be read again"
                    )
                current[stream, partition] = position

    def _streams(self, *kinds: str) -> set[str]:
        return {loss.stream for loss in self.marker.losses if loss.kind in kinds}

    def _details(self, own: Sequence[Snapshot], complete: bool) -> Mapping[str, str]:
        """Name the position list of a folder: that of the commit that last moved the position."""
        if "ledger" not in self.marker.details:
            return self.marker.details
        moved = next((snapshot for snapshot in own if snapshot.moved), None)
        if moved:
            return {**self.marker.details, "ledger": f"positions-{moved.commit_id}.jsonl"}
        others = {key: value for key, value in self.marker.details.items() if key != "ledger"}
        return others if complete else self.marker.details

    def _oldest(self) -> str:
        for snapshot in reversed(self.own_commits(self.current_id)):
            if self.knows_marker_at(snapshot.snapshot_id):
                return f"the oldest that can be reached is {snapshot.snapshot_id}"
        return "no snapshot of it can be reached"


def table_history(metadata: Metadata, table: str, pipeline: str) -> TableHistory:
    """Read the history from a table's metadata; raises TableRefused when it has no marker."""
    state = table_state(metadata, pipeline)
    if marker_status(state) is MarkerStatus.REPLACED:
        raise refusal(table, MarkerStatus.REPLACED, state)
    if state.marker is None or metadata.snapshot_id is None:
        raise TableRefused(
            f"table `{table}` has no marker of pipeline `{pipeline}`",
            hint="it goes back by its marker: restore the table property, or run the pipeline once",
        )
    return TableHistory(
        table=table,
        pipeline=pipeline,
        marker=state.marker,
        current_id=metadata.snapshot_id,
        last_sequence=state.last_sequence,
        location=metadata.location,
        snapshots={snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots},
    )


def marker_after_rewind(
    past: TableHistory, then: Marker, counts: Counts, generation: int, ids: tuple[str, str]
) -> Marker:
    """Make the marker that follows `then`: next in its chain, of a generation of its own."""
    run_id, commit_id = ids
    return replace(
        then,
        generation=generation,
        run_id=run_id,
        commit_id=commit_id,
        previous_commit_id=then.commit_id,
        sequence=then.sequence + 1,
        snapshot_sequence=past.last_sequence + 1,
        counts=counts,
    )


def not_among(snapshots: Iterable[Snapshot], others: Iterable[Snapshot]) -> list[Snapshot]:
    """List the snapshots that are not among the others."""
    known = {snapshot.snapshot_id for snapshot in others}
    return [snapshot for snapshot in snapshots if snapshot.snapshot_id not in known]


def flat_positions(newest_first: Sequence[Snapshot]) -> dict[tuple[str, int], int]:
    """Return the last position of each partition that these commits moved."""
    positions: dict[tuple[str, int], int] = {}
    for snapshot in reversed(newest_first):
        positions.update(flat(snapshot.moved))
    return positions


def _rows(snapshots: Iterable[Snapshot]) -> int:
    return sum(snapshot.records for snapshot in snapshots)


def _was_accepted(loss: Loss, positions: Positions) -> bool:
    """Whether a loss was accepted before these positions: they are behind its range."""
    if loss.kind in _REUSED_AFTER or loss.stop is None:
        return True
    return positions.get(loss.stream, {}).get(loss.partition, -1) >= loss.stop
