"""Catalog `rest`: an Iceberg REST catalog; Spark and PyIceberg ask the same server."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from icestream.errors import Unreachable

if TYPE_CHECKING:
    from pydantic import SecretStr
    from pyiceberg.catalog import Catalog as PyCatalog

_TIMEOUT_SECONDS = 10  # PyIceberg itself has no timeout
_SECRET = re.compile("(?i)secret|password|token|credential|auth|key|^header")
_NO_CONNECTION = {
    "connection refused": re.compile("Connection refused"),
    "its name is not resolved": re.compile("Failed to resolve|Name or service not known"),
    "it closes the connection": re.compile("(?i)reset|aborted|closed"),
}
_HINTS = {
    "refused": "is the catalog running, and `catalog.uri` right?",
    "its name": "is `catalog.uri` right?",
    "does not answer": "is `catalog.uri` right, and does a firewall let us through?",
    "speaks no TLS": "does `catalog.uri` begin with http: or with https:?",
    "certificate": "REQUESTS_CA_BUNDLE names a file of other CAs; Java has a trust store",
    "asks for": "set `catalog.credential` or `catalog.token`",
    "does not accept": "check `catalog.credential` or `catalog.token`, and `catalog.scope`",
    "does not let": "give them the rights to list namespaces and to change tables",
    "expired": "get a new one, or use `catalog.credential`, which gets its own",
    "not an Iceberg": "`catalog.uri` ends before `/v1/config`",
}


class RestCatalog:
    """Iceberg's RESTCatalog on `catalog.uri`."""

    def __init__(self, options: Any) -> None:
        self.name: str = options.name
        uri = options.uri.rstrip("/")
        settings = {
            "uri": uri,
            "warehouse": options.warehouse,
            "credential": _plain(options.credential),
            "token": _plain(options.token),
            "oauth2-server-uri": options.oauth2_server_uri,
            "scope": options.scope,
        }
        self._settings = {key: value for key, value in settings.items() if value is not None}
        if options.credential or options.token:
            # It is the default of both clients, which warn about it unless it is set.
            self._settings.setdefault("oauth2-server-uri", f"{uri}/v1/oauth/tokens")
        self._settings.update(options.properties)

    def java_properties(self) -> Mapping[str, str]:
        """Return the properties of a RESTCatalog; PyIceberg has the same names for all of them."""
        return {"type": "rest", **self._settings}

    def open(self) -> "PyCatalog":
        """Open PyIceberg's RestCatalog, after a request with a timeout to each address."""
        import requests
        from pyiceberg.catalog.rest import RestCatalog as PyRestCatalog

        try:
            for address in self._addresses():
                requests.get(address, timeout=_TIMEOUT_SECONDS).close()
            return PyRestCatalog(self.name, **self._settings)
        except Exception as failure:  # of requests, PyIceberg, pydantic: each its own family
            raise self._unreachable(failure) from None

    def check(self) -> None:
        """Check that the server is a catalog and our credentials may list its namespaces."""
        catalog = self.open()
        try:
            catalog.list_namespaces()
        except Exception as failure:
            raise self._unreachable(failure) from None

    def _addresses(self) -> list[str]:
        config = f"{self._settings['uri']}/v1/config"
        login = [self._settings["oauth2-server-uri"]] if "credential" in self._settings else []
        return [config, *login]

    def _unreachable(self, failure: Exception) -> Unreachable:
        """Return an error with the cause in one line, without a secret, and a hint."""
        cause = self._discreet(self._cause(failure))
        hint = next((hint for part, hint in _HINTS.items() if part in cause), None)
        return Unreachable(f"REST catalog: {cause}", where=self._where(), hint=hint)

    def _cause(self, failure: Exception) -> str:  # noqa: C901 (one case for each cause)
        import requests
        from pyiceberg import exceptions

        text = " ".join(str(failure).split())
        has_login = "credential" in self._settings or "token" in self._settings
        match failure:
            case requests.exceptions.SSLError():
                if "WRONG_VERSION_NUMBER" in text or "record layer" in text:
                    return "TLS: what listens there speaks no TLS"
                return "TLS: its certificate is not trusted"
            case requests.exceptions.Timeout():
                return f"does not answer within {_TIMEOUT_SECONDS} s"
            case requests.exceptions.ConnectionError():
                causes = (
                    cause for cause, pattern in _NO_CONNECTION.items() if pattern.search(text)
                )
                return next(causes, "no connection")
            case requests.exceptions.RequestException():
                return "`catalog.uri` is not an http or https address"
            case exceptions.OAuthError():
                return f"it does not accept the credential: {text[:300]}"
            case exceptions.UnauthorizedError() if has_login:
                return "it does not accept the credentials (401)"
            case exceptions.UnauthorizedError():
                return "it asks for credentials (401)"
            case exceptions.AuthorizationExpiredError():
                return "the token has expired (419)"
            case exceptions.ForbiddenError():
                return "it does not let these credentials in (403)"
            case _ if answer := re.match(r"RESTError (\d+):", text):
                if answer[1].startswith("5"):
                    return f"it has trouble: status {answer[1]}"
                return f"what answers there is not an Iceberg REST catalog (status {answer[1]})"
            case exceptions.RESTError() | NotImplementedError():
                return f"it answers: {text[:300]}"
        return "what answers there is not an Iceberg REST catalog"

    def _discreet(self, text: str) -> str:
        """Replace secrets in a text: the values of properties with such names."""
        secrets = {value for key, value in self._settings.items() if _SECRET.search(key)}
        secrets.discard(self._settings.get("oauth2-server-uri", ""))
        secrets.add(self._settings.get("credential", "").partition(":")[2])
        for secret in sorted(filter(None, secrets), key=len, reverse=True):
            text = text.replace(secret, "…")
        return text

    def _where(self) -> str:
        """Return the address without user, password and query."""
        return re.sub(r"[^/]*@", "", self._settings["uri"].partition("?")[0])


def _plain(secret: "SecretStr | None") -> str | None:
    return secret.get_secret_value() if secret else None
