"""The marker chain: checks a table's commits by its snapshots' summaries; pure, no file is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from icestream.commit.protocol import MarkerStatus, marker_status
from icestream.commit.table_state import table_state
from icestream.errors import Replaced
from icestream.positions import Positions, flat, nested
from icestream.tables.commits import GENERATION, SEQUENCE, Snapshot
from icestream.tables.marker import Marker, property_name
from icestream.tables.metadata import Metadata
from icestream.verify.report import TableFindings

# Losses after which the topic gives offsets a second time, or the marker forgets its positions.
_REUSED_AFTER = ("recreated", "truncated", "deleted")


@dataclass(frozen=True)
class MarkerChain:
    """The table's history, and what follows from it for the rows of each snapshot."""

    marker: Marker | None
    ancestors: tuple[Snapshot, ...]  # newest first
    own_commits: tuple[Snapshot, ...]
    foreign: tuple[Snapshot, ...]  # neither ours nor a rewrite of the same rows
    rewrites: int
    complete: bool  # retained back to the first claim, so that the start is known
    start: Positions = field(default_factory=dict)
    limits: Mapping[int, Positions] = field(default_factory=dict)  # by snapshot id: rows are below
    landed: Mapping[int, int] = field(default_factory=dict)  # by snapshot id: our rows in it

    @property
    def reused(self) -> frozenset[str]:
        """Streams whose positions no longer tell records apart, since a loss was accepted."""
        return _reused_streams(self.marker)

    def foreign_until(self, snapshot_id: int) -> "ForeignChanges":
        """Sum up what foreign commits changed up to a snapshot, as far as they are retained."""
        ids = [snapshot.snapshot_id for snapshot in self.ancestors]
        past = set(ids[ids.index(snapshot_id) :])
        snapshots = [snapshot for snapshot in self.foreign if snapshot.snapshot_id in past]
        # The counts of delete files do not say how many rows they remove.
        by_delete_files = sum(
            snapshot.number("added-position-deletes") + snapshot.number("added-equality-deletes")
            for snapshot in snapshots
        )
        return ForeignChanges(
            added=sum(snapshot.number("added-records") for snapshot in snapshots),
            deleted=sum(s.number("deleted-records") for s in snapshots) + by_delete_files,
            exact=self.ancestors[-1].known_parent is None and not by_delete_files,
        )


@dataclass(frozen=True)
class ForeignChanges:
    """Rows that others added and deleted; `exact`: the counts are all there is to know."""

    added: int
    deleted: int
    exact: bool


def check_chain(
    metadata: Metadata, pipeline: str, findings: TableFindings, mirror: bool = False
) -> MarkerChain:
    """Follow the chain from the marker back to the oldest retained snapshot."""
    ancestors = tuple(metadata.ancestors())
    own = tuple(snapshot for snapshot in ancestors if snapshot.pipeline == pipeline)
    others = [snapshot for snapshot in ancestors if snapshot not in own]
    foreign = tuple(snapshot for snapshot in others if snapshot.operation != "replace")
    marker = _marker(metadata, pipeline, own, findings)
    if marker:
        _check_marker_belongs(metadata, pipeline, marker, own, findings)
    _check_order(own, ancestors, findings)
    complete = bool(own) and own[-1].previous_id is None
    known = _positions_by_snapshot(own, _reused_streams(marker), findings)
    if marker and own and own[0].commit_id == marker.commit_id:
        _check_marker_agrees(marker, own, known, complete, findings)
    for snapshot in () if mirror else own:  # in a mirror many records make one row
        if snapshot.number("added-records") != snapshot.records:
            findings.add(
                "chain",
                "records-differ",
                f"{snapshot.records} records, as the commit says",
                f"{snapshot.number('added-records')} added",
                snapshot_id=snapshot.snapshot_id,
            )
    detail = f"{len(own)} commits of ours, {len(others) - len(foreign)} rewrites"
    if foreign:
        detail += f", {len(foreign)} by others"
    if own and not complete:
        detail += f"; older than sequence {own[-1].summary.get(SEQUENCE)}: expired"
    for snapshot in foreign[:5]:
        findings.note(
            f"snapshot {snapshot.snapshot_id} is not ours: {_writer(snapshot)}, records added: "
            f"{snapshot.number('added-records')}, deleted: {snapshot.number('deleted-records')}"
        )
    if len(foreign) > 5:
        findings.note(f"… and {len(foreign) - 5} more snapshots that are not ours")
    findings.finish_check("chain", detail)
    return MarkerChain(
        marker=marker,
        ancestors=ancestors,
        own_commits=own,
        foreign=foreign,
        rewrites=len(others) - len(foreign),
        complete=complete,
        start=own[-1].moved if complete else {},
        limits=_row_limits(marker, ancestors, known, complete),
        landed=_landed_by_snapshot(marker, ancestors, own),
    )


def _reused_streams(marker: Marker | None) -> frozenset[str]:
    losses = marker.losses if marker else ()
    return frozenset(loss.stream for loss in losses if loss.kind in _REUSED_AFTER)


def _marker(
    metadata: Metadata,
    pipeline: str,
    own: Sequence[Snapshot],
    findings: TableFindings,
) -> Marker | None:
    stored = metadata.properties.get(property_name(pipeline))
    if stored is None:
        if own:
            findings.add(
                "chain",
                "marker-missing",
                f"the property `{property_name(pipeline)}` with commit {own[0].commit_id}",
                "no such property",
                snapshot_id=own[0].snapshot_id,
            )
        else:
            findings.note("no run of this pipeline has claimed the table yet")
        return None
    try:
        return Marker.from_json(stored)
    except (Replaced, KeyError, TypeError, AttributeError) as failure:
        findings.add("chain", "marker-unreadable", "a marker as JSON", str(failure)[:200])
        return None


def _check_marker_belongs(
    metadata: Metadata,
    pipeline: str,
    marker: Marker,
    own: Sequence[Snapshot],
    findings: TableFindings,
) -> None:
    """Check that the marker is about this table, and about its newest own snapshot."""
    uuid = metadata.uuid
    if marker.table_uuid != uuid:
        findings.add("chain", "table-replaced", f"table {marker.table_uuid}", f"table {uuid}")
    elif own and own[0].commit_id != marker.commit_id:
        ids = [snapshot.commit_id for snapshot in own]
        retained = {snapshot.commit_id for snapshot in metadata.snapshots}
        if marker.commit_id in ids:
            kind, why = "marker-old", f"the marker of {ids.index(marker.commit_id)} commits before"
        elif marker.commit_id in retained:
            kind, why = "rolled-back", "its snapshot is not among the table's ancestors"
        else:
            kind, why = "marker-foreign", "no retained snapshot has this commit"
        findings.add(
            "chain",
            kind,
            f"commit {own[0].commit_id}, that of the newest own snapshot",
            f"commit {marker.commit_id}, sequence {marker.sequence}: {why}",
            snapshot_id=own[0].snapshot_id,
        )
    elif not own and marker_status(table_state(metadata, pipeline)) is MarkerStatus.REPLACED:
        findings.add(
            "chain",
            "history-missing",
            f"a snapshot with commit {marker.commit_id}, or one that expiry left after it",
            "neither",
        )


def _check_order(
    own: Sequence[Snapshot], ancestors: Sequence[Snapshot], findings: TableFindings
) -> None:
    """Check that each commit names the one before it, and that sequence and generation go on."""
    for newer, older in pairwise(own):
        where = {"snapshot_id": newer.snapshot_id}
        if newer.previous_id != older.commit_id:
            expected = f"previous commit {older.commit_id}"
            findings.add("chain", "chain-broken", expected, f"{newer.previous_id}", **where)
        before, after = older.number(SEQUENCE), newer.number(SEQUENCE)
        if after != before + 1:
            findings.add("chain", "sequence-broken", f"{before + 1}", f"{after}", **where)
        before, after = older.number(GENERATION), newer.number(GENERATION)
        if after < before:
            findings.add("chain", "generation-fell", f"{before} or more", f"{after}", **where)
    if not own:
        return
    oldest, is_expired = own[-1], ancestors[-1].known_parent is not None
    if oldest.previous_id is None and oldest.number(SEQUENCE) != 1:
        findings.add(
            "chain",
            "chain-broken",
            "sequence 1 at the first commit",
            f"sequence {oldest.number(SEQUENCE)} and no previous commit",
            snapshot_id=oldest.snapshot_id,
        )
    elif oldest.previous_id is not None and not is_expired:
        findings.add(
            "chain",
            "chain-broken",
            f"commit {oldest.previous_id} before it, or a sign of expiry",
            "the table's first snapshot comes sooner",
            snapshot_id=oldest.snapshot_id,
        )


def _positions_by_snapshot(
    own: Sequence[Snapshot], reused: frozenset[str], findings: TableFindings
) -> dict[int, dict[tuple[str, int], int]]:
    """Add up the positions that own commits moved, by snapshot; check that none goes back."""
    current: dict[tuple[str, int], int] = {}
    by_snapshot: dict[int, dict[tuple[str, int], int]] = {}
    for snapshot in reversed(own):
        for (stream, partition), position in flat(snapshot.moved).items():
            before = current.get((stream, partition), position)
            if position < before and stream not in reused:
                findings.add(
                    "chain",
                    "positions-back",
                    f"{before} or more",
                    f"{position}",
                    snapshot_id=snapshot.snapshot_id,
                    stream=stream,
                    partition=partition,
                    start=position,
                    stop=before,
                )
            current[stream, partition] = position
        by_snapshot[snapshot.snapshot_id] = dict(current)
    return by_snapshot


def _check_marker_agrees(
    marker: Marker,
    own: Sequence[Snapshot],
    known: Mapping[int, Mapping[tuple[str, int], int]],
    complete: bool,
    findings: TableFindings,
) -> None:
    """Check that the marker property says what the summaries of the own commits add up to."""
    newest = own[0]
    pairs = {
        "sequence": (newest.number(SEQUENCE), marker.sequence),
        "generation": (newest.number(GENERATION), marker.generation),
        "previous commit": (newest.previous_id, marker.previous_commit_id),
        "snapshot's sequence number": (newest.sequence_number, marker.snapshot_sequence),
    }
    records = sum(snapshot.records for snapshot in own)
    if complete:
        pairs["records landed"] = (records, marker.counts.landed)
    elif records > marker.counts.landed:
        pairs["records landed, at least"] = (records, marker.counts.landed)
    for what, (in_snapshots, in_marker) in pairs.items():
        if in_snapshots != in_marker:
            findings.add(
                "chain",
                "marker-differs",
                f"{what} {in_snapshots}, as the snapshots say",
                f"{in_marker} in the property",
                snapshot_id=newest.snapshot_id,
            )
    lossy = {loss.stream for loss in marker.losses}
    expected, positions = known[newest.snapshot_id], flat(marker.positions)
    partitions = expected.keys() | positions.keys() if complete else expected.keys()
    for stream, partition in sorted(partitions):
        wanted, position = expected.get((stream, partition)), positions.get((stream, partition))
        if wanted != position and stream not in lossy:
            findings.add(
                "chain",
                "marker-differs",
                f"position {wanted}, as the snapshots say",
                f"{position} in the property",
                snapshot_id=newest.snapshot_id,
                stream=stream,
                partition=partition,
            )


def _row_limits(
    marker: Marker | None,
    ancestors: Sequence[Snapshot],
    known: Mapping[int, Mapping[tuple[str, int], int]],
    complete: bool,
) -> dict[int, Positions]:
    """Find, by snapshot, positions at or above which it has no row.

    A partition that no retained commit has moved by then is bounded by its next known position.
    """
    if marker is None:
        return {}
    bounds: Mapping[tuple[str, int], int] = flat(marker.positions)
    commits = [known[s.snapshot_id] for s in ancestors if s.snapshot_id in known]
    limits: dict[int, Positions] = {}
    for snapshot in ancestors:  # newest first
        if commits and known.get(snapshot.snapshot_id) is commits[0]:
            bounds = {**bounds, **commits[0]}
            limits[snapshot.snapshot_id] = nested(commits[0] if complete else bounds)
            commits = commits[1:]
            bounds = {**bounds, **(commits[0] if commits else {})}
            continue
        limits[snapshot.snapshot_id] = nested(
            (commits[0] if commits else {}) if complete else bounds
        )
    return limits


def _landed_by_snapshot(
    marker: Marker | None, ancestors: Sequence[Snapshot], own: Sequence[Snapshot]
) -> dict[int, int]:
    """Count, by snapshot, the rows that this pipeline had landed: back from the marker's count."""
    if marker is None:
        return {}
    landed, by_snapshot = marker.counts.landed, {}
    own_ids = {snapshot.snapshot_id for snapshot in own}
    for snapshot in ancestors:
        by_snapshot[snapshot.snapshot_id] = landed
        if snapshot.snapshot_id in own_ids:
            landed -= snapshot.records
    return by_snapshot


def _writer(snapshot: Snapshot) -> str:
    pipeline, engine = snapshot.pipeline, snapshot.summary.get("engine-name", "somebody else")
    return f"{snapshot.operation} by {f'pipeline `{pipeline}`' if pipeline else engine}"
