"""Fixtures for every kind of test: one Spark session per process, and a lake in a folder."""

import gc
import json
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icestream.catalogs import catalog_for, spark_conf
from icestream.config.load import LoadedConfig, load
from icestream.events import Event, EventBus, Listener
from icestream.run import supervisor
from icestream.sources import files

sys.path.insert(0, str(Path(__file__).parent))  # for `from servers import …`
pytest_plugins = [
    "balance", "commands", "servers", "feeds", "rest_server", "databases", "connect"
]  # fmt: skip

SETTLE_SECONDS = 0.02  # files come whole (Lake.put), and need no second to be known as such
POLL_SECONDS = 0.02  # between two looks at a run, which itself does not wait for them
STATE = pytest.StashKey[Path]()  # of the Spark session, once there is one


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Any]:
    from commands import QUICK_JAVA
    from icestream.spark import session

    state = pytestconfig.stash[STATE] = tmp_path_factory.mktemp("spark")
    settings = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2"}
    settings["spark.driver.extraJavaOptions"] = QUICK_JAVA
    if "COVERAGE_RUN" in os.environ:  # Spark kills its workers, and with them what they measured
        settings["spark.python.worker.reuse"] = "false"
    started = session.start("tests", state, settings, ["kafka"])
    yield started
    started.stop()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Plugins are parsed for the summary: as with a report, no collection may come between."""
    gc.disable()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails because the session's JVM is gone tells how that ended."""
    # The source is parsed for the report. In Python before 3.11.8 a collection lets other threads
    # in meanwhile, and one that formats a traceback breaks the parser (CPython's gh-106905).
    gc.disable()
    try:
        report = yield
    finally:
        gc.enable()
    if report.failed and STATE in item.config.stash:
        from icestream.spark.ended import exit_code

        if (code := exit_code()) is not None:
            logs = item.config.stash[STATE] / "logs"
            told = [f"exit code {code}"]
            told += [_end_of(logs / name) for name in ("jvm.log", "spark.log")]
            report.sections.append(("Spark's Java process ended", "\n".join(told)))
    return report


def _end_of(log: Path, lines: int = 30) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return "\n".join(line[:300] for line in text.splitlines()[-lines:])


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Arm failpoints in this process."""
    from icestream import failpoints

    def armed(text: str) -> None:
        monkeypatch.setenv(failpoints.VARIABLE, text)
        failpoints._armed.cache_clear()

    yield armed
    failpoints._armed.cache_clear()


@dataclass
class Lake:
    """A pipeline file, its source folder and its tables, read back by two engines."""

    folder: Path
    spark: Any
    events: list[Event] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "icestream.yml"

    @property
    def incoming(self) -> Path:
        path = self.folder / "in"
        path.mkdir(exist_ok=True)
        return path

    def configure(self, text: str) -> LoadedConfig:
        self.incoming.mkdir(exist_ok=True)
        self.file.write_text("maintenance: false\n" + textwrap.dedent(text))
        return load(self.file)

    def put(self, name: str, *lines: object) -> Path:
        """A file of lines: bytes and text as they are, anything else as JSON."""
        path = self.incoming / name
        being_written = path.with_name(f".{path.name}")  # which a listing passes over
        being_written.write_bytes(b"".join(_line(line) + b"\n" for line in lines))
        return being_written.rename(path)

    def run(self, listen: Listener | None = None, **options: Any) -> list[Event]:
        """Run once over what is there; → the events. `listen` is called between the steps."""
        from icestream.run.options import RunOptions
        from icestream.run.supervisor import run_on

        bus, seen = EventBus(), []
        self.events = seen
        bus.join(seen.append)
        if listen:
            bus.join(listen)
        stop = options.pop("stop", None)
        asked = RunOptions(**{"once": True, **options})
        run_on(self.spark, [load(self.file).pipeline], bus, asked, stop)
        return seen

    @contextmanager
    def running(self, **options: Any) -> Iterator["Future[list[Event]]"]:
        """Run until the end of the block, beside it; a failure of the run is raised there."""
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(self.run, once=False, stop=stop, **options)
            try:
                yield ended
            finally:
                stop.set()
        ended.result()

    def table(self, name: str) -> Any:
        return catalog_for(load(self.file).pipeline.catalog).open().load_table(name)

    def rows(self, name: str) -> pa.Table:
        """Read by PyIceberg, which did not write it."""
        return self.table(name).scan().to_arrow()

    def values(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        found = self.rows(name).select(list(columns)).to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)

    def spark_rows(self, query: str) -> list[Any]:
        """Read by Spark, in a session of its own: catalogs of one name differ from test to test."""
        session = self.spark.newSession()
        for key, value in spark_conf(catalog_for(load(self.file).pipeline.catalog)).items():
            session.conf.set(key, value)
        return session.sql(query).collect()

    def marker(self, name: str, pipeline: str = "p") -> dict[str, Any]:
        return json.loads(self.table(name).properties[f"icestream.{pipeline}.marker"])


def _line(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@pytest.fixture
def lake(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    monkeypatch.setattr(files, "_SETTLE_SECONDS", SETTLE_SECONDS)
    monkeypatch.setattr(supervisor, "_POLL_SECONDS", POLL_SECONDS)
    yield Lake(tmp_path, spark)
    _close_consumers(spark)


def _close_consumers(spark: Any) -> None:
    """Kafka consumers outlive their stream by minutes: a thousand take most of the heap."""
    from icestream.spark.ended import exit_code

    if exit_code() is None:
        consumers = "org.apache.spark.sql.kafka010.consumer.KafkaDataConsumer$"
        companion = spark._jvm.java.lang.Class.forName(consumers)
        for name in ("consumerPool", "fetchedDataPool"):
            pool = companion.getDeclaredField(name)
            pool.setAccessible(True)
            pool.get(None).reset()
