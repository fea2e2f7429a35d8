"""What a topic can no longer give, told from where a table stands; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from icestream.positions import Positions
from icestream.sources import LossReport
from icestream.tables.marker import Loss


@dataclass(frozen=True)
class LogBounds:
    """What the cluster holds now."""

    ids: Mapping[str, str] = field(default_factory=dict)  # of topics that exist; "": has none
    earliest: Positions = field(default_factory=dict)
    latest: Positions = field(default_factory=dict)


def losses(reached: Positions, known_ids: Mapping[str, str], log: LogBounds) -> LossReport:
    """Compare where a table stands with what the log still has; none is the usual answer."""
    found: list[Loss] = []
    resume: dict[str, Mapping[int, int]] = {}
    for stream, partitions in reached.items():
        lost = list(_of_stream(stream, partitions, known_ids.get(stream), log))
        if not lost:
            continue
        found += lost
        if stream in log.ids:
            resume[stream] = _resume(lost, partitions, log.earliest[stream], log.latest[stream])
    ids = {stream: log.ids[stream] for stream in resume if log.ids[stream]}
    return LossReport(tuple(found), resume, ids)


def _of_stream(
    stream: str, partitions: Mapping[int, int], known_id: str | None, log: LogBounds
) -> Iterator[Loss]:
    now = log.ids.get(stream)
    if now is None or _is_another(now, known_id, partitions, log.latest[stream]):
        for number, at in partitions.items():
            yield Loss("deleted" if now is None else "recreated", stream, number, at, None)
        return
    for number, at in partitions.items():
        first, end = log.earliest[stream][number], log.latest[stream][number]
        if end < at:
            yield Loss("truncated", stream, number, end, at)
        elif at < first:
            yield Loss("retention", stream, number, at, first)


def _is_another(
    now: str, known_id: str | None, partitions: Mapping[int, int], latest: Mapping[int, int]
) -> bool:
    """Whether a topic is not the one we read; Kafka never removes a partition of a living one."""
    if now and known_id and now != known_id:
        return True
    return not partitions.keys() <= latest.keys()


def _resume(
    lost: list[Loss],
    partitions: Mapping[int, int],
    earliest: Mapping[int, int],
    latest: Mapping[int, int],
) -> Mapping[int, int]:
    """Where the stream goes on; a truncated log's next record stands at its end."""
    if lost[0].kind == "recreated":
        return earliest
    behind = {loss.partition: loss.kind for loss in lost}
    return {
        number: {"retention": earliest, "truncated": latest}[kind][number]
        if (kind := behind.get(number))
        else at
        for number, at in partitions.items()
    }
