"""The Kafka client without a cluster: settings in librdkafka's words, and causes in ours."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError

from icestream.errors import ConfigError, Unreachable
from icestream.sources.kafka import client
from icestream.sources.kafka.causes import ClientErrors
from icestream.sources.kafka.client import KafkaAdmin
from icestream.sources.kafka.properties import SECRETS, librdkafka

SECRET = "CANARY-5f3a"
PACKAGE = "org.apache.kafka.common.security."


def login(module: str, options: str) -> dict[str, str]:
    return {"kafka.sasl.jaas.config": f"{PACKAGE}{module}LoginModule required {options};"}


# ── translation ──────────────────────────────────────────────────────────────────────────────────

USER = f'username="ann" password="{SECRET}"'
TRANSLATED: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "nothing": ({}, {}),
    "Spark's and Java's own": (
        {
            "minPartitions": "8",
            "groupIdPrefix": "x",
            "kafka.group.id": "g",
            "kafka.fetch.max.bytes": "1",
            "kafka.max.poll.records": "1",
            "kafka.ssl.cipher.suites": "TLS_AES_256_GCM_SHA384",
            "kafka.ssl.protocol": "TLSv1.3",
        },
        {},
    ),
    "isolation": (
        {"kafka.isolation.level": "read_uncommitted"},
        {"isolation.level": "read_uncommitted"},
    ),
    "identity": (
        {
            "kafka.client.id": "i",
            "kafka.client.rack": "r",
            "kafka.client.dns.lookup": "use_all_dns_ips",
        },
        {"client.id": "i", "client.rack": "r", "client.dns.lookup": "use_all_dns_ips"},
    ),
    "timeouts": (
        {"kafka.request.timeout.ms": "5000", "kafka.socket.connection.setup.timeout.ms": "2000"},
        {"socket.timeout.ms": "5000", "socket.connection.setup.timeout.ms": "2000"},
    ),
    "timeouts that librdkafka does not take": (
        {"kafka.request.timeout.ms": "900000", "kafka.socket.connection.setup.timeout.ms": "5"},
        {"socket.timeout.ms": "300000", "socket.connection.setup.timeout.ms": "1000"},
    ),
    "PLAIN": (
        {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            **login("plain.Plain", USER),
        },
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ann",
            "sasl.password": SECRET,
        },
    ),
    "SCRAM, with escapes": (
        {
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            **login("scram.Scram", r'username="ann" password="a\"b\\c"'),
        },
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": 'a"b\\c',
        },
    ),
    "OAUTHBEARER": (
        {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": "https://idp/token",
            **login(
                "oauthbearer.OAuthBearer",
                f'clientId="c" clientSecret="{SECRET}" scope="s" '
                'extension_logicalCluster="l" extension_identityPoolId="p"',
            ),
        },
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "c",
            "sasl.oauthbearer.client.secret": SECRET,
            "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
            "sasl.oauthbearer.scope": "s",
            "sasl.oauthbearer.extensions": "logicalCluster=l,identityPoolId=p",
        },
    ),
    "PEM files": (
        {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.location": "/client.pem",
            "kafka.ssl.key.password": SECRET,
        },
        {
            "security.protocol": "SSL",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": "/client.pem",
            "ssl.key.location": "/client.pem",
            "ssl.key.password": SECRET,
        },
    ),
    "PEM in place": (
        {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.certificates": "CA",
            "kafka.ssl.keystore.certificate.chain": "CHAIN",
            "kafka.ssl.keystore.key": SECRET,
        },
        {
            "security.protocol": "SSL",
            "ssl.ca.pem": "CA",
            "ssl.certificate.pem": "CHAIN",
            "ssl.key.pem": SECRET,
        },
    ),
}


@pytest.mark.parametrize("options, expected", TRANSLATED.values(), ids=TRANSLATED)
def test_translation(options: dict[str, str], expected: dict[str, str]) -> None:
    always = {"bootstrap.servers": "b:1", "isolation.level": "read_committed"}
    assert librdkafka("b:1", options) == {**always, **expected}


def test_every_secret_of_a_translation_is_known_as_one() -> None:
    for options, _ in TRANSLATED.values():
        found = librdkafka("b:1", options)
        assert {key for key, value in found.items() if value == SECRET} <= set(SECRETS)


@pytest.mark.parametrize("missing", ["sasl.mechanism", "sasl.jaas.config"])
def test_sasl_needs_a_mechanism_and_a_login(missing: str) -> None:
    options = TRANSLATED["PLAIN"][0]
    with pytest.raises(ConfigError, match=f"`kafka.security.protocol: SASL_SSL` needs.*{missing}"):
        librdkafka("b:1", {k: v for k, v in options.items() if k != f"kafka.{missing}"})


@pytest.mark.parametrize("store", ["truststore", "keystore"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, store: str) -> None:
    key, path = f"kafka.ssl.{store}.location", str(tmp_path / "x.pem")
    with pytest.raises(ConfigError) as raised:
        KafkaAdmin("b:1", {"kafka.security.protocol": "SSL", key: path})
    assert raised.value.what == f"`{key}`: {path}: no such file or directory"


def test_a_key_that_librdkafka_does_not_accept_is_not_shown() -> None:
    options = {"kafka.security.protocol": "SSL", "kafka.ssl.keystore.key": SECRET}
    with pytest.raises(ConfigError, match="does not accept its settings") as raised:
        KafkaAdmin("b:1", options)
    assert SECRET not in f"{raised.value.what} {raised.value.hint}"


# ── causes ───────────────────────────────────────────────────────────────────────────────────────

VERIFY = "SSL handshake failed: error:0A000086:SSL routines::certificate verify failed: broker …"
CAUSES = {
    "refused": (
        (
            "a:9092/bootstrap: Connect to ipv4#1.2.3.4:9092 failed: Connection refused "
            "(after 0ms in state CONNECT)"
        ),
        "Kafka broker a:9092: connection refused",
    ),
    "name": (
        "a:9092/2: Failed to resolve 'a:9092': Name or service not known (after 3ms in state …)",
        "Kafka broker a:9092: its name is not resolved",
    ),
    "IPv6": (
        "ssl://[::1]:9092/1: Connect to ipv6#[::1]:9092 failed: Connection refused",
        "Kafka broker [::1]:9092: connection refused",
    ),
    "password": (
        (
            "sasl_ssl://a:9092/bootstrap: SASL authentication error: Authentication failed: "
            "Invalid username or password (after 302ms in state AUTH_REQ)"
        ),
        "Kafka broker a:9092: authentication failed: Invalid username or password",
    ),
    "SCRAM": (
        (
            "sasl_ssl://a:9092/bootstrap: SASL authentication error: Authentication failed during "
            "authentication due to invalid credentials with SASL mechanism SCRAM-SHA-256 (after 1ms"
        ),
        (
            "Kafka broker a:9092: authentication failed: invalid credentials with SASL mechanism "
            "SCRAM-SHA-256"
        ),
    ),
    "mechanism": (
        (
            "sasl_ssl://a:9092/bootstrap: SASL SCRAM-SHA-256 mechanism handshake failed: Broker: "
            "Unsupported SASL mechanism: broker's supported mechanisms: PLAIN (after 301ms in)"
        ),
        "Kafka broker a:9092: authentication failed: the broker offers PLAIN",
    ),
    "token": (
        f"Failed to acquire SASL OAUTHBEARER token: {SECRET} is wrong",
        (
            "Kafka broker b:1: authentication failed: failed to acquire SASL OAUTHBEARER token: … "
            "is wrong"
        ),
    ),
    "certificate": (
        f"ssl://127.0.0.1:1/bootstrap: {VERIFY} (after 27ms in state SSL_HANDSHAKE)",
        "Kafka broker 127.0.0.1:1: TLS: its certificate is not trusted",
    ),
    "no TLS there": (
        (
            "ssl://a:9092/bootstrap: SSL handshake failed: Disconnected: SSL connection closed by "
            "peer: connecting to a PLAINTEXT broker listener? (after 1ms in state SSL_HANDSHAKE)"
        ),
        "Kafka broker a:9092: TLS: the handshake failed, as it does on a port that speaks no TLS",
    ),
    "not Kafka": (
        (
            "a:80/bootstrap: Receive failed: Invalid response size 1213486160 (0..100000000): "
            "increase receive.message.max.bytes (after 0ms in state APIVERSION_QUERY)"
        ),
        "Kafka broker a:80: what answers there is not a Kafka broker",
    ),
    "setup timeout": (
        "a:9092/bootstrap: Connection setup timed out in state CONNECT (after 30029ms in state …)",
        "Kafka broker a:9092: the connection timed out",
    ),
    "something else": (
        "a:9092/1: Something\nelse (after 1ms in state UP)",
        "Kafka broker a:9092: Something else",
    ),
}


def heard(code: int, text: str) -> ClientErrors:
    causes = ClientErrors({"bootstrap.servers": "b:1", "sasl.password": SECRET}, SECRETS)
    causes.error(KafkaError(code, text))
    return causes


@pytest.mark.parametrize("text, line", CAUSES.values(), ids=CAUSES)
def test_causes_in_one_line(text: str, line: str) -> None:
    found = heard(KafkaError._TRANSPORT, text).as_unreachable(10)
    assert (found.what, found.exit_code) == (line, 69)


def test_some_causes_are_only_logged() -> None:
    causes = ClientErrors({"bootstrap.servers": "b:1"}, SECRETS)
    assert causes.as_unreachable(10).what == "Kafka does not answer within 10 s"
    line = "[thrd:a:1/bootstrap]: a:1/bootstrap: Disconnected: connection closed by peer (after 5ms"
    causes.log(20, "%s [%s] %s", "FAIL", "rdkafka#producer-1", line)
    causes.log(20, "%s [%s] %s", "CONFWARN", "rdkafka#producer-1", "[thrd:app]: whatever")
    assert causes.as_unreachable(10).what == (
        "Kafka broker a:1: it closes the connection, as it does on a port that expects TLS or SASL"
    )
    causes.clear()
    assert causes.as_unreachable(10).what == "Kafka does not answer within 10 s"


def test_when_waiting_is_hopeless() -> None:
    down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
    refused = heard(KafkaError._TRANSPORT, "a:1/1: Connection refused")
    assert not refused.is_hopeless(9)  # another broker may answer
    refused.error(down)
    assert [refused.is_hopeless(at) for at in (0.1, 3)] == [False, True]
    denied = heard(KafkaError._AUTHENTICATION, "a:1/1: SASL authentication error: no")
    assert [denied.is_hopeless(at) for at in (0.1, 3)] == [False, True]
    denied.error(down)
    assert denied.is_hopeless(0.1)
    denied.start_request()  # a new request has a chance
    assert not denied.is_hopeless(0.1)


def test_refusals() -> None:
    causes = ClientErrors({"bootstrap.servers": "b:1"}, SECRETS)
    denied = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert causes.as_refused(denied, "topic `a`", 1).what == "topic `a`: not authorized"
    unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert (
        causes.as_refused(unknown, "topic `a`", 1).what == "topic `a`: unknown topic or partition"
    )
    late = KafkaError(KafkaError._TIMED_OUT)
    assert causes.as_refused(late, "topic `a`", 10).what == "Kafka does not answer within 10 s"


# ── no cluster there ─────────────────────────────────────────────────────────────────────────────


@contextmanager
def listening(accepts: bool) -> Iterator[str]:
    """A port that is closed, or one that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if accepts:
            yield address
    if not accepts:
        yield address


ASKS: dict[str, Any] = {
    "names": lambda cluster: cluster.names(),
    "describe": lambda cluster: cluster.describe(["a"]),
    "latest": lambda cluster: cluster.latest({"a": [0]}),
    "sample": lambda cluster: list(cluster.sample({"a": {0: 0}}, 1)),
}


@pytest.mark.slow
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_a_closed_port_is_told_soon_and_quietly(
    ask: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with listening(accepts=False) as address:
        cluster = KafkaAdmin(address, {})
        begin = time.monotonic()
        with pytest.raises(Unreachable) as raised:
            ask(cluster)
        assert time.monotonic() - begin < 4
        cluster.close()
    assert raised.value.what == f"Kafka broker {address}: connection refused"
    assert raised.value.where == address
    assert raised.value.exit_code == 69
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_silent_port_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS", 1.0)
    with listening(accepts=True) as address:
        cluster = KafkaAdmin(address, {})
        with pytest.raises(Unreachable, match="Kafka does not answer within 1 s"):
            cluster.describe(["a"])
        cluster.close()


@pytest.mark.slow
def test_two_threads_may_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[str] = []

    def ask() -> None:
        try:
            cluster.latest({"a": [0]})
        except Unreachable as error:
            raised.append(error.what)

    with listening(accepts=False) as address:
        cluster = KafkaAdmin(address, {})
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cluster.close()
    assert raised == [f"Kafka broker {address}: connection refused"] * 2


def test_nothing_is_asked_for_nothing() -> None:
    cluster = KafkaAdmin("127.0.0.1:1", {})
    assert cluster.describe([]) == {}
    assert cluster.earliest({}) == {}
    assert cluster.latest({"a": []}) == {"a": {}}
    assert list(cluster.sample({}, 5)) == []
    cluster.close()
    cluster.close()


# ── answers that are none ────────────────────────────────────────────────────────────────────────


class Answering:
    """As much of librdkafka's AdminClient as a question for offsets needs."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = list(offsets)

    def list_offsets(self, wanted: dict[Any, Any], **_: Any) -> dict[Any, Any]:
        offset = self._offsets.pop(0) if len(self._offsets) > 1 else self._offsets[0]
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=offset))
        return dict.fromkeys(wanted, answer)

    def poll(self, timeout: float) -> None:
        pass


def test_an_offset_that_nobody_gave_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What librdkafka gives, without an error, when the connection breaks under the request."""
    with closing(KafkaAdmin("127.0.0.1:1", {})) as cluster:
        monkeypatch.setattr(cluster, "_admin", Answering(OFFSET_INVALID, OFFSET_INVALID, 7))
        assert cluster.latest({"t": [0]}) == {"t": {0: 7}}


def test_no_offset_is_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS", 0.3)
    with closing(KafkaAdmin("127.0.0.1:1", {})) as cluster:
        monkeypatch.setattr(cluster, "_admin", Answering(OFFSET_INVALID))
        with pytest.raises(Unreachable):
            cluster.latest({"t": [0]})
