"""Failpoints: named places at which a test lets the process die, stand still or fail.

    ICESTREAM_FAILPOINTS="files-staged:kill9, request-sent:raise:0.5:3, claimed:sleep(2)"

Each is `name:action[:probability][:count]`: how likely it acts each time it is passed, and how
often at most in one process. Unset, passing one is a look into an empty dict.
"""

import functools
import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from icestream.errors import ConfigError

VARIABLE = "ICESTREAM_FAILPOINTS"

# In the order in which a run passes them; docs/design/faults.md says what must come of each.
NAMES = (
    "table-created",  # before its claim
    "claimed",  # a table, others perhaps not yet
    "batch-begins",  # the stream is done with the one before it
    "offsets-logged",  # the range is planned, nothing is written
    "mid-write",  # in a worker: the file under way has rows
    "files-staged",  # all files are there, nothing is committed
    "schema-evolved",  # the table has the new columns, the batch is not staged again yet
    "marker-checked",  # the commit is next
    "quarantine-committed",  # the bad records are in, the table's rows are not
    "before-request",  # inside Iceberg's commit, at the last moment
    "request-sent",  # the catalog has answered, nobody has heard
    "between-tables",  # one table of the batch is done
    "tables-done",  # all are, the stream does not know yet
    # Maintenance, beside the stream.
    "rewrite-begun",  # some groups may be committed, others are not
    "rewrite-staged",  # new files are there, the table names the old ones
    "rewrite-committed",  # nobody has heard yet
    "snapshots-expired",  # their files are still there
    "orphans-found",  # none is removed yet
)


class Failpoint(Exception):
    """Raised by the action `raise`."""


@dataclass
class _ArmedFailpoint:
    act: Callable[[], None]
    probability: float
    times_left: int | None  # None: without limit

    def passed(self) -> None:
        if self.times_left == 0 or random.random() >= self.probability:  # noqa: S311
            return
        if self.times_left is not None:
            self.times_left -= 1
        self.act()


def failpoint(name: str) -> None:
    """Pass a named point: do what the environment says for it, most often nothing."""
    armed = _armed()
    if armed and name in armed:
        armed[name].passed()


def _raise() -> None:
    raise Failpoint("raised by a failpoint")


_ACTIONS: dict[str, Callable[[], None]] = {
    "kill9": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise,
}


@functools.cache
def _armed() -> dict[str, _ArmedFailpoint]:
    """Read the armed failpoints from the environment, once per process."""
    text = os.environ.get(VARIABLE, "")
    return dict(_parse(part.strip()) for part in text.split(",") if part.strip())


def _parse(text: str) -> tuple[str, _ArmedFailpoint]:
    name, action, probability, count, *more = [*text.split(":"), "", "", ""]
    sleep = re.fullmatch(r"sleep\((\d+(?:\.\d+)?)\)", action)
    if name not in NAMES:
        raise _wrong(text, f"points are {', '.join(NAMES)}")
    if action not in _ACTIONS and not sleep:
        raise _wrong(text, f"actions are {', '.join(_ACTIONS)} and sleep(seconds)")
    act = functools.partial(time.sleep, float(sleep[1])) if sleep else _ACTIONS[action]
    try:
        if any(more):
            raise ValueError
        return name, _ArmedFailpoint(act, float(probability or 1), int(count) if count else None)
    except ValueError:
        raise _wrong(text, "it is name:action[:probability][:count]") from None


def _wrong(text: str, hint: str) -> ConfigError:
    return ConfigError(f"`{text}` is no failpoint", where=f"${VARIABLE}", hint=hint)
