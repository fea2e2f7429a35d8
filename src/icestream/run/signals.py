"""The first Ctrl-C or SIGTERM asks for a stop at a commit, the second one kills."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Iterator[tuple[threading.Event, Callable[[], None]]]:
    """Context manager: the first Ctrl-C or SIGTERM asks for a stop, a second one kills.

    Gives the event to wait for, and a function that takes the signals back once Spark has taken
    them for itself.
    """
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def ask(number: int, _: FrameType | None) -> None:
        if stop.is_set():
            for each in signals:
                signal.signal(each, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()

    def listen() -> None:
        for each in signals:
            signal.signal(each, ask)

    handlers = {each: signal.getsignal(each) for each in signals}
    listen()
    try:
        yield stop, listen
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
