"""A real REST catalog on a bad day: each batch is in once, and every snapshot can be read."""

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from badproxy import BadProxy, Rule
from conftest import Lake
from icestream import errors
from icestream.cli.main import main
from icestream.commit import retry
from icestream.events import CommitRetried, Event, TableCommitted
from icestream.run import restart_policy
from rest_server import RestServer
from servers import soon

pytestmark = pytest.mark.spark

# Ten records a commit; a client that does not try for long by itself.
CONFIG = """
name: p
catalog:
  type: rest
  uri: {uri}
  token: {token}
  properties:
    rest.client.socket-timeout-ms: {timeout}
    rest.client.connection-timeout-ms: 1000
    rest.client.max-retries: 1
source: {{type: files, path: ./in, max_records_per_commit: 10}}
tables:
  - {{name: {table}, columns: {{id: bigint}}}}
"""
NOBODY = "http://127.0.0.1:1"
RETRY = {"Retry-After": "1"}
IMPATIENT = 4000  # ms: longer than an answer takes on a busy machine


@dataclass
class Shop:
    """A pipeline of two batches into a REST table, through a proxy."""

    lake: Lake
    server: RestServer
    proxy: BadProxy
    table: str = field(default_factory=lambda: f"n{uuid.uuid4().hex[:12]}.events")
    before: set[Path] = field(default_factory=set)  # files when the fault struck

    def configure(self, timeout: int = 60_000, token: str = "good") -> None:
        self.lake.configure(
            CONFIG.format(uri=self.proxy.uri, table=self.table, timeout=timeout, token=token)
        )

    def put(self, *numbers: int) -> None:
        self.lake.put(f"{numbers[0]:03}.jsonl", *({"id": n} for n in range(*numbers)))

    @property
    def files(self) -> set[Path]:
        """Data files and manifests, committed or not."""
        folder = self.server.warehouse / self.table.replace(".", "/")
        return {path for path in folder.rglob("*") if path.suffix in (".parquet", ".avro")}

    def strike(self, rule: Rule) -> None:
        """Do it to the commit of the second batch, whose files are staged by then."""
        own = rule.after

        def after() -> None:
            self.before |= self.files
            if own:
                own()

        self.proxy.add(replace(rule, body="added-data-files", nth=2, after=after))

    def run(self) -> list[CommitRetried]:
        """Run once; → what the events tell of retries."""
        return retries(self.lake.run())

    def foreign(self) -> None:
        """Another writer adds a row, past the proxy."""
        from pyiceberg.catalog.rest import RestCatalog

        table = RestCatalog("other", uri=self.server.uri).load_table(self.table)
        row = table.scan(limit=1).to_arrow()
        table.append(row.set_column(0, "id", pa.array([1000], pa.int64())))

    def check(self, rows: int = 20, foreign: int = 0, data_files: int = 2) -> None:
        """Each batch has one snapshot, each snapshot is whole, and no file is gone."""
        table = self.lake.table(self.table)
        own, seen = [], 0
        for snapshot in table.snapshots():
            notes = snapshot.summary.additional_properties
            if notes.get("icestream.pipeline") == "p":
                own.append(notes["icestream.commit-id"])
                seen += int(notes["icestream.records"])
            found = table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().column("id").to_pylist()
            assert sorted(n for n in found if n < 1000) == list(range(seen))
        assert seen == rows
        assert len(set(own)) == len(own)
        assert self.lake.marker(self.table)["commit_id"] == own[-1]
        whole = self.lake.values(self.table, "id")
        assert whole.count((1000,)) == foreign
        [(count, different)] = self.lake.spark_rows(
            f"SELECT count(*), count(DISTINCT id) FROM lake.{self.table} WHERE id < 1000"
        )
        assert (count, different) == (rows, rows)
        assert self.before <= self.files
        staged = [
            path for path in self.files if path.suffix == ".parquet" and path.name[:2] == "p-"
        ]
        assert len(staged) == data_files


def retries(events: list[Event]) -> list[CommitRetried]:
    return [event for event in events if isinstance(event, CommitRetried)]


@pytest.fixture
def proxy(rest: RestServer) -> Iterator[BadProxy]:
    with BadProxy(rest.uri) as started:
        yield started


@pytest.fixture
def shop(lake: Lake, rest: RestServer, proxy: BadProxy) -> Shop:
    made = Shop(lake, rest, proxy)
    made.configure()
    made.put(0, 10)
    made.put(10, 20)
    return made


def test_rows_are_right_for_both_engines(shop: Shop) -> None:
    assert shop.run() == []
    commits = [e for e in shop.lake.events if isinstance(e, TableCommitted)]
    assert [(c.landed, c.attempts) for c in commits] == [(10, 1), (10, 1)]
    shop.check()
    assert shop.run() == []
    assert not [e for e in shop.lake.events if isinstance(e, TableCommitted)]
    shop.put(20, 25)
    shop.run()
    shop.check(25, data_files=3)


FAULTS = {
    "F12 the answer is dropped": (Rule(cut="drop"), 1),
    "F12 the answer is reset in the middle": (Rule(cut="reset"), 1),
    "F13 500 after success": (Rule(status=500), 1),
    "F13 502 after success": (Rule(status=502), 1),
    "F13 504 after success": (Rule(status=504), 1),
    "F14 500, nothing done": (Rule(forwards=0, status=500), 2),
    "F14 502, nothing done": (Rule(forwards=0, status=502), 2),
    "F14 503, nothing done": (Rule(forwards=0, status=503), 2),
    "F14 504, nothing done": (Rule(forwards=0, status=504), 2),
    "F16 409 four times": (Rule(forwards=0, status=409, times=4), 5),
    "F17 503 with Retry-After after success": (Rule(status=503, headers=RETRY), 1),
    "F17 the network replays": (Rule(forwards=2), 1),
    "F18 400 for a conflict": (Rule(forwards=0, status=400), 2),
    "F20 401, nothing done": (Rule(forwards=0, status=401), 2),
    "F20 401 after success": (Rule(status=401), 1),
    "F20 419, nothing done": (Rule(forwards=0, status=419), 2),
}


@pytest.mark.parametrize("rule, attempts", FAULTS.values(), ids=FAULTS.keys())
def test_a_commit_is_in_once_whatever_its_answer(shop: Shop, rule: Rule, attempts: int) -> None:
    shop.strike(rule)
    [retried] = shop.run()
    assert (retried.outcome, retried.attempts) == ("landed", attempts)
    assert retried.reason
    assert shop.proxy.hit()
    shop.check()


def test_a_commit_that_nobody_answers_is_tried_again(shop: Shop) -> None:
    shop.configure(IMPATIENT)
    shop.strike(Rule(forwards=0, cut="hole"))
    [retried] = shop.run()
    assert (retried.outcome, retried.attempts) == ("landed", 2)
    shop.check()


def test_a_commit_that_arrives_after_its_retry_is_refused(shop: Shop) -> None:
    """F15: nobody waits for it any more when the catalog gets it."""
    shop.configure(IMPATIENT)
    shop.strike(Rule(delay=10))
    [retried] = shop.run()
    assert (retried.outcome, retried.attempts) == ("landed", 2)
    [late] = shop.proxy.hit()
    assert soon(lambda: late.upstream == [409])
    shop.check()


def test_a_commit_that_arrives_before_its_retry_is_found(shop: Shop) -> None:
    """F15: it lands after we looked and before we try again."""
    shop.configure(IMPATIENT)
    arrived = threading.Event()
    shop.strike(Rule(delay=6, after=arrived.set))
    shop.proxy.add(Rule(body="added-data-files", nth=3, before=arrived.wait))
    [retried] = shop.run()
    assert (retried.outcome, retried.attempts) == ("landed", 2)
    late, again = shop.proxy.hit()
    assert (late.upstream, again.upstream) == ([200], [409])
    shop.check()


def test_many_writers_get_their_turn(shop: Shop) -> None:
    """F16: real conflicts, with writers that give way as badly as we do."""
    from pyiceberg.exceptions import CommitFailedException

    def write() -> None:
        for _ in range(3):
            while True:
                try:
                    shop.foreign()
                    break
                except CommitFailedException:
                    continue

    writers = [threading.Thread(target=write) for _ in range(4)]
    shop.put(20, 40)
    shop.put(40, 60)

    def begin() -> None:
        for writer in writers:
            writer.start()

    shop.proxy.add(Rule(body="added-data-files", nth=2, before=begin))
    shop.run()
    for writer in writers:
        writer.join()
    shop.check(60, foreign=12, data_files=6)


@pytest.mark.parametrize(
    "rule", [Rule(status=503, headers=RETRY), Rule(cut="drop")], ids=["503", "drop"]
)
def test_a_foreign_commit_on_top_is_not_rolled_back(shop: Shop, rule: Rule) -> None:
    """F17 b: our commit landed, somebody built on it, and only then are we told of a failure."""
    shop.strike(replace(rule, after=shop.foreign))
    [retried] = shop.run()
    assert (retried.outcome, retried.attempts) == ("landed", 1)
    shop.check(foreign=1)


def test_a_replay_is_refused_by_the_catalog_itself(shop: Shop) -> None:
    """F17: Iceberg's client repeats after 503 with Retry-After; its own commit is in the way."""
    shop.strike(Rule(status=503, headers=RETRY))
    [retried] = shop.run()
    commits = [each.upstream for each in shop.proxy.seen if each.method == "POST"][-2:]
    assert commits == [[200], [409]]
    assert "CommitFailedException" in retried.reason


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three commits, and no second start."""
    monkeypatch.setattr(retry, "ATTEMPTS", 3)
    monkeypatch.setattr(restart_policy, "RESTARTS", 0)


def test_a_refusal_that_never_ends_is_told_and_loses_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18: the catalog's own words, exit 75, and the next start goes on with the same range."""
    hurry(monkeypatch)
    shop.strike(Rule(forwards=0, status=400, times=None, message="conflict, says unity"))
    with pytest.raises(errors.GaveUp, match=r"3 commits failed.*conflict, says unity") as failure:
        shop.run()
    assert failure.value.exit_code == 75
    [retried] = retries(shop.lake.events)
    assert (retried.outcome, retried.attempts) == ("again", 3)
    shop.check(10)
    shop.proxy.clear()
    shop.run()
    shop.check(data_files=3)  # the batch is staged anew; the old file is an orphan


@pytest.mark.parametrize(
    "rule", [Rule(forwards=0, status=429, headers=RETRY), Rule(delay=1.5)], ids=["429", "slow"]
)
def test_a_catalog_that_asks_for_patience_gets_it(shop: Shop, rule: Rule) -> None:
    """F19: Iceberg's client waits and repeats by itself; for us it is one slow commit."""
    shop.strike(rule)
    assert shop.run() == []
    commits = [e for e in shop.lake.events if isinstance(e, TableCommitted)]
    assert commits[-1].attempts == 1
    assert commits[-1].commit_seconds > 1
    shop.check()


@pytest.mark.parametrize("status", [401, 419])
def test_a_token_that_expires_for_good_stops_the_run_and_a_new_one_goes_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """F20: refused from the second batch on, commits and looks alike."""
    hurry(monkeypatch)
    gone = Rule(token="good", forwards=0, status=status, times=None, message="expired")

    def expire() -> None:
        shop.proxy.add(*(replace(gone, method=method) for method in ("GET", "HEAD", "POST")))

    shop.strike(replace(gone, times=1, after=expire))
    with pytest.raises(errors.IcestreamError, match="expired") as failure:
        shop.run()
    assert failure.value.exit_code == 75
    shop.configure(token="better")
    shop.run()
    shop.check(data_files=3)


def test_a_zombie_is_fenced_by_the_catalog(shop: Shop) -> None:
    """Its commit is on the way while a second run takes over: one of the two exits 3."""
    other: dict[str, list[Event]] = {}
    lake = replace(shop.lake, events=[])

    def takeover() -> None:
        thread = threading.Thread(target=lambda: other.update(events=lake.run()))
        thread.start()
        thread.join()

    shop.strike(Rule(before=takeover))
    with pytest.raises(errors.Fenced) as failure:
        shop.run()
    assert failure.value.exit_code == 3
    assert shop.proxy.hit()[0].upstream == [409]
    assert [e.landed for e in other["events"] if isinstance(e, TableCommitted)] == [10]
    shop.check(data_files=3)


def test_a_catalog_that_dies_and_comes_back(lake: Lake, tmp_path_factory: Any) -> None:
    """It is killed right after the commit, the answer is lost, and it is gone for a while."""
    with RestServer(tmp_path_factory.mktemp("own")) as server, BadProxy(server.uri) as proxy:
        shop = Shop(lake, server, proxy)
        shop.configure()
        shop.put(0, 10)
        shop.put(10, 20)
        back = threading.Timer(2, server.start)

        def die() -> None:
            server.kill()
            back.start()

        shop.strike(Rule(cut="drop", after=die))
        [retried] = shop.run()
        back.join()
        assert (retried.outcome, retried.attempts) == ("landed", 1)
        shop.check()


def test_a_catalog_that_is_not_there_is_told_in_plain_words(shop: Shop) -> None:
    shop.lake.file.write_text(shop.lake.file.read_text().replace(shop.proxy.uri, NOBODY))
    with pytest.raises(errors.Unreachable, match="connection refused"):
        shop.run()


def test_a_table_that_is_replaced_between_two_batches_is_a_clear_stop(shop: Shop) -> None:
    """F25: what came before must not begin anew in the new table, as a restart would."""

    def replace_it() -> None:
        from pyiceberg.catalog.rest import RestCatalog

        catalog = RestCatalog("other", uri=shop.server.uri)
        schema = catalog.load_table(shop.table).schema()
        catalog.drop_table(shop.table)
        catalog.create_table(shop.table, schema)

    shop.proxy.add(Rule(body="added-data-files", after=replace_it))
    with pytest.raises(errors.Replaced):
        shop.run()


def test_a_token_shows_nowhere(shop: Shop) -> None:
    canary = "CANARY-hunter2"
    shop.configure(token=canary)
    shop.strike(Rule(forwards=0, status=401, token=canary))
    assert len(shop.run()) == 1
    [(_, shown)] = shop.lake.spark_rows("SET spark.sql.catalog.lake.token")
    assert "redacted" in shown
    assert canary not in repr(shop.lake.events)
    logs = Path(shop.lake.spark.conf.get("spark.local.dir")).parent / "logs"
    folders = (shop.lake.folder / ".icestream", logs, shop.server.folder)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert [path for path in files if canary.encode() in path.read_bytes()] == []


def verb(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """One `icestream …`; → exit code and all that it printed."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def test_verbs_without_a_jvm(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(shop.lake.file)
    assert verb(capsys, "validate", file)[0] == 0
    code, said = verb(capsys, "preview", "--json", "-n", "3", file)
    assert code == 0
    assert '"exists": false' in said
    code, said = verb(capsys, "status", file)
    assert code == 1
    assert "not created yet" in said
    shop.run()
    code, said = verb(capsys, "status", file)
    assert code == 0
    assert shop.table in said
    assert '"exists": true' in verb(capsys, "preview", "--json", file)[1]
    shop.lake.file.write_text(
        shop.lake.file.read_text().replace(shop.proxy.uri, "http://127.0.0.1:1")
    )
    for each in ("validate", "status", "preview"):
        code, said = verb(capsys, each, file)
        assert (code, "connection refused" in said) == (69, True), each
