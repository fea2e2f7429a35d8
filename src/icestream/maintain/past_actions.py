"""The past: what maintenance did to a pipeline's tables, from the history; no JVM."""

from pathlib import Path

from icestream.config.model import PipelineConfig
from icestream.maintain.action import ActionKind, Ending
from icestream.maintain.rewrite_speed import PastAction
from icestream.observe import history

_REMEMBERED = 7 * 86400.0


def past_actions(config: PipelineConfig, now: float) -> list[PastAction]:
    """The runs of the last days, oldest first, for the policy."""
    found = history.maintenance(Path(config.state_location), config.name, now - _REMEMBERED)
    return [
        PastAction(
            table=each["table"],
            kind=ActionKind(each["action"]),
            at=each["at"],
            seconds=each["seconds"],
            files=each["files_before"],
            bytes=each["bytes_before"],
            ending=Ending(each["ending"]),
        )
        for each in found
    ]
