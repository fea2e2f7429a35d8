"""Patience: how often and after which wait a failing pipeline is tried again; pure.

A server that does not answer is waited for much longer than a batch that fails: the one comes
back, the other mostly fails again. Progress begins everything anew.
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
    """What is left of it, for one pipeline."""

    failures: int = 0  # in a row
    since: float | None = None  # when the first of them was

    def reset(self) -> None:
        """Something was committed."""
        self.failures, self.since = 0, None

    def next_delay(self, failure: IcestreamError, now: float) -> float | None:
        """Seconds until the next try, or None: no more of them."""
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
    """Whether it may go well next time: what a table, a file or a person refuses does not."""
    hopeless = isinstance(failure, JarsMissing | SparkEnded | TopicMissing)
    return isinstance(failure, GaveUp | Unreachable) and not hopeless
