"""Whether the source can still give what a rewind takes out of the tables."""

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
    """What would be gone for good, in words; raises Unreachable when the source cannot be asked."""
    found: list[str] = []
    source, router = source_for(config.source), Router(config)
    try:
        for past, plan in planned:
            if not plan.changes:
                continue
            if isinstance(config.source, FilesSourceOptions):
                found += _lost_files(config.source, router, past, plan)
            else:
                found += _lost_records(source, router, plan)
    finally:
        source.close()
    return tuple(dict.fromkeys(found))


def _lost_records(source: Source, router: Router, plan: TableRewind) -> Iterator[str]:
    """Ranges that the source has lost, and topics that the pipeline file has lost."""
    again = {
        (move.stream, move.partition): move.after or 0
        for move in plan.positions
        if move.before is not None and (move.after or 0) < move.before
    }
    read = set(source.known_topics())
    for stream in sorted({stream for stream, _ in again}):
        route = router.route(stream)
        if stream not in read or route is None or route.table != plan.table:
            yield f"{plan.table}: topic `{stream}` does not go to this table any more"
    lost = source.losses(nested(again), plan.marker.stream_ids).lost
    yield from (f"{plan.table}: {loss.kind} {loss}" for loss in lost)


def _lost_files(
    options: FilesSourceOptions, router: Router, past: TableHistory, plan: TableRewind
) -> Iterator[str]:
    """Files that were taken since, and are not there any more as they were."""
    now, then = past.marker, plan.marker
    # Both lists are read whole: a start after the rewind needs them.
    taken = ledger.restore_ledger(past.location, now.details.get("ledger"), _count(plan, "before"))
    kept = ledger.restore_ledger(past.location, then.details.get("ledger"), _count(plan, "after"))
    for split in taken.splits[len(kept) :]:
        route = router.route(split.path)
        if not split.lines or route is None or route.table != plan.table:
            continue  # passed over, never read, or another table's
        try:
            facts = Path(options.path, split.path).stat()
        except FileNotFoundError:
            yield f"file `{split.path}`: gone"
            continue
        if (facts.st_size, facts.st_mtime_ns) != (split.size, split.mtime_ns):
            yield f"file `{split.path}`: changed since it was taken"


def _count(plan: TableRewind, when: str) -> int:
    return sum(getattr(move, when) or 0 for move in plan.positions)
