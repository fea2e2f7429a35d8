"""Reads `sasl.jaas.config`: one entry of one of Kafka's own login modules, and nothing else.

Java's reader is lenient (comments, escapes, several entries) and loads whatever class it finds.
This one takes only what both read alike, so that nothing reaches Java that was not looked at.
No message quotes the text: it holds the password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

KERBEROS = "GSSAPI/Kerberos is not supported"


@dataclass(frozen=True)
class Module:
    """A login module that is accepted, with the options that it needs and may have."""

    mechanisms: tuple[str, ...]
    needs: tuple[str, ...]
    accepts: re.Pattern[str]


@dataclass(frozen=True)
class Login:
    """The login module of an entry, and the options that it gives it."""

    module: Module
    options: Mapping[str, str] = field(repr=False)


class NotAccepted(ValueError):
    """An entry is not accepted; the message quotes no part of it."""


_PACKAGE = "org.apache.kafka.common.security."
_USER = re.compile("username|password")
# Others would reach TLS settings of the token request, a class to load among them.
_CLIENT = re.compile(r"clientId|clientSecret|scope|extension_[A-Za-z]+")
MODULES = {
    f"{_PACKAGE}plain.PlainLoginModule": Module(("PLAIN",), ("username", "password"), _USER),
    f"{_PACKAGE}scram.ScramLoginModule": Module(
        ("SCRAM-SHA-256", "SCRAM-SHA-512"), ("username", "password"), _USER
    ),
    f"{_PACKAGE}oauthbearer.OAuthBearerLoginModule": Module(
        ("OAUTHBEARER",), ("clientId", "clientSecret"), _CLIENT
    ),
}

_SPACE = r"[ \t\r\n]"
_VALUE = r""""(?:[^"\\\r\n]|\\[^\r\n])*"|'(?:[^'\\\r\n]|\\[^\r\n])*'|[A-Za-z_][A-Za-z0-9_.$-]*"""
_OPTION = rf"{_SPACE}+([A-Za-z_][A-Za-z0-9_.$-]*){_SPACE}*={_SPACE}*({_VALUE})"
_OPTIONS = re.compile(_OPTION)
_MODULE = rf"([A-Za-z_][A-Za-z0-9_.$]*){_SPACE}+(?i:required)"
_ENTRY = re.compile(rf"{_SPACE}*{_MODULE}((?:{_OPTION})*){_SPACE}*;{_SPACE}*")
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)")
_CONTROLS = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))


def parse(text: str) -> Login:
    """Read the text's one entry; raises NotAccepted."""
    entries, position = [], 0
    while position < len(text) and (match := _ENTRY.match(text, position)):
        entries.append(match)
        position = match.end()
    if position < len(text) or not entries:
        if "krb5loginmodule" in text.lower():
            raise NotAccepted(KERBEROS)
        raise NotAccepted(
            'expected `<login module> required username="…" password="…";`, values in quotes, '
            "without comments"
        )
    if len(entries) > 1:
        raise NotAccepted("exactly one login module is accepted")
    return _login(entries[0][1], entries[0][2])


def _login(name: str, text: str) -> Login:
    if name not in MODULES:
        if name.lower().endswith("krb5loginmodule"):
            raise NotAccepted(KERBEROS)
        known = ", ".join(module.removeprefix(_PACKAGE) for module in MODULES)
        raise NotAccepted(f"the login module is none of {_PACKAGE}{{{known}}}; others may run code")
    module = MODULES[name]
    options = {key: _plain(value) for key, value in (o.groups() for o in _OPTIONS.finditer(text))}
    if any(module.accepts.fullmatch(key) is None for key in options):
        known = module.accepts.pattern.replace("|", ", ").replace("[A-Za-z]+", "…")
        raise NotAccepted(f"options that this login module takes here: {known}")
    for key in module.needs:
        if not options.get(key):
            raise NotAccepted(f"the login module's option `{key}` is missing")
    return Login(module, options)


def _plain(value: str) -> str:
    """Return a value as Java reads it: without quotes, escapes replaced."""
    if value[0] not in "\"'":
        return value
    return _ESCAPE.sub(lambda match: _escaped(match[1]), value[1:-1])


def _escaped(code: str) -> str:
    return chr(int(code, 8)) if code[0] in "01234567" else _CONTROLS.get(code, code)
