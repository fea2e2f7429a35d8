"""The fault proxy does what its rules say: otherwise the tests that use it prove nothing."""

import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from badproxy import HOST, BadProxy, Rule
from servers import soon


class Upstream(BaseHTTPRequestHandler):
    """Counts: each POST is answered with how many there were, with a long text behind it."""

    protocol_version = "HTTP/1.1"
    posts: list[bytes]

    def do_POST(self) -> None:
        self.posts.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._say(200, json.dumps({"posts": len(self.posts), "text": "x" * 100_000}))

    def do_GET(self) -> None:
        self._say(200, self.headers.get("Authorization", "nobody"))

    def do_HEAD(self) -> None:
        self._say(404, "")

    def _say(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def posts() -> list[bytes]:
    return []


@pytest.fixture
def proxy(posts: list[bytes]) -> Iterator[BadProxy]:
    server = ThreadingHTTPServer((HOST, 0), type("Bound", (Upstream,), {"posts": posts}))
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    with BadProxy(f"http://{HOST}:{server.server_port}") as started:
        yield started
    server.shutdown()
    server.server_close()


def ask(
    proxy: BadProxy,
    method: str = "POST",
    path: str = "/v1/tables/a",
    body: str = "{}",
    timeout: float = 10,
    **headers: str,
) -> tuple[int, str, str | None]:
    """One request on a connection of its own; → status, text, Retry-After."""
    connection = HTTPConnection(proxy.uri.removeprefix("http://"), timeout=timeout)
    try:
        connection.request(method, path, body if method == "POST" else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.getheader("Retry-After")
    finally:
        connection.close()


def test_without_rules_it_only_passes_on(proxy: BadProxy, posts: list[bytes]) -> None:
    status, text, _ = ask(proxy, body='{"a": 1}')
    assert (status, json.loads(text)["posts"], posts) == (200, 1, [b'{"a": 1}'])
    assert ask(proxy, "GET", Authorization="Bearer x")[:2] == (200, "Bearer x")
    assert ask(proxy, "HEAD")[:2] == (404, "")
    assert [(each.method, each.upstream, each.answer) for each in proxy.seen] == [
        ("POST", [200], 200), ("GET", [200], 200), ("HEAD", [404], 404),
    ]  # fmt: skip
    assert not proxy.hit()


def test_a_connection_serves_many_requests(proxy: BadProxy) -> None:
    connection = HTTPConnection(proxy.uri.removeprefix("http://"), timeout=10)
    for count in range(1, 4):
        connection.request("POST", "/", "{}")
        assert json.loads(connection.getresponse().read())["posts"] == count
    connection.close()


def test_rules_choose_by_method_path_body_token_and_number(proxy: BadProxy) -> None:
    proxy.add(Rule(path="/a$", body="rows", nth=2, times=2, forwards=0, status=409))
    proxy.add(Rule("GET", token="old", times=None, forwards=0, status=419))
    said = [ask(proxy, body="rows")[0] for _ in range(5)]
    assert said == [200, 409, 409, 200, 200]
    assert ask(proxy, path="/ab", body="rows")[0] == 200
    assert ask(proxy, body="none")[0] == 200
    assert [ask(proxy, "GET", Authorization="Bearer old")[0] for _ in range(3)] == [419] * 3
    assert ask(proxy, "GET", Authorization="Bearer new")[0] == 200
    assert [each.answer for each in proxy.hit()] == [409, 409, 419, 419, 419]
    proxy.clear()
    assert not proxy.seen
    assert ask(proxy, "GET", Authorization="Bearer old")[0] == 200


def test_the_first_rule_that_is_due_wins_and_both_count(proxy: BadProxy) -> None:
    proxy.add(Rule(forwards=0, status=500), Rule(nth=2, forwards=0, status=502))
    assert [ask(proxy)[0] for _ in range(3)] == [500, 502, 200]


@pytest.mark.parametrize("forwards", [0, 1])
def test_another_answer_with_or_without_forwarding(
    proxy: BadProxy, posts: list[bytes], forwards: int
) -> None:
    proxy.add(Rule(forwards=forwards, status=503, headers={"Retry-After": "1"}, message="busy"))
    status, text, retry_after = ask(proxy)
    assert (status, retry_after) == (503, "1")
    assert json.loads(text)["error"]["message"] == "busy"
    assert len(posts) == forwards
    assert proxy.seen[0].upstream == [200] * forwards


def test_an_answer_that_is_dropped_was_forwarded(proxy: BadProxy, posts: list[bytes]) -> None:
    proxy.add(Rule(cut="drop"))
    with pytest.raises(ConnectionError):
        ask(proxy)
    assert len(posts) == 1
    assert (proxy.seen[0].upstream, proxy.seen[0].answer) == ([200], "drop")


def test_a_reset_comes_in_the_middle_of_the_answer(proxy: BadProxy, posts: list[bytes]) -> None:
    proxy.add(Rule(cut="reset"))
    with pytest.raises((ConnectionResetError, HTTPException)):
        ask(proxy)
    assert len(posts) == 1


def test_a_replayed_request_arrives_twice(proxy: BadProxy, posts: list[bytes]) -> None:
    proxy.add(Rule(forwards=2))
    assert json.loads(ask(proxy)[1])["posts"] == 2
    assert len(posts) == 2


def test_a_late_request_arrives_though_nobody_waits(proxy: BadProxy, posts: list[bytes]) -> None:
    proxy.add(Rule(delay=0.5))
    with pytest.raises(TimeoutError):
        ask(proxy, timeout=0.1)
    assert not posts
    assert soon(lambda: len(posts) == 1)


def test_a_hole_swallows_the_request_until_they_hang_up(
    proxy: BadProxy, posts: list[bytes]
) -> None:
    proxy.add(Rule(forwards=0, cut="hole"))
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        ask(proxy, timeout=0.3)
    assert time.monotonic() - began > 0.25
    assert not posts


def test_others_may_act_before_and_after_forwarding(proxy: BadProxy, posts: list[bytes]) -> None:
    found: list[int] = []

    def look() -> None:
        found.append(len(posts))

    proxy.add(Rule(status=500, before=look, after=look))
    assert ask(proxy)[0] == 500
    assert found == [0, 1]


def test_a_server_that_is_gone_is_a_connection_that_ends() -> None:
    with BadProxy(f"http://{HOST}:1") as proxy:
        with pytest.raises(ConnectionError):
            ask(proxy)
        assert proxy.seen[0].answer == "the server does not answer"
