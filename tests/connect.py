"""A real Kafka Connect worker with Debezium's connectors, for tests: on loopback, in its own JVM.

It is distributed, of one: all that it knows is in topics, so it may be killed and started again.
"""

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest

from databases import NAME, PASSWORD, USER, Database, locked
from icestream.cli.demo.broker import HOST, QUICK_START, Broker, free_port
from icestream.spark import jars
from icestream.spark.java import find_java
from processes import Child, spawn
from servers import soon

WORKER_LOCK = Path(__file__).parent.parent / "bench" / "peers.lock.toml"
START_SECONDS = 120.0
NOT_YET = (404, 409, 500, 503)
JSON = "org.apache.kafka.connect.json.JsonConverter"


class Connect:
    """A worker; what it reads and where it stands is there again after a kill and a start."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self.port = free_port()
        self._group = f"connect-{uuid.uuid4().hex[:8]}"
        self._child: Child | None = None

    def start(self) -> None:
        """Return when it has its connectors and answers."""
        plugin = self.folder / "plugins" / "debezium"
        plugin.mkdir(parents=True, exist_ok=True)
        for jar in jars.obtain(locked("debezium")):
            if not (plugin / jar.name).exists():
                (plugin / jar.name).symlink_to(jar)
        file = self.folder / "worker.properties"
        settings = self._settings(plugin.parent)
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        classpath = os.pathsep.join(map(str, jars.obtain(locked("connect", WORKER_LOCK))))
        java = find_java().home / "bin" / "java"
        flags = (*QUICK_START, "-Dlog4j2.level=INFO", "-cp", classpath)
        program = "org.apache.kafka.connect.cli.ConnectDistributed"
        self._child = spawn([java, *flags, program, file], self.folder / "worker.log")
        try:
            self._child.wait_until(lambda: self._ask("/connectors") is not None, START_SECONDS)
        except BaseException:
            self.kill()
            raise

    def create(self, name: str, config: Mapping[str, str]) -> None:
        """Return when the connector and its task run."""
        made = soon(lambda: self._ask(f"/connectors/{name}/config", "PUT", config) is not None, 60)
        assert made, self._said()
        self.wait(name)

    def wait(self, name: str) -> None:
        """Until the connector and its task run."""
        assert soon(lambda: self._runs(name), 60), self._said()

    def delete(self, name: str) -> None:
        assert soon(lambda: self._ask(f"/connectors/{name}", "DELETE") is not None, 60)

    def kill(self) -> None:
        """End it as a crash would: what it sent since it last noted its position comes again."""
        if self._child:
            self._child.kill()
        self._child = None

    def _runs(self, name: str) -> bool:
        found = self._ask(f"/connectors/{name}/status")
        if not found or not found["tasks"]:
            return False
        failed = [task for task in found["tasks"] if task["state"] == "FAILED"]
        assert not failed, failed
        return all(part["state"] == "RUNNING" for part in [found["connector"], *found["tasks"]])

    def _ask(self, path: str, method: str = "GET", body: Any = None) -> Any:
        """The answer; None while it has none to give: it starts, or its group forms anew."""
        data = None if body is None else json.dumps(body).encode()
        address = f"http://{HOST}:{self.port}{path}"
        request = Request(address, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return json.loads(answer.read() or b"{}")
        except HTTPError as error:
            with error:
                if error.code not in NOT_YET:
                    raise AssertionError(error.read()) from error
            return None
        except (URLError, ConnectionError, TimeoutError):
            return None

    def _said(self) -> str:
        return (self.folder / "worker.log").read_text(errors="replace")[-3000:]

    def _settings(self, plugins: Path) -> dict[str, object]:
        topics = {
            f"{what}.storage.topic": f"{self._group}-{what}"
            for what in ("config", "offset", "status")
        }
        return {
            "bootstrap.servers": self.bootstrap,
            "listeners": f"http://{HOST}:{self.port}",
            "rest.advertised.host.name": HOST,
            "plugin.path": plugins,
            "plugin.discovery": "service_load",
            "group.id": self._group,
            **topics,
            **{key.replace("topic", "replication.factor"): 1 for key in topics},
            "offset.storage.partitions": 1,
            "status.storage.partitions": 1,
            "offset.flush.interval.ms": 1000,
            # Its former self soon counts as gone, and nobody waits for it to come back.
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "scheduled.rebalance.max.delay.ms": 0,
            "key.converter": JSON,
            "value.converter": JSON,
            "value.converter.replace.null.with.default": "false",
            # Rows with large texts, in embedded schemas.
            "producer.max.request.size": 8 << 20,
        }


def connector(
    database: Database, bootstrap: str, prefix: str, tables: Sequence[str], partitions: int
) -> dict[str, str]:
    """Debezium's settings for a snapshot and then every change of these tables."""
    settings = {
        "tasks.max": "1",
        "database.hostname": HOST,
        "database.port": str(database.port),
        "database.user": USER,
        "database.password": PASSWORD,
        "topic.prefix": prefix,
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": str(partitions),
        "poll.interval.ms": "100",
    }
    if database.kind == "postgres":
        return settings | {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.dbname": NAME,
            "plugin.name": "pgoutput",
            "slot.name": prefix,
            "slot.drop.on.stop": "false",
            "publication.name": prefix,
            "publication.autocreate.mode": "filtered",
            "status.update.interval.ms": "1000",
            "table.include.list": ",".join(f"public.{table}" for table in tables),
        }
    return settings | {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.server.id": "5401",
        "database.ssl.mode": "disabled",
        "database.include.list": NAME,
        "table.include.list": ",".join(f"{NAME}.{table}" for table in tables),
        "schema.history.internal.kafka.bootstrap.servers": bootstrap,
        "schema.history.internal.kafka.topic": f"{prefix}-history",
    }


@pytest.fixture(scope="session")
def debezium(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    """A test may kill it, and starts it again; the connectors that it made are its to delete."""
    worker = Connect(tmp_path_factory.mktemp("connect"), broker.bootstrap)
    worker.start()
    yield worker
    worker.kill()
