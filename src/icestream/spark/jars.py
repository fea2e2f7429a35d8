"""Fetches the jars of jars.lock.toml into the cache folder, once, and verifies them."""

import errno
import hashlib
import logging
import os
import shutil
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from icestream.errors import JarsMissing, SetupError, UsageError
from icestream.spark.cache import cache_folder

CORE = ("core",)
ATTEMPTS = 3
PAUSE_SECONDS = 1.0
TIMEOUT_SECONDS = 30
ABANDONED_SECONDS = 24 * 3600

State = Literal["ok", "missing", "corrupt", "unchecked"]


@dataclass(frozen=True)
class Jar:
    """One line of the lock file."""

    set: str
    group: str
    artifact: str
    version: str
    size: int
    sha256: str
    classifier: str = ""

    @property
    def coordinates(self) -> str:
        """Maven's name of the jar: group:artifact:version[:classifier]."""
        parts = (self.group, self.artifact, self.version, self.classifier)
        return ":".join(part for part in parts if part)

    @property
    def file_name(self) -> str:
        """Name of the file in the cache, as in a Maven repository."""
        parts = (self.artifact, self.version, self.classifier)
        return "-".join(part for part in parts if part) + ".jar"


@dataclass(frozen=True)
class JarStatus:
    """State of one jar in the cache; `detail` says what is wrong with it."""

    jar: Jar
    path: Path
    state: State
    detail: str = ""


# Called with a jar and the bytes of it received so far, from several threads at once. Every jar
# that will be fetched is announced with 0 first; a second attempt starts at 0 again.
Progress = Callable[[Jar, int], None]


def known_sets() -> tuple[str, ...]:
    """Return the names of the lock file's sets, `core` first."""
    return tuple(dict.fromkeys(jar.set for jar in _lock()))


def locked(sets: Iterable[str] = CORE) -> list[Jar]:
    """Return the jars of these sets in the order of the lock file."""
    wanted = set(sets)
    if unknown := wanted - set(known_sets()):
        raise UsageError(
            f"there is no set of jars named {', '.join(sorted(unknown))}",
            hint=f"the sets are: {', '.join(known_sets())}",
        )
    return [jar for jar in _lock() if jar.set in wanted]


def status(sets: Iterable[str] = CORE) -> list[JarStatus]:
    """Check sizes and stamps only, as the start of a pipeline does: no jar is read."""
    return [_look(jar) for jar in locked(sets)]


def verify(sets: Iterable[str] = CORE) -> list[JarStatus]:
    """Read and hash every jar that is in the cache."""
    return [_hash(jar) for jar in locked(sets)]


def ensure(sets: Iterable[str] = CORE, progress: Progress | None = None) -> list[Path]:
    """Return the paths of the jars of these sets, as `obtain` does."""
    return obtain(locked(sets), progress)


def obtain(jars: list[Jar], progress: Progress | None = None) -> list[Path]:
    """Return the paths of these jars, fetching what the cache lacks or holds broken."""
    try:
        if missing := [jar for jar in jars if not _usable(jar)]:
            _fetch_all(missing, progress or (lambda _jar, _received: None))
    except OSError as error:
        raise SetupError(
            f"cannot use the cache folder: {error.strerror or error}",
            where=str(cache_folder()),
            hint="free some space or set ICESTREAM_CACHE to a folder that you may write to",
        ) from error
    return [_path(jar) for jar in jars]


def download(jar: Jar, folder: Path, progress: Progress) -> Path:
    """Fetch one jar by jgo into a folder of its own, unverified."""
    from jgo.maven import MavenContext, PythonResolver  # slow to import, seldom needed

    # Its warnings would reach the terminal through logging's handler of last resort.
    logging.getLogger("jgo").setLevel(logging.CRITICAL + 1)

    @contextmanager
    def counted(_name: str, _total: int) -> Iterator[Callable[[int], None]]:
        received = 0

        def count(chunk: int) -> None:
            nonlocal received
            received += chunk
            progress(jar, received)

        yield count

    context = MavenContext(
        resolver=PythonResolver(progress_callback=counted),
        repo_cache=folder,
        remote_repos=_mirror(),
        timeout=TIMEOUT_SECONDS,
    )
    component = context.project(jar.group, jar.artifact).at_version(jar.version)
    return Path(component.artifact(classifier=jar.classifier).resolve())


@cache
def _lock() -> tuple[Jar, ...]:
    text = resources.files("icestream").joinpath("jars.lock.toml").read_text("utf-8")
    return tuple(Jar(**entry) for entry in tomllib.loads(text)["jar"])


def _path(jar: Jar) -> Path:
    return cache_folder() / "jars" / jar.file_name


def _stamp(jar: Jar) -> Path:
    return cache_folder() / "jars" / f"{jar.file_name}.ok"


def _seal(jar: Jar) -> str:
    """Return what the stamp of a verified jar says, so that it need not be hashed again."""
    return f"{jar.sha256} {_path(jar).stat().st_mtime_ns}\n"


def _usable(jar: Jar) -> bool:
    """Trust a stamped file of the right size, hash one without a stamp."""
    current = _look(jar)
    return (_hash(jar) if current.state == "unchecked" else current).state == "ok"


def _look(jar: Jar) -> JarStatus:
    path = _path(jar)
    try:
        size = path.stat().st_size
        if size != jar.size:
            return JarStatus(jar, path, "corrupt", f"{size} bytes instead of {jar.size}")
        is_stamped = _stamp(jar).read_text("utf-8", errors="replace") == _seal(jar)
    except FileNotFoundError:
        return JarStatus(jar, path, "unchecked" if path.exists() else "missing")
    return JarStatus(jar, path, "ok" if is_stamped else "unchecked")


def _hash(jar: Jar) -> JarStatus:
    current = _look(jar)
    if current.state in ("missing", "corrupt"):
        return current
    if _sha256(current.path) != jar.sha256:
        _stamp(jar).unlink(missing_ok=True)
        return JarStatus(jar, current.path, "corrupt", "its SHA-256 is not the locked one")
    if current.state == "unchecked":
        with suppress(OSError):  # a read-only cache works, only slower
            _stamp(jar).write_text(_seal(jar), "utf-8")
    return JarStatus(jar, current.path, "ok")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _mirror() -> dict[str, str] | None:
    url = os.environ.get("ICESTREAM_MAVEN_URL")
    if not url:
        return None
    if urlsplit(url).scheme not in ("http", "https"):
        raise SetupError(
            "ICESTREAM_MAVEN_URL is not an http or https address",
            hint="give the root of a Maven repository, or unset it to use the public one",
        )
    return {"mirror": url.rstrip("/")}


def _fetch_all(jars: list[Jar], progress: Progress) -> None:
    cancelled = threading.Event()

    def counted(jar: Jar, received: int) -> None:
        if cancelled.is_set():
            raise InterruptedError(errno.EINTR, "download cancelled")
        progress(jar, received)

    _mirror()  # a wrong address is one error, not one for each jar
    folder = cache_folder() / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    for jar in jars:
        progress(jar, 0)
    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="jars") as pool:
        try:
            reasons = list(pool.map(lambda jar: _fetch(jar, counted, cancelled), jars))
        except BaseException:
            cancelled.set()
            raise
    failed: dict[str, list[str]] = {}
    for jar, reason in zip(jars, reasons, strict=True):
        if reason:
            failed.setdefault(reason, []).append(jar.coordinates)
    if failed:
        count = sum(map(len, failed.values()))
        raise JarsMissing(
            f"could not fetch {count} of {len(jars)} jars",
            where="; ".join(f"{', '.join(names)}: {reason}" for reason, names in failed.items()),
            hint="check the network or set ICESTREAM_MAVEN_URL to a mirror, then try "
            "`icestream jars download`; offline, copy the jars folder of another machine's "
            f"cache to {cache_folder()}",
        )


def _fetch(jar: Jar, progress: Progress, cancelled: threading.Event) -> str | None:
    """Fetch and verify one jar and move it into the cache; returns why that failed, else None."""
    reason = None
    for attempt in range(ATTEMPTS):
        if attempt and cancelled.wait(PAUSE_SECONDS * attempt):
            return reason
        # A folder for each attempt: neither a bad file nor another process gets in its way.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=_path(jar).parent) as folder:
            try:
                file = download(jar, Path(folder), progress)
            except (OSError, RuntimeError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise  # of the disk; errors of the network carry no errno
                reason = _reason(error)
                continue
            if (size := file.stat().st_size) != jar.size:
                reason = f"{size} bytes came instead of {jar.size}"
            elif _sha256(file) != jar.sha256:
                reason = "what came has another SHA-256 than the locked one"
            else:
                file.replace(_path(jar))
                with suppress(OSError):
                    _stamp(jar).write_text(_seal(jar), "utf-8")
                progress(jar, jar.size)
                return None
    return reason


def _reason(error: Exception) -> str:
    """Return the cause in a few words, without the address, which may hold a password."""
    if isinstance(error, RuntimeError):
        return "the repository did not serve it"
    exception_name = type(error).__name__
    if "SSL" in exception_name:
        return "its TLS certificate is not trusted (REQUESTS_CA_BUNDLE names a file of others)"
    if "Timeout" in exception_name:
        return "the repository does not answer in time"
    return (
        "the connection broke off"
        if "Chunked" in exception_name
        else f"no connection ({exception_name})"
    )


def _sweep(folder: Path) -> None:
    """Remove the folders of downloads whose process was killed."""
    for draft in folder.glob(".fetch-*"):
        with suppress(FileNotFoundError):
            if time.time() - draft.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(draft, ignore_errors=True)
