"""The commit of a rewrite: which attempts may still be in the table, and what may be removed."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from pyiceberg.manifest import DataFileContent, FileFormat

from icestream.commit import retry
from icestream.commit.port import CommitFailed, InputsReplaced, ReplacedFiles
from icestream.commit.retry import ATTEMPTS
from icestream.commit.table_state import AncestorSnapshot, TableState
from icestream.errors import TableRefused, Unreachable
from icestream.index.rewrite_update import RewriteIndexUpdate
from icestream.maintain.action import GaveWay
from icestream.maintain.gate import GateClosed
from icestream.maintain.rewrite import commit
from icestream.maintain.rewrite.commit import RewriteAttempt, RewriteCommitter
from icestream.maintain.rewrite.rewriter import _FileLister, _has_initial_default
from icestream.maintain.rewrite.task_runner import Cancelled
from icestream.tables.commits import REWRITE_ID
from icestream.tables.live_files import _file
from icestream.tables.metadata import Metadata
from icestream.write.target import StagedFile


class Table:
    """A table's history in memory; `fates` say what becomes of each attempt."""

    def __init__(self, *fates):
        self.history = [(1, None)]  # snapshot, rewrite
        self.kept_from = 0  # history before that is expired
        self.fates = list(fates)
        self.offers = []
        self.under_way = None

    def load(self, name):
        kept = self.history[self.kept_from :]
        lineage = [
            AncestorSnapshot(number, number - 1 if number > 1 else None, number, None)
            for number, _ in reversed(kept)
        ]
        snapshots = [
            {"snapshot-id": number, "summary": {REWRITE_ID: one} if one else {}}
            for number, one in kept
        ]
        metadata = Metadata({"snapshots": snapshots})
        last = lineage[0].sequence_number
        return TableState("uuid", None, tuple(lineage), last, 0, None, metadata)

    def move_on(self, rewrite=None):
        self.history.append((self.history[-1][0] + 1, rewrite))

    def commit_rewrite(self, name, base, work):
        self.offers.append(work.rewrite_id)
        fate = self.fates.pop(0) if self.fates else "landed"
        if fate == "landed":
            self.move_on(work.rewrite_id)
        elif fate == "lost answer":
            self.move_on(work.rewrite_id)
            self.move_on()
            raise CommitFailed("no answer")
        elif fate == "too late":
            self.move_on()
            raise CommitFailed("the base has moved")
        elif fate == "outdated":
            raise InputsReplaced("Missing required files to delete")
        else:  # nobody knows: it may land until somebody else does
            raise CommitFailed("timeout")


class Offer:
    name = "db.t"

    def __init__(self, table, folder):
        self.planned = table.load("db.t")
        self.folder = folder
        self.tries = []
        self.near = True
        self.ended = None

    def catch_up(self, view): ...

    def is_nearly_current(self, view):
        return self.near

    def next_attempt(self, view):
        number = len(self.tries)
        path = self.folder / f"deletes-{number}"
        path.write_text("x")
        file = StagedFile(str(path), 1, 1, "{}")
        made = RewriteAttempt(
            ReplacedFiles(f"r{number}"), RewriteIndexUpdate(f"r{number}", "o"), [file]
        )
        self.tries.append(made)
        return made

    def clean_up(self, landed, hopeless):
        assert self.ended is None
        self.ended = (landed.replace.rewrite_id if landed else None, hopeless)


class Mirrors:
    """The moves that the index has been told of."""

    def __init__(self):
        self.moves = set()

    def announce_rewrite(self, table, move):
        self.moves.add(move.rewrite_id)

    def withdraw_rewrite(self, table, rewrite_id):
        self.moves.discard(rewrite_id)


@pytest.fixture
def land(monkeypatch, tmp_path):
    monkeypatch.setattr(retry, "backoff", lambda attempt: attempt < ATTEMPTS)

    def landed(table, stopped=lambda: False, turns=None):
        offer, mirrors = Offer(table, tmp_path), Mirrors()
        landed.offer, landed.mirrors = offer, mirrors
        return RewriteCommitter(table, mirrors, turns).commit(offer, stopped)

    return landed


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_at_once(land, tmp_path):
    assert land(Table()) == 1
    assert land.offer.ended == ("r0", False)
    assert land.mirrors.moves == {"r0"}
    assert left(tmp_path) == ["deletes-0"]


def test_from_the_new_base_after_a_lost_race(land, tmp_path):
    assert land(Table("too late", "too late")) == 3
    assert land.offer.ended == ("r2", False)
    assert land.mirrors.moves == {"r2"}
    assert left(tmp_path) == ["deletes-2"], "what was refused for good is removed"


def test_an_answer_that_was_lost(land, tmp_path):
    table = Table("lost answer")
    assert land(table) == 1
    assert table.offers == ["r0"]
    assert land.offer.ended == ("r0", False)
    assert left(tmp_path) == ["deletes-0"]


def test_what_may_still_land_is_kept(land, tmp_path):
    table = Table(*["silence"] * ATTEMPTS)
    with pytest.raises(GaveWay, match="timeout"):
        land(table)
    assert land.offer.ended == (None, False)
    assert len(left(tmp_path)) == ATTEMPTS
    assert len(land.mirrors.moves) == ATTEMPTS, "the index will know whichever it is"


def test_silence_and_then_history_moves_on(land, tmp_path):
    assert land(Table("silence", "too late")) == 3
    assert left(tmp_path) == ["deletes-2"]
    assert land.mirrors.moves == {"r2"}


def test_inputs_are_gone(land, tmp_path):
    with pytest.raises(GaveWay, match="somebody else replaced its files: Missing"):
        land(Table("too late", "outdated"))
    assert land.offer.ended == (None, True)
    assert (left(tmp_path), land.mirrors.moves) == ([], set())


def test_inputs_are_gone_after_silence(land, tmp_path):
    with pytest.raises(GaveWay):
        land(Table("silence", "outdated"))
    assert land.offer.ended == (None, False)  # perhaps it was our own attempt that took them
    assert left(tmp_path) == ["deletes-0"]


def test_too_much_keeps_coming(land):
    table = Table()
    offer = Offer(table, None)
    offer.near = False
    with pytest.raises(GaveWay, match="much had come"):
        RewriteCommitter(table, None, None).commit(offer, lambda: False)
    assert (offer.ended, table.offers) == ((None, True), [])


def test_a_stop(land):
    with pytest.raises(Cancelled):
        land(Table(), stopped=lambda: True)
    assert land.offer.ended == (None, True)

    class Closed:
        @contextmanager
        def commit_window(self, table):
            raise GateClosed
            yield

    with pytest.raises(GateClosed):
        land(Table(), turns=Closed())
    assert land.offer.ended == (None, True)


def test_expired_history_is_followed_and_a_rollback_is_not(land):
    table = Table()
    for _ in range(3):
        table.move_on()
    offer = Offer(table, None)
    table.move_on()
    table.move_on()
    table.kept_from = 5
    assert commit._refuse_unless_descendant(table.load(""), offer.planned)
    table.history[5:] = []
    table.kept_from = 1
    assert commit._refuse_unless_descendant(table.load(""), offer.planned)
    table.history[3:] = [(9, None)]  # snapshot 4 is no longer on the way
    with pytest.raises(GaveWay, match="moved back"):
        commit._refuse_unless_descendant(table.load(""), offer.planned)


def test_a_catalog_that_does_not_answer_for_a_while(land, tmp_path):
    table = Table("lost answer")
    load, silent = table.load, iter([True, True, False])

    def sometimes(name):
        if table.offers and next(silent):
            raise Unreachable("no answer")
        return load(name)

    table.load = sometimes
    assert land(table) == 1
    assert land.offer.ended == ("r0", False)


def entry(content, kind=FileFormat.PARQUET):
    return SimpleNamespace(
        data_file=SimpleNamespace(content=content, file_format=kind, file_path="f")
    )


def test_what_other_programs_write_is_left_alone():
    with pytest.raises(TableRefused, match="equality deletes"):
        _file(entry(DataFileContent.EQUALITY_DELETES))
    with pytest.raises(TableRefused, match="not a Parquet file"):
        _file(entry(DataFileContent.DATA, FileFormat.ORC))


def test_a_table_that_cannot_be_listed_is_given_way_to():
    with pytest.raises(GaveWay, match="the table is empty"):
        _FileLister(None).all_files(Metadata({}))


def test_initial_defaults_are_found_at_any_depth():
    plain = {"name": "a", "type": "int", "initial-default": None}
    inner = {"type": "struct", "fields": [plain, {"name": "b", "initial-default": 0}]}
    assert not _has_initial_default({"fields": [plain]})
    assert _has_initial_default({"fields": [plain, {"name": "s", "type": inner}]})
