"""Kafka's options: an allow-list by name, no code from a pipeline file, no secret in a message."""

import re
from pathlib import Path

import pytest

from icestream.config import jaas, kafka
from icestream.config.load import load
from icestream.errors import ConfigError

SECRET = "CANARY-5f3a"
SASL = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}
PACKAGE = "org.apache.kafka.common.security."
PLAIN = f'{PACKAGE}plain.PlainLoginModule required username="u" password="{SECRET}";'
SCRAM = PLAIN.replace("plain.Plain", "scram.Scram")
OAUTH = (
    f"{PACKAGE}oauthbearer.OAuthBearerLoginModule required "
    f'clientId="u" clientSecret="{SECRET}" scope="a b" extension_logicalCluster="lkc-1";'
)
ENDPOINT = "kafka.sasl.oauthbearer.token.endpoint.url"
OIDC = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "kafka.sasl.jaas.config": OAUTH,
    ENDPOINT: "https://idp.example.com/realms/x/token",
}
TLS = {"kafka.security.protocol": "SSL"}


def said(options: dict[str, str]) -> list[str]:
    """Every problem with the last part of its place; none of them repeats a secret."""
    problems = list(kafka.check(options))
    assert all(problem.loc[:2] == ("source", "options") for problem in problems)
    assert SECRET not in repr(problems)
    return [f"{problem.loc[2]}: {problem.message}" for problem in problems]


# ── accepted ─────────────────────────────────────────────────────────────────────────────────────

GOOD = {
    "nothing": {},
    "Spark's own": {
        "minPartitions": "8",
        "maxRecordsPerPartition": "1000",
        "kafkaConsumer.pollTimeoutMs": "1000",
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "10",
        "groupIdPrefix": "x",
        "kafka.group.id": "g",
    },
    "the interface's example": {"kafka.security.protocol": "SASL_SSL"},
    "tuning": {
        "kafka.fetch.max.bytes": "1048576",
        "kafka.receive.buffer.bytes": "-1",
        "kafka.isolation.level": "read_uncommitted",
        "kafka.client.rack": "eu-1a",
        "kafka.check.crcs": "true",
    },
    "PLAIN": {**SASL, "kafka.sasl.jaas.config": PLAIN},
    "SCRAM": {
        **SASL,
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": SCRAM,
    },
    "OAUTHBEARER": OIDC,
    "PEM files": {
        **TLS,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": "/client.pem",
        "kafka.ssl.key.password": SECRET,
        "kafka.ssl.endpoint.identification.algorithm": "https",
    },
    "PEM in place": {
        **TLS,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": "…",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.key": SECRET,
        "kafka.ssl.keystore.certificate.chain": "…",
    },
}


@pytest.mark.parametrize("options", GOOD.values(), ids=GOOD)
def test_accepted(options: dict[str, str]) -> None:
    assert said(options) == []


# ── refused by name ──────────────────────────────────────────────────────────────────────────────

CODE = "it names code to load, which a pipeline file may not do"
NAMES = {
    "kafka.bootstrap.servers": "said twice: write it as `source.bootstrap_servers`",
    "SUBSCRIBE": "said twice: write it as `source.topics`",
    "assign": "said twice: write it as `source.topics`",
    "subscribePattern": "said twice: write it as `source.topic_pattern`",
    "startingOffsets": "said twice: write it as `source.start`",
    "startingTimestamp": "said twice: write it as `source.start`",
    "startingOffsetsByTimestamp": "said twice: write it as `source.start`",
    "kafka.auto.offset.reset": "said twice: write it as `source.start`",
    "maxOffsetsPerTrigger": "said twice: write it as `source.max_records_per_commit`",
    "includeHeaders": "said twice: write it as `source.include`",
    "failOnDataLoss": "loss is never hidden; `icestream run --accept-loss` goes on after one",
    "endingOffsets": "a stream has no end; `commit_interval: once` stops at what is there",
    "endingTimestamp": "a stream has no end; `commit_interval: once` stops at what is there",
    "startingOffsetsByTimestampStrategy": (
        "`source.start` begins at the end of a partition that has no record after that time"
    ),
    "minOffsetsPerTrigger": "`commit_interval` says when there is a commit",
    "maxTriggerDelay": "`commit_interval` says when there is a commit",
    "kafka.key.deserializer": "records are read as bytes; `source.format` decodes them",
    "kafka.value.deserializer": "records are read as bytes; `source.format` decodes them",
    "kafka.enable.auto.commit": "positions are kept in the tables, never in Kafka",
    "kafka.sasl.kerberos.service.name": "GSSAPI/Kerberos is not supported",
    "kafka.sasl.login.callback.handler.class": (
        "it names code to load; for OAUTHBEARER icestream sets Kafka's own handler itself"
    ),
    "kafka.sasl.client.callback.handler.class": CODE,
    "kafka.sasl.login.class": CODE,
    "kafka.interceptor.classes": CODE,
    "kafka.metric.reporters": CODE,
    "kafka.config.providers": CODE,
    "kafka.config.providers.env.class": CODE,
    "kafka.security.providers": CODE,
    "kafka.ssl.provider": CODE,
    "kafka.ssl.engine.factory.class": CODE,
    "kafka.ssl.secure.random.implementation": CODE,
    "kafka.ssl.trustmanager.algorithm": CODE,
    "kafka.partition.assignment.strategy": CODE,
    "KAFKA.SASL.JAAS.CONFIG": "did you mean `kafka.sasl.jaas.config`?",
    "minpartitions": "did you mean `minPartitions`?",
    "security.protocol": "unknown option; did you mean `kafka.security.protocol`?",
    "kafka.fetch.max.byte": "unknown option; did you mean `kafka.fetch.max.bytes`?",
    "zzz": "not an option that is passed on to Spark or Kafka",
    "kafka.sasl.jaas.config ": "unknown option; did you mean `kafka.sasl.jaas.config`?",
    "_mockSystemTime": "not an option that is passed on to Spark or Kafka",
}


@pytest.mark.parametrize("name, message", NAMES.items())
def test_refused_by_name(name: str, message: str) -> None:
    assert said({name: SECRET}) == [f"{name}: {message}"]


def test_store_passwords_are_refused_because_kafka_does_so_for_pem() -> None:
    for store in ("truststore", "keystore"):
        [problem] = said({**TLS, f"kafka.ssl.{store}.password": SECRET})
        assert "PEM has no store password" in problem


# ── refused by value ─────────────────────────────────────────────────────────────────────────────

MECHANISMS = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER"
URL = "expected a URL that begins with https or http, without user or comma"
VALUES = {
    "number": ({"minPartitions": "many"}, "minPartitions: expected a whole number"),
    "choice": (
        {"kafka.isolation.level": "committed"},
        "kafka.isolation.level: expected read_committed, read_uncommitted",
    ),
    "protocol": (
        {"kafka.security.protocol": "TLS"},
        "kafka.security.protocol: expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    ),
    "Kerberos": (
        {**SASL, "kafka.sasl.mechanism": "gssapi"},
        f"kafka.sasl.mechanism: GSSAPI/Kerberos is not supported; expected {MECHANISMS}",
    ),
    "no host check": (
        {**TLS, "kafka.ssl.endpoint.identification.algorithm": " "},
        "kafka.ssl.endpoint.identification.algorithm: the broker's host name would not be checked",
    ),
    "another host check": (
        {**TLS, "kafka.ssl.endpoint.identification.algorithm": "none"},
        "kafka.ssl.endpoint.identification.algorithm: expected https",
    ),
    "SASL without its protocol": (
        {"kafka.sasl.mechanism": "PLAIN"},
        "kafka.sasl.mechanism: needs `kafka.security.protocol: SASL_SSL` or SASL_PLAINTEXT",
    ),
    "TLS without its protocol": (
        {"kafka.ssl.truststore.type": "PEM"},
        "kafka.ssl.truststore.type: needs `kafka.security.protocol: SSL` or SASL_SSL",
    ),
    "no endpoint": (
        {name: value for name, value in OIDC.items() if name != ENDPOINT},
        f"kafka.sasl.mechanism: needs `{ENDPOINT}` beside it",
    ),
    "file": ({**OIDC, ENDPOINT: "file:///etc/passwd"}, f"{ENDPOINT}: {URL}"),
    "user in URL": ({**OIDC, ENDPOINT: f"https://u:{SECRET}@idp/t"}, f"{ENDPOINT}: {URL}"),
    "two URLs": ({**OIDC, ENDPOINT: "https://idp/t,file:///etc/passwd"}, f"{ENDPOINT}: {URL}"),
    "flag in URL": ({**OIDC, ENDPOINT: "https://idp/t -javaagent:x.jar"}, f"{ENDPOINT}: {URL}"),
    "line in URL": ({**OIDC, ENDPOINT: "https://idp/t\n"}, f"{ENDPOINT}: {URL}"),
    "JKS": (
        {**TLS, "kafka.ssl.truststore.type": "JKS", "kafka.ssl.truststore.location": "/x"},
        "kafka.ssl.truststore.type: only PEM is read",
    ),
    "JKS by default": (
        {**TLS, "kafka.ssl.truststore.location": "/x"},
        "kafka.ssl.truststore.location: needs `kafka.ssl.truststore.type: PEM`, else it is JKS",
    ),
    "PKCS12": (
        {**TLS, "kafka.ssl.keystore.type": "PKCS12", "kafka.ssl.keystore.location": "/x"},
        "kafka.ssl.keystore.type: only PEM is read",
    ),
    "key by default": (
        {**TLS, "kafka.ssl.keystore.key": SECRET},
        "kafka.ssl.keystore.key: needs `kafka.ssl.keystore.type: PEM`, else it is JKS",
    ),
}


@pytest.mark.parametrize("options, message", VALUES.values(), ids=VALUES)
def test_refused_by_value(options: dict[str, str], message: str) -> None:
    assert said(options) == [message]


def test_a_store_that_is_not_pem_comes_with_the_command_that_converts_it() -> None:
    for store, tool in (("truststore", "keytool -exportcert"), ("keystore", "openssl pkcs12")):
        [problem] = kafka.check({**TLS, f"kafka.ssl.{store}.location": "/x"})
        assert tool in (problem.hint or "")
        assert f"kafka.ssl.{store}.type: PEM" in (problem.hint or "")


# ── JAAS ─────────────────────────────────────────────────────────────────────────────────────────

ODD = "expected `<login module> required"
OTHER = "the login module is none of"
TWO = "exactly one login module is accepted"
LOGINS = {
    "JNDI": (
        f'com.sun.security.auth.module.JndiLoginModule required user.provider.url="{SECRET}";',
        OTHER,
    ),
    "LDAP": ("com.sun.security.auth.module.LdapLoginModule required a=b;", OTHER),
    "not in Kafka's list": ("com.sun.security.auth.module.UnixLoginModule required a=b;", OTHER),
    "case": (PLAIN.replace("PlainLogin", "plainlogin"), OTHER),
    "Kerberos": (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true;",
        "GSSAPI/Kerberos is not supported",
    ),
    "Kerberos, oddly": (
        "com.sun.security.auth.module.Krb5LoginModule required /* x */;",
        "GSSAPI/Kerberos is not supported",
    ),
    "two": (PLAIN + PLAIN, TWO),
    "two, the second bad": (PLAIN + " com.sun.security.auth.module.JndiLoginModule required;", TWO),
    "two, on lines": (f"{PLAIN}\n\tx.Y required a='{SECRET}';\n", TWO),
    "comment": (PLAIN.replace("required", "required /* */"), ODD),
    "comment to the end": (PLAIN.replace(";", "// ;\n;"), ODD),
    "comment of one slash": (PLAIN.replace(";", "/ ;\n;"), ODD),
    "comment that hides a module": (f"/* {PLAIN} */ x.Y required;", ODD),
    "quotes around the module": (f'"{PACKAGE}plain.PlainLoginModule" required a="b";', ODD),
    "quote left open": (PLAIN.replace(f"{SECRET}", f'{SECRET}" x="'), "options that this login"),
    "line in a value": (PLAIN.replace(SECRET, f"{SECRET}\n"), ODD),
    "no semicolon": (PLAIN.rstrip(";"), ODD),
    "other flag": (PLAIN.replace("required", "optional"), ODD),
    "bare number": (PLAIN.replace(f'"{SECRET}"', "12345"), ODD),
    "bare special character": (PLAIN.replace(f'"{SECRET}"', f"{SECRET}!"), ODD),
    "wide space": (PLAIN.replace(" required", "\u00a0required"), ODD),
    "empty": ("", ODD),
    "no password": (
        f'{PACKAGE}plain.PlainLoginModule required username="u";',
        "the login module's option `password` is missing",
    ),
    "class in an option": (
        OAUTH.replace(";", ' ssl.engine.factory.class="x.Y";'),
        "options that this login module takes here: clientId, clientSecret, scope, extension_…",
    ),
    "unsecured token": (
        OAUTH.replace(";", ' unsecuredLoginStringClaim_sub="x";'),
        "options that this login module takes here: ",
    ),
    "module of another mechanism": (SCRAM, "this login module is for SCRAM-SHA-256 and SCRAM-SHA-"),
}


@pytest.mark.parametrize("text, message", LOGINS.values(), ids=LOGINS)
def test_logins_that_are_refused(text: str, message: str) -> None:
    [problem] = said({**SASL, "kafka.sasl.jaas.config": text})
    assert problem.startswith(f"kafka.sasl.jaas.config: {message}")


READ = {
    "plain": ('"secret"', "secret"),
    "single quotes": ("'se\"cret'", 'se"cret'),
    "bare": ("secret", "secret"),
    "escaped quote": (r'"a\"b"', 'a"b'),
    "escaped backslash": (r'"a\\b"', "a\\b"),
    "escaped letter": (r'"a\qb\n"', "aqb\n"),
    "octal": (r'"\101\47\4711"', "A''11"),
    "looks like a comment": ('"a//b/*c"', "a//b/*c"),
    "looks like an entry": ('"; x.Y required;"', "; x.Y required;"),
}


@pytest.mark.parametrize("written, meant", READ.values(), ids=READ)
def test_passwords_are_read_as_java_reads_them(written: str, meant: str) -> None:
    entry = f"  {PACKAGE}plain.PlainLoginModule\n REQUIRED username = u\tpassword={written} ;\n"
    login = jaas.parse(entry)
    assert login.options == {"username": "u", "password": meant}
    assert meant not in repr(login)


def test_oauth_options() -> None:
    assert jaas.parse(OAUTH).options == {
        "clientId": "u",
        "clientSecret": SECRET,
        "scope": "a b",
        "extension_logicalCluster": "lkc-1",
    }


# ── what the JVM gets ────────────────────────────────────────────────────────────────────────────


def test_the_jvm_is_fenced() -> None:
    modules, urls, providers = kafka.jvm_flags({})
    assert modules == (
        "-Dorg.apache.kafka.disallowed.login.modules=com.sun.security.auth.module.JndiLoginModule,"
        "com.sun.security.auth.module.LdapLoginModule"
    )
    assert urls == "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=none"
    assert providers == "-Dorg.apache.kafka.automatic.config.providers=none"
    assert kafka.jvm_flags(OIDC)[1].endswith("allowed.urls=https://idp.example.com/realms/x/token")
    assert kafka.jvm_flags({ENDPOINT: "https://x -javaagent:y"})[1].endswith("=none")


def test_the_handler_of_oauth_is_ours() -> None:
    assert kafka.added(SASL) == {}
    assert kafka.added(OIDC) == {"kafka.sasl.login.callback.handler.class": kafka.OAUTH_HANDLER}


# ── through a file ───────────────────────────────────────────────────────────────────────────────


def test_problems_of_a_file_name_the_place_and_keep_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "icestream.yml"
    path.write_text(f"""\
name: shop
source:
  type: kafka
  bootstrap_servers: x:1
  topics: [a]
  options:
    kafka.security.protocol: SASL_SSL
    kafka.sasl.jaas.config: x.Y required password="{SECRET}";
    kafka.ssl.truststore.password: {SECRET}
    kafka.ssl.keystore.key: {SECRET}
    kafka.sasl.mechanism: ${{MECHANISM}}
tables: [{{name: shop.events}}]
""")
    with pytest.raises(ConfigError) as raised:
        load(path, env={"MECHANISM": SECRET})
    text = f"{raised.value.what} {raised.value.hint} {raised.value.where}"
    assert SECRET not in text
    for line in (8, 9, 10, 11):
        assert re.search(rf"icestream\.yml:{line}, source\.options\[\"kafka\.", text), text
