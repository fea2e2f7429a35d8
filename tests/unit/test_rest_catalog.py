"""Catalog `rest` without a catalog: its settings, its causes in plain words, its secrets."""

import json
import re
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from icestream.catalogs import catalog_for, rest, spark_conf
from icestream.cli.main import main
from icestream.config.options.catalog import RestCatalogOptions
from icestream.errors import Unreachable

HOST = "127.0.0.1"
CANARY = "CANARY-hunter2"
ERROR = '{{"error": {{"message": "{}", "type": "SomeException", "code": 400}}}}'


def options(uri: str = "http://catalog:8181/", **more: Any) -> RestCatalogOptions:
    return RestCatalogOptions.model_validate({"type": "rest", "uri": uri, **more})


def test_java_and_spark_get_the_names_of_iceberg() -> None:
    catalog = catalog_for(
        options(
            warehouse="w",
            credential=f"id:{CANARY}",
            oauth2_server_uri="http://login/token",
            scope="all",
            properties={"rest.client.max-retries": 2, "header.X-Tenant": "t"},
        )
    )
    assert catalog.java_properties() == {
        "type": "rest",
        "uri": "http://catalog:8181",
        "warehouse": "w",
        "credential": f"id:{CANARY}",
        "oauth2-server-uri": "http://login/token",
        "scope": "all",
        "rest.client.max-retries": "2",
        "header.X-Tenant": "t",
    }
    conf = spark_conf(catalog)
    assert conf["spark.sql.catalog.lake.type"] == "rest"
    assert conf["spark.sql.catalog.lake.credential"] == f"id:{CANARY}"


def test_what_is_not_given_is_not_said() -> None:
    catalog = catalog_for(options())
    assert catalog.java_properties() == {"type": "rest", "uri": "http://catalog:8181"}
    assert catalog_for(options(token="t")).java_properties() == {
        "type": "rest",
        "uri": "http://catalog:8181",
        "token": "t",
        "oauth2-server-uri": "http://catalog:8181/v1/oauth/tokens",
    }


def test_spark_hides_the_secrets_and_keeps_them_off_the_command_line() -> None:
    from icestream.spark import session

    secret = {"credential": f"a:{CANARY}", "token": CANARY}
    catalog = catalog_for(options(**secret, properties={"header.Authorization": CANARY}))
    for key, value in spark_conf(catalog).items():
        if CANARY in value:
            assert re.search(session._SECRET, key), key
        assert not session._AT_LAUNCH.match(key), key


class Server(BaseHTTPRequestHandler):
    """Answers as it is told: by path, else 404."""

    answers: dict[str, tuple[int, str]]
    asked: list[str]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        status, text = self.answers.get(path, (404, "<html>nothing here</html>"))
        self.asked.append(f"{path} {self.headers.get('Authorization', '')}".strip())
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Stub:
    """A server that says what a test puts into it."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []
        kind = type("Bound", (Server,), {"answers": self.answers, "asked": self.asked})
        self.server = ThreadingHTTPServer((HOST, 0), kind)
        self.uri = f"http://{HOST}:{self.server.server_port}"
        Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def be_a_catalog(self) -> None:
        self.answers["/v1/config"] = (200, '{"defaults": {}, "overrides": {}}')
        self.answers["/v1/namespaces"] = (200, '{"namespaces": [["shop"]]}')


@pytest.fixture
def stub() -> Iterator[Stub]:
    started = Stub()
    yield started
    started.server.shutdown()
    started.server.server_close()


def failure(uri: str, **more: Any) -> Unreachable:
    with pytest.raises(Unreachable) as raised:
        catalog_for(options(uri, **more)).check()
    shown = f"{raised.value.what} {raised.value.where} {raised.value.hint}"
    assert "\n" not in shown
    assert CANARY not in shown
    assert raised.value.exit_code == 69
    assert raised.value.__suppress_context__
    return raised.value


def test_a_catalog_that_answers_is_fine(stub: Stub) -> None:
    stub.be_a_catalog()
    stub.answers["/v1/oauth/tokens"] = (200, '{"access_token": "abc", "token_type": "bearer"}')
    catalog_for(options(stub.uri)).check()
    catalog_for(options(stub.uri + "/", token="xyz")).check()
    catalog_for(options(stub.uri, credential="id:secret")).check()
    assert "/v1/namespaces Bearer xyz" in stub.asked
    assert "/v1/namespaces Bearer abc" in stub.asked


def test_nobody_listens() -> None:
    with socket.create_server((HOST, 0)) as other:
        port = other.getsockname()[1]
    error = failure(f"http://{HOST}:{port}", credential=f"a:{CANARY}")
    assert error.what == "REST catalog: connection refused"
    assert error.where == f"http://{HOST}:{port}"
    assert "is the catalog running" in (error.hint or "")


def test_a_name_that_nobody_knows() -> None:
    error = failure("http://no-such-host.invalid/catalog")
    assert error.what == "REST catalog: its name is not resolved"


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest, "_TIMEOUT_SECONDS", 0.2)
    with socket.create_server((HOST, 0)) as silent:
        error = failure(f"http://{HOST}:{silent.getsockname()[1]}")
    assert "does not answer within" in error.what


def test_no_address_at_all() -> None:
    error = failure(f"catalog:{CANARY}@host")
    assert error.what == "REST catalog: `catalog.uri` is not an http or https address"
    assert failure(f"http://user:{CANARY}@{HOST}:1/x").where == f"http://{HOST}:1/x"


def test_a_port_without_tls(stub: Stub) -> None:
    error = failure(stub.uri.replace("http:", "https:"))
    assert error.what == "REST catalog: TLS: what listens there speaks no TLS"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_certificate_that_nobody_signed(stub: Stub, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(_certificate(tmp_path))
    stub.server.socket = context.wrap_socket(stub.server.socket, server_side=True)
    error = failure(stub.uri.replace("http:", "https:"))
    assert error.what == "REST catalog: TLS: its certificate is not trusted"


def _certificate(folder: Path) -> Path:
    file = folder / "server.pem"
    name = f"-subj /CN={HOST} -addext subjectAltName=IP:{HOST}"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 {name}".split()
    subprocess.run(
        [*command, "-keyout", str(file), "-out", str(folder / "only.pem")],
        check=True,
        capture_output=True,
    )
    file.write_text(file.read_text() + (folder / "only.pem").read_text())
    return file


@pytest.mark.parametrize(
    "status, text, given, cause",
    [
        (401, "", {}, "it asks for credentials (401)"),
        (401, "", {"token": CANARY}, "it does not accept the credentials (401)"),
        (403, "", {"token": CANARY}, "it does not let these credentials in (403)"),
        (419, "", {"token": CANARY}, "the token has expired (419)"),
        (404, "<html>", {}, "what answers there is not an Iceberg REST catalog (status 404)"),
        (200, "<html>", {}, "what answers there is not an Iceberg REST catalog"),
        (400, ERROR.format("no warehouse w"), {}, "it answers: SomeException: no warehouse w"),
        (400, ERROR.format(CANARY), {"token": CANARY}, "it answers: SomeException: …"),
        (503, "<html>", {}, "it has trouble: status 503"),
        (500, ERROR.format("disk full"), {}, "it answers: SomeException: disk full"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/config", "/v1/namespaces"])
def test_answers_in_plain_words(
    stub: Stub, path: str, status: int, text: str, given: dict[str, str], cause: str
) -> None:
    stub.be_a_catalog()
    stub.answers[path] = (status, text)
    assert failure(stub.uri, **given).what == f"REST catalog: {cause}"


def test_a_credential_that_the_login_refuses(stub: Stub) -> None:
    stub.be_a_catalog()
    answer = {"error": "unauthorized_client", "error_description": f"who is {CANARY}"}
    stub.answers["/v1/oauth/tokens"] = (400, json.dumps(answer))
    error = failure(stub.uri, credential=f"id:{CANARY}")
    assert error.what == (
        "REST catalog: it does not accept the credential: unauthorized_client: who is …"
    )
    assert "catalog.credential" in (error.hint or "")


def test_validate_says_it_with_exit_69(
    stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGIN", f"id:{CANARY}")
    file = tmp_path / "icestream.yml"
    file.write_text(
        "name: p\nmaintenance: false\nsource: {type: generator}\ntables: [{name: a.b}]\n"
        f"catalog: {{type: rest, uri: '{stub.uri}/wrong', credential: '${{LOGIN}}'}}\n"
    )
    for verb in ("validate", "status", "preview"):
        with pytest.raises(SystemExit) as ended:
            main([verb, str(file)])
        assert ended.value.code == 69, verb
        said = capsys.readouterr()
        assert "not an Iceberg REST catalog" in said.err, verb
        assert CANARY not in said.err + said.out
