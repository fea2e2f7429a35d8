"""Real databases for tests, on loopback and in a folder that goes with them: PostgreSQL, MySQL.

Their binaries come in jars (servers.lock.toml), from where all jars come from.
"""

import os
import platform
import signal
import subprocess
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from icestream.cli.demo.broker import HOST, free_port
from icestream.spark import jars
from processes import Child, spawn

LOCK = Path(__file__).parent / "servers.lock.toml"
START_SECONDS = 60.0
NAME = "shop"
USER = PASSWORD = "icestream"

# Quick rather than safe: the data end with the test. Debezium needs the logical log.
POSTGRES = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "fsync": "off",
    "shared_buffers": "32MB",
    "max_connections": "30",
    "timezone": "UTC",
}
MYSQL = {
    "bind-address": HOST,
    "mysqlx": "0",
    "ssl": "0",
    "server-id": "1",
    "default-time-zone": "+00:00",
    "default-authentication-plugin": "mysql_native_password",
    "performance-schema": "0",
    "sync-binlog": "0",
    "innodb-flush-log-at-trx-commit": "0",
    "innodb-use-native-aio": "0",
    # Ends a deadlock between rows and an ALTER TABLE, which no detector of its own sees.
    "innodb-lock-wait-timeout": "2",
}
MYSQL_BEGIN = f"""\
CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO '{USER}'@'%';
CREATE DATABASE {NAME};
"""


@dataclass(frozen=True)
class Database:
    """Where a database answers; `kind` is `postgres` or `mysql`."""

    kind: str
    port: int

    def connect(self, name: str = NAME) -> Any:
        """A connection, for one thread."""
        if self.kind == "postgres":
            import psycopg

            return psycopg.connect(host=HOST, port=self.port, user=USER, dbname=name)
        import pymysql

        return pymysql.connect(
            host=HOST, port=self.port, user=USER, password=PASSWORD, database=name
        )

    def answers(self, name: str) -> bool:
        """Whether somebody could connect by now."""
        try:
            self.connect(name).close()
        except self.error:
            return False
        return True

    @property
    def error(self) -> type[Exception]:
        """What its connections raise."""
        if self.kind == "postgres":
            import psycopg

            return psycopg.Error
        import pymysql

        return pymysql.Error


@pytest.fixture(scope="session")
def postgres() -> Iterator[Database]:
    """Leave it running, and make tables of your own."""
    with _unpacked("postgres", "postgres-linux-x86_64.txz") as folder:
        # The server refuses to run as root, and its data must be its user's own.
        user = "nobody" if os.geteuid() == 0 else None
        data, log, found = folder / "data", folder / "server.log", Database("postgres", free_port())
        if user:
            data.mkdir()
            subprocess.run(["chown", user, folder, data], check=True)
        made = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        init = spawn([folder / "bin/initdb", "-D", data, "-U", USER, *made], log, user)
        _finished(init)
        settings = {**POSTGRES, "port": str(found.port)}
        flags = [f"--{key}={value}" for key, value in settings.items()]
        server = spawn([folder / "bin/postgres", "-D", data, *flags], log, user)
        try:
            server.wait_until(lambda: found.answers("postgres"), START_SECONDS)
            with closing(found.connect("postgres")) as connection:
                connection.autocommit = True
                connection.execute(f"CREATE DATABASE {NAME}")
            yield found
        finally:
            server.stop(signal.SIGINT)  # SIGTERM would wait for its clients


@pytest.fixture(scope="session")
def mysql() -> Iterator[Database]:
    """Leave it running, and make tables of your own."""
    with _unpacked("mysql", "mysql-Linux-amd64.tar.gz") as folder:
        # It calls libaio only if told to, but is not loaded without a library of this name:
        # any does that has no versions of its symbols.
        (folder / "bin/libaio.so.1").symlink_to("libssl.so.1.0.0")
        log, found = folder / "server.log", Database("mysql", free_port())
        _loads(folder / "bin/mysqld")
        begin = folder / "begin.sql"
        begin.write_text(MYSQL_BEGIN)
        settings = {**MYSQL, **_places(folder), "port": str(found.port)}
        if os.geteuid() == 0:
            settings["user"] = "root"  # it wants to be told
        flags = [f"--{key}={value}" for key, value in settings.items()]
        mysqld = (folder / "bin/mysqld", "--no-defaults", *flags)
        _finished(spawn([*mysqld, "--initialize-insecure", f"--init-file={begin}"], log))
        server = spawn(mysqld, log)
        try:
            server.wait_until(lambda: found.answers(NAME), START_SECONDS)
            yield found
        finally:
            server.stop()


def locked(name: str, lock: Path = LOCK) -> list[jars.Jar]:
    """The jars of one set of a lock file."""
    entries = tomllib.loads(lock.read_text("utf-8"))["jar"]
    return [jars.Jar(**entry) for entry in entries if entry["set"] == name]


def _places(folder: Path) -> Mapping[str, str]:
    return {
        "basedir": str(folder),
        "datadir": str(folder / "data"),
        "lc-messages-dir": str(folder / "share"),
        "socket": str(folder / "socket"),
        "secure-file-priv": "",
    }


@contextmanager
def _unpacked(name: str, archive: str) -> Iterator[Path]:
    """A folder with the server's files in it; not pytest's, which is closed to other users."""
    here = f"{platform.system()} {platform.machine()}"
    if here != "Linux x86_64":
        pytest.skip(f"there is no {name} server for {here} in servers.lock.toml")
    [jar] = jars.obtain(locked(name))
    with tempfile.TemporaryDirectory(prefix=f"icestream-{name}-") as text:
        folder = Path(text)
        with (
            zipfile.ZipFile(jar) as outer,
            outer.open(archive) as inner,
            tarfile.open(fileobj=inner) as files,
        ):
            files.extractall(folder, filter="data")
        yield folder


def _loads(program: Path) -> None:
    """Skip where the system lacks a library that cannot be stood in for (libnuma)."""
    tried = subprocess.run([program, "--version"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"MySQL does not run here: {tried.stderr.strip()}; install what it names")


def _finished(child: Child) -> None:
    code = child.process.wait(START_SECONDS)
    child.kill()
    assert code == 0, child.log.read_text(errors="replace")[-3000:]
