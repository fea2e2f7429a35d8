"""Losses: positions of a table that its topics can no longer give; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from icestream.positions import Positions
from icestream.sources import LossReport
from icestream.tables.marker import Loss, LossKind


@dataclass(frozen=True)
class LogBounds:
    """Topic ids, first and end offsets that the cluster has now."""

    ids: Mapping[str, str] = field(default_factory=dict)  # of topics that exist; "": has none
    earliest: Positions = field(default_factory=dict)
    latest: Positions = field(default_factory=dict)


def losses(committed: Positions, known_ids: Mapping[str, str], log: LogBounds) -> LossReport:
    """Compare a table's committed positions with what the log still has; usually nothing is lost.

    `KafkaSource.losses` asks the cluster for `log`.
    """
    lost: list[Loss] = []
    resume: dict[str, Mapping[int, int]] = {}
    for stream, partitions in committed.items():
        stream_losses = list(_stream_losses(stream, partitions, known_ids.get(stream), log))
        if not stream_losses:
            continue
        lost += stream_losses
        if stream in log.ids:
            earliest, latest = log.earliest[stream], log.latest[stream]
            resume[stream] = _resume(stream_losses, partitions, earliest, latest)
    ids = {stream: log.ids[stream] for stream in resume if log.ids[stream]}
    return LossReport(tuple(lost), resume, ids)


def _stream_losses(
    stream: str, partitions: Mapping[int, int], known_id: str | None, log: LogBounds
) -> Iterator[Loss]:
    topic_id = log.ids.get(stream)
    if topic_id is None or _is_another(topic_id, known_id, partitions, log.latest[stream]):
        kind: LossKind = "deleted" if topic_id is None else "recreated"
        for partition, position in partitions.items():
            yield Loss(kind, stream, partition, position, None)
        return
    for partition, position in partitions.items():
        first, end = log.earliest[stream][partition], log.latest[stream][partition]
        if end < position:
            yield Loss("truncated", stream, partition, end, position)
        elif position < first:
            yield Loss("retention", stream, partition, position, first)


def _is_another(
    topic_id: str, known_id: str | None, partitions: Mapping[int, int], latest: Mapping[int, int]
) -> bool:
    """Whether the topic was created again since the table's last commit."""
    if topic_id and known_id and topic_id != known_id:
        return True
    # Kafka never removes a partition of a topic: this one was created with fewer.
    return not partitions.keys() <= latest.keys()


def _resume(
    lost: list[Loss],
    partitions: Mapping[int, int],
    earliest: Mapping[int, int],
    latest: Mapping[int, int],
) -> Mapping[int, int]:
    """Positions at which the stream goes on; the next record of a truncated log is at its end."""
    if lost[0].kind == "recreated":
        return earliest
    kinds = {loss.partition: loss.kind for loss in lost}
    return {
        partition: {"retention": earliest, "truncated": latest}[kind][partition]
        if (kind := kinds.get(partition))
        else position
        for partition, position in partitions.items()
    }
