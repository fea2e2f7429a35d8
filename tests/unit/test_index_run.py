"""Runs: what was written is found, and a file that is not whole is never read."""

import errno
import os
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.errors import IndexDamaged, SetupError
from icestream.index.bucket import lookup
from icestream.index.disk import write_whole
from icestream.index.entries import COLUMNS, concat_entries, row_entries, tombstone_entries
from icestream.index.sequences import LONGER
from icestream.index.sorted_run import (
    RunIdentity,
    SortedRunWriter,
    cut_by_hash,
    open_run,
    write_run,
)

ORIGIN = RunIdentity("table", 3, "commit")


def hashes(*pairs):
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


def random_hashes(count, seed=1):
    return np.random.default_rng(seed).integers(0, 2**64, (count, 2), dtype=np.uint64)


def entries(count, seed=1):
    found = random_hashes(count, seed)
    sequence = pa.array([n.to_bytes(8, "big") for n in range(count)])
    return row_entries(found, np.arange(count) % 7, np.arange(count), sequence)


def same(left, right):
    return all(
        (a == b).all() for (_, a), (_, b) in zip(left.columns(), right.columns(), strict=True)
    )


def test_a_run_comes_back(tmp_path):
    sorted_ = concat_entries(
        [entries(1000), tombstone_entries(random_hashes(10, 2), None, 77)]
    ).newest()
    assert write_run(tmp_path / "a.run", ORIGIN, sorted_) == 1010
    run = open_run(tmp_path / "a.run")
    run.verify()
    assert run.origin == ORIGIN
    assert same(run.entries, sorted_)
    assert [path.name for path in tmp_path.iterdir()] == ["a.run"]


def test_columns_with_one_value_take_no_place(tmp_path):
    found = random_hashes(10_000)
    sorted_ = row_entries(found, 7, np.arange(10_000)).newest()
    write_run(tmp_path / "a.run", ORIGIN, sorted_)
    assert (tmp_path / "a.run").stat().st_size < 10_000 * 20 + 2000  # hash and position
    assert same(open_run(tmp_path / "a.run").entries, sorted_)


def test_an_empty_run(tmp_path):
    assert write_run(tmp_path / "a.run", ORIGIN, concat_entries([])) == 0
    run = open_run(tmp_path / "a.run")
    run.verify()
    assert len(run) == 0
    assert run.find(*random_hashes(3).T).tolist() == [-1, -1, -1]


def test_keys_that_agree_in_64_bits(tmp_path):
    found = hashes((5, 1), (5, 3), (5, 9), (2**64 - 1, 0), (2**64 - 1, 2**64 - 1), (0, 0))
    write_run(tmp_path / "a.run", ORIGIN, row_entries(found, 0, np.arange(6)).newest())
    run = open_run(tmp_path / "a.run")
    asked = hashes((5, 9), (5, 1), (5, 2), (5, 3), (5, 10), (2**64 - 1, 2**64 - 1), (0, 0), (4, 1))
    places = run.find(*asked.T)
    positions = [None if at < 0 else int(run.entries.position[at]) for at in places]
    assert positions == [2, 0, None, 1, None, 4, 5, None]


WORDS = st.integers(0, 3) | st.sampled_from([2**64 - 1, 2**63])
PAIRS = st.tuples(WORDS, WORDS)


@given(st.lists(PAIRS, max_size=20, unique=True), st.lists(PAIRS, min_size=1, max_size=20))
def test_find_is_a_dictionary(tmp_path_factory, there, asked):
    path = tmp_path_factory.getbasetemp() / "find.run"
    write_run(path, ORIGIN, row_entries(hashes(*there), 0, np.arange(len(there))).newest())
    run = open_run(path)
    places = run.find(*hashes(*asked).T)
    truth = {pair: position for position, pair in enumerate(there)}
    found = [int(run.entries.position[at]) if at >= 0 else None for at in places]
    assert found == [truth.get(pair) for pair in asked]


def test_newest_keeps_the_first_of_a_key():
    found = hashes((5, 2), (5, 1), (9, 9), (5, 2), (9, 9), (1, 1))
    kept = row_entries(found, 0, np.arange(6)).newest()
    assert kept.position.tolist() == [5, 1, 0, 2]
    assert row_entries(hashes((1, 1), (1, 1)), 0, np.arange(2)).newest().position.tolist() == [0]


def test_numbers_stand_for_counted_files(tmp_path):
    origin = RunIdentity("table", 3, "commit", ("a", "b"))
    write_run(
        tmp_path / "a.run",
        origin,
        row_entries(hashes((1, 1), (2, 2)), np.array([1, 0]), np.arange(2)),
    )
    run = open_run(tmp_path / "a.run", [40, 50])
    assert run.at(slice(None)).file.tolist() == [50, 40]
    with pytest.raises(IndexDamaged, match="no numbers"):
        open_run(tmp_path / "a.run")


def test_pieces_hold_all_entries_once(tmp_path):
    runs = []
    for number, count in enumerate((5000, 300, 1, 0)):
        path = tmp_path / f"{number}.run"
        write_run(path, ORIGIN, entries(count, number).newest())
        runs.append(open_run(path))
    parts = list(cut_by_hash(runs, 500))
    assert len(parts) > 9
    assert max(sum(map(len, each)) for each in parts) < 800
    for number, run in enumerate(runs):
        assert same(concat_entries([part[number] for part in parts]), run.entries)
    assert all(
        before[0].hash_hi.max() < after[0].hash_hi.min() for before, after in pairwise(parts)
    )


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(KeyError), SortedRunWriter(tmp_path / "a.run", ORIGIN, 10):
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("pwrite", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(SetupError, match="No space left"):
                write_run(tmp_path / "a.run", ORIGIN, entries(10).newest())
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SetupError, match="No space left"):
            write_whole(tmp_path / "b", b"text")
    assert list(tmp_path.iterdir()) == []


# ── damage ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "a.run"
    write_run(path, ORIGIN, entries(300).newest())
    return path


def read(path):
    run = open_run(path)
    run.verify()
    return run


def test_a_missing_file(tmp_path):
    with pytest.raises(IndexDamaged, match="No such file"):
        read(tmp_path / "a.run")


@pytest.mark.parametrize("content", [b"", b"x", b"PAR1" * 100, b"ICEIDX01", b"ICEIDX01" * 20])
def test_a_foreign_file(tmp_path, content):
    (tmp_path / "a.run").write_bytes(content)
    with pytest.raises(IndexDamaged):
        read(tmp_path / "a.run")


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_a_cut_file(tmp_path_factory, length):
    path = tmp_path_factory.getbasetemp() / "cut.run"
    write_run(path, ORIGIN, entries(300).newest())
    whole = path.read_bytes()
    path.write_bytes(whole[: length % len(whole)])
    with pytest.raises(IndexDamaged):
        read(path)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_never_changes_an_answer(tmp_path_factory, at, flip):
    path = tmp_path_factory.getbasetemp() / "flip.run"
    truth = entries(300).newest()
    write_run(path, ORIGIN, truth)
    whole = bytearray(path.read_bytes())
    whole[at % len(whole)] ^= flip
    path.write_bytes(whole)
    try:
        run = read(path)
    except IndexDamaged:
        return
    assert run.origin == ORIGIN  # the byte lay between two columns
    assert same(run.entries, truth)


def test_bytes_at_the_end_are_damage(written):
    with written.open("ab") as file:
        file.write(b"more")
    with pytest.raises(IndexDamaged):
        read(written)


def test_every_column_is_checked(written):
    whole = written.read_bytes()
    run = open_run(written)
    assert set(run.checksums) | set(run.constants) == set(COLUMNS)
    for name, (start, _) in run.checksums.items():
        changed = bytearray(whole)
        changed[start] ^= 1
        written.write_bytes(changed)
        with pytest.raises(IndexDamaged, match=name):
            read(written)


# ── lookups over several runs ───────────────────────────────────────────────────────────────────


def runs_of(tmp_path, *parts):
    found = []
    for number, part in enumerate(parts):
        write_run(tmp_path / f"{number}.run", ORIGIN, part.newest())
        found.append(open_run(tmp_path / f"{number}.run"))
    return found


def test_the_newest_entry_counts_and_a_dead_one_is_no_row(tmp_path):
    new = concat_entries([row_entries(hashes((1, 1), (2, 2)), np.array([9, 8]), np.array([10, 20])),
                  tombstone_entries(hashes((3, 3)), pa.array([b"\x05"]), 1234)])  # fmt: skip
    old = row_entries(hashes((1, 1), (2, 2), (3, 3), (4, 4)), 1, np.arange(4), pa.array([b"x"] * 4))
    runs = runs_of(tmp_path, new, old)
    live = np.array([1, 9], dtype=np.uint32)
    found = lookup(runs, live, hashes((4, 4), (3, 3), (2, 2), (1, 1), (5, 5)))
    assert found.hit.tolist() == [True, False, False, True, False]  # file 8 is gone
    assert found.tombstone.tolist() == [False, True, False, False, False]
    assert (found.file[0], found.position[0]) == (1, 3)
    assert (found.file[3], found.position[3]) == (9, 10)
    assert found.sequences.hi[1] == 5 << 56
    assert found.sequences.size.tolist() == [1, 1, 31, 31, 0]
    assert not lookup(runs, live[:0], hashes((4, 4))).hit.any()
    assert len(lookup(runs, live, hashes()).hit) == 0


def test_a_sequence_that_is_longer_is_told(tmp_path):
    part = row_entries(hashes((1, 1), (2, 2)), 0, np.arange(2), pa.array([b"a" * 17, b"a" * 16]))
    found = lookup(runs_of(tmp_path, part), np.array([0], np.uint32), hashes((1, 1), (2, 2)))
    assert (found.sequences.size == LONGER).tolist() == [True, False]
