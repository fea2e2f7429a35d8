"""Rows: each origin once, none above the marker, and as many as the marker counts."""

from collections.abc import Iterable
from dataclasses import dataclass

from icestream.verify.chain import MarkerChain
from icestream.verify.offsets import OffsetBitmaps, Sets, contiguous_ranges, span
from icestream.verify.report import MOST, TableFindings


@dataclass(frozen=True)
class RowCheckRules:
    """What can be checked of rows, by the kind of their source."""

    offsets: bool  # positions are offsets of records, not entries of a ledger
    gapless: bool  # every position below the marker had a record
    others: frozenset[str] = frozenset()  # topics that other pipelines bring into the table


def check_snapshot(
    snapshot_id: int,
    rows: OffsetBitmaps,
    chain: MarkerChain,
    rules: RowCheckRules,
    findings: TableFindings,
) -> None:
    """Check the rows of one snapshot by what the marker chain says about it."""
    skip = chain.reused | rules.others
    for (topic, partition), doubled in rows.doubled.items():
        if topic in skip:
            continue
        surplus = rows.extra[topic, partition] - len(doubled)  # third and further rows of an offset
        for start, stop, count in contiguous_ranges(doubled, MOST):
            findings.add(
                "rows",
                "duplicated",
                "one row for each offset",
                f"{count} offsets more than once",
                snapshot_id=snapshot_id,
                stream=topic,
                partition=partition,
                start=start,
                stop=stop,
                records=count + surplus,
                harm="duplicated",
            )
            surplus = 0  # counted with the first range
    if rules.offsets and chain.marker:
        _outside(snapshot_id, rows.sets, chain, skip, findings)
    if chain.marker:
        _count(snapshot_id, rows, chain, rules, findings)


def _outside(
    snapshot_id: int, sets: Sets, chain: MarkerChain, skip: Iterable[str], findings: TableFindings
) -> None:
    """Find rows at or above the marker's position, or before the start: no commit explains them."""
    limits = chain.limits.get(snapshot_id, {})
    for (topic, partition), offsets in sets.items():
        if topic in skip:
            continue
        limit = limits.get(topic, {}).get(partition, 0)
        start = chain.start.get(topic, {}).get(partition, 0)
        for kind, outside, expected in (
            (
                "above-marker",
                offsets - span(0, limit),
                f"rows below {limit}, the marker's position",
            ),
            ("before-start", offsets & span(0, start), f"rows from {start} on, where it began"),
        ):
            findings.add_ranges(
                "rows",
                kind,
                expected,
                "{} rows",
                (topic, partition),
                contiguous_ranges(outside, MOST),
                snapshot_id=snapshot_id,
                harm="phantom",
            )


def _count(
    snapshot_id: int,
    rows: OffsetBitmaps,
    chain: MarkerChain,
    rules: RowCheckRules,
    findings: TableFindings,
) -> None:
    """Compare the number of rows with what landed, give or take what foreign snapshots changed."""
    expected = chain.landed[snapshot_id]
    foreign = chain.foreign_until(snapshot_id)
    if foreign.exact:
        count, low = rows.rows, expected + foreign.added - foreign.deleted
        high = low
    else:  # some of their snapshots may have expired, or their deletes do not say how many
        count = rows.rows - rows.unknown - rows.within(rules.others)
        low, high = expected - foreign.deleted, expected + foreign.added
    if low <= count <= high:
        if foreign.deleted:
            findings.note(
                f"snapshot {snapshot_id}: others removed or rewrote {foreign.deleted} rows; "
                "which ones, the counts cannot tell"
            )
        return
    findings.add(
        "rows",
        "rows-missing" if count < low else "rows-surplus",
        f"{low} rows" if low == high else f"{low} to {high} rows",
        f"{count} rows{_gaps(rows.sets, chain, snapshot_id, rules)}",
        snapshot_id=snapshot_id,
        records=low - count if count < low else count - high,
        harm="lost" if count < low else None,
    )


def _gaps(sets: Sets, chain: MarkerChain, snapshot_id: int, rules: RowCheckRules) -> str:
    """Say where rows may be missing: some of these offsets may never have had a record."""
    if not rules.offsets:
        return ""
    gaps: list[str] = []
    for topic, partitions in chain.limits.get(snapshot_id, {}).items():
        for partition, limit in partitions.items():
            offsets = sets.get((topic, partition))
            first = chain.start.get(topic, {}).get(partition, offsets.min() if offsets else 0)
            empty = span(first, limit) - offsets if offsets else span(first, limit)
            gaps += [f"{topic}/{partition} {a} to {b}" for a, b, _ in contiguous_ranges(empty, 5)]
    return f"; without a row: {', '.join(gaps[:5])}" if gaps else ""


def check_quarantine(
    rows: OffsetBitmaps | None,
    quarantine: OffsetBitmaps | None,
    chain: MarkerChain,
    rules: RowCheckRules,
    findings: TableFindings,
) -> None:
    """Check that table and quarantine share no record, and together hold all that was read."""
    marker = chain.marker
    if marker is None or not chain.ancestors:
        findings.finish_check("quarantine", "no marker to compare with", looked=False)
        return
    if rows and quarantine:
        _disjoint(rows.sets, quarantine.sets, chain, findings)
    counts = marker.counts
    detail = f"{counts.landed} landed + {counts.quarantined} set aside + {counts.dropped} dropped"
    if chain.reused:
        text = f"{detail}; not compared with positions after an accepted loss"
        findings.finish_check("quarantine", text, looked=False)
        return
    limits = marker.positions
    sets = quarantine.sets if quarantine else {}
    # Bad records commit first: after a crash the quarantine is ahead of its table for a while.
    below = sum(
        offsets.range_cardinality(0, limits.get(topic, {}).get(partition, 0))
        if rules.offsets
        else len(offsets)
        for (topic, partition), offsets in sets.items()
    )
    expected = counts.quarantined
    if below < expected or (rules.offsets and below > expected):
        findings.add(
            "quarantine",
            "quarantine-missing" if below < expected else "quarantine-surplus",
            f"{expected} records set aside below the marker",
            f"{below} rows" if quarantine else "no quarantine table",
            snapshot_id=chain.ancestors[0].snapshot_id,
            records=abs(below - expected),
            harm="lost" if below < expected else "phantom",
        )
    width = sum(
        position - chain.start.get(stream, {}).get(partition, 0)
        for stream, partitions in limits.items()
        for partition, position in partitions.items()
    )
    if rules.offsets and (counts.read > width or (rules.gapless and counts.read != width)):
        findings.add(
            "quarantine",
            "read-differs",
            f"{width} records read, as the positions say",
            detail,
            snapshot_id=chain.ancestors[0].snapshot_id,
            records=abs(width - counts.read),
            harm="lost" if counts.read < width else None,
        )
    foreign = chain.foreign_until(chain.ancestors[0].snapshot_id)
    if rules.gapless and rows and not counts.dropped and not foreign.deleted:
        _complete(rows.sets, sets, chain, findings)
    findings.finish_check("quarantine", f"{detail} = {counts.read} read")


def _disjoint(landed: Sets, quarantined: Sets, chain: MarkerChain, findings: TableFindings) -> None:
    for partition, offsets in quarantined.items():
        if partition not in landed or partition[0] in chain.reused:
            continue
        findings.add_ranges(
            "quarantine",
            "both",
            "a record in the table or in its quarantine",
            "{} in both",
            partition,
            contiguous_ranges(offsets & landed[partition], MOST),
            harm="duplicated",
        )


def _complete(landed: Sets, quarantined: Sets, chain: MarkerChain, findings: TableFindings) -> None:
    """Find what is missing, where every position had a record and none was dropped."""
    marker = chain.marker
    assert marker is not None, "the caller has looked"
    for stream, partitions in marker.positions.items():
        for number, position in partitions.items():
            partition = (stream, number)
            missing = span(chain.start.get(stream, {}).get(number, 0), position)
            for sets in (landed, quarantined):
                missing = missing - sets[partition] if partition in sets else missing
            findings.add_ranges(
                "quarantine",
                "missing",
                "a row in the table or in its quarantine for each position",
                "{} in neither",
                partition,
                contiguous_ranges(missing, MOST),
                harm="lost",
            )
