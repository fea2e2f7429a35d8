"""How Spark's Java process ended: its exit code, and in words what to do about it."""

import re
import signal
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired

from pyspark import SparkContext

from icestream.config.model import PipelineConfig
from icestream.errors import SparkEnded

MEMORY = "1g"  # `spark.driver.memory` of who sets none
# A JVM without heap has failed somewhere, and who noticed is luck: it ends at once and says so.
FLAG = "-XX:+ExitOnOutOfMemoryError"
_BY_FLAG, _BY_SPARK = 3, 52  # codes of an end for want of memory, in a task by Spark itself
scratch: Path | None = None  # of the session that this process started, where Spark has its files
_CRASHED = (signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGSEGV)


def exit_code(seconds: float = 0.0) -> int | None:
    """The JVM's exit code; None: it is alive after this time, or not of our making."""
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return None if process is None else process.wait(seconds)
    except TimeoutExpired:
        return None


def spark_ended(config: PipelineConfig, code: int | None) -> SparkEnded:
    """The error for a JVM that ended with this code, if one is known."""
    logs = Path(config.state_location) / "logs"
    where, more = logs / "jvm.log", "nothing is lost, and a restart is safe"
    how = ""
    number = 0 if code is None else -code if code < 0 else code - 128
    if code in (_BY_FLAG, _BY_SPARK):
        heap = config.spark.get("spark.driver.memory", MEMORY)
        what = _last_words(where) if code == _BY_FLAG else ""
        how = f": out of memory{what}, with `spark.driver.memory` at {heap}"
        more = f"raise it under `spark:` in the pipeline file; {more}"
    elif number in _CRASHED:
        how = f": it crashed ({signal.Signals(number).name})"
        more += f"; why is in `{logs}/hs_err_pid*.log`"
    elif number == signal.SIGKILL:
        how = ": killed (SIGKILL)"
        more += "; if nobody did, the system was short of memory: look into `dmesg`"
    elif number in set(signal.Signals):
        how = f": stopped by {signal.Signals(number).name}"
    elif code is not None:
        how = f" with exit code {code}"
    return SparkEnded(
        f"pipeline `{config.name}`: Spark's Java process ended{how}", where=str(where), hint=more
    )


def folder_deleted(config: PipelineConfig) -> SparkEnded | None:
    """The error for Spark's own files, if somebody has deleted them: only a new process has new."""
    if scratch is None or scratch.is_dir():
        return None
    return SparkEnded(
        f"pipeline `{config.name}`: the folder of Spark's files was deleted while it ran",
        where=str(scratch),
        hint="was the state folder deleted? start it again; nothing is lost",
    )


def _last_words(log: Path) -> str:
    """What Java ran out of, as it says: the heap, mostly."""
    with suppress(OSError):
        if found := re.findall(r"OutOfMemoryError: (.+)", log.read_text(errors="replace")):
            return f" ({found[-1]})"
    return ""
