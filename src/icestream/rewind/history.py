"""A table's past as its snapshots tell it: which marker it had where; pure, metadata in.

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
_UNTOLD = ("recreated", "truncated", "deleted")


class _MarkerUnknown(Exception):
    """Why a marker cannot be put together."""


@dataclass(frozen=True)
class TableHistory:
    """One table, every retained snapshot of it, and the marker that counts now."""

    table: str
    pipeline: str
    marker: Marker
    current_id: int
    last_sequence: int
    location: str
    snapshots: Mapping[int, Snapshot]

    def ancestors(self, snapshot_id: int) -> tuple[Snapshot, ...]:
        """From a snapshot back to the oldest that is retained, newest first."""
        found: list[Snapshot] = []
        at: int | None = snapshot_id
        while at is not None and at in self.snapshots and len(found) < len(self.snapshots):
            found.append(self.snapshots[at])
            at = self.snapshots[at].parent_id
        return tuple(found)

    def own_commits(self, snapshot_id: int) -> list[Snapshot]:
        """Our commits on that way."""
        return [step for step in self.ancestors(snapshot_id) if step.pipeline == self.pipeline]

    def marker_at(self, snapshot_id: int) -> Marker:
        """The marker as it was; counts of bad records are still those of today.

        Raises TableRefused, which names the oldest snapshot that can be reached.
        """
        try:
            return self._marker_at(snapshot_id)
        except _MarkerUnknown as why:
            raise TableRefused(
                f"table `{self.table}` cannot go back to snapshot {snapshot_id}: {why}",
                hint=self._oldest(),
            ) from None

    def knows_marker_at(self, snapshot_id: int) -> bool:
        """Whether the marker of a snapshot can be told."""
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
        back, forth = not_among(newer, own), not_among(own, newer)
        whole = own[-1].previous_id is None
        if not whole and len(forth) == len(own):
            raise _MarkerUnknown("its history has no commit in common with the table's")
        self._refuse_other_records(newer, back)
        landed = self.marker.counts.landed + _rows(forth) - _rows(back)
        newest = own[0]
        positions = self._positions(own, back, whole)
        mark = newest.summary.get(WATERMARK)
        return replace(
            self.marker,
            generation=newest.number(GENERATION),
            commit_id=newest.commit_id or "",
            previous_commit_id=newest.previous_id,
            sequence=newest.number(SEQUENCE),
            positions=positions,
            stream_ids={s: i for s, i in self.marker.stream_ids.items() if s in positions},
            counts=replace(self.marker.counts, landed=_rows(own) if whole else landed),
            watermark_ms=int(mark) if mark else None,
            details=self._details(own, whole),
            losses=tuple(loss for loss in self.marker.losses if _was_accepted(loss, positions)),
        )

    def _is_tip(self, step: Snapshot) -> bool:
        return step.pipeline == self.pipeline and step.commit_id == self.marker.commit_id

    def _positions(
        self, own: Sequence[Snapshot], back: Sequence[Snapshot], whole: bool
    ) -> Positions:
        known = flat_positions(own)
        if not whole:
            since = flat_positions(back)
            for place, at in flat(self.marker.positions).items():
                if place not in known and place in since:
                    raise _MarkerUnknown(
                        f"the position of {place[0]}/{place[1]} at that time has expired"
                    )
                known.setdefault(place, at)  # it has not moved since
        gone = self._streams("deleted") - self.marker.positions.keys()
        return nested({place: at for place, at in known.items() if place[0] not in gone})

    def _refuse_other_records(self, newer: Sequence[Snapshot], back: Sequence[Snapshot]) -> None:
        """Before an accepted loss, the positions of its topic meant records that are gone."""
        gone = self._streams("deleted") - self.marker.positions.keys()
        hurt, left = self._streams(*_UNTOLD), {step.snapshot_id for step in back}
        at: dict[tuple[str, int], int] = {}
        for step in reversed(newer):
            for (stream, number), position in flat(step.moved).items():
                fell = position < at.get((stream, number), position)
                if stream in hurt and step.snapshot_id in left and (fell or stream in gone):
                    raise _MarkerUnknown(
                        f"`{stream}` was deleted, created again or truncated after it, and its "
                        "records cannot be read again"
                    )
                at[stream, number] = position

    def _streams(self, *kinds: str) -> set[str]:
        return {loss.stream for loss in self.marker.losses if loss.kind in kinds}

    def _details(self, own: Sequence[Snapshot], whole: bool) -> Mapping[str, str]:
        """The list of a folder's files is named by the commit that last moved the position."""
        if "ledger" not in self.marker.details:
            return self.marker.details
        moved = next((step for step in own if step.moved), None)
        if moved:
            return {**self.marker.details, "ledger": f"positions-{moved.commit_id}.jsonl"}
        rest = {key: value for key, value in self.marker.details.items() if key != "ledger"}
        return rest if whole else self.marker.details

    def _oldest(self) -> str:
        for step in reversed(self.own_commits(self.current_id)):
            if self.knows_marker_at(step.snapshot_id):
                return f"the oldest that can be reached is {step.snapshot_id}"
        return "no snapshot of it can be reached"


def table_history(metadata: Metadata, table: str, pipeline: str) -> TableHistory:
    """Read a table's metadata; raises TableRefused when there is nothing to go back in."""
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
        snapshots={each.snapshot_id: each for each in metadata.snapshots},
    )


def marker_after_rewind(
    past: TableHistory, then: Marker, counts: Counts, generation: int, ids: tuple[str, str]
) -> Marker:
    """The marker that goes on from `then`: next in its chain, of a generation of its own."""
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


def not_among(steps: Iterable[Snapshot], others: Iterable[Snapshot]) -> list[Snapshot]:
    """Those that are not among the others."""
    known = {step.snapshot_id for step in others}
    return [step for step in steps if step.snapshot_id not in known]


def flat_positions(newest_first: Sequence[Snapshot]) -> dict[tuple[str, int], int]:
    """Where these commits together have moved each partition that they mention."""
    found: dict[tuple[str, int], int] = {}
    for step in reversed(newest_first):
        found.update(flat(step.moved))
    return found


def _rows(steps: Iterable[Snapshot]) -> int:
    return sum(step.records for step in steps)


def _was_accepted(loss: Loss, positions: Positions) -> bool:
    """Whether a loss was accepted by then: the position has passed its range."""
    if loss.kind in _UNTOLD or loss.stop is None:
        return True
    return positions.get(loss.stream, {}).get(loss.partition, -1) >= loss.stop
