"""Why a cluster does not answer: librdkafka's calls only time out, its callbacks say more."""

import re
import socket
import ssl
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError

from icestream.errors import Unreachable

PATIENCE_SECONDS = 2.0  # a restarted broker may come back before a known cause is the last word

_DEFINITE = (KafkaError._AUTHENTICATION, KafkaError._SSL)
_SILENT = (
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE, KafkaError._SSL, KafkaError._AUTHENTICATION,
)  # fmt: skip
_BROKER = re.compile(r"(?:\w+://)?(?P<broker>[^/\s]+)/\w+: (?P<text>.*)", re.DOTALL)
_PLAIN = {
    "connection refused": re.compile("Connection refused"),
    "its name is not resolved": re.compile("Failed to resolve"),
    "TLS: its certificate is not trusted": re.compile("certificate verify failed"),
    "TLS: the handshake failed, as it does on a port that speaks no TLS": re.compile(
        "PLAINTEXT broker listener|SSL connection closed by peer|wrong version number"
    ),
    "it closes the connection, as it does on a port that expects TLS or SASL": re.compile(
        "Disconnected|connection closed by peer"
    ),
    "what answers there is not a Kafka broker": re.compile("Invalid response size"),
    "the connection timed out": re.compile("(?i)timed out|timeout"),
}
_LOGIN = re.compile(
    r"SASL authentication error: "
    r"(?:Authentication failed(?:: | during authentication due to ))?(.*)",
    re.DOTALL,
)
_OFFERED = re.compile(r"Unsupported SASL mechanism: broker's supported mechanisms: (.*)")
_HINTS = {
    "connection refused": "is the broker running, and `source.bootstrap_servers` right?",
    "its name": "is `source.bootstrap_servers` right? a broker may also advertise another name",
    "authentication": "check `kafka.sasl.mechanism` and `kafka.sasl.jaas.config`",
    "not valid for": "`source.bootstrap_servers` must name brokers as their certificates do",
    "certificate": "`kafka.ssl.truststore.location` must hold the CA of the broker, in PEM",
    "on a port that": "check `kafka.security.protocol`",
}


class ClientErrors:
    """Collects what librdkafka's callbacks say, and turns it into an error with a cause."""

    def __init__(self, settings: Mapping[str, str], secrets: Iterable[str]) -> None:
        self._settings = settings
        self._secrets = [settings[name] for name in secrets if settings.get(name)]
        self.clear()

    def clear(self) -> None:
        """Forget what was said: an answer came."""
        self._error: KafkaError | None = None
        self._logged: str | None = None
        self._fresh = False
        self._down = False

    def start_request(self) -> None:
        """Begin a request: what was said before is not about it."""
        self._fresh = False

    def error(self, error: KafkaError) -> None:
        """Be librdkafka's `error_cb`."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._down = True
        else:
            self._error = error
            self._fresh = True

    def log(self, level: int, form: str, *parts: str) -> None:
        """Be librdkafka's `logger`: nothing is printed, and some causes are only said here."""
        if parts and parts[0] == "FAIL":
            self._logged = parts[-1].split("]: ", 1)[-1]

    def is_hopeless(self, seconds: float) -> bool:
        """Whether a request that has waited for so many seconds may as well end now."""
        definite = self._fresh and self._error is not None and self._error.code() in _DEFINITE
        if definite and self._down:
            return True
        return seconds > PATIENCE_SECONDS and (definite or self._down)

    def as_unreachable(self, seconds: float) -> Unreachable:
        """Make the error for a cluster that does not answer, with the last cause in one line."""
        text = self._error.str() if self._error is not None else self._logged
        where = self._settings["bootstrap.servers"]
        if text is None:
            return Unreachable(
                f"Kafka does not answer within {seconds:.0f} s",
                where=where,
                hint="is `source.bootstrap_servers` right, and does a firewall let us through?",
            )
        match = _BROKER.match(text)
        broker, text = (match["broker"], match["text"]) if match else (where, text)
        cause = self.redact(self._plain(broker, text))
        hint = next((hint for part, hint in _HINTS.items() if part in cause), None)
        return Unreachable(f"Kafka broker {broker}: {cause}", where=where, hint=hint)

    def as_refused(self, error: KafkaError, about: str, seconds: float) -> Unreachable:
        """Make the error for a request that failed; of one without an answer, with its cause."""
        if error.code() in _SILENT:
            return self.as_unreachable(seconds)
        where = self._settings["bootstrap.servers"]
        if "AUTHORIZATION_FAILED" in error.name():
            hint = "the user needs the rights Describe and Read on it"
            return Unreachable(f"{about}: not authorized", where=where, hint=hint)
        if error.code() == KafkaError._NOENT:
            return Unreachable(f"{about}: does not exist, or has no leader", where=where)
        text = error.str().removeprefix("Broker: ").removeprefix("Local: ")
        return Unreachable(f"{about}: {self.redact(text[:1].lower() + text[1:])}", where=where)

    def redact(self, text: str) -> str:
        """Remove secrets from a text."""
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return text

    def _plain(self, broker: str, text: str) -> str:
        """Say librdkafka's text in words that name the cause, where that is known."""
        text = " ".join(re.sub(r"\(after \d+ms.*", "", text).split())
        if offered := _OFFERED.search(text):
            return f"authentication failed: the broker offers {offered[1]}"
        if login := _LOGIN.search(text):
            return f"authentication failed: {login[1]}"
        if "OAUTHBEARER token" in text:
            return f"authentication failed: {text[:1].lower()}{text[1:]}"
        if "certificate verify failed" in text and (why := self._certificate(broker)):
            return f"TLS: its certificate is not accepted: {why}"
        return next((plain for plain, pattern in _PLAIN.items() if pattern.search(text)), text)

    def _certificate(self, broker: str) -> str | None:
        """Shake hands once more: librdkafka does not tell a wrong host from an unknown CA."""
        host, _, port = broker.rpartition(":")
        host = host.strip("[]")
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            if file := self._settings.get("ssl.ca.location"):
                context.load_verify_locations(cafile=file)
            elif pem := self._settings.get("ssl.ca.pem"):
                context.load_verify_locations(cadata=pem)
            else:
                context.load_default_certs()
            with (
                socket.create_connection((host, int(port)), timeout=3) as plain,
                context.wrap_socket(plain, server_hostname=host),
            ):
                return None
        except ssl.SSLCertVerificationError as error:
            return str(error.verify_message).rstrip(".")
        except (OSError, ValueError):
            return None
