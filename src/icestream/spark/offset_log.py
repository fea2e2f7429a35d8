"""The offset log of a stream: where each batch ends, as Spark writes it down."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icestream.errors import Unreachable
from icestream.positions import Positions


def read_offset_log(scratch: Path, batch_id: int) -> Positions:
    """The positions in the stream's log of planned offsets."""
    file = scratch / "checkpoint" / "offsets" / str(batch_id)
    with translate_missing_log(file):
        text = file.read_text()
    raw = json.loads(text.splitlines()[2])
    return {s: {int(n): at for n, at in partitions.items()} for s, partitions in raw.items()}


def as_offset(positions: Positions) -> dict[str, Any]:
    """Positions as the JSON object that is logged."""
    return {
        stream: {str(number): at for number, at in partitions.items()}
        for stream, partitions in positions.items()
    }


@contextmanager
def translate_missing_log(file: Path) -> Iterator[None]:
    """A log of a run that is no longer there says so: somebody has deleted its folder."""
    try:
        yield
    except FileNotFoundError as failure:
        raise Unreachable(
            f"the stream's log `{file.name}` is gone: {failure.strerror}",
            where=str(file.parent),
            hint="was `state_location` deleted while the pipeline runs? start it again",
        ) from None
