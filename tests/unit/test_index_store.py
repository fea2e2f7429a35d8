"""The store: any history of commits, merges, crashes and restarts answers as a dictionary does."""

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.errors import Fenced, IndexDamaged, InternalError
from icestream.index import manifest as manifests
from icestream.index import merge as merging
from icestream.index.entries import concat_entries, row_entries, tombstone_entries
from icestream.index.files import append_list, load_files
from icestream.index.key_index import IndexUnusable, KeyIndex, create_index, open_index
from icestream.index.keys import bucket_of, key_hashes

BUCKETS = 4
DAY = 86_400
KEYS = key_hashes([pa.array(range(40))])
PLACES = bucket_of(KEYS, BUCKETS)


def created(folder, clock=lambda: 0.0, buckets=BUCKETS):
    store = create_index(folder, "uuid", {"id": 1}, buckets, clock)
    store.publish_state({}, {}, (), 1, 1, None)
    return store


def opened(folder, **options):
    found = open_index(folder, "uuid", [1], **options)
    assert isinstance(found, KeyIndex), found
    return found


def sequence(number):
    return number.to_bytes(8, "big")


def staged(store, commit_id, paths, upserts, deletes, number, now=0):
    """Stage a commit as tasks do, bucket by bucket; `upserts`: key → (count of path, position)."""
    reader, names = pickle.loads(pickle.dumps(store.reader)), []
    for bucket in range(BUCKETS):
        mine = [key for key in upserts if PLACES[key] == bucket]
        gone = [key for key in deletes if PLACES[key] == bucket]
        if not mine and not gone:
            continue
        places = [upserts[key] for key in mine]
        told = pa.array([sequence(number)] * len(mine), pa.binary())
        part = row_entries(
            KEYS[mine].reshape(-1, 2),
            np.array([file for file, _ in places], dtype=np.uint32),
            np.array([at for _, at in places], dtype=np.int64),
            told,
        )
        buried = tombstone_entries(
            KEYS[gone].reshape(-1, 2), pa.array([sequence(number)] * len(gone), pa.binary()), now
        )
        names.append(reader.stage(bucket, commit_id, concat_entries([part, buried]), paths))
    return names


def answers(reader):
    """key → (path, position, sequence), or ("deleted", sequence)."""
    found = {}
    for bucket in range(BUCKETS):
        keys = [key for key in range(len(KEYS)) if PLACES[key] == bucket]
        result = reader.lookup(bucket, KEYS[keys])
        for at, key in enumerate(keys):
            told = int(result.sequences.hi[at])
            if result.hit[at]:
                path = reader.path(int(result.file[at]))
                found[key] = (path, int(result.position[at]), told)
            elif result.tombstone[at]:
                found[key] = ("deleted", told)
    return found


def given_rows(reader):
    """Position and sequence of every row that `Reader.live` gives."""
    parts = [part for bucket in range(BUCKETS) for part in reader.live(bucket)]
    every = concat_entries(parts)
    return sorted(zip(every.position.tolist(), every.sequence_hi.tolist(), strict=True))


@dataclass
class Model:
    """What the index should say, as a dictionary."""

    known: dict = field(default_factory=dict)
    buried: dict = field(default_factory=dict)  # when a key was deleted
    files: set = field(default_factory=set)
    now: int = 100 * DAY

    def commit(self, upserts, deletes, paths, removed, number):
        for key, (file, at) in upserts.items():
            self.known[key] = (paths[file], at, number)
        for key in deletes:
            self.known[key] = ("deleted", number)
            self.buried[key] = self.now
        self.files = (self.files | set(paths)) - set(removed)

    def check(self, found):
        for key in range(len(KEYS)):
            expected, seen = self.known.get(key), found.get(key)
            if expected and expected[0] == "deleted":
                forgotten = self.now - self.buried[key] > 7 * DAY
                assert seen == expected or (forgotten and seen is None), key
            elif expected and expected[0] in self.files:
                assert seen == expected, key
            else:
                assert seen is None, key


KEY = st.integers(0, len(KEYS) - 1)
COMMIT = st.fixed_dictionaries(
    {
        "upserts": st.dictionaries(KEY, st.tuples(st.integers(0, 1), st.integers(0, 99))),
        "deletes": st.sets(KEY, max_size=6),
        "removed": st.integers(0, 12),  # of the live files; above their number: none
        "fate": st.sampled_from(["confirm"] * 6 + ["abandon", "crash before", "crash after"]),
    }
)
STEP = COMMIT | st.sampled_from(["merge", "merge", "reopen", "eight days"])


def test_a_death_right_after_the_manifest_of_a_confirmation(tmp_path):
    """The note of the commit is still there: it says nothing, and abandoning it removes nothing."""
    store = created(tmp_path)
    upserts = {key: (0, key) for key in range(len(KEYS))}
    store.prepare("c2", staged(store, "c2", ["f2"], upserts, (), 2))
    note = tmp_path / "pending.json"
    kept = note.read_bytes()
    store.confirm("c2", 2, 2)
    note.write_bytes(kept)
    again = opened(tmp_path)
    assert again.pending() is None
    assert not note.exists()
    again.abandon("c2")
    note.write_bytes(kept)
    again.publish_state({}, {}, (), 3, 3, None)  # somebody else's snapshot
    again.abandon("c2")
    assert answers(opened(tmp_path).reader) == {key: ("f2", key, 2) for key in upserts}


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(STEP, max_size=25))
def test_any_history_is_a_dictionary(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("store")
    model = Model()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "_SMALL_TIERS", 1)
        store = created(folder, lambda: model.now)
        # A large oldest run, so that merges of newer ones leave it alone.
        every = {key: (0, key) for key in range(len(KEYS))}
        store = one_commit(store, model, folder, 1000, every, set(), 99, "confirm")
        for number, step in enumerate(steps, 2):
            before = store.reader
            seen = answers(before)
            if step == "merge":
                store.merge()
                assert answers(before) == seen  # a task of this very moment reads on
            elif step == "reopen":
                store = opened(folder, clock=lambda: model.now)
            elif step == "eight days":
                model.now += 8 * DAY
            else:
                store = one_commit(store, model, folder, number, **step)
            seen = answers(store.reader)
            model.check(seen)
            assert given_rows(store.reader) == sorted(
                one[1:] for one in seen.values() if one[0] != "deleted"
            )
    live = {store.files.path(int(each)) for each in store.files.numbers}
    assert live == model.files
    opened(folder)
    assert_tidy(folder)


def one_commit(store, model, folder, number, upserts, deletes, removed, fate):
    deletes = deletes - upserts.keys()
    commit_id, paths = f"commit{number}", [f"s3://b/{number}-0", f"s3://b/{number}-1"]
    used = sorted({file for file, _ in upserts.values()})
    upserts = {key: (used.index(file), at) for key, (file, at) in upserts.items()}
    paths = [paths[file] for file in used]
    live = sorted(model.files)
    removed = live[removed : removed + 1]
    staged(store, commit_id, paths, upserts, deletes, number)  # an attempt that was lost
    names = staged(store, commit_id, paths, upserts, deletes, number, model.now)
    if fate == "crash before":
        return opened(folder, clock=lambda: model.now)
    store.prepare(commit_id, names, removed)
    if fate == "abandon":
        store.abandon(commit_id)
        return store
    if fate == "crash after":
        store = opened(folder, clock=lambda: model.now)
        assert store.pending().runs == tuple(names)
    store.confirm(commit_id, number, number)
    # A file without a row in any run is nobody's business.
    model.commit(upserts, deletes, paths, removed, number)
    assert (store.manifest.snapshot_id, store.manifest.commit_id) == (number, commit_id)
    return store


def assert_tidy(folder):
    """Nothing lies about that the newest manifest does not name."""
    (number,) = manifests.numbers(folder)
    name = manifests.name_of(number)
    named = manifests.read(folder, name).names() | {name}
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert there == named


# ── commits ─────────────────────────────────────────────────────────────────────────────────────


def commit(store, number, upserts, deletes=(), paths=None, removed=()):
    paths = [f"f{number}"] if paths is None else paths
    names = staged(store, f"c{number}", paths, upserts, deletes, number)
    store.prepare(f"c{number}", names, removed)
    store.confirm(f"c{number}", number, number)
    return names


def test_a_commit_counts_once_it_is_confirmed(tmp_path):
    store = created(tmp_path)
    names = staged(store, "c2", ["f2"], {1: (0, 5)}, [2], 2)
    assert answers(store.reader) == {}
    store.prepare("c2", names)
    assert answers(store.reader) == {}
    lost = staged(store, "c2", ["f3"], {1: (0, 5)}, [2], 2)
    store.confirm("c2", 2, 2)
    assert answers(store.reader) == {1: ("f2", 5, 2), 2: ("deleted", 2)}
    assert not any((tmp_path / name).exists() for name in lost)
    state = store.manifest
    store.confirm("c2", 2, 2)  # said twice
    assert store.manifest is state
    assert store.pending() is None


def test_a_commit_that_was_not_prepared_is_refused(tmp_path):
    store = created(tmp_path)
    staged(store, "c2", ["f2"], {1: (0, 5)}, [2], 2)
    with pytest.raises(IndexDamaged, match="not prepared"):
        store.confirm("c2", 2, 2)
    store.prepare("c2", ["runs/0000/c2-x.run"])
    with pytest.raises(IndexDamaged):
        store.confirm("c2", 2, 2)
    other = staged(store, "c9", ["f2"], {1: (0, 5)}, [], 2)
    store.prepare("c2", other)
    with pytest.raises(IndexDamaged, match="another commit"):
        store.confirm("c2", 2, 2)
    assert answers(store.reader) == {}


def test_what_cannot_be_right_is_not_staged(tmp_path):
    store = created(tmp_path)
    entries = row_entries(KEYS[[1, 1]], 0, np.arange(2))
    with pytest.raises(InternalError, match="twice"):
        store.reader.stage(int(PLACES[1]), "c", entries, ["f"])
    with pytest.raises(InternalError, match="does not belong"):
        store.reader.stage((int(PLACES[1]) + 1) % BUCKETS, "c", entries.newest(), ["f"])


def test_a_truncate_removes_files(tmp_path):
    store = created(tmp_path)
    commit(store, 2, {1: (0, 5), 2: (0, 6)})
    commit(store, 3, {2: (0, 7)})
    commit(store, 4, {}, paths=[], removed=["f2"])
    assert answers(store.reader) == {2: ("f3", 7, 3)}


def test_a_number_is_never_given_twice(tmp_path):
    store = created(tmp_path)
    commit(store, 2, {1: (0, 5)})
    commit(store, 3, {}, [1], paths=[], removed=["f2"])
    commit(store, 4, {2: (0, 6)})
    store = opened(tmp_path)
    commit(store, 5, {3: (0, 7)})
    assert store.files.by_path == {"f4": 1, "f5": 2}


def test_readers_keep_their_state_over_a_merge_and_one_commit(tmp_path):
    store = created(tmp_path)
    for number in range(2, 6):
        commit(store, number, {1: (0, number), number: (0, 1)})
    reader, seen = store.reader, answers(store.reader)
    assert store.merge() > 0
    assert answers(reader) == seen
    commit(store, 6, {1: (0, 9)})
    with pytest.raises(IndexDamaged):
        answers(reader)  # its commit is done; files that only it named are gone
    assert answers(store.reader) == seen | {1: ("f6", 9, 6)}


def test_merges_beside_commits_and_lookups(tmp_path):
    """A merge that began before some commits puts its run in the right place."""
    store = created(tmp_path)
    for number in range(2, 6):
        commit(store, number, dict.fromkeys(range(40), (0, number)))
    jobs = store.due_merges()
    assert jobs
    assert store.due_merges() == []  # under way
    commit(store, 6, dict.fromkeys(range(0, 40, 6), (0, 6)))
    expected = answers(store.reader)
    with ThreadPoolExecutor(2) as pool:
        for merged in pool.map(merging.merge, pickle.loads(pickle.dumps(jobs))):
            store.install_merged(merged)
            assert answers(store.reader) == expected
    assert max(len(runs) for runs in store.manifest.runs) == 2
    assert answers(opened(tmp_path).reader) == expected


def test_a_failed_merge_is_tried_again(tmp_path, monkeypatch):
    store = created(tmp_path)
    for number in range(2, 6):
        commit(store, number, dict.fromkeys(range(40), (0, number)))
    with monkeypatch.context() as patch:
        patch.setattr("icestream.index.key_index.merge", lambda job: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.merge()
    assert store.merge() == BUCKETS


def test_runs_stay_few(tmp_path):
    store = created(tmp_path)
    for number in range(2, 60):
        commit(store, number, {number % 40: (0, number)})
        store.merge()
    assert max(len(runs) for runs in store.manifest.runs) < 4
    assert len(store.manifest.lists) < 4
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) < 60


# ── who may write ───────────────────────────────────────────────────────────────────────────────


def test_the_former_owner_can_publish_no_more(tmp_path):
    zombie = created(tmp_path)
    commit(zombie, 2, {1: (0, 5)})
    names = staged(zombie, "c3", ["f3"], {1: (0, 6)}, [], 3)
    zombie.prepare("c3", names)
    store = opened(tmp_path)
    with pytest.raises(Fenced, match="taken over"):
        zombie.confirm("c3", 3, 3)
    assert answers(store.reader) == {1: ("f2", 5, 2)}


def test_the_former_owner_cannot_write_into_a_new_index(tmp_path):
    zombie = created(tmp_path)
    commit(zombie, 2, {1: (0, 5)})
    half = create_index(tmp_path, "uuid", {"id": 1}, BUCKETS)
    with pytest.raises(Fenced):
        zombie.publish_state({}, {}, (), 3, 3, None)
    half.publish_state({}, {}, (), 1, 1, None)
    store = opened(tmp_path)
    with pytest.raises(Fenced):
        zombie.publish_state({}, {}, (), 3, 3, None)
    assert answers(store.reader) == {}


def test_a_merge_of_the_former_owner_does_not_disturb_a_new_index(tmp_path):
    zombie = created(tmp_path)
    for number in range(2, 6):
        commit(zombie, number, dict.fromkeys(range(40), (0, number)))
    merged = [merging.merge(job) for job in zombie.due_merges()]
    store = created(tmp_path)
    (tmp_path / merged[0].run.name).write_bytes(b"late")
    with pytest.raises(Fenced):
        zombie.install_merged(merged[0])
    assert answers(store.reader) == {}
    assert answers(opened(tmp_path).reader) == {}
    assert_tidy(tmp_path)


def test_a_reader_goes_to_another_process(tmp_path):
    store = created(tmp_path)
    commit(store, 2, {1: (0, 5)})
    code = (
        "import pickle, sys; reader, hashes, bucket = pickle.load(sys.stdin.buffer)\n"
        "found = reader.lookup(bucket, hashes)\n"
        "print(found.hit.tolist(), reader.path(int(found.file[0])), 'pyspark' in sys.modules)"
    )
    given_ = pickle.dumps((store.reader, KEYS[[1]], int(PLACES[1])))
    assert len(pickle.dumps(store.reader)) < 300
    done = subprocess.run([sys.executable, "-c", code], input=given_, capture_output=True)
    assert done.stdout.decode().split() == ["[True]", "f2", "False"], done.stderr


def test_a_folder_that_was_deleted_is_not_remembered(tmp_path):
    import shutil

    store = created(tmp_path / "x")
    commit(store, 2, {1: (0, 5)})
    assert answers(store.reader)
    shutil.rmtree(tmp_path / "x")
    again = created(tmp_path / "x")
    commit(again, 2, {2: (0, 5)})
    assert again.reader == store.reader
    assert answers(again.reader) == {2: ("f2", 5, 2)}


# ── opening ─────────────────────────────────────────────────────────────────────────────────────


def reason(folder, **facts):
    found = open_index(folder, facts.get("uuid", "uuid"), facts.get("keys", [1]))
    assert isinstance(found, IndexUnusable)
    return found.reason


def test_an_index_of_something_else_is_not_used(tmp_path):
    assert reason(tmp_path / "none") == "there is none yet"
    created(tmp_path)
    assert "another table" in reason(tmp_path, uuid="other")
    assert "key columns are others: id" in reason(tmp_path, keys=[2])
    assert "key columns are others: id" in reason(tmp_path, keys=[1, 2])
    opened(tmp_path)


def test_a_half_built_index_is_none(tmp_path):
    created(tmp_path)
    create_index(tmp_path, "uuid", {"id": 1}, BUCKETS)  # and then the process dies
    assert reason(tmp_path) == "it was not finished"


def newest(folder, pattern):
    return sorted(folder.glob(pattern))[-1]


@pytest.mark.parametrize("pattern", ["manifest-*.json", "runs/*/*.run", "files/*.arrow"])
@pytest.mark.parametrize("harm", ["gone", "empty", "cut", "changed", "swapped"])
def test_damage_is_a_reason(tmp_path, pattern, harm):
    store = created(tmp_path / "a")
    commit(store, 2, {key: (0, key) for key in range(40)})
    path = newest(tmp_path / "a", pattern)
    if pattern.startswith("manifest"):
        assert path.name == store.manifest.name
    data = path.read_bytes()
    if harm == "gone":
        if pattern.startswith("manifest"):
            for each in (tmp_path / "a").glob(pattern):
                each.unlink()
        path.unlink(missing_ok=True)
    elif harm == "swapped":
        other = create_index(tmp_path / "b", "other", {"id": 1}, BUCKETS)
        other.publish_state({}, {}, (), 1, 1, None)
        commit(other, 2, {key: (0, key + 1) for key in range(40)}, paths=["other"])
        path.write_bytes(newest(tmp_path / "b", pattern).read_bytes())
    else:
        changed = {"empty": b"", "cut": data[:-9], "changed": bytes([data[0] ^ 1]) + data[1:]}
        path.write_bytes(changed[harm])
    assert reason(tmp_path / "a")


def test_a_changed_value_is_found_at_the_start(tmp_path):
    store = created(tmp_path)
    commit(store, 2, {key: (0, key) for key in range(40)})
    path = newest(tmp_path, "runs/*/*.run")
    data = bytearray(path.read_bytes())
    data[64] ^= 1
    path.write_bytes(data)
    assert "checksum" in reason(tmp_path)


def test_a_manifest_of_another_version_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(manifests, "VERSION", 2)
        created(tmp_path)
    assert "another version" in reason(tmp_path)


def test_leftovers_are_swept(tmp_path):
    store = created(tmp_path)
    commit(store, 2, {1: (0, 5)})
    staged(store, "c3", ["f3"], {1: (0, 6)}, [], 3)
    (tmp_path / "runs/0000/.x.run.tmp").write_bytes(b"half")
    (tmp_path / ".manifest.tmp").write_bytes(b"half")
    store = opened(tmp_path)
    assert_tidy(tmp_path)
    assert answers(store.reader) == {1: ("f2", 5, 2)}


# ── file lists ──────────────────────────────────────────────────────────────────────────────────


CHANGES = st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 100), max_size=4)))


@settings(max_examples=60)
@given(CHANGES)
def test_lists_are_what_was_added_and_not_removed(tmp_path_factory, changes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("icestream.index.files._SLACK", 0)
        compare_lists(tmp_path_factory.mktemp("lists"), changes)


def compare_lists(folder, changes):
    (folder / "files").mkdir()
    lists, truth, number, memory = (), {}, 0, load_files(folder, ())
    for count, removed in changes:
        added = {f"path {number + at}": number + at for at in range(count)}
        number += count
        gone = sorted({each for each in removed if each in truth})
        lists = append_list(folder, lists, added, gone)
        truth = {k: v for k, v in truth.items() if k not in gone}
        truth |= {value: path for path, value in added.items()}
        files = load_files(folder, lists)
        assert files.numbers.tolist() == sorted(truth)
        assert [files.path(each) for each in truth] == list(truth.values())
        memory = memory.with_changes(added, gone)
        assert memory.numbers.tolist() == sorted(truth)
        assert memory.by_path == files.by_path
        assert files.by_path == {path: value for value, path in truth.items()}
    assert len(lists) < 8
    with pytest.raises(KeyError):
        load_files(folder, lists).path(number)


def test_many_files_cost_a_commit_little(tmp_path):
    """100,000 files: a commit writes a short list, not all of them."""
    (tmp_path / "files").mkdir()
    lists = append_list(tmp_path, (), {f"s3://bucket/{n:0100d}": n for n in range(100_000)}, ())
    written = 0
    for number in range(100_000, 100_050):
        before = set((tmp_path / "files").iterdir())
        lists = append_list(tmp_path, lists, {f"s3://bucket/{number}": number}, [number - 20])
        written += sum(path.stat().st_size for path in set((tmp_path / "files").iterdir()) - before)
    assert written / 50 < 20_000
    assert len(load_files(tmp_path, lists).numbers) == 100_000


def test_a_damaged_list_is_refused(tmp_path):
    (tmp_path / "files").mkdir()
    (ref,) = append_list(tmp_path, (), {"a": 1}, ())
    with pytest.raises(IndexDamaged, match="checksum"):
        load_files(tmp_path, [replace(ref, crc=1)])
    Path(tmp_path / ref.name).unlink()
    with pytest.raises(IndexDamaged):
        load_files(tmp_path, [ref])
