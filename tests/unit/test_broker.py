"""What of the broker can be seen without one."""

import socket
from pathlib import Path

import pytest

from icestream.cli.demo import broker
from icestream.cli.demo.broker import HOST, Broker, free_port
from icestream.errors import SetupError
from icestream.spark import jars


def test_a_taken_port_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "ensure", lambda *_: pytest.fail("fetched"))
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SetupError, match="port is taken") as raised:
            Broker(tmp_path / "new", port).start()
    assert raised.value.where == f"{HOST}:{port}"
    assert not (tmp_path / "new").exists()


def test_free_ports_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, free_port())) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(broker, "PORTS", range(port, port + 1))
        with pytest.raises(SetupError, match="no free port"):
            free_port()
    assert free_port() == port
    with pytest.raises(SetupError):
        free_port(but=port)


def test_settings_and_java_options_are_ours_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "ensure", lambda *_: [Path("a.jar"), Path("b.jar")])
    made = Broker(tmp_path, settings={"num.partitions": "7"}, java_options=["-Xmx2g"])
    command = made._command()
    lines = (tmp_path / "server.properties").read_text().splitlines()
    assert "num.partitions=7" in lines
    assert "auto.create.topics.enable=false" in lines
    listeners = next(line for line in lines if line.startswith("listeners="))
    assert listeners.count(f"://{HOST}:") == 2
    assert "-Xmx2g" in command
    assert not set(command) & set(broker.QUICK_START)
    assert "a.jar:b.jar" in command


def test_the_folder_is_formatted_once(tmp_path: Path) -> None:
    broker._format(tmp_path / "data")
    first = broker._cluster(tmp_path / "data")
    broker._format(tmp_path / "data")
    assert broker._cluster(tmp_path / "data") == first
    assert len(first) == 22


def test_properties_keep_backslashes() -> None:
    assert broker._properties({"a": "C:\\b"}) == "a=C:\\\\b\n"
