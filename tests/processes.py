"""Processes that tests start: each is the head of its group, and ends with us however we end."""

import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from icestream.cli.demo.broker import WATCHDOG
from servers import soon

STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Child:
    """A process with a log, and the watchdog that ends its group when we are gone."""

    process: "subprocess.Popen[bytes]"
    watchdog: "subprocess.Popen[bytes]"
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when it is ready; one that ended, or says nothing for too long, is an error."""
        assert soon(lambda: self.process.poll() is not None or ready(), seconds), self._said()
        assert self.process.poll() is None, self._said()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End it in good order, or by force when that takes too long."""
        self.process.send_signal(how)
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._end()

    def kill(self) -> None:
        """End it as a crash would."""
        self.process.kill()
        self._end()

    def _end(self) -> None:
        """Wait for both; what the process started itself goes with the watchdog."""
        self.process.wait()
        assert self.watchdog.stdin
        self.watchdog.stdin.close()
        self.watchdog.wait()

    def _said(self) -> str:
        return f"{self.process.args!r} says: {self.log.read_text(errors='replace')[-3000:]}"


def spawn(command: Sequence[str | Path], log: Path, user: str | None = None) -> Child:
    """Start it in the folder of its log, which it adds to; `user`: as somebody else."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            process_group=0,  # for the watchdog, and so that Ctrl-C is for us alone
            user=user,
            extra_groups=[] if user else None,
        )
    watchdog = subprocess.Popen(WATCHDOG, stdin=subprocess.PIPE, process_group=process.pid)
    return Child(process, watchdog, log)
