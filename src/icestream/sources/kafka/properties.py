"""Properties of Java's client as librdkafka's; what only tunes Java's consumer is left out."""

from collections.abc import Mapping
from pathlib import Path

from icestream.config import jaas
from icestream.errors import ConfigError

Properties = dict[str, str]

_SAME = ("security.protocol", "sasl.mechanism", "client.id", "client.rack", "client.dns.lookup")
_MILLIS = {  # Java's name → librdkafka's, with the least and the most that it takes
    "request.timeout.ms": ("socket.timeout.ms", 10, 300_000),
    "socket.connection.setup.timeout.ms": (
        "socket.connection.setup.timeout.ms", 1000, 2_147_483_647,
    ),
}  # fmt: skip
_PEM = {
    "ssl.truststore.location": ("ssl.ca.location",),
    "ssl.truststore.certificates": ("ssl.ca.pem",),
    "ssl.keystore.location": ("ssl.certificate.location", "ssl.key.location"),  # holds both
    "ssl.keystore.certificate.chain": ("ssl.certificate.pem",),
    "ssl.keystore.key": ("ssl.key.pem",),
    "ssl.key.password": ("ssl.key.password",),
}
SECRETS = ("sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.password", "ssl.key.pem")


def librdkafka(bootstrap: str, options: Mapping[str, str]) -> Properties:
    """Make a client's configuration from `source.bootstrap_servers` and `source.options`."""
    java = {
        key.removeprefix("kafka."): value
        for key, value in options.items()
        if key.startswith("kafka.")
    }
    return {
        "bootstrap.servers": bootstrap,
        "isolation.level": java.get("isolation.level", "read_committed"),
        **{key: java[key] for key in _SAME if key in java},
        **{name: java[key] for key, names in _PEM.items() if key in java for name in names},
        **{
            name: str(min(max(int(java[key]), least), most))
            for key, (name, least, most) in _MILLIS.items()
            if key in java
        },
        **_login(java),
    }


def check_files(options: Mapping[str, str]) -> None:
    """Raise ConfigError that names a certificate file that cannot be read: librdkafka does not."""
    for key in ("kafka.ssl.truststore.location", "kafka.ssl.keystore.location"):
        try:
            if key in options:
                Path(options[key]).open("rb").close()
        except OSError as error:
            raise ConfigError(
                f"`{key}`: {options[key]}: {(error.strerror or '').lower()}", where="source.options"
            ) from None


def _login(java: Properties) -> Properties:
    if not java.get("security.protocol", "").startswith("SASL_"):
        return {}
    for key in ("sasl.mechanism", "sasl.jaas.config"):
        if key not in java:
            raise ConfigError(
                f"`kafka.security.protocol: {java['security.protocol']}` needs `kafka.{key}`",
                where="source.options",
                hint="add it under `source.options`",
            )
    login = jaas.parse(java["sasl.jaas.config"]).options
    if "username" in login:
        return {"sasl.username": login["username"], "sasl.password": login["password"]}
    return _oidc(login, java)


def _oidc(login: Mapping[str, str], java: Properties) -> Properties:
    extensions = ",".join(
        f"{key.removeprefix('extension_')}={value}"
        for key, value in login.items()
        if key.startswith("extension_")
    )
    settings = {
        "client.id": login["clientId"],
        "client.secret": login["clientSecret"],
        "method": "oidc",
        "token.endpoint.url": java.get("sasl.oauthbearer.token.endpoint.url"),
        "sub.claim.name": java.get("sasl.oauthbearer.sub.claim.name"),
        "scope": login.get("scope"),
        "extensions": extensions or None,
    }
    return {
        f"sasl.oauthbearer.{key}": value for key, value in settings.items() if value is not None
    }
