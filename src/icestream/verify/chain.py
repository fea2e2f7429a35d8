"""The marker chain: a table's history as its snapshots tell it; pure, metadata in, findings out."""

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

# Losses after which offsets are given a second time, or positions are forgotten.
_UNTOLD = ("recreated", "truncated", "deleted")


@dataclass(frozen=True)
class MarkerChain:
    """What the history says that the rows must be like."""

    marker: Marker | None
    ancestors: tuple[Snapshot, ...]  # newest first
    own_commits: tuple[Snapshot, ...]
    foreign: tuple[Snapshot, ...]  # neither ours nor a rewrite of the same rows
    rewrites: int
    complete: bool  # back to the first claim, so that the start is known
    start: Positions = field(default_factory=dict)
    limits: Mapping[int, Positions] = field(default_factory=dict)  # by snapshot id: rows are below
    landed: Mapping[int, int] = field(default_factory=dict)  # by snapshot id, rows of ours

    @property
    def reused(self) -> frozenset[str]:
        """Streams whose positions no longer tell records apart, since a loss was accepted."""
        losses = self.marker.losses if self.marker else ()
        return frozenset(loss.stream for loss in losses if loss.kind in _UNTOLD)

    def foreign_until(self, snapshot_id: int) -> "ForeignChanges":
        """What others have done to the table up to a snapshot, as far as is retained."""
        ids = [link.snapshot_id for link in self.ancestors]
        past = set(ids[ids.index(snapshot_id) :])
        links = [link for link in self.foreign if link.snapshot_id in past]
        marked = sum(
            link.number("added-position-deletes") + link.number("added-equality-deletes")
            for link in links
        )
        return ForeignChanges(
            added=sum(link.number("added-records") for link in links),
            deleted=sum(link.number("deleted-records") for link in links) + marked,
            exact=self.ancestors[-1].known_parent is None and not marked,
        )


@dataclass(frozen=True)
class ForeignChanges:
    """Rows that others added and deleted; `exact` when nothing of it can be hidden."""

    added: int
    deleted: int
    exact: bool


def check_chain(
    metadata: Metadata, pipeline: str, findings: TableFindings, mirror: bool = False
) -> MarkerChain:
    """Follow the chain from the marker back to the oldest retained snapshot."""
    lineage = tuple(metadata.ancestors())
    own = tuple(link for link in lineage if link.pipeline == pipeline)
    others = [link for link in lineage if link not in own]
    foreign = tuple(link for link in others if link.operation != "replace")
    marker = _marker(metadata, pipeline, own, findings)
    if marker:
        _check_marker_belongs(metadata, pipeline, marker, own, findings)
    _check_order(own, lineage, findings)
    whole = bool(own) and own[-1].previous_id is None
    reused = frozenset(x.stream for x in (marker.losses if marker else ()) if x.kind in _UNTOLD)
    known = _positions_by_snapshot(own, reused, findings)
    if marker and own and own[0].commit_id == marker.commit_id:
        _check_marker_agrees(marker, own, known, whole, findings)
    for link in () if mirror else own:  # there many records make one row
        if link.number("added-records") != link.records:
            findings.add(
                "chain",
                "records-differ",
                f"{link.records} records, as the commit says",
                f"{link.number('added-records')} added",
                snapshot_id=link.snapshot_id,
            )
    told = f"{len(own)} commits of ours, {len(others) - len(foreign)} rewrites"
    if foreign:
        told += f", {len(foreign)} by others"
    if own and not whole:
        told += f"; older than sequence {own[-1].summary.get(SEQUENCE)}: expired"
    for link in foreign[:5]:
        findings.note(
            f"snapshot {link.snapshot_id} is not ours: {_writer(link)}, records added: "
            f"{link.number('added-records')}, deleted: {link.number('deleted-records')}"
        )
    if len(foreign) > 5:
        findings.note(f"… and {len(foreign) - 5} more snapshots that are not ours")
    findings.finish_check("chain", told)
    return MarkerChain(
        marker=marker,
        ancestors=lineage,
        own_commits=own,
        foreign=foreign,
        rewrites=len(others) - len(foreign),
        complete=whole,
        start=own[-1].moved if whole else {},
        limits=_row_limits(marker, lineage, known, whole),
        landed=_landed_by_snapshot(marker, lineage, own),
    )


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
    """The marker speaks of this table, and of its newest own snapshot."""
    uuid = metadata.uuid
    if marker.table_uuid != uuid:
        findings.add("chain", "table-replaced", f"table {marker.table_uuid}", f"table {uuid}")
    elif own and own[0].commit_id != marker.commit_id:
        ids = [link.commit_id for link in own]
        retained = {each.commit_id for each in metadata.snapshots}
        if marker.commit_id in ids:
            kind, seen = "marker-old", f"the marker of {ids.index(marker.commit_id)} commits before"
        elif marker.commit_id in retained:
            kind, seen = "rolled-back", "its snapshot is not among the table's ancestors"
        else:
            kind, seen = "marker-foreign", "no retained snapshot has this commit"
        findings.add(
            "chain",
            kind,
            f"commit {own[0].commit_id}, that of the newest own snapshot",
            f"commit {marker.commit_id}, sequence {marker.sequence}: {seen}",
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
    own: Sequence[Snapshot], lineage: Sequence[Snapshot], findings: TableFindings
) -> None:
    """Each commit names the one before it, with the next number and no older generation."""
    for newer, older in pairwise(own):
        where = {"snapshot_id": newer.snapshot_id}
        if newer.previous_id != older.commit_id:
            expected = f"previous commit {older.commit_id}"
            findings.add("chain", "chain-broken", expected, f"{newer.previous_id}", **where)
        first, second = older.number(SEQUENCE), newer.number(SEQUENCE)
        if second != first + 1:
            findings.add("chain", "sequence-broken", f"{first + 1}", f"{second}", **where)
        first, second = older.number(GENERATION), newer.number(GENERATION)
        if second < first:
            findings.add("chain", "generation-fell", f"{first} or more", f"{second}", **where)
    if not own:
        return
    oldest, cut = own[-1], lineage[-1].known_parent is not None
    if oldest.previous_id is None and oldest.number(SEQUENCE) != 1:
        findings.add(
            "chain",
            "chain-broken",
            "sequence 1 at the first commit",
            f"sequence {oldest.number(SEQUENCE)} and no previous commit",
            snapshot_id=oldest.snapshot_id,
        )
    elif oldest.previous_id is not None and not cut:
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
    """By own snapshot: the positions that it and those before it mention; they never go back."""
    at: dict[tuple[str, int], int] = {}
    found: dict[int, dict[tuple[str, int], int]] = {}
    for link in reversed(own):
        for stream, partitions in link.moved.items():
            for number, position in partitions.items():
                before = at.get((stream, number), position)
                if position < before and stream not in reused:
                    findings.add(
                        "chain",
                        "positions-back",
                        f"{before} or more",
                        f"{position}",
                        snapshot_id=link.snapshot_id,
                        stream=stream,
                        partition=number,
                        start=position,
                        stop=before,
                    )
                at[stream, number] = position
        found[link.snapshot_id] = dict(at)
    return found


def _check_marker_agrees(
    marker: Marker,
    own: Sequence[Snapshot],
    known: Mapping[int, Mapping[tuple[str, int], int]],
    whole: bool,
    findings: TableFindings,
) -> None:
    """Property and summaries tell the same story."""
    newest = own[0]
    pairs = {
        "sequence": (newest.number(SEQUENCE), marker.sequence),
        "generation": (newest.number(GENERATION), marker.generation),
        "previous commit": (newest.previous_id, marker.previous_commit_id),
        "snapshot's sequence number": (newest.sequence_number, marker.snapshot_sequence),
    }
    records = sum(link.records for link in own)
    if whole:
        pairs["records landed"] = (records, marker.counts.landed)
    elif records > marker.counts.landed:
        pairs["records landed, at least"] = (records, marker.counts.landed)
    for what, (told, seen) in pairs.items():
        if told != seen:
            findings.add(
                "chain",
                "marker-differs",
                f"{what} {told}, as the snapshots say",
                f"{seen} in the property",
                snapshot_id=newest.snapshot_id,
            )
    gone = {loss.stream for loss in marker.losses}
    told_at = dict(known[newest.snapshot_id])
    in_marker = flat(marker.positions)
    names = told_at.keys() | in_marker.keys() if whole else told_at.keys()
    for stream, number in sorted(names):
        told_here, seen_here = told_at.get((stream, number)), in_marker.get((stream, number))
        if told_here != seen_here and stream not in gone:
            findings.add(
                "chain",
                "marker-differs",
                f"position {told_here}, as the snapshots say",
                f"{seen_here} in the property",
                snapshot_id=newest.snapshot_id,
                stream=stream,
                partition=number,
            )


def _row_limits(
    marker: Marker | None,
    lineage: Sequence[Snapshot],
    known: Mapping[int, Mapping[tuple[str, int], int]],
    whole: bool,
) -> dict[int, Positions]:
    """By snapshot: no row is at or above these; what expiry hides is bounded by what came next."""
    if marker is None:
        return {}
    later: Mapping[tuple[str, int], int] = flat(marker.positions)
    steps = [known[link.snapshot_id] for link in lineage if link.snapshot_id in known]
    found: dict[int, Positions] = {}
    for link in lineage:  # newest first
        if steps and known.get(link.snapshot_id) is steps[0]:
            later = {**later, **steps[0]}
            found[link.snapshot_id] = nested(steps[0] if whole else later)
            steps = steps[1:]
            later = {**later, **(steps[0] if steps else {})}
            continue
        found[link.snapshot_id] = nested((steps[0] if steps else {}) if whole else later)
    return found


def _landed_by_snapshot(
    marker: Marker | None, lineage: Sequence[Snapshot], own: Sequence[Snapshot]
) -> dict[int, int]:
    """By snapshot: how many rows of ours it holds, counted back from the marker."""
    if marker is None:
        return {}
    left, found = marker.counts.landed, {}
    ours = {link.snapshot_id for link in own}
    for link in lineage:
        found[link.snapshot_id] = left
        if link.snapshot_id in ours:
            left -= link.records
    return found


def _writer(link: Snapshot) -> str:
    other = link.pipeline
    by = f"pipeline `{other}`" if other else link.summary.get("engine-name", "somebody else")
    return f"{link.operation} by {by}"
