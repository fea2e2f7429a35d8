"""A table's past as its snapshots tell it: which marker it had where; pure, metadata in.

A summary holds the ids of its commit and the partitions that moved. The whole marker of an older
snapshot is put together from the summaries up to it and, for what expiry has hidden, from what has
not moved since. What cannot be known is refused, never guessed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from icestream.commit.protocol import MarkerStatus, marker_status
from icestream.commit.refusals import refusal
from icestream.commit.table_state import table_state
from icestream.errors import TableRefused
from icestream.positions import Positions
from icestream.tables.marker import Counts, Loss, Marker

# Losses after which positions mean other records than before, or none.
_UNTOLD = ("recreated", "truncated", "deleted")


@dataclass(frozen=True)
class HistorySnapshot:
    """One retained snapshot."""

    snapshot_id: int
    parent_id: int | None
    at_ms: int
    operation: str
    summary: Mapping[str, str]

    def number(self, key: str) -> int:
        """A count of the summary; one that is not there is 0."""
        return int(self.summary.get(key, 0))

    @property
    def pipeline(self) -> str | None:
        """Whose commit it is, if a pipeline's."""
        return self.summary.get("icestream.pipeline")

    @property
    def commit_id(self) -> str:
        """Of a pipeline's commit."""
        return self.summary.get("icestream.commit-id", "")

    @property
    def is_first(self) -> bool:
        """Whether it is the claim that a pipeline began with."""
        return "icestream.previous-commit-id" not in self.summary

    @property
    def records(self) -> int:
        """Rows that a pipeline's commit brought."""
        return self.number("icestream.records")

    @cached_property
    def moved(self) -> Positions:
        """Partitions that the commit moved, and how far."""
        raw = json.loads(self.summary.get("icestream.offsets", "{}"))
        return {s: {int(n): at for n, at in parts.items()} for s, parts in raw.items()}


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
    snapshots: Mapping[int, HistorySnapshot]

    def ancestors(self, snapshot_id: int) -> tuple[HistorySnapshot, ...]:
        """From a snapshot back to the oldest that is retained, newest first."""
        found: list[HistorySnapshot] = []
        at: int | None = snapshot_id
        while at is not None and at in self.snapshots and len(found) < len(self.snapshots):
            found.append(self.snapshots[at])
            at = self.snapshots[at].parent_id
        return tuple(found)

    def own_commits(self, snapshot_id: int) -> list[HistorySnapshot]:
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
        whole = own[-1].is_first
        if not whole and len(forth) == len(own):
            raise _MarkerUnknown("its history has no commit in common with the table's")
        self._refuse_other_records(newer, back)
        landed = self.marker.counts.landed + _rows(forth) - _rows(back)
        newest = own[0]
        positions = self._positions(own, back, whole)
        mark = newest.summary.get("icestream.watermark")
        return replace(
            self.marker,
            generation=newest.number("icestream.generation"),
            commit_id=newest.commit_id,
            previous_commit_id=newest.summary.get("icestream.previous-commit-id"),
            sequence=newest.number("icestream.sequence"),
            positions=positions,
            stream_ids={s: i for s, i in self.marker.stream_ids.items() if s in positions},
            counts=replace(self.marker.counts, landed=_rows(own) if whole else landed),
            watermark_ms=int(mark) if mark else None,
            details=self._details(own, whole),
            losses=tuple(loss for loss in self.marker.losses if _was_accepted(loss, positions)),
        )

    def _is_tip(self, step: HistorySnapshot) -> bool:
        return step.pipeline == self.pipeline and step.commit_id == self.marker.commit_id

    def _positions(
        self, own: Sequence[HistorySnapshot], back: Sequence[HistorySnapshot], whole: bool
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

    def _refuse_other_records(
        self, newer: Sequence[HistorySnapshot], back: Sequence[HistorySnapshot]
    ) -> None:
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

    def _details(self, own: Sequence[HistorySnapshot], whole: bool) -> Mapping[str, str]:
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


def table_history(document: Mapping[str, Any], table: str, pipeline: str) -> TableHistory:
    """Read a table's metadata; raises TableRefused when there is nothing to go back in."""
    view = table_state(document, pipeline)
    if marker_status(view) is MarkerStatus.REPLACED:
        raise refusal(table, MarkerStatus.REPLACED.value, view)
    current = document.get("current-snapshot-id")
    if view.marker is None or current is None:
        raise TableRefused(
            f"table `{table}` has no marker of pipeline `{pipeline}`",
            hint="it goes back by its marker: restore the table property, or run the pipeline once",
        )
    steps = {}
    for raw in document.get("snapshots") or ():
        notes = dict(raw.get("summary") or {})
        steps[raw["snapshot-id"]] = HistorySnapshot(
            snapshot_id=raw["snapshot-id"],
            parent_id=raw.get("parent-snapshot-id"),
            at_ms=raw["timestamp-ms"],
            operation=notes.pop("operation", "unknown"),
            summary=notes,
        )
    return TableHistory(
        table=table,
        pipeline=pipeline,
        marker=view.marker,
        current_id=current,
        last_sequence=view.last_sequence,
        location=document["location"],
        snapshots=steps,
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


def not_among(
    steps: Iterable[HistorySnapshot], others: Iterable[HistorySnapshot]
) -> list[HistorySnapshot]:
    """Those that are not among the others."""
    known = {step.snapshot_id for step in others}
    return [step for step in steps if step.snapshot_id not in known]


def flat(positions: Positions) -> dict[tuple[str, int], int]:
    """By stream and partition."""
    return {(s, n): at for s, partitions in positions.items() for n, at in partitions.items()}


def nested(positions: Mapping[tuple[str, int], int]) -> Positions:
    """By stream, then by partition."""
    found: dict[str, dict[int, int]] = {}
    for (stream, number), at in positions.items():
        found.setdefault(stream, {})[number] = at
    return found


def flat_positions(newest_first: Sequence[HistorySnapshot]) -> dict[tuple[str, int], int]:
    """Where these commits together have moved each partition that they mention."""
    found: dict[tuple[str, int], int] = {}
    for step in reversed(newest_first):
        found.update(flat(step.moved))
    return found


def _rows(steps: Iterable[HistorySnapshot]) -> int:
    return sum(step.records for step in steps)


def _was_accepted(loss: Loss, positions: Positions) -> bool:
    """Whether a loss was accepted by then: the position has passed its range."""
    if loss.kind in _UNTOLD or loss.stop is None:
        return True
    return positions.get(loss.stream, {}).get(loss.partition, -1) >= loss.stop
