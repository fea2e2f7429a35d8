"""How often, and after which delay, a failed run is started again; pure.

For a server that does not answer it is much longer than for a batch that fails: the server comes
back, the batch mostly fails again. A commit resets both.
"""

from dataclasses import dataclass

from icestream.errors import (
    GaveUp,
    IcestreamError,
    JarsMissing,
    SparkEnded,
    TopicMissing,
    Unreachable,
)

RESTARTS = 5  # in a row without a commit
OUTAGE_SECONDS = 1800.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0


@dataclass
class RestartPolicy:
    """Decides whether and when a failed run is restarted; one per pipeline."""

    failures: int = 0  # in a row
    since: float | None = None  # when the first of them was

    def reset(self) -> None:
        """Start counting anew, after a commit."""
        self.failures, self.since = 0, None

    def next_delay(self, failure: IcestreamError, now: float) -> float | None:
        """Count a failure. Returns seconds until the restart; None: there is none."""
        self.failures += 1
        self.since = now if self.since is None else self.since
        if not is_retryable(failure):
            return None
        if isinstance(failure, Unreachable):
            if now - self.since > OUTAGE_SECONDS:
                return None
        elif self.failures > RESTARTS:
            return None
        return min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (self.failures - 1))


def is_retryable(failure: IcestreamError) -> bool:
    """Whether a restart may succeed; not after what a table, a file or a person refuses."""
    is_hopeless = isinstance(failure, JarsMissing | SparkEnded | TopicMissing)
    return isinstance(failure, GaveUp | Unreachable) and not is_hopeless
