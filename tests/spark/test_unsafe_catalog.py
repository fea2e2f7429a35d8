"""A catalog in which the last write wins is refused at the first claim; a sound one is not hurt."""

import json
from collections.abc import Iterator, Mapping

import pytest

from badproxy import BadProxy
from conftest import Lake
from icestream.commit import selftest
from icestream.errors import UnsafeCatalog
from rest_server import RestServer

pytestmark = pytest.mark.spark

CONFIG = """
name: p
catalog: {{type: rest, uri: "{uri}"}}
source: {{type: files, path: ./in}}
tables:
  - {{name: {space}.aa, match: 'aa.*', columns: {{id: bigint}}}}
  - {{name: {space}.bb, columns: {{id: bigint}}}}
"""


class LastWriteWins(BadProxy):
    """A real catalog whose every commit comes without its requirements."""

    def forward(
        self, method: str, path: str, body: bytes, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, str], bytes]:
        if method == "POST" and b'"requirements"' in body:
            body = json.dumps({**json.loads(body), "requirements": []}).encode()
        return super().forward(method, path, body, headers)


@pytest.fixture
def unsafe(rest: RestServer) -> Iterator[BadProxy]:
    with LastWriteWins(rest.uri) as proxy:
        yield proxy


@pytest.fixture
def safe(rest: RestServer) -> Iterator[BadProxy]:
    with BadProxy(rest.uri) as proxy:
        yield proxy


def fill(lake: Lake, uri: str, space: str) -> None:
    lake.configure(CONFIG.format(uri=uri, space=space))
    lake.put("aa.jsonl", *({"id": n} for n in range(10)))
    lake.put("bb.jsonl", *({"id": n} for n in range(20)))


def test_a_catalog_that_ignores_requirements_is_refused(lake: Lake, unsafe: BadProxy) -> None:
    fill(lake, unsafe.uri, "unsafe")
    with pytest.raises(UnsafeCatalog, match=r"table `unsafe\.aa` that it had to refuse") as told:
        lake.run()
    assert told.value.exit_code == 1
    assert "drop this (empty) table" in str(told.value.hint)
    assert lake.rows("unsafe.aa").num_rows == 0


def test_without_the_question_nobody_would_notice(
    lake: Lake, unsafe: BadProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one writer all looks well: that is why it has to be asked."""
    monkeypatch.setattr(selftest, "_KNOWN_TO_COMPARE", "RESTTableOperations")
    fill(lake, unsafe.uri, "unnoticed")
    lake.run()
    assert sorted(lake.rows("unnoticed.aa").column("id").to_pylist()) == list(range(10))


def test_a_sound_catalog_is_asked_once_and_keeps_nothing_of_it(
    lake: Lake, rest: RestServer, safe: BadProxy
) -> None:
    fill(lake, safe.uri, "sound")
    lake.run()
    assert [each.answer for each in commits(safe)].count(409) == 1
    for name, count in (("sound.aa", 10), ("sound.bb", 20)):
        assert sorted(lake.rows(name).column("id").to_pylist()) == list(range(count))
        table = lake.table(name)
        assert len(table.snapshots()) == 2  # the claim and the rows
        folder = rest.warehouse / name.replace(".", "/") / "metadata"
        assert {path.name for path in folder.glob("snap-*.avro")} == {
            each.manifest_list.rpartition("/")[2] for each in table.snapshots()
        }
    safe.clear()
    lake.put("bb2.jsonl", {"id": 20})
    lake.run()
    assert {each.answer for each in commits(safe)} == {200}
    assert sorted(lake.rows("sound.bb").column("id").to_pylist()) == list(range(21))


def commits(proxy: BadProxy) -> list:
    return [
        each
        for each in proxy.seen
        if each.method == "POST" and each.path.rpartition("/")[2] in ("aa", "bb")
    ]
