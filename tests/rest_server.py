"""Iceberg's own REST catalog on loopback, for tests: SQLite and a folder, in a JVM of its own.

The classes come from the `tests` jar of iceberg-core. Its ready-made server binds all addresses,
so it is put together here, from Python through a py4j gateway, and needs no compiler.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.request import urlopen

import pytest

from icestream.cli.demo.broker import HOST, QUICK_START, free_port
from icestream.spark import jars
from icestream.spark.java import find_java

STOP_SECONDS = 15.0
# The gateway tells its port on stdout, where nobody reads on: all else is said on stderr.
LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.error.ref = error
appender.error.type = Console
appender.error.name = error
appender.error.target = SYSTEM_ERR
appender.error.layout.type = PatternLayout
appender.error.layout.pattern = %d %p %c{1}: %m%n%ex
"""


class RestServer:
    """A REST catalog whose tables are in a folder: there again after a stop, a kill, a start."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder.absolute()
        self.port = port or free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: Any = None
        self._held: tuple[Any, ...] = ()  # what Python forgets, py4j would ask the JVM to forget

    @property
    def uri(self) -> str:
        """The address for clients."""
        return f"http://{HOST}:{self.port}"

    @property
    def warehouse(self) -> Path:
        """The folder of the tables."""
        return self.folder / "warehouse"

    @property
    def log(self) -> Path:
        """What the server says, over all its starts."""
        return self.folder / "server.log"

    @property
    def pid(self) -> int | None:
        """The process, while there is one."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> None:
        """Return when it answers."""
        from py4j.java_gateway import GatewayParameters, JavaGateway

        if self.pid:
            return
        self.warehouse.mkdir(parents=True, exist_ok=True)
        logging = self.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(find_java().home / "bin" / "java"),
                    *QUICK_START,
                    f"-Dlog4j2.configurationFile=file:{logging}",
                    *("-cp", _classpath()),
                    # It ends with the pipe to us, so also when we are killed.
                    *("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                process_group=0,  # Ctrl-C is for us alone
            )
        assert self._process.stdout
        port, token = (self._process.stdout.readline().decode().strip() for _ in range(2))
        assert port, f"the REST catalog did not start: {self.log.read_text()[-2000:]}"
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                port=int(port), auth_token=token, auto_convert=True
            )
        )
        self._serve(self._gateway.jvm)
        urlopen(f"{self.uri}/v1/config", timeout=STOP_SECONDS).close()

    def _serve(self, jvm: Any) -> None:
        """Put jetty, the servlet and a JdbcCatalog together."""
        database = f"jdbc:sqlite:{self.folder / 'catalog.db'}?journal_mode=WAL&busy_timeout=30000"
        catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
            "backend",
            {
                "type": "jdbc",
                "uri": database,
                "warehouse": str(self.warehouse),
                "jdbc.schema-version": "V1",
            },
            jvm.org.apache.hadoop.conf.Configuration(),
        )
        rest, jetty = jvm.org.apache.iceberg.rest, jvm.org.eclipse.jetty
        servlet = rest.RESTCatalogServlet(rest.RESTCatalogAdapter(catalog))
        context = jetty.ee10.servlet.ServletContextHandler()
        context.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
        server = jetty.server.Server()
        connector = jetty.server.ServerConnector(server)
        connector.setHost(HOST)
        connector.setPort(self.port)
        server.addConnector(connector)
        server.setHandler(context)
        server.start()
        self._held = (catalog, servlet, context, connector, server)

    def stop(self) -> None:
        """End it in good order, or by force when that takes too long."""
        if self._process and self._process.stdin:
            self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End it as a crash would; what it acknowledged is still there after a start."""
        from py4j.protocol import Py4JError

        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            pipe.close()
        if self._gateway:
            with suppress(Py4JError, OSError):
                self._gateway.close()
        self._process, self._gateway, self._held = None, None, ()

    def __enter__(self) -> "RestServer":
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _classpath() -> str:
    """The server's own jars, then what Spark and other sets bring: Hadoop, Jackson, py4j, …"""
    import pyspark

    shared = {"sqlite-jdbc", "caffeine"}
    others = [jar for jar in jars.locked(["core", "broker"]) if jar.artifact in shared]
    found = jars.obtain([*jars.locked(["rest-server"]), *others])
    return os.pathsep.join([*map(str, found), f"{Path(pyspark.__file__).parent}/jars/*"])


@pytest.fixture(scope="session")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    """Leave it running: a test that stops or kills one starts its own."""
    with RestServer(tmp_path_factory.mktemp("rest")) as started:
        yield started
