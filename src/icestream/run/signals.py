"""The first Ctrl-C or SIGTERM asks for a stop at a commit, the second one kills."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Iterator[tuple[threading.Event, Callable[[], None]]]:
    """The first Ctrl-C or SIGTERM asks for a stop; a second one takes the process down as it is.

    → the event to wait for, and a call that takes the signals back after Spark has taken them.
    """
    stop = threading.Event()
    kinds = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            for kind in kinds:
                signal.signal(kind, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    def listen() -> None:
        for kind in kinds:
            signal.signal(kind, ask)

    before = {kind: signal.getsignal(kind) for kind in kinds}
    listen()
    try:
        yield stop, listen
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
