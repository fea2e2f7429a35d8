"""A small world to hurt: a broker that is fed, a catalog, and the pipeline as a process."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from badproxy import BadProxy
from commands import COMMAND, QUICK_JAVA, children_of
from crash import people
from icestream.cli.demo.broker import Broker
from icestream.config.load import load
from icestream.config.model import PipelineConfig
from icestream.failpoints import VARIABLE
from rest_server import RestServer
from servers import create_topic

PARTITIONS = {"orders": 3, "clicks": 1}
BAD_EVERY = 97
BUFFERED = 50_000
PATIENCE_SECONDS = 240
CONFIG = """\
name: chaos
catalog: {catalog}
source:
  type: kafka
  bootstrap_servers: {bootstrap}
  topic_pattern: '(?P<table>orders|clicks|people|more\\d+)'
  max_records_per_commit: 60000
  format: {{type: json}}
commit_interval: 1s
state_location: {folder}/state
maintenance: {maintenance}
tables:
  - match: people
    name: db.people
    mode: upsert
    keys: [id]
    sequence_by: [version]
    apply_as_deletes: gone
    columns: {{id: bigint, version: bigint, name: string, gone: boolean}}
  - {{name: 'db.{{table}}', columns: {{id: bigint}}}}
spark: {spark}
"""
# Of JVMs that do not live long.
BRIEF = f'{{spark.driver.extraJavaOptions: "{QUICK_JAVA}"}}'
# Iceberg's own client shall not wait longer than the campaign; a cold server under load takes more
# than 5 seconds to make its first table.
CLIENT = "{rest.client.connection-timeout-ms: '15000', rest.client.socket-timeout-ms: '15000'}"


class Feeder(threading.Thread):
    """Sends events and changes, some of them bad, each acknowledged once."""

    def __init__(self, bootstrap: str, per_second: int, keys: int, width: int) -> None:
        super().__init__(daemon=True)
        self.sent = 0  # events
        self.people = people.People(keys)
        self._width = width  # of an event's text, at most
        self._noise = random.Random(2).randbytes(1 << 15).hex()
        self.topics = dict(PARTITIONS)
        self._servers = bootstrap
        self._per_second = per_second
        self._fields = 0
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            for _ in range(self._per_second // 10):
                self._send()
            for _ in range(self._per_second // 30):
                partition, text = self.people.change()
                self._producer.produce(people.TOPIC, text, partition=partition)
            self._producer.poll(0)

    def send_everyone(self) -> None:
        """Before it is started: all people once, as a connector's snapshot of their table."""
        for partition, text in self.people.everyone():
            self._producer.produce(people.TOPIC, text, partition=partition)
            if len(self._producer) > BUFFERED:
                self._producer.flush(PATIENCE_SECONDS)

    def _send(self) -> None:
        names = list(self.topics)
        topic = names[self.sent % len(names)]
        at = self.sent % len(self._noise)
        record = {"id": self.sent, "text": self._noise[at : at + self.sent % self._width]}
        if self._fields:
            record[f"field{self._fields}"] = str(self.sent)
        whole = json.dumps(record)
        text = whole[:-1] if self.sent % BAD_EVERY == 0 else whole
        partition = self.sent // len(names) % self.topics[topic]
        self._producer.produce(topic, text, partition=partition)
        self.sent += 1

    def widen(self) -> None:
        """From now on records have a field that no table has."""
        self._fields += 1

    def add_topic(self) -> None:
        """From now on there is one topic more."""
        name = f"more{len(self.topics)}"
        create_topic(self._servers, name)
        self.topics = {**self.topics, name: 1}

    def stop(self) -> None:
        """No more; all that was sent has arrived."""
        self._stopped.set()
        self.join()
        assert self._producer.flush(PATIENCE_SECONDS) == 0, "the broker did not take every record"


class Driver:
    """One start of a command that commits, and what it logged so far."""

    def __init__(self, command: list[str], folder: Path, log: Path, failpoints: str = "") -> None:
        self.began = time.monotonic()
        self.recovered: float | None = None  # seconds until its first commit
        self.commits = 0
        self.retries = 0
        self._log = log
        self._read = 0
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, VARIABLE: failpoints}, stderr=output
            )

    @property
    def ended(self) -> int | None:
        """Its exit code, if it has one."""
        return self.process.poll()

    def look(self) -> None:
        """Read on in its log."""
        with self._log.open("rb") as log:
            log.seek(self._read)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                self.commits += b'"table_committed"' in line
                self.retries += b'"commit_retried"' in line
        if self.commits and self.recovered is None:
            self.recovered = time.monotonic() - self.began

    def wait(self, until: Callable[["Driver"], bool], seconds: float = PATIENCE_SECONDS) -> bool:
        """Until something holds, it has ended, or time is up; → whether it holds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            over = self.ended is not None
            self.look()
            if until(self):
                return True
            if over:
                return False
            time.sleep(0.05)
        return False

    def wait_for_commits(self, count: int = 1) -> None:
        """Until it has committed so many more; anything else is a failure of the run."""
        wanted = self.commits + count
        assert self.wait(lambda driver: driver.commits >= wanted), self.last_words()

    def wait_for_stop(self) -> bool:
        """Until a failpoint has let it stand still; → whether it does."""
        pid = self.process.pid
        return self.wait(
            lambda _: os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        )

    def java(self) -> int:
        """The process that Spark is in."""
        names = {pid: Path(f"/proc/{pid}/comm") for pid in children_of(self.process.pid)}
        [found] = [pid for pid, name in names.items() if name.read_text() == "java\n"]
        return found

    def workers(self) -> list[int]:
        """Python workers that are forked from Spark's daemon."""
        daemons = children_of(self.java())
        return [pid for daemon in daemons for pid in children_of(daemon)]

    def kill(self) -> None:
        """Kill it, and wait for its JVM to notice and end."""
        family = children_of(self.process.pid)
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(Path(f"/proc/{pid}").exists() for pid in family):
            assert time.monotonic() < deadline, "the JVM outlived its driver"
            time.sleep(0.05)
        self.look()

    def stop(self) -> int:
        """Ask it to stop in good order; → its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_SECONDS)
        self.look()
        return code

    def lines(self) -> Iterator[dict[str, Any]]:
        """Its log so far, line by line."""
        for line in self._log.read_bytes().splitlines():
            with suppress(ValueError):  # Java's own words, or a line that is being written
                yield json.loads(line)

    def last_words(self) -> str:
        """The end of its log."""
        return f"{self._log}: {self._log.read_text(errors='replace')[-3000:]}"


class World:
    """Everything that a pipeline needs, in one folder."""

    def __init__(
        self,
        folder: Path,
        catalog: str,
        per_second: int = 300,
        keys: int = people.KEYS,
        maintenance: str = "false",
        width: int = 50,
        everyone: bool = False,
        spark: str = BRIEF,
    ) -> None:
        self.folder = folder
        self.catalog = catalog
        self.broker = Broker(folder / "broker")
        self.server: RestServer | None = None
        self.proxy: BadProxy | None = None
        self.drivers: list[Driver] = []
        self._per_second = per_second
        self._keys = keys
        self._maintenance = maintenance
        self._width = width
        self._everyone = everyone
        self._spark = spark
        self._stack = ExitStack()

    @contextmanager
    def alive(self) -> Iterator["World"]:
        """Servers and feeder, until the end of the block; no process outlives it."""
        with self._stack as stack:
            stack.enter_context(self.broker)
            where = direct = f"{{type: local, name: lake, warehouse: {self.folder}/warehouse}}"
            if self.catalog == "rest":
                self.server = stack.enter_context(RestServer(self.folder / "rest"))
                self.proxy = stack.enter_context(BadProxy(self.server.uri))
                rest = "{{type: rest, name: lake, uri: '{}', properties: {}}}"
                where = rest.format(self.proxy.uri, CLIENT)
                direct = rest.format(self.server.uri, CLIENT)
            for topic, partitions in {**PARTITIONS, people.TOPIC: people.PARTITIONS}.items():
                create_topic(self.broker.bootstrap, topic, partitions=partitions)
            self._catalogs = {"icestream.yml": where, "maintenance.yml": direct}
            self.configure(self._maintenance)
            self.feeder = Feeder(self.broker.bootstrap, self._per_second, self._keys, self._width)
            if self._everyone:
                self.feeder.send_everyone()
            self.feeder.start()
            stack.callback(self.feeder.stop)
            yield self

    def configure(self, maintenance: str) -> None:
        """Write the pipeline file, and the same with a catalog that tells the truth."""
        for file, catalog in self._catalogs.items():
            text = CONFIG.format(
                catalog=catalog,
                bootstrap=self.broker.bootstrap,
                folder=self.folder,
                maintenance=maintenance,
                spark=self._spark,
            )
            (self.folder / file).write_text(text)

    @property
    def config(self) -> PipelineConfig:
        """The pipeline file."""
        return load(self.folder / "icestream.yml").pipeline

    @property
    def state(self) -> Path:
        """What may be deleted at any time."""
        return self.folder / "state"

    def start(self, failpoints: str = "") -> Driver:
        """Start the pipeline."""
        return self._started(
            [*COMMAND, "--log-format", "json", "run", "icestream.yml"], "driver", failpoints
        )

    def start_once(self) -> int:
        """Take what is there, and end; → the exit code."""
        command = [*COMMAND, "run", "--once", "icestream.yml"]
        return subprocess.run(command, cwd=self.folder, capture_output=True).returncode

    def start_script(self, name: str, *arguments: str) -> Driver:
        """Start a script of this folder: somebody else's writer or maintenance."""
        script = str(Path(__file__).parent / name)
        return self._started([sys.executable, script, *arguments], Path(name).stem)

    def _started(self, command: list[str], name: str, failpoints: str = "") -> Driver:
        log = self.folder / f"{name}-{len(self.drivers):04d}.log"
        driver = Driver(command, self.folder, log, failpoints)
        self.drivers.append(driver)
        self._stack.callback(driver.kill)
        return driver
