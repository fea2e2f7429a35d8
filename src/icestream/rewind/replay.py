"""Losses of a rewind: what the source can no longer give of the rows that it removes."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from icestream.config.model import PipelineConfig
from icestream.config.options.source import FilesSourceOptions
from icestream.config.route import Router
from icestream.positions import nested
from icestream.rewind.history import TableHistory
from icestream.rewind.plan import TableRewind
from icestream.sources import Source, ledger, source_for


def losses_of(
    config: PipelineConfig, planned: Sequence[tuple[TableHistory, TableRewind]]
) -> tuple[str, ...]:
    """Describe what would be lost for good; raises Unreachable when the source does not answer."""
    losses: list[str] = []
    source, router = source_for(config.source), Router(config)
    try:
        for past, plan in planned:
            if not plan.changes:
                continue
            if isinstance(config.source, FilesSourceOptions):
                losses += _lost_files(config.source, router, past, plan)
            else:
                losses += _lost_records(source, router, plan)
    finally:
        source.close()
    return tuple(dict.fromkeys(losses))


def _lost_records(source: Source, router: Router, plan: TableRewind) -> Iterator[str]:
    """Yield ranges that the source lacks, and topics that the pipeline file no longer routes."""
    read_again = {
        (move.stream, move.partition): move.after or 0
        for move in plan.positions
        if move.before is not None and (move.after or 0) < move.before
    }
    topics = set(source.known_topics())
    for stream in sorted({stream for stream, _ in read_again}):
        route = router.route(stream)
        if stream not in topics or route is None or route.table != plan.table:
            yield f"{plan.table}: topic `{stream}` does not go to this table any more"
    lost = source.losses(nested(read_again), plan.marker.stream_ids).lost
    yield from (f"{plan.table}: {loss.kind} {loss}" for loss in lost)


def _lost_files(
    options: FilesSourceOptions, router: Router, past: TableHistory, plan: TableRewind
) -> Iterator[str]:
    """Yield files that were read since, and are missing or changed now."""
    now, then = past.marker, plan.marker
    # Both lists are read whole: a start after the rewind needs them.
    before = ledger.restore_ledger(past.location, now.details.get("ledger"), _count(plan, "before"))
    after = ledger.restore_ledger(past.location, then.details.get("ledger"), _count(plan, "after"))
    for split in before.splits[len(after) :]:
        route = router.route(split.path)
        if not split.lines or route is None or route.table != plan.table:
            continue  # passed over, never read, or another table's
        try:
            status = Path(options.path, split.path).stat()
        except FileNotFoundError:
            yield f"file `{split.path}`: gone"
            continue
        if (status.st_size, status.st_mtime_ns) != (split.size, split.mtime_ns):
            yield f"file `{split.path}`: changed since it was taken"


def _count(plan: TableRewind, when: str) -> int:
    return sum(getattr(move, when) or 0 for move in plan.positions)
