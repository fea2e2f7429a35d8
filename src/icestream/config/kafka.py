"""Checks `source.options` of `type: kafka`: options of Spark and Kafka that are passed on.

An allow-list by name: a name that is not here does not reach the JVM. Messages never quote a
value, since most of these are or surround secrets.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from icestream.config.jaas import KERBEROS, MODULES, NotAccepted, parse
from icestream.config.problems import Problem

Options = Mapping[str, str]

OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
MECHANISMS = tuple(name for module in MODULES.values() for name in module.mechanisms)

_ENDPOINT = "kafka.sasl.oauthbearer.token.endpoint.url"
# It becomes part of a JVM flag: nothing that ends the flag or begins another URL.
_URL = re.compile(r"https?://[A-Za-z0-9.-]+(:\d{1,5})?(/[\w./~%+-]*)?(\?[\w.=&%+-]*)?", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,18}")


def _named(prefix: str, names: str) -> frozenset[str]:
    return frozenset(prefix + name for name in names.split())


_NUMBERS = _named(
    "",
    """minPartitions maxRecordsPerPartition kafkaConsumer.pollTimeoutMs fetchOffset.numRetries
    fetchOffset.retryIntervalMs""",
) | _named(
    "kafka.",
    """fetch.min.bytes fetch.max.bytes fetch.max.wait.ms max.partition.fetch.bytes
    max.poll.records max.poll.interval.ms request.timeout.ms default.api.timeout.ms
    metadata.max.age.ms reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms
    retry.backoff.max.ms receive.buffer.bytes send.buffer.bytes connections.max.idle.ms
    socket.connection.setup.timeout.ms socket.connection.setup.timeout.max.ms
    sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.retry.backoff.ms
    sasl.login.retry.backoff.max.ms""",
)
_TEXTS = frozenset({"groupIdPrefix", _ENDPOINT}) | _named(
    "kafka.",
    """group.id client.id client.rack sasl.jaas.config sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.oauthbearer.scope.claim.name
    sasl.oauthbearer.sub.claim.name ssl.truststore.location ssl.truststore.certificates
    ssl.truststore.type ssl.keystore.location ssl.keystore.key ssl.keystore.certificate.chain
    ssl.keystore.type ssl.key.password ssl.protocol ssl.enabled.protocols ssl.cipher.suites
    ssl.endpoint.identification.algorithm""",
)
_CHOICES = {
    "kafka.security.protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "kafka.sasl.mechanism": MECHANISMS,
    "kafka.sasl.oauthbearer.header.urlencode": ("true", "false"),
    "kafka.isolation.level": ("read_committed", "read_uncommitted"),
    "kafka.check.crcs": ("true", "false"),
    "kafka.client.dns.lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
    "kafka.metadata.recovery.strategy": ("none", "rebootstrap"),
}
ALLOWED = _NUMBERS | _TEXTS | _CHOICES.keys()
_LOWER = {name.lower(): name for name in sorted(ALLOWED)}

_OWNED = {
    "kafka.bootstrap.servers": "source.bootstrap_servers",
    "subscribe": "source.topics", "assign": "source.topics",
    "subscribepattern": "source.topic_pattern",
    "startingoffsets": "source.start", "startingtimestamp": "source.start",
    "startingoffsetsbytimestamp": "source.start", "kafka.auto.offset.reset": "source.start",
    "maxoffsetspertrigger": "source.max_records_per_commit",
    "includeheaders": "source.include",
}  # fmt: skip
_NO_END = "a stream has no end; `commit_interval: once` stops at what is there"
_INTERVAL = "`commit_interval` says when there is a commit"
_BYTES = "records are read as bytes; `source.format` decodes them"
_POSITIONS = "positions are kept in the tables, never in Kafka"
_NO_STORE_PASSWORD = (
    "PEM has no store password, and Kafka refuses one; that of a private key is "
    "`kafka.ssl.key.password`"
)
_REFUSED = {
    "failondataloss": "loss is never hidden; `icestream run --accept-loss` goes on after one",
    "endingoffsets": _NO_END, "endingoffsetsbytimestamp": _NO_END, "endingtimestamp": _NO_END,
    "startingoffsetsbytimestampstrategy":
        "`source.start` begins at the end of a partition that has no record after that time",
    "minoffsetspertrigger": _INTERVAL, "maxtriggerdelay": _INTERVAL,
    "kafka.key.deserializer": _BYTES, "kafka.value.deserializer": _BYTES,
    "kafka.enable.auto.commit": _POSITIONS, "kafka.auto.commit.interval.ms": _POSITIONS,
    "kafka.ssl.truststore.password": _NO_STORE_PASSWORD,
    "kafka.ssl.keystore.password": _NO_STORE_PASSWORD,
    "kafka.sasl.login.callback.handler.class":
        "it names code to load; for OAUTHBEARER icestream sets Kafka's own handler itself",
}  # fmt: skip
_CODE = re.compile(
    "class|provider|factory|interceptor|callback|handler|reporter|serializer|assignor|"
    "assignment|plugin|implementation|manager|engine"
)
_TO_PEM = {
    "truststore": "keytool -exportcert -rfc -alias <ca> -keystore <file.jks> -file ca.pem",
    "keystore": "openssl pkcs12 -in <file.p12> -out client.pem -nodes",
}
_STORE_VALUES = {"truststore": ("location", "certificates"),
                 "keystore": ("location", "key", "certificate.chain")}  # fmt: skip


def check(options: Options) -> Iterator[Problem]:
    """Yield a problem for each option that is not allowed or does not fit the others."""
    for key, value in options.items():
        yield from _name(key) if key not in ALLOWED else _value(key, value)
    known = {key: value for key, value in options.items() if key in ALLOWED}
    yield from _sasl(known)
    yield from _tls(known)


def added(options: Options) -> dict[str, str]:
    """Return the client properties that icestream sets itself: users may not name classes."""
    if options.get("kafka.sasl.mechanism") != "OAUTHBEARER":
        return {}
    return {"kafka.sasl.login.callback.handler.class": OAUTH_HANDLER}


def jvm_flags(options: Options) -> list[str]:
    """Return JVM flags that limit what Kafka's client may load, should an option get that far."""
    kafka, modules = "-Dorg.apache.kafka", "com.sun.security.auth.module"
    url = options.get(_ENDPOINT, "")
    return [
        f"{kafka}.disallowed.login.modules={modules}.JndiLoginModule,{modules}.LdapLoginModule",
        f"{kafka}.sasl.oauthbearer.allowed.urls={url if _URL.fullmatch(url) else 'none'}",
        f"{kafka}.automatic.config.providers=none",
    ]


def _name(key: str) -> Iterator[Problem]:
    lower = key.lower()
    if lower in _LOWER:
        yield _problem(key, f"did you mean `{_LOWER[lower]}`?")
    elif lower in _OWNED:
        yield _problem(key, f"said twice: write it as `{_OWNED[lower]}`")
    elif lower in _REFUSED:
        yield _problem(key, _REFUSED[lower])
    elif lower.startswith("kafka.sasl.kerberos."):
        yield _problem(key, KERBEROS)
    elif _CODE.search(lower):
        yield _problem(key, "it names code to load, which a pipeline file may not do")
    elif close := get_close_matches(lower, _LOWER, n=1, cutoff=0.75):
        yield _problem(key, f"unknown option; did you mean `{_LOWER[close[0]]}`?")
    else:
        hint = "properties of Kafka's client begin with `kafka.`, as kafka.security.protocol does"
        yield _problem(key, "not an option that is passed on to Spark or Kafka", hint)


def _value(key: str, value: str) -> Iterator[Problem]:
    if key in _NUMBERS and _NUMBER.fullmatch(value) is None:
        yield _problem(key, "expected a whole number")
    elif key in _CHOICES and value not in _CHOICES[key]:
        is_kerberos = key == "kafka.sasl.mechanism" and value.strip().upper() == "GSSAPI"
        expected = f"expected {', '.join(_CHOICES[key])}"
        yield _problem(key, f"{KERBEROS}; {expected}" if is_kerberos else expected)
    elif key == _ENDPOINT and _URL.fullmatch(value) is None:
        yield _problem(key, "expected a URL that begins with https or http, without user or comma")
    elif key == "kafka.ssl.endpoint.identification.algorithm" and value.lower() != "https":
        what = "expected https" if value.strip() else "the broker's host name would not be checked"
        yield _problem(key, what)


def _sasl(options: Options) -> Iterator[Problem]:
    protocol, mechanism = options.get("kafka.security.protocol", ""), "kafka.sasl.mechanism"
    jaas = "kafka.sasl.jaas.config"
    unused = next((key for key in options if key.startswith("kafka.sasl.")), None)
    if unused and not protocol.startswith("SASL_"):
        yield _problem(unused, "needs `kafka.security.protocol: SASL_SSL` or SASL_PLAINTEXT")
    if options.get(mechanism) == "OAUTHBEARER" and _ENDPOINT not in options:
        yield _problem(mechanism, f"needs `{_ENDPOINT}` beside it")
    if jaas not in options:
        return
    try:
        login = parse(options[jaas])
    except NotAccepted as problem:
        yield _problem(jaas, str(problem))
        return
    if options.get(mechanism) in set(MECHANISMS) - {*login.module.mechanisms}:
        yield _problem(jaas, f"this login module is for {' and '.join(login.module.mechanisms)}")


def _tls(options: Options) -> Iterator[Problem]:
    if options.get("kafka.security.protocol") not in ("SSL", "SASL_SSL") and (
        unused := next((key for key in options if key.startswith("kafka.ssl.")), None)
    ):
        yield _problem(unused, "needs `kafka.security.protocol: SSL` or SASL_SSL")
    for store, names in _STORE_VALUES.items():
        type_key = f"kafka.ssl.{store}.type"
        keys = [type_key, *(f"kafka.ssl.{store}.{name}" for name in names)]
        first_key = next((key for key in keys if key in options), None)
        if first_key and options.get(type_key) != "PEM":
            is_type = first_key == type_key
            what = "only PEM is read" if is_type else f"needs `{type_key}: PEM`, else it is JKS"
            hint = f"convert it with `{_TO_PEM[store]}`, then `{type_key}: PEM`"
            yield _problem(first_key, what, hint)


def _problem(key: str, message: str, hint: str | None = None) -> Problem:
    return Problem(("source", "options", key), message, hint)
