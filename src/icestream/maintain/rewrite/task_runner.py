"""Runs the task of a rewrite beside those of the run; it can be cancelled.

On one machine it runs in a process of its own, at low priority: a slot of Spark's would be one
less for the run, and its worker as important as the run's own. On a cluster it is a Spark task
like any other, where the files are near.
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

_POLL_SECONDS = 0.2
_CANCEL_SECONDS = 30.0  # for a cancelled task to end


class Cancelled(Exception):
    """Raised when a stop was asked for."""


class TaskRunner(Protocol):
    """Runs tasks, one at a time."""

    def run(self, task: Any, what: str, stopped: Stopped) -> Any:
        """Run the task. Returns its report; raises Cancelled, or the error that it reports."""
        ...

    def release_idle(self) -> None:
        """Free memory, as no task will run soon."""
        ...

    def close(self) -> None:
        """Release processes and threads for good."""
        ...


def task_runner_for(spark: Any) -> TaskRunner:
    """Return the task runner for a local master, or for a cluster."""
    local = str(spark.sparkContext.master).startswith("local")
    return ProcessTaskRunner() if local else SparkTaskRunner(spark)


class ProcessTaskRunner:
    """Runs tasks in a Python process of its own, at low priority."""

    def __init__(self) -> None:
        self._worker: tuple[subprocess.Popen[bytes], Connection] | None = None

    def run(self, task: Any, what: str, stopped: Stopped) -> Any:
        """Send the task to the process and wait for its report."""
        if stopped():
            raise Cancelled
        _, pipe = self._worker = self._worker or _start_worker()
        try:
            pipe.send(task)
            while not pipe.poll(_POLL_SECONDS):
                if stopped():
                    self._end(kill=True)
                    raise Cancelled
            table, block = pipe.recv()
        except (EOFError, OSError):
            code = self._end(kill=True)
            raise GaveUp(f"{what}: its process ended with code {code}") from None
        return unpack_report(table, block)

    def release_idle(self) -> None:
        """End the process: it holds memory, and starts in a second."""
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
        pipe.close()  # then the process ends by itself
        return process.wait()


class SparkTaskRunner:
    """Runs tasks as Spark tasks, on a cluster."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        # One for all tasks: each thread has a connection to Java, which outlives the thread.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rewrite")

    def run(self, task: Any, what: str, stopped: Stopped) -> Any:
        """Run the task in one slot and wait for its report."""
        if stopped():
            raise Cancelled
        name = f"icestream-rewrite-{uuid.uuid4().hex}"
        future = self._thread.submit(self._collect, task, name, what)
        while True:
            try:
                ((table, _, block),) = future.result(_POLL_SECONDS)
                return unpack_report(table, bytes(block))
            except NotYet:
                if stopped():
                    self._cancel(name, future)
                    raise Cancelled from None

    def release_idle(self) -> None:
        """Nothing to free: Spark's workers stay."""

    def close(self) -> None:
        """End the thread, when maintenance ends."""
        self._thread.shutdown()

    def _collect(self, task: Any, name: str, what: str) -> list[Any]:
        self._spark.sparkContext.setJobGroup(name, what, interruptOnCancel=True)
        frame = self._spark.range(0, 1, 1, 1)
        return [tuple(row) for row in frame.mapInArrow(task, task_output_type()).collect()]

    def _cancel(self, name: str, future: "Future[list[Any]]") -> None:
        self._spark.sparkContext.cancelJobGroup(name)
        deadline = time.monotonic() + _CANCEL_SECONDS
        while not future.done() and time.monotonic() < deadline:
            with suppress(Exception):  # that it was cancelled, most likely
                future.result(_POLL_SECONDS)


def _start_worker() -> "tuple[subprocess.Popen[bytes], Connection]":
    pipe, worker_pipe = Pipe()
    with worker_pipe:
        process = subprocess.Popen(
            [sys.executable, "-m", "icestream.maintain.rewrite.worker", str(worker_pipe.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[worker_pipe.fileno()],
            start_new_session=True,  # Ctrl-C must reach only our process, which ends this one
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    return process, pipe
