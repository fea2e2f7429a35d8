"""Explains how Spark's Java process ended: its exit code, and what to do about it."""

import re
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired

from pyspark import SparkContext

from icestream.config.model import PipelineConfig
from icestream.errors import SparkEnded

MEMORY = "1g"  # default of `spark.driver.memory`
# A JVM out of heap fails in whatever thread allocates next: it had better end at once and say so.
FLAG = "-XX:+ExitOnOutOfMemoryError"
_BY_FLAG, _BY_SPARK = 3, 52  # exit codes of out of memory: by FLAG, and by Spark in a task
scratch: Path | None = None  # Spark's files, of the session that this process started
_CRASHED = (signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGSEGV)


def exit_code(seconds: float = 0.0) -> int | None:
    """Wait so long for the JVM's exit code; None: it is alive, or another process started it."""
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return None if process is None else process.wait(seconds)
    except TimeoutExpired:
        return None


def spark_ended(config: PipelineConfig, code: int | None) -> SparkEnded:
    """Make the error for a JVM that ended with this exit code; None: the code is not known."""
    logs = Path(config.state_location) / "logs"
    log, hint = logs / "jvm.log", "nothing is lost, and a restart is safe"
    how = ""
    signal_number = 0 if code is None else -code if code < 0 else code - 128
    if code in (_BY_FLAG, _BY_SPARK):
        heap = config.spark.get("spark.driver.memory", MEMORY)
        cause = _memory_cause(log) if code == _BY_FLAG else ""
        how = f": out of memory{cause}, with `spark.driver.memory` at {heap}"
        hint = f"raise it under `spark:` in the pipeline file; {hint}"
    elif signal_number in _CRASHED:
        how = f": it crashed ({signal.Signals(signal_number).name})"
        hint += f"; why is in `{logs}/hs_err_pid*.log`"
    elif signal_number == signal.SIGKILL:
        how = ": killed (SIGKILL)"
        hint += "; if nobody did, the system was short of memory: look into `dmesg`"
    elif signal_number in set(signal.Signals):
        how = f": stopped by {signal.Signals(signal_number).name}"
    elif code is not None:
        how = f" with exit code {code}"
    return SparkEnded(
        f"pipeline `{config.name}`: Spark's Java process ended{how}", where=str(log), hint=hint
    )


def folder_deleted(config: PipelineConfig) -> SparkEnded | None:
    """Return an error if Spark's own files were deleted, which only a new process creates again."""
    if scratch is None or scratch.is_dir():
        return None
    return SparkEnded(
        f"pipeline `{config.name}`: the folder of Spark's files was deleted while it ran",
        where=str(scratch),
        hint="was the state folder deleted? start it again; nothing is lost",
    )


def _memory_cause(log: Path) -> str:
    """Return what Java says that it ran out of, such as ` (Java heap space)`; else nothing."""
    with suppress(OSError):
        if causes := re.findall(r"OutOfMemoryError: (.+)", log.read_text(errors="replace")):
            return f" ({causes[-1]})"
    return ""
