"""Spark's offset log of a query: the positions at which each batch ends."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icestream.errors import Unreachable
from icestream.positions import Positions


def read_offset_log(scratch: Path, batch_id: int) -> Positions:
    """Return the positions at which a batch ends, as Spark logged them before it."""
    file = scratch / "checkpoint" / "offsets" / str(batch_id)
    with translate_missing_log(file):
        text = file.read_text()
    # Spark's log: version, metadata of the batch, then one line per source. There is one source.
    raw = json.loads(text.splitlines()[2])
    return {
        stream: {int(partition): position for partition, position in partitions.items()}
        for stream, partitions in raw.items()
    }


def as_offset(positions: Positions) -> dict[str, Any]:
    """Return positions as the JSON object that Spark logs: with partitions as text."""
    return {
        stream: {str(partition): position for partition, position in partitions.items()}
        for stream, partitions in positions.items()
    }


@contextmanager
def translate_missing_log(file: Path) -> Iterator[None]:
    """Turn a missing log inside the block into Unreachable: the state folder was deleted."""
    try:
        yield
    except FileNotFoundError as failure:
        raise Unreachable(
            f"the stream's log `{file.name}` is gone: {failure.strerror}",
            where=str(file.parent),
            hint="was `state_location` deleted while the pipeline runs? start it again",
        ) from None
