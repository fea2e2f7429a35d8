"""A stream that icestream plans itself: a thread of the driver plans, tasks make the records.

The planner names positions and work orders (small JSON texts); the fused task turns an order into
records right where they are decoded, so that no record crosses the JVM on its way from a file or a
generator. Spark's own streaming would ask such a planner in two helper processes, which take
longer to start than a batch takes: docs/design/speed.md, "The planner".
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from icestream.positions import Positions
from icestream.sources import BatchHandler
from icestream.spark.offset_log import as_offset, translate_missing_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_IDLE_SECONDS = 0.02  # between two questions to a source that has nothing new, at least
_STOP_SECONDS = 60.0
_LOGGED = 2  # batches that stay in the offset log, as Spark keeps them


class Planner(Protocol):
    """Decides how far batches go and how to cut them; used by one thread, may raise errors."""

    def initial_positions(self) -> Positions:
        """Return where the stream begins."""
        ...

    def latest_positions(self) -> Positions:
        """Return how far the next batch may go; the same answer again means nothing new."""
        ...

    def work_orders(self, start: Positions, stop: Positions) -> Sequence[str]:
        """Cut a range into work orders, one per task."""
        ...


class PlannedStream:
    """A stream with one column `work`; the planner is made when the stream starts."""

    def __init__(self, spark: "SparkSession", planner: Callable[[], Planner]) -> None:
        self.spark = spark
        self.planner = planner

    def start(
        self, name: str, handle: BatchHandler, checkpoint: Path, interval: float
    ) -> "PlannedQuery":
        """Start a thread that hands batch after batch to `handle`."""
        offsets = checkpoint / "offsets"
        offsets.mkdir(parents=True)
        return PlannedQuery(self, name, handle, offsets, interval)


class PlannedQuery:
    """As much of Spark's StreamingQuery as a run needs, with its names."""

    def __init__(
        self, stream: PlannedStream, name: str, handle: BatchHandler, offsets: Path, interval: float
    ) -> None:
        self._stream = stream
        self._name = name
        self._handle = handle
        self._offsets = offsets
        self._interval = interval
        self._stopping = threading.Event()
        self._idle = threading.Event()  # a look at the source found nothing new, or it is over
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 (Spark's names)
        """Whether batches still come; raises what py4j raises when the JVM is gone.

        A source that has nothing new asks Java nothing: this is how a death is noticed then.
        """
        if self._stream.spark.sparkContext._jsc.sc().isStopped():
            raise ConnectionError("Spark has stopped its context")
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        """The error that ended the stream, if one did."""
        return self._failure

    def processAllAvailable(self) -> None:  # noqa: N802
        """Return when the source has nothing new; raises the error that ended the stream."""
        self._idle.wait()
        if self._failure is not None:
            raise self._failure

    def awaitTermination(self) -> None:  # noqa: N802
        """Return when the stream has ended; raises the error that ended it."""
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin no further batch; return when the current one has ended, or after a minute."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._batches()
        except BaseException as failure:  # of Rust below us, too: a stream never ends unnoticed
            self._failure = failure
        finally:
            self._idle.set()

    def _batches(self) -> None:
        planner = self._stream.planner()
        session = _cloned_session(self._stream.spark)
        start, batch_id = planner.initial_positions(), 0
        while not self._stopping.is_set():
            began = time.monotonic()
            stop = planner.latest_positions()
            wait = self._interval - (time.monotonic() - began)
            if stop == start:
                self._idle.set()
                wait = max(wait, _IDLE_SECONDS)
            else:
                self._log(batch_id, stop)
                frame = _work_order_frame(session, planner.work_orders(start, stop))
                session.sparkContext.setJobGroup(self._name, f"{self._name}, batch {batch_id}")
                self._handle(frame, batch_id)
                start, batch_id = stop, batch_id + 1
                wait = self._interval - (time.monotonic() - began)
            self._stopping.wait(max(0.0, wait))

    def _log(self, batch_id: int, stop: Positions) -> None:
        """Log a batch's end before it begins, in the form of Spark's own offset log."""
        file = self._offsets / str(batch_id)
        with translate_missing_log(file):
            file.write_text(f"v1\n{{}}\n{json.dumps(as_offset(stop))}\n")
            (self._offsets / str(batch_id - _LOGGED)).unlink(missing_ok=True)


def _cloned_session(spark: "SparkSession") -> "SparkSession":
    """A session whose settings are for one pipeline alone; Spark's own streams have such, too."""
    from pyspark.sql import SparkSession

    return SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())


def _work_order_frame(session: "SparkSession", orders: Sequence[str]) -> "DataFrame":
    """Work orders as a DataFrame: one for each task, if they are no more than task slots."""
    from pyspark.sql import DataFrame

    jvm: Any = session._jvm
    texts = jvm.java.util.ArrayList(list(orders))
    dataset = session._jsparkSession.createDataset(
        texts, jvm.org.apache.spark.sql.Encoders.STRING()
    )
    return DataFrame(dataset.toDF(), session).withColumnRenamed("value", "work")
