"""Merging: few runs, bounded rewriting, and never an answer that comes back from the dead."""

import numpy as np
import pyarrow as pa
import pytest

from icestream.errors import IndexDamaged
from icestream.index import merge as merging
from icestream.index.bucket import lookup
from icestream.index.entries import concat_entries, row_entries, tombstone_entries
from icestream.index.merge import FAN, MergeJob, RunRef, merge, merge_count
from icestream.index.sorted_run import RunIdentity, open_run, write_run


def grown(batches, size):
    """Let a bucket grow batch by batch; → most runs at a time, entries written by merges."""
    sizes, most, written = [], 0, 0
    for _ in range(batches):
        sizes.insert(0, size)
        while count := merge_count(sizes):
            joined = sum(sizes[:count])
            written += joined
            sizes[:count] = [joined]
        most = max(most, len(sizes))
    return most, written / (batches * size)


@pytest.mark.parametrize("size", [100, 1250, 20_000])
@pytest.mark.parametrize("batches", [100, 3000, 20_000])
def test_runs_and_rewriting_grow_with_the_logarithm(batches, size):
    most, rewritten = grown(batches, size)
    tiers = np.log(batches * size / 4096) / np.log(FAN) + 1
    small = max(1.0, 4096 / size)  # tiny runs are joined more often, and cost little each
    assert most <= (FAN - 1) * (tiers + 1)
    assert rewritten <= (4 / 3) * tiers + 2 + np.log2(small) * 4


def test_updates_of_the_same_keys_do_not_pile_up():
    """A table that does not grow: what lies above the oldest run never outweighs it."""
    table, sizes = 1_000_000, [1_000_000]
    for _ in range(5000):
        sizes.insert(0, 5000)
        while count := merge_count(sizes):
            sizes[:count] = [min(table, sum(sizes[:count]))]
        assert sum(sizes[:-1]) < max(table, sizes[-1]) + 5000


def test_a_large_run_on_top_takes_the_small_ones_below_along():
    assert merge_count([1_000_000, 5000, 5000, 5000]) == 4
    assert merge_count([1_000_000, 900_000]) == 2
    assert merge_count([100, 1_000_000]) == 0
    assert merge_count([]) == merge_count([0]) == merge_count([5]) == 0
    assert merge_count([100] * 3) == 0
    assert merge_count([100] * 4 + [10_000_000]) == 4
    assert merge_count([100, 20_000, 20_000, 20_000, 20_000, 10_000_000]) == 5


# ── what a merge keeps ──────────────────────────────────────────────────────────────────────────


def hashes(*numbers):
    return np.array([(n << 32, n) for n in numbers], dtype=np.uint64).reshape(-1, 2)


def job(folder, *parts, oldest=True, live=range(10), horizon=1000):
    refs = []
    for number, part in enumerate(parts):
        name = f"{number}.run"
        write_run(folder / name, RunIdentity("t", 0, ""), part.newest())
        refs.append(RunRef(name, len(part)))
    (folder / "runs/0000").mkdir(parents=True, exist_ok=True)
    alive = np.array(list(live), dtype=np.uint32)
    return MergeJob(str(folder), "t", 0, tuple(refs), oldest, alive, horizon)


def kept(folder, merged):
    run = open_run(folder / merged.run.name)
    run.verify()
    found = run.entries
    return {
        int(lo): "deleted" if gone else (int(file), int(position))
        for lo, gone, file, position in zip(
            found.hash_lo, found.tombstone, found.file, found.position, strict=True
        )
    }


def test_the_newest_entry_of_a_key_stays(tmp_path):
    new = concat_entries(
        [row_entries(hashes(1), 5, np.array([50])), tombstone_entries(hashes(2), None, 2000)]
    )
    old = row_entries(hashes(1, 2, 3), 4, np.arange(3))
    merged = merge(job(tmp_path, new, old))
    assert kept(tmp_path, merged) == {1: (5, 50), 2: "deleted", 3: (4, 2)}
    assert (merged.rows, merged.run.entries) == (2, 3)


def test_the_dead_and_old_tombstones_go_with_the_oldest_run(tmp_path):
    new = concat_entries(
        [row_entries(hashes(1), 9, np.array([50])), tombstone_entries(hashes(2, 4), None, 999)]
    )
    old = concat_entries(
        [row_entries(hashes(1, 2, 3), 4, np.arange(3)), tombstone_entries(hashes(5), None, 1000)]
    )
    merged = merge(job(tmp_path, new, old, live=[4]))
    assert kept(tmp_path, merged) == {3: (4, 2), 5: "deleted"}


def test_what_hides_an_older_run_stays(tmp_path):
    """Key 1 has an entry in an older run, of a row that is deleted: it must not come back."""
    new = concat_entries(
        [row_entries(hashes(1), 9, np.array([50])), tombstone_entries(hashes(2), None, 1)]
    )
    old = row_entries(hashes(3), 4, np.arange(1))
    merged = merge(job(tmp_path, new, old, oldest=False, live=[4]))
    assert kept(tmp_path, merged) == {1: (9, 50), 2: "deleted", 3: (4, 0)}
    below = row_entries(hashes(1, 2), 4, np.arange(2))
    write_run(tmp_path / "below.run", RunIdentity("t", 0, ""), below.newest())
    runs = [open_run(tmp_path / merged.run.name), open_run(tmp_path / "below.run")]
    found = lookup(runs, np.array([4], np.uint32), hashes(1, 2, 3))
    assert found.hit.tolist() == [False, False, True]


def test_a_merge_in_small_pieces_is_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(3)
    parts = [
        row_entries(
            rng.integers(0, 2**64, (2000, 2), dtype=np.uint64),
            number,
            np.arange(2000),
            pa.array([bytes([number])] * 2000),
        )
        for number in range(3)
    ]
    parts[1] = concat_entries([parts[1].take(slice(500)), parts[0].take(slice(700))])
    parts[1] = parts[1].newest()
    whole = merge(job(tmp_path, *parts))
    expected = kept(tmp_path, whole)
    monkeypatch.setattr(merging, "_AT_ONCE", 100)
    again = merge(whole.job)
    assert kept(tmp_path, again) == expected
    assert len(expected) == whole.run.entries == 2000 + 500 + 2000


def test_a_damaged_run_is_not_merged(tmp_path):
    work = job(
        tmp_path,
        row_entries(hashes(1, 2), 4, np.arange(2)),
        row_entries(hashes(3), 4, np.arange(1)),
    )
    data = bytearray((tmp_path / "0.run").read_bytes())
    data[64] ^= 1
    (tmp_path / "0.run").write_bytes(data)
    with pytest.raises(IndexDamaged, match="checksum"):
        merge(work)
    write_run(
        tmp_path / "0.run", RunIdentity("t", 7, ""), row_entries(hashes(1, 2), 4, np.arange(2))
    )
    with pytest.raises(IndexDamaged, match="another bucket"):
        merge(work)
    assert list((tmp_path / "runs/0000").iterdir()) == []
