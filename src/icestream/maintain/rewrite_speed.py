"""The pace of rewrites: pure, what one should take, from what others took."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from icestream.maintain.action import ActionKind, Ending, FileGroup

BYTES_PER_S = 10e6  # a guess until rewrites were measured: one core, Parquet read and written
FILE_SECONDS = 1 / 16  # the same for what a file costs besides its bytes
_LAST_RUNS = 20  # from which both are told
_GUESSED_BYTES = 100e6  # so much must be seen until the guess weighs no more than what was measured


@dataclass(frozen=True)
class PastAction:
    """An action that was run, as the history remembers it; lists of them are oldest first."""

    table: str
    kind: ActionKind
    at: float  # when it ended, in seconds
    seconds: float
    files: int  # that it read
    bytes: int
    ending: Ending


@dataclass(frozen=True)
class RewriteSpeed:
    """What a rewrite takes: so much for each file, and so much for what is in them."""

    file_seconds: float = FILE_SECONDS
    bytes_per_s: float = BYTES_PER_S

    def cost(self, group: FileGroup) -> float:
        """Seconds that a group should take."""
        return len(group.files) * self.file_seconds + group.bytes / self.bytes_per_s


def rewrite_speed(past: Sequence[PastAction]) -> RewriteSpeed:
    """What rewrites took so far.

    One of small files mostly waits, for its process and for its turn to commit. If that were
    laid to its bytes, a rewrite of larger files would be believed to take for ever.
    """
    runs = [
        each
        for each in past
        if each.kind is ActionKind.REWRITE_DATA_FILES
        and each.ending is Ending.DONE
        and each.files > 0
    ][-_LAST_RUNS:]
    if not runs:
        return RewriteSpeed()
    small = sorted(runs, key=lambda each: each.bytes / each.files)[: (len(runs) + 1) // 2]
    waits = [(each.seconds - each.bytes / BYTES_PER_S) / each.files for each in small]
    file_seconds = max(FILE_SECONDS, float(np.median(waits)))
    reading = sum(max(0.0, each.seconds - each.files * file_seconds) for each in runs)
    read = sum(each.bytes for each in runs)
    speed = (_GUESSED_BYTES + read) / (_GUESSED_BYTES / BYTES_PER_S + reading)
    return RewriteSpeed(file_seconds, speed)
