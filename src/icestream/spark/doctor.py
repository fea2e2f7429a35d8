"""Checks this machine for `icestream doctor`: one line for each thing that a pipeline needs."""

import os
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from humanize import naturalsize

from icestream.errors import IcestreamError
from icestream.spark import jars
from icestream.spark.cache import cache_folder
from icestream.spark.java import find_java

GB = 1_000_000_000
RELEASE_YEAR = 2026
NEWEST_PYTHON = (3, 14)
RESOLVE_SECONDS = 3.0

DoctorStatus = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class DoctorCheck:
    """One line of the doctor's report; `fix` is the next thing to type or do."""

    name: str
    status: DoctorStatus
    detail: str
    fix: str | None = None


def run_checks() -> list[DoctorCheck]:
    """Run every check; one that raises is reported as failed and does not stop the others."""
    checks: tuple[tuple[str, Callable[[], Iterator[DoctorCheck]]], ...] = (
        ("python", check_python),
        ("java", check_java),
        ("pyspark", check_pyspark),
        ("workers", check_workers),
        ("jars", check_jars),
        ("memory", check_memory),
        ("disk", check_disk),
        ("clock", check_clock),
        ("hostname", check_hostname),
    )
    return [line for name, check in checks for line in _guarded(name, check)]


def check_python() -> Iterator[DoctorCheck]:
    """Check that Spark supports this Python; an older one could not even import this file."""
    detail = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info[:2] <= NEWEST_PYTHON:
        yield DoctorCheck("python", "ok", detail)
    else:
        newest = ".".join(map(str, NEWEST_PYTHON))
        yield DoctorCheck("python", "warn", f"{detail} is newer than Spark", f"use Python {newest}")


def check_java() -> Iterator[DoctorCheck]:
    """Check that there is a Java for Spark; warn of a JAVA_HOME that cannot be used."""
    try:
        java = find_java()
    except IcestreamError as error:
        yield DoctorCheck("java", "fail", f"{error.what} ({error.where})", error.hint)
        return
    detail = f"Java {java.version} from {java.origin} ({java.home})"
    passed_over = "; ".join(f"{bad.origin} {bad.path}: {bad.why}" for bad in java.rejected)
    if any(bad.origin == "JAVA_HOME" for bad in java.rejected):
        fix = "unset JAVA_HOME or set it to a Java 17 or 21"
        yield DoctorCheck("java", "warn", f"{detail}; passed over {passed_over}", fix)
    else:
        yield DoctorCheck(
            "java", "ok", f"{detail}; passed over {passed_over}" if passed_over else detail
        )


def check_pyspark() -> Iterator[DoctorCheck]:
    """Check that PySpark is of the version that the locked Iceberg runtime was built for."""
    runtime = next(jar for jar in jars.locked() if jar.artifact.startswith("iceberg-spark-runtime"))
    series = re.split("[-_]", runtime.artifact)[-2]
    reinstall = f"pip install 'pyspark=={series}.*'"
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        yield DoctorCheck("pyspark", "fail", "not installed", reinstall)
        return
    if not version.startswith(f"{series}."):
        detail = f"{version}, but the Iceberg runtime is for Spark {series}"
        yield DoctorCheck("pyspark", "fail", detail, reinstall)
    elif _foreign_spark_home():
        detail = f"{version}, but SPARK_HOME starts another Spark ({os.environ['SPARK_HOME']})"
        yield DoctorCheck("pyspark", "warn", detail, "unset SPARK_HOME")
    else:
        yield DoctorCheck("pyspark", "ok", version)


def check_workers() -> Iterator[DoctorCheck]:
    """Check that Spark's Python workers run on this interpreter."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        configured = os.environ.get(name)
        if not configured:
            continue
        # Not resolved: two environments link to one interpreter and hold different packages.
        python = shutil.which(configured)
        if python is None:
            yield DoctorCheck(
                "workers", "warn", f"{name}={configured} does not exist", f"unset {name}"
            )
            return
        if os.path.abspath(python) != os.path.abspath(sys.executable):  # noqa: PTH100
            detail = f"{name}={configured} is not the Python that runs icestream ({sys.executable})"
            yield DoctorCheck("workers", "warn", detail, f"unset {name}")
            return
    yield DoctorCheck("workers", "ok", "Spark's Python workers run on the same Python")


def check_jars() -> Iterator[DoctorCheck]:
    """Check the cached jars by their SHA-256; sets other than core only if partly there."""
    for name in jars.known_sets():
        states = jars.verify([name])
        if name not in jars.CORE and all(jar.state == "missing" for jar in states):
            continue
        fix = f"icestream jars download {name}"
        corrupt = [jar for jar in states if jar.state == "corrupt"]
        missing = [jar for jar in states if jar.state == "missing"]
        if corrupt:
            detail = "; ".join(f"{jar.path}: {jar.detail}" for jar in corrupt)
            yield DoctorCheck("jars", "warn", f"{name}: {detail}", fix)
        elif missing:
            size = naturalsize(sum(jar.jar.size for jar in missing))
            detail = f"{name}: {len(missing)} of {len(states)} not fetched yet ({size})"
            yield DoctorCheck("jars", "warn", detail, fix)
        else:
            size = naturalsize(sum(jar.jar.size for jar in states))
            yield DoctorCheck(
                "jars", "ok", f"{name}: {len(states)} verified, {size} in {cache_folder()}"
            )


def check_memory() -> Iterator[DoctorCheck]:
    """Check that there is memory for a JVM beside Python."""
    total = _memory_total()
    available = min(total, _memory_available())
    detail = f"{naturalsize(available)} free of {naturalsize(total)}"
    if total < 2 * GB:
        yield DoctorCheck("memory", "fail", detail, "use a machine or container with 4 GB or more")
    elif available < 2 * GB:
        yield DoctorCheck(
            "memory", "warn", detail, "end other programs; Spark alone takes 1 to 2 GB"
        )
    else:
        yield DoctorCheck("memory", "ok", detail)


def check_disk() -> Iterator[DoctorCheck]:
    """Check that there is disk space for jars in the cache and for tables here."""
    for name, folder in (("cache", cache_folder()), ("here", Path.cwd())):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        detail = f"{name}: {naturalsize(free)} free at {folder}"
        if free < 0.5 * GB:
            yield DoctorCheck("disk", "fail", detail, "free some space")
        elif free < 2 * GB:
            yield DoctorCheck("disk", "warn", detail, "free some space before long runs")
        elif not os.access(existing, os.W_OK):
            yield DoctorCheck(
                "disk", "warn", f"{detail}, not writable", f"make {existing} writable"
            )
        else:
            yield DoctorCheck("disk", "ok", detail)


def check_clock() -> Iterator[DoctorCheck]:
    """Check that the clock is not before the release's year and agrees with the file system."""
    now = time.time()
    with tempfile.NamedTemporaryFile() as file:
        difference = abs(Path(file.name).stat().st_mtime - now)
    detail = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if time.gmtime(now).tm_year < RELEASE_YEAR:
        yield DoctorCheck(
            "clock", "fail", f"{detail} is in the past", "set the clock, e.g. with NTP"
        )
    elif difference > 5:
        detail = f"{detail}, {difference:.0f} s apart from the file system's"
        yield DoctorCheck("clock", "warn", detail, "synchronise both clocks, e.g. with NTP")
    else:
        yield DoctorCheck("clock", "ok", detail)


def check_hostname() -> Iterator[DoctorCheck]:
    """Check that this machine's name resolves and a port on loopback can be opened."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
    except OSError as error:
        detail = f"cannot open a port on 127.0.0.1: {error.strerror}"
        yield DoctorCheck("hostname", "fail", detail, "bring up the loopback interface")
        return
    if configured := os.environ.get("SPARK_LOCAL_HOSTNAME") or os.environ.get("SPARK_LOCAL_IP"):
        yield DoctorCheck("hostname", "ok", f"{configured}, as the environment says")
        return
    name = socket.gethostname()
    if address := _resolve(name):
        yield DoctorCheck("hostname", "ok", f"{name} is {address}")
    else:
        fix = f"export SPARK_LOCAL_HOSTNAME=localhost, or add {name} to /etc/hosts"
        yield DoctorCheck("hostname", "warn", f"{name} does not resolve to an address", fix)


def _guarded(name: str, check: Callable[[], Iterator[DoctorCheck]]) -> list[DoctorCheck]:
    try:
        return list(check())
    except Exception as error:  # whatever it is: the other checks are shown, too
        message = str(error) or type(error).__name__
        return [DoctorCheck(name, "fail", f"could not be looked at: {message}")]


def _foreign_spark_home() -> bool:
    home = os.environ.get("SPARK_HOME")
    spec = util.find_spec("pyspark")  # finds the folder without the slow import
    folders = spec.submodule_search_locations if spec else None
    return bool(home and folders and Path(home).resolve() != Path(folders[0]).resolve())


def _memory_total() -> int:
    """Return the bytes that this process may use: of the machine, or its container's limit."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(machine, int(limit)) if limit.isdigit() else machine


def _memory_available() -> int:
    kilobytes = re.search(r"^MemAvailable: +(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    # Not Linux: the total is all that is known without another package.
    return int(kilobytes[1]) * 1024 if kilobytes else sys.maxsize


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _resolve(name: str) -> str | None:
    """Resolve a host name; None: it does not resolve, or no name server answers in time."""
    addresses: list[str] = []

    def ask() -> None:
        try:
            addresses.append(socket.gethostbyname(name))
        except OSError:
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(RESOLVE_SECONDS)
    return addresses[0] if addresses else None
