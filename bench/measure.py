"""CPU and memory of a process tree, sampled from /proc; children that ended are included."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from icestream.cli.demo.broker import WATCHDOG

EVERY_SECONDS = 0.2
STOP_SECONDS = 30
IDLE_CORES = 0.25
TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Command:
    """How to start a system under test."""

    argv: Sequence[str]
    folder: Path
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Process:
    parent: int
    born: int
    cpu: int
    rss: int


class Tree(threading.Thread):
    """Samples one process and all that descend from it."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(daemon=True)
        self.process = process
        self.samples: list[tuple[float, float, int]] = []  # time, CPU seconds, resident bytes
        self._members = {process.pid: _processes()[process.pid].born}
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.is_set():
            self.sample()
            self._done.wait(EVERY_SECONDS)

    def sample(self) -> None:
        now, alive = time.time(), self._alive()
        # What a parent has waited for is in its own times: nothing is counted twice or lost.
        cpu = sum(each.cpu for each in alive.values()) / TICKS
        cpu = max(cpu, self.samples[-1][1]) if self.samples else cpu
        self.samples.append((now, cpu, sum(each.rss for each in alive.values())))

    def _alive(self) -> dict[int, _Process]:
        found = _processes()
        grown = True
        while grown:
            grown = False
            for pid, each in found.items():
                if pid not in self._members and self._is_member(found, each.parent):
                    self._members[pid] = each.born
                    grown = True
        return {pid: found[pid] for pid in self._members if self._is_member(found, pid)}

    def _is_member(self, found: Mapping[int, _Process], pid: int) -> bool:
        return pid in found and self._members.get(pid) == found[pid].born

    def cpu_at(self, when: float) -> float:
        """CPU seconds used up to that moment."""
        times, cpu, _ = zip(*self.samples, strict=True)
        return float(np.interp(when, times, cpu))

    def peak_rss(self, begin: float, end: float) -> int:
        """The most bytes that the tree held at one moment of that time."""
        return max((rss for when, _, rss in self.samples if begin <= when <= end), default=0)

    def idle_between(self, begin: float, end: float) -> float:
        """Seconds in which the tree used less than a quarter of a core, a second at a time."""
        edges = np.arange(begin, end, 1.0)
        used = np.diff([self.cpu_at(edge) for edge in edges])
        return float((used < IDLE_CORES).sum())

    def end(self) -> None:
        """Stop it in good order, then by force; whatever it started ends with it."""
        self._done.set()
        if self.is_alive():
            self.join()
        self._alive()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        for pid in self._alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


def _processes() -> dict[int, _Process]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                text = (entry / "stat").read_text()
                parts = text[text.rindex(")") + 2 :].split()
                found[int(entry.name)] = _Process(
                    parent=int(parts[1]),
                    born=int(parts[19]),
                    cpu=sum(map(int, parts[11:15])),  # user, system and those of ended children
                    rss=int(parts[21]) * _PAGE,
                )
    return found


@contextmanager
def running(command: Command) -> Iterator[Tree]:
    """Start a system with its output in a log file, and measure it until the block ends."""
    with (command.folder / "output.log").open("wb") as log:
        process = subprocess.Popen(
            command.argv,
            cwd=command.folder,
            env={**os.environ, **command.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    # Ends the group when this process is killed, too.
    watchdog = subprocess.Popen(WATCHDOG, stdin=subprocess.PIPE, process_group=process.pid)
    tree = Tree(process)
    try:
        tree.start()
        yield tree
    finally:
        try:
            tree.end()
        finally:
            watchdog.kill()
            watchdog.communicate()


def last_words(folder: Path, lines: int = 15) -> str:
    """The end of a system's log."""
    text = (folder / "output.log").read_text(errors="replace")
    return "\n".join(f"    {line[:300]}" for line in text.splitlines()[-lines:])
