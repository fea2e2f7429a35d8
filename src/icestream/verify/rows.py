"""Rows: each origin once, none above the marker, and as many as the marker counts."""

from collections.abc import Iterable
from dataclasses import dataclass

from icestream.verify.chain import MarkerChain
from icestream.verify.offsets import OffsetBitmaps, Sets, contiguous_ranges, span
from icestream.verify.report import MOST, TableFindings


@dataclass(frozen=True)
class RowCheckRules:
    """How the rows of a source are to be judged."""

    offsets: bool  # positions are offsets of records, not entries of a ledger
    gapless: bool  # every position below the marker had a record
    others: frozenset[str] = frozenset()  # topics that other pipelines bring into the table


def check_snapshot(
    snapshot_id: int,
    rows: OffsetBitmaps,
    chain: MarkerChain,
    terms: RowCheckRules,
    findings: TableFindings,
) -> None:
    """Judge the rows of one snapshot by what the chain says about it."""
    skip = chain.reused | terms.others
    for (topic, partition), again in rows.doubled.items():
        if topic in skip:
            continue
        beyond = rows.extra[topic, partition] - len(again)  # of those that are there three times
        for start, stop, count in contiguous_ranges(again, MOST):
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
                records=count + beyond,
                harm="duplicated",
            )
            beyond = 0
    if terms.offsets and chain.marker:
        _outside(snapshot_id, rows.sets, chain, skip, findings)
    if chain.marker:
        _count(snapshot_id, rows, chain, terms, findings)


def _outside(
    snapshot_id: int, sets: Sets, chain: MarkerChain, skip: Iterable[str], findings: TableFindings
) -> None:
    """Rows at or above the marker, or before the start, came from nowhere."""
    limits = chain.limits.get(snapshot_id, {})
    for (topic, partition), found in sets.items():
        if topic in skip:
            continue
        limit = limits.get(topic, {}).get(partition, 0)
        start = chain.start.get(topic, {}).get(partition, 0)
        for side, beyond, expected in (
            ("above-marker", found - span(0, limit), f"rows below {limit}, the marker's position"),
            ("before-start", found & span(0, start), f"rows from {start} on, where it began"),
        ):
            findings.add_ranges(
                "rows",
                side,
                expected,
                "{} rows",
                (topic, partition),
                contiguous_ranges(beyond, MOST),
                snapshot_id=snapshot_id,
                harm="phantom",
            )


def _count(
    snapshot_id: int,
    rows: OffsetBitmaps,
    chain: MarkerChain,
    terms: RowCheckRules,
    findings: TableFindings,
) -> None:
    """As many rows as landed, give or take what somebody else's snapshots say they did."""
    expected = chain.landed[snapshot_id]
    foreign = chain.foreign_until(snapshot_id)
    if foreign.exact:
        seen, low = rows.rows, expected + foreign.added - foreign.deleted
        high = low
    else:  # some of their snapshots may have expired, or their deletes do not say how many
        seen = rows.rows - rows.unknown - rows.within(terms.others)
        low, high = expected - foreign.deleted, expected + foreign.added
    if low <= seen <= high:
        if foreign.deleted:
            findings.note(
                f"snapshot {snapshot_id}: others removed or rewrote {foreign.deleted} rows; "
                "which ones, the counts cannot tell"
            )
        return
    findings.add(
        "rows",
        "rows-missing" if seen < low else "rows-surplus",
        f"{low} rows" if low == high else f"{low} to {high} rows",
        f"{seen} rows{_gaps(rows.sets, chain, snapshot_id, terms)}",
        snapshot_id=snapshot_id,
        records=low - seen if seen < low else seen - high,
        harm="lost" if seen < low else None,
    )


def _gaps(sets: Sets, chain: MarkerChain, snapshot_id: int, terms: RowCheckRules) -> str:
    """Where rows may be missing: some of these offsets may never have had a record."""
    if not terms.offsets:
        return ""
    told = []
    for topic, partitions in chain.limits.get(snapshot_id, {}).items():
        for partition, limit in partitions.items():
            found = sets.get((topic, partition))
            first = chain.start.get(topic, {}).get(partition, found.min() if found else 0)
            empty = span(first, limit) - found if found else span(first, limit)
            told += [f"{topic}/{partition} {a} to {b}" for a, b, _ in contiguous_ranges(empty, 5)]
    return f"; without a row: {', '.join(told[:5])}" if told else ""


def check_quarantine(
    rows: OffsetBitmaps | None,
    aside: OffsetBitmaps | None,
    chain: MarkerChain,
    terms: RowCheckRules,
    findings: TableFindings,
) -> None:
    """Table and quarantine share no record, and hold all that was read together."""
    marker = chain.marker
    if marker is None or not chain.ancestors:
        findings.finish_check("quarantine", "no marker to compare with", looked=False)
        return
    if rows and aside:
        _disjoint(rows.sets, aside.sets, chain, findings)
    counts = marker.counts
    told = f"{counts.landed} landed + {counts.quarantined} set aside + {counts.dropped} dropped"
    if chain.reused:
        text = f"{told}; not compared with positions after an accepted loss"
        findings.finish_check("quarantine", text, looked=False)
        return
    limits = marker.positions
    sets = aside.sets if aside else {}
    # Bad records commit first: after a crash the quarantine is ahead of its table for a while.
    below = sum(
        found.range_cardinality(0, limits.get(topic, {}).get(partition, 0))
        if terms.offsets
        else len(found)
        for (topic, partition), found in sets.items()
    )
    expected = counts.quarantined
    if below < expected or (terms.offsets and below > expected):
        findings.add(
            "quarantine",
            "quarantine-missing" if below < expected else "quarantine-surplus",
            f"{expected} records set aside below the marker",
            f"{below} rows" if aside else "no quarantine table",
            snapshot_id=chain.ancestors[0].snapshot_id,
            records=abs(below - expected),
            harm="lost" if below < expected else "phantom",
        )
    width = sum(
        at - chain.start.get(stream, {}).get(number, 0)
        for stream, partitions in limits.items()
        for number, at in partitions.items()
    )
    if terms.offsets and (counts.read > width or (terms.gapless and counts.read != width)):
        findings.add(
            "quarantine",
            "read-differs",
            f"{width} records read, as the positions say",
            told,
            snapshot_id=chain.ancestors[0].snapshot_id,
            records=abs(width - counts.read),
            harm="lost" if counts.read < width else None,
        )
    foreign = chain.foreign_until(chain.ancestors[0].snapshot_id)
    if terms.gapless and rows and not counts.dropped and not foreign.deleted:
        _complete(rows.sets, sets, chain, findings)
    findings.finish_check("quarantine", f"{told} = {counts.read} read")


def _disjoint(mine: Sets, aside: Sets, chain: MarkerChain, findings: TableFindings) -> None:
    for key, found in aside.items():
        if key not in mine or key[0] in chain.reused:
            continue
        findings.add_ranges(
            "quarantine",
            "both",
            "a record in the table or in its quarantine",
            "{} in both",
            key,
            contiguous_ranges(found & mine[key], MOST),
            harm="duplicated",
        )


def _complete(mine: Sets, aside: Sets, chain: MarkerChain, findings: TableFindings) -> None:
    """Name what is missing, where every position had a record and none was dropped."""
    marker = chain.marker
    assert marker is not None, "the caller has looked"
    for stream, partitions in marker.positions.items():
        for number, at in partitions.items():
            key = (stream, number)
            left = span(chain.start.get(stream, {}).get(number, 0), at)
            for sets in (mine, aside):
                left = left - sets[key] if key in sets else left
            findings.add_ranges(
                "quarantine",
                "missing",
                "a row in the table or in its quarantine for each position",
                "{} in neither",
                (stream, number),
                contiguous_ranges(left, MOST),
                harm="lost",
            )
