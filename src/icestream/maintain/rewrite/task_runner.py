"""A job: one task beside those of the stream, which can be called off.

On one machine it runs in a process of its own that gives way to all others: a slot of Spark's
would be one less for the stream, and its worker as important as the stream's own. On a cluster it
is a task of Spark's like any other, where the files are near.
"""

import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol

from icestream.batch.report import unpack_report
from icestream.errors import GaveUp
from icestream.maintain.action import Stopped
from icestream.spark.types import task_output_type

_LOOK_EVERY = 0.2
_PATIENCE = 30.0  # seconds for a cancelled task to end


class Cancelled(Exception):
    """Somebody asked for a stop."""


class TaskRunner(Protocol):
    """Runs tasks, one at a time."""

    def run(self, task: Any, what: str, stopped: Stopped) -> Any:
        """Call the task; → its report. Raises Cancelled, or what the task says."""
        ...

    def release_idle(self) -> None:
        """There is nothing to do for a while."""
        ...

    def close(self) -> None:
        """No task is run any more."""
        ...


def task_runner_for(spark: Any) -> TaskRunner:
    """The way to run a task where this session runs its own."""
    local = str(spark.sparkContext.master).startswith("local")
    return ProcessTaskRunner() if local else SparkTaskRunner(spark)


class ProcessTaskRunner:
    """Tasks in a Python process beside this one, with less right to the processor."""

    def __init__(self) -> None:
        self._worker: tuple[subprocess.Popen[bytes], Connection] | None = None

    def run(self, task: Any, what: str, stopped: Stopped) -> Any:
        """Send the task, wait for the answer."""
        if stopped():
            raise Cancelled
        _, pipe = self._worker = self._worker or _started()
        try:
            pipe.send(task)
            while not pipe.poll(_LOOK_EVERY):
                if stopped():
                    self._end(kill=True)
                    raise Cancelled
            table, block = pipe.recv()
        except (EOFError, OSError):
            code = self._end(kill=True)
            raise GaveUp(f"{what}: its process ended with code {code}") from None
        return unpack_report(table, block)

    def release_idle(self) -> None:
        """End the process: it is started in a second, and holds memory."""
        self._end()

    def close(self) -> None:
        """End the worker process, when maintenance ends."""
        self._end()

    def _end(self, kill: bool = False) -> int | None:
        if self._worker is None:
            return None
        (process, pipe), self._worker = self._worker, None
        if kill:
            process.kill()
        pipe.close()  # which tells it to end
        return process.wait()


class SparkTaskRunner:
    """Tasks in a slot of Spark's; in a thread of its own, as each has a connection to Java."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rewrite")

    def run(self, task: Any, what: str, stopped: Stopped) -> Any:
        """Call the task in one slot."""
        if stopped():
            raise Cancelled
        name = f"icestream-rewrite-{uuid.uuid4().hex}"
        told = self._thread.submit(self._collect, task, name, what)
        while True:
            try:
                ((table, _, block),) = told.result(_LOOK_EVERY)
                return unpack_report(table, bytes(block))
            except NotYet:
                if stopped():
                    self._cancel(name, told)
                    raise Cancelled from None

    def release_idle(self) -> None:
        """Spark goes on anyway."""

    def close(self) -> None:
        """Let go of the thread."""
        self._thread.shutdown()

    def _collect(self, task: Any, name: str, what: str) -> list[Any]:
        self._spark.sparkContext.setJobGroup(name, what, interruptOnCancel=True)
        frame = self._spark.range(0, 1, 1, 1)
        return [tuple(row) for row in frame.mapInArrow(task, task_output_type()).collect()]

    def _cancel(self, name: str, told: "Future[list[Any]]") -> None:
        self._spark.sparkContext.cancelJobGroup(name)
        deadline = time.monotonic() + _PATIENCE
        while not told.done() and time.monotonic() < deadline:
            with suppress(Exception):  # that it was cancelled, most likely
                told.result(_LOOK_EVERY)


def _started() -> "tuple[subprocess.Popen[bytes], Connection]":
    own, its = Pipe()
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "icestream.maintain.rewrite.worker", str(its.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
            start_new_session=True,  # Ctrl-C is ours to understand
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    return process, own
