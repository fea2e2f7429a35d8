"""A proxy on loopback that does to HTTP requests what networks and servers do on a bad day.

with BadProxy(server.uri) as proxy:
    proxy.add(Rule(path="/tables/", cut="drop"))      forwarded, the answer never comes
    proxy.add(Rule(status=504))                       forwarded, the answer is another
    proxy.add(Rule(forwards=0, status=409, times=3))  not forwarded, thrice
    proxy.add(Rule(status=503, headers={"Retry-After": "1"}))
    proxy.add(Rule(delay=5))                          forwarded late, whoever still waits
    proxy.add(Rule(forwards=2))                       forwarded twice, the last answer counts
    proxy.add(Rule(forwards=0, status=401, token="…"))  for whoever has this token
    proxy.add(Rule(cut="reset"))                      reset in the middle of the answer
    proxy.add(Rule(forwards=0, cut="hole"))           nothing, ever
"""

import json
import re
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal
from urllib.parse import urlsplit

HOST = "127.0.0.1"
SECONDS = 60.0
_HOP_BY_HOP = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


@dataclass(frozen=True, eq=False)
class Rule:
    """What happens to some requests: the nth that matches, and the following up to `times`."""

    method: str = "POST"
    path: str = ""  # patterns, searched for
    body: str = ""
    token: str | None = None
    nth: int = 1
    times: int | None = 1  # None: for ever
    delay: float = 0.0  # seconds before it is forwarded
    before: Callable[[], object] | None = None  # called before that, too
    forwards: int = 1  # how often the server gets it
    after: Callable[[], object] | None = None  # called after that, before the answer
    status: int | None = None  # the answer instead of the server's
    headers: Mapping[str, str] = field(default_factory=dict)
    message: str = "the proxy says so"
    cut: Literal["drop", "reset", "hole"] | None = None  # how the answer does not arrive

    def matches(self, method: str, path: str, body: bytes, authorization: str) -> bool:
        """Whether it is about such requests, whichever of them it means."""
        return (
            method == self.method
            and re.search(self.path, path) is not None
            and re.search(self.body.encode(), body) is not None
            and self.token in (None, authorization.removeprefix("Bearer "))
        )


@dataclass
class Seen:
    """One request and what became of it."""

    method: str
    path: str
    rule: Rule | None
    upstream: list[int] = field(default_factory=list)  # the server's answers
    answer: int | str | None = None  # what the client got; None: it is still under way


class BadProxy:
    """Forwards to `upstream`; the rules say where it misbehaves, `seen` says where it did."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._matched: Counter[Rule] = Counter()
        self.seen: list[Seen] = []
        self.closing = threading.Event()
        proxy = self

        class Bound(_Handler):
            def setup(self) -> None:
                self.proxy = proxy
                super().setup()

        self._server = ThreadingHTTPServer((HOST, 0), Bound)
        self._open: set[socket.socket] = set()

    @property
    def uri(self) -> str:
        """The address for clients."""
        return f"http://{HOST}:{self._server.server_port}"

    def add(self, *rules: Rule) -> None:
        """From now on; the first of the rules that is due wins."""
        with self._lock:
            self._rules += rules

    def clear(self) -> None:
        """Forget rules and what was seen."""
        with self._lock:
            self._rules, self._matched, self.seen = [], Counter(), []

    def hit(self) -> list[Seen]:
        """The requests that a rule was applied to."""
        return [each for each in self.seen if each.rule]

    def __enter__(self) -> "BadProxy":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def connection(self, opened: socket.socket) -> Iterator[None]:
        """Know a client's connection while it lasts, to end it with the proxy."""
        with self._lock:
            self._open.add(opened)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(opened)

    def note(self, method: str, path: str, body: bytes, authorization: str) -> Seen:
        """Write a request down, with the rule that is due for it."""
        with self._lock:
            due = None
            for rule in self._rules:
                if rule.matches(method, path, body, authorization):
                    self._matched[rule] += 1
                    past = self._matched[rule] - rule.nth
                    if due is None and past >= 0 and (rule.times is None or past < rule.times):
                        due = rule
            seen = Seen(method, path, due)
            self.seen.append(seen)
            return seen

    def forward(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask the server; → its answer."""
        host, port = self._upstream.hostname, self._upstream.port
        assert host
        connection = HTTPConnection(host, port, timeout=SECONDS)
        try:
            connection.request(method, path, body or None, _passed_on(headers))
            answer = connection.getresponse()
            return answer.status, _passed_on(dict(answer.getheaders())), answer.read()
        finally:
            connection.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: BadProxy

    def handle(self) -> None:
        with self.proxy.connection(self.connection), suppress(ConnectionError):
            super().handle()

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        authorization = self.headers.get("Authorization", "")
        seen = self.proxy.note(self.command, self.path, body, authorization)
        rule = seen.rule or Rule()
        if self.proxy.closing.wait(rule.delay):
            self.close_connection = True
            return
        if rule.before:
            rule.before()
        status, headers, content = _said(rule)
        try:
            for _ in range(rule.forwards):
                answer = self.proxy.forward(self.command, self.path, body, dict(self.headers))
                seen.upstream.append(answer[0])
                if rule.status is None:
                    status, headers, content = answer
        except (OSError, HTTPException):
            seen.answer = "the server does not answer"
            self.close_connection = True
            return
        if rule.after:
            rule.after()
        seen.answer = rule.cut or status
        try:
            self._answer(rule.cut, status, headers, content)
        except ConnectionError:
            seen.answer = "nobody waits any more"
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT = _any  # noqa: N815

    def _answer(
        self, cut: str | None, status: int, headers: Mapping[str, str], content: bytes
    ) -> None:
        if cut == "hole":
            self._wait_until_they_hang_up()
        if cut in ("drop", "hole"):
            self.close_connection = True
            return
        self.send_response_only(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if cut == "reset":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self._reset()
        elif self.command != "HEAD":
            self.wfile.write(content)

    def _reset(self) -> None:
        """Close without lingering, which is a reset."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()  # it holds on to the socket
        self.connection.close()

    def _wait_until_they_hang_up(self) -> None:
        while not self.proxy.closing.is_set():
            readable, _, _ = select.select([self.connection], [], [], 0.05)
            if readable and not self.connection.recv(1, socket.MSG_PEEK):
                return

    def log_message(self, *_: Any) -> None:
        """Say nothing: `seen` has it."""


def _said(rule: Rule) -> tuple[int, dict[str, str], bytes]:
    """The answer that the rule gives, as a catalog would."""
    status = rule.status or 200
    error = {"message": rule.message, "type": "ProxyException", "code": status}
    headers = {"Content-Type": "application/json", **rule.headers}
    return status, headers, json.dumps({"error": error}).encode()


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key.lower() not in _HOP_BY_HOP}
