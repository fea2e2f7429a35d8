"""A process that is killed in the middle of its work leaves an index that is right."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from icestream.index import merge as merging
from icestream.index.entries import concat_entries, row_entries, tombstone_entries
from icestream.index.key_index import KeyIndex, create_index, open_index
from icestream.index.keys import bucket_of, key_hashes

BUCKETS = 2
KEYS = key_hashes([pa.array(range(200))])
PLACES = bucket_of(KEYS, BUCKETS)


def changed(number):
    """The keys that a commit writes, and those that it deletes."""
    return [(number * 7 + at) % 200 for at in range(20)], [(number * 11) % 200]


def work(folder, begin):
    """Commit and merge for ever; says the number of each commit that is done."""
    merging._SMALL_TIERS = 1
    store = opened(folder)
    for number in range(begin, begin + 100_000):
        upserts, deletes = changed(number)
        deletes = [key for key in deletes if key not in upserts]
        names = []
        for bucket in range(BUCKETS):
            mine = [key for key in upserts if PLACES[key] == bucket]
            gone = [key for key in deletes if PLACES[key] == bucket]
            part = row_entries(KEYS[mine].reshape(-1, 2), 0, np.array(mine, dtype=np.int64))
            buried = tombstone_entries(KEYS[gone].reshape(-1, 2), None, 2**32 - 1)
            entries = concat_entries([part, buried])
            names.append(store.reader.stage(bucket, f"c{number}", entries, [f"f{number}"]))
        store.prepare(f"c{number}", names)
        store.confirm(f"c{number}", number, number)
        store.merge()
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


def opened(folder):
    store = open_index(Path(folder), "uuid", [1])
    assert isinstance(store, KeyIndex), store
    return store


def truth(last):
    """key → the commit that wrote it, after so many commits."""
    found = {}
    for number in range(2, last + 1):
        upserts, deletes = changed(number)
        found |= dict.fromkeys(deletes, "deleted") | dict.fromkeys(upserts, f"f{number}")
    return found


def answers(store):
    found = {}
    for bucket in range(BUCKETS):
        keys = np.array([key for key in range(200) if PLACES[key] == bucket])
        result = store.reader.lookup(bucket, KEYS[keys])
        for at, key in enumerate(keys.tolist()):
            if result.hit[at]:
                found[key] = store.reader.path(int(result.file[at]))
                assert result.position[at] == key
            elif result.tombstone[at]:
                found[key] = "deleted"
    return found


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path):
    create_index(tmp_path, "uuid", {"id": 1}, BUCKETS).publish_state({}, {}, (), 1, 1, None)
    last = 1
    for lines in (1, 4, 9):
        with subprocess.Popen(
            [sys.executable, __file__, str(tmp_path), str(last + 1)],
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            told = [int(process.stdout.readline()) for _ in range(lines)]
            process.kill()  # wherever it is by now: staging, confirming, merging
        store = opened(tmp_path)
        last = store.manifest.snapshot_id
        assert last >= told[-1]
        assert answers(store) == truth(last)
        if pending := store.pending():  # its table's commit may have landed
            assert pending.commit_id == f"c{last + 1}"
            store.confirm(pending.commit_id, last + 1, last + 1)
            last += 1
            assert answers(store) == truth(last)
    assert max(len(runs) for runs in store.manifest.runs) < 15


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]))
