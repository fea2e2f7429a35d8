"""Reads from the history which actions maintenance ran on a pipeline's tables; no JVM."""

from pathlib import Path

from icestream.config.model import PipelineConfig
from icestream.maintain.action import ActionKind, Ending
from icestream.maintain.rewrite_speed import PastAction
from icestream.observe import history

_SINCE_SECONDS = 7 * 86400.0


def past_actions(config: PipelineConfig, now: float) -> list[PastAction]:
    """Return the actions of the last days, oldest first, for the policy."""
    rows = history.maintenance(Path(config.state_location), config.name, now - _SINCE_SECONDS)
    return [
        PastAction(
            table=row["table"],
            kind=ActionKind(row["action"]),
            at=row["at"],
            seconds=row["seconds"],
            files=row["files_before"],
            bytes=row["bytes_before"],
            ending=Ending(row["ending"]),
        )
        for row in rows
    ]
