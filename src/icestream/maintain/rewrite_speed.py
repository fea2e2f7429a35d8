"""The speed of rewrites, pure: seconds that one should take, from what earlier ones took."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from icestream.maintain.action import ActionKind, Ending, FileGroup

BYTES_PER_S = 10e6  # a guess until rewrites were measured: one core, Parquet read and written
FILE_SECONDS = 1 / 16  # the same for what a file costs besides its bytes
_LAST_RUNS = 20  # from which both are measured
_GUESSED_BYTES = 100e6  # so much must be seen until the guess weighs no more than what was measured


@dataclass(frozen=True)
class PastAction:
    """An action that was run, from the history; lists of them are oldest first."""

    table: str
    kind: ActionKind
    at: float  # when it ended, in seconds
    seconds: float
    files: int  # that it read
    bytes: int
    ending: Ending


@dataclass(frozen=True)
class RewriteSpeed:
    """What a rewrite takes: so much for each file, and so much for its bytes."""

    file_seconds: float = FILE_SECONDS
    bytes_per_s: float = BYTES_PER_S

    def cost(self, group: FileGroup) -> float:
        """Return the seconds that a rewrite of this group should take."""
        return len(group.files) * self.file_seconds + group.bytes / self.bytes_per_s


def rewrite_speed(past: Sequence[PastAction]) -> RewriteSpeed:
    """Measure the last rewrites.

    A rewrite of small files mostly waits, for its process and for its commit window. If its bytes
    were blamed for that, a rewrite of larger files would be expected to take minutes.
    """
    runs = [
        run
        for run in past
        if run.kind is ActionKind.REWRITE_DATA_FILES and run.ending is Ending.DONE and run.files
    ][-_LAST_RUNS:]
    if not runs:
        return RewriteSpeed()
    small = sorted(runs, key=lambda run: run.bytes / run.files)[: (len(runs) + 1) // 2]
    waits = [(run.seconds - run.bytes / BYTES_PER_S) / run.files for run in small]
    file_seconds = max(FILE_SECONDS, float(np.median(waits)))
    byte_seconds = sum(max(0.0, run.seconds - run.files * file_seconds) for run in runs)
    bytes_read = sum(run.bytes for run in runs)
    speed = (_GUESSED_BYTES + bytes_read) / (_GUESSED_BYTES / BYTES_PER_S + byte_seconds)
    return RewriteSpeed(file_seconds, speed)
