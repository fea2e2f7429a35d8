"""A real one-node Kafka broker (KRaft) on loopback: for the demo, the tests and the benchmarks."""

import base64
import os
import secrets
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from icestream.errors import SetupError, Unreachable
from icestream.spark import jars
from icestream.spark.java import find_java

HOST = "127.0.0.1"
START_SECONDS = 60.0
STOP_SECONDS = 15.0
# Below the ports that systems give to outgoing connections: ours is still free after a restart.
PORTS = range(20_000, 32_000)

# Quick to start and small. For throughput give `java_options` of your own: they replace these.
QUICK_START = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "message.max.bytes": str(32 << 20),
    # One node: no copies, no waiting for others, few internal partitions.
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # It elects itself, and its former self soon counts as gone after a kill.
    "controller.quorum.election.timeout.ms": "100",
    "controller.quorum.election.backoff.max.ms": "100",
    "broker.session.timeout.ms": "2000",  # 9 s otherwise, for which a start after a kill waits
    "broker.heartbeat.interval.ms": "200",
    # What retention or a deletion removes is gone within a second or two.
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "100",
    "log.cleaner.dedupe.buffer.size": str(4 << 20),  # 128 MiB of the heap otherwise
}

# Ends the process group that it shares with the broker when our end of its pipe closes: also
# when we are killed, on every Unix, and whichever thread started it (unlike PDEATHSIG).
WATCHDOG = ("sh", "-c", "read -r _; kill -KILL 0")


class Broker:
    """A broker with its data, settings and log in a folder; it ends with our process."""

    def __init__(
        self,
        folder: Path,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        progress: jars.Progress | None = None,
        *,
        java_options: Sequence[str] = QUICK_START,
    ) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self._settings = dict(settings or {})
        self._progress = progress
        self._java_options = tuple(java_options)
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._log_start = 0  # where this start begins in the log

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The id of the broker's process, while there is one."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    @property
    def log(self) -> Path:
        """The broker's log, over all its starts."""
        return self.folder / "broker.log"

    def start(self) -> None:
        """Start the broker, with the data of earlier starts; return when it lists topics."""
        if self.pid:
            return
        self._end()
        if not _is_free(self.port):
            raise SetupError(
                "cannot start a Kafka broker: its port is taken",
                where=self.bootstrap,
                hint="stop what listens there, or leave the port to us",
            )
        command = self._command()
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,  # for the watchdog, and so that Ctrl-C is for us alone
            )
        self._watchdog = subprocess.Popen(
            WATCHDOG, stdin=subprocess.PIPE, process_group=self._process.pid
        )
        try:
            self._wait(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the broker in good order, or by force when that takes too long."""
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._end()

    def kill(self) -> None:
        """End the broker as a crash would; a start has all acknowledged records again."""
        if self._process:
            self._process.kill()
        self._end()

    def __enter__(self) -> "Broker":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _command(self) -> list[str]:
        """Write the files that the broker reads at its start. Returns the command to start it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        controller = f"{HOST}:{free_port(but=self.port)}"
        settings = {
            **SETTINGS,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.folder / "data"),
            **self._settings,
        }
        file = self.folder / "server.properties"
        file.write_text(_properties(settings), "utf-8")
        _format(self.folder / "data")
        classpath = os.pathsep.join(map(str, jars.ensure(["broker"], self._progress)))
        java = find_java().home / "bin" / "java"
        flags = (*self._java_options, "-Dlog4j2.level=INFO", "-cp", classpath)
        return [str(java), *flags, "kafka.Kafka", str(file)]

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Ask for the topics until this broker, by its cluster id, answers and lists itself."""
        cluster = _cluster(self.folder / "data")
        client = AdminClient(
            {"bootstrap.servers": self.bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0}
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise SetupError(
                    f"the Kafka broker ended at its start: {self._last_words()}",
                    where=str(self.log),
                    hint="the log says more",
                )
            try:
                answer = client.list_topics(timeout=0.5)
            except KafkaException:
                continue  # the call itself has waited
            if str(answer.cluster_id) == cluster and answer.brokers:
                return
            time.sleep(0.02)
        raise Unreachable(
            f"the Kafka broker does not answer after {START_SECONDS:.0f} s: {self._last_words()}",
            where=str(self.log),
            hint="the log says more; a busy machine may need a second try",
        )

    def _last_words(self) -> str:
        """Return the last error in the log since the start, else the last line."""
        text = self.log.read_bytes()[self._log_start :].decode(errors="replace")
        lines = text.splitlines() or ["it says nothing"]
        return next((line for line in reversed(lines) if "Exception: " in line), lines[-1]).strip()

    def _end(self) -> None:
        """Wait for both processes, so that none is left."""
        for process in filter(None, (self._process, self._watchdog)):
            if process.stdin:
                process.stdin.close()
            process.wait()
        self._process = self._watchdog = None


def free_port(but: int | None = None) -> int:
    """Choose a port on loopback that nobody listens on at the moment."""
    for _ in range(1000):
        port = secrets.choice(PORTS)
        if port != but and _is_free(port):
            return port
    raise SetupError(f"no free port between {PORTS.start} and {PORTS.stop}")


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def _format(data: Path) -> None:
    """Format a data folder as Kafka's storage tool does, without a second for its JVM."""
    file = data / "meta.properties"
    if not file.exists():
        data.mkdir(exist_ok=True)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        file.write_text(_properties({"version": "1", "node.id": "1", "cluster.id": cluster}))


def _cluster(data: Path) -> str:
    lines = (data / "meta.properties").read_text("utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]


def _properties(settings: Mapping[str, str]) -> str:
    r"""Write a Java properties file, in which a \ begins an escape."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in settings.items())
