"""Print what the key index costs beside RocksDB and LMDB, driven from Python in this process.

The two are no dependencies of the project. Put them into a folder, and run one store at a time:

    pip install --no-deps --target FOLDER rocksdict lmdb
    PYTHONPATH=FOLDER .venv/bin/python bench/keystores.py index     # or rocksdb, or lmdb
"""

import shutil
import sys
import tempfile
from pathlib import Path
from statistics import mean, median

import numpy as np
import pyarrow as pa
from index import Clock, size

from icestream.index.entries import row_entries
from icestream.index.key_index import create_index
from icestream.index.keys import bucket_of

ROWS, ROUNDS = 5_000_000, 20
BATCHES = (100_000, 100)  # keys
FILES = 10  # that a commit adds to the table
VALUE = np.dtype([("file", "<u4"), ("position", "<u4"), ("marks", "<u2"), ("sequence", ">u8")])


def as_bytes(array, width):
    """One bytes object for each row, as the other two want them."""
    return array.view(f"V{width}").ravel().tolist()


def in_order(hashes):
    """The order of the keys as bytes: the other two are much faster with it."""
    return np.lexsort(hashes.byteswap().T[::-1])


def pairs(hashes, values):
    order = in_order(hashes)
    told = as_bytes(values[order], VALUE.itemsize)
    return zip(as_bytes(hashes[order], 16), told, strict=True)


def positions(order, found):
    values = np.frombuffer(b"".join(found), VALUE)["position"]
    return values[np.argsort(order)]


class Index:
    """The project's own: a commit is a run for each bucket, and a manifest that names them."""

    def __init__(self, folder):
        self.store = create_index(folder / "index", "t", {"id": 1}, 16)
        self.commits = 0

    def commit(self, hashes, values):
        self.commits += 1
        commit_id, names = f"c{self.commits}", []
        paths = [f"{commit_id}-{number}" for number in range(FILES)]
        block = pa.py_buffer(np.ascontiguousarray(values["sequence"]))
        told = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(values), [None, block])
        for bucket, mine in self._by_bucket(hashes):
            some = values[mine]
            sequence = told.take(pa.array(mine)).cast(pa.binary())
            entries = row_entries(hashes[mine], some["file"], some["position"], sequence)
            names.append(self.store.reader.stage(bucket, commit_id, entries, paths))
        self.store.prepare(commit_id, names)
        self.store.confirm(commit_id, self.commits, self.commits)

    load = commit

    def look_up(self, hashes):
        found = np.empty(len(hashes), dtype=np.uint32)
        for bucket, mine in self._by_bucket(hashes):
            one = self.store.reader.lookup(bucket, hashes[mine])
            assert one.hit.all()
            found[mine] = one.position
        return found

    def merge(self):
        self.store.merge()

    def _by_bucket(self, hashes):
        of = bucket_of(hashes, 16)
        return [(bucket, np.flatnonzero(of == bucket)) for bucket in range(16)]


class RocksDB:
    """Loaded as one sorted file; a commit is a batch of writes with a synced log."""

    def __init__(self, folder):
        import rocksdict

        self.rocks, self.folder = rocksdict, folder
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(10, False)
        table.set_block_cache(rocksdict.Cache(1 << 30))
        self.options = rocksdict.Options(raw_mode=True)
        self.options.set_compression_type(rocksdict.DBCompressionType.none())  # hashes: no use
        self.options.set_block_based_table_factory(table)
        self.db = rocksdict.Rdict(str(folder / "db"), self.options)
        self.durable = rocksdict.WriteOptions()
        self.durable.sync = True

    def load(self, hashes, values):
        writer, path = self.rocks.SstFileWriter(self.options), str(self.folder / "load.sst")
        writer.open(path)
        for key, value in pairs(hashes, values):
            writer[key] = value
        writer.finish()
        move = self.rocks.IngestExternalFileOptions()
        move.set_move_files(True)
        self.db.ingest_external_file([path], move)

    def commit(self, hashes, values):
        batch = self.rocks.WriteBatch(raw_mode=True)
        for key, value in pairs(hashes, values):
            batch.put(key, value)
        self.db.write(batch, self.durable)

    def look_up(self, hashes):
        order = in_order(hashes)
        return positions(order, self.db.get(as_bytes(hashes[order], 16)))

    def merge(self):
        """Compaction runs in threads of its own, and counts as CPU of this process."""


class LMDB:
    """Loaded in order; a commit is a transaction with its keys in order, which it syncs."""

    def __init__(self, folder):
        import lmdb

        self.env = lmdb.open(str(folder / "lmdb"), map_size=16 << 30)

    def commit(self, hashes, values, append=False):
        with self.env.begin(write=True) as transaction:
            transaction.cursor().putmulti(pairs(hashes, values), append=append)

    def load(self, hashes, values):
        self.commit(hashes, values, append=True)

    def look_up(self, hashes):
        order = in_order(hashes)
        with self.env.begin() as transaction:
            found = transaction.cursor().getmulti(as_bytes(hashes[order], 16))
            return positions(order, [value for _, value in found])

    def merge(self):
        """There is nothing to merge."""


def rows(rng, count):
    hashes = np.frombuffer(rng.bytes(count * 16), "<u8").reshape(-1, 2).copy()
    values = np.zeros(count, VALUE)
    values["file"] = rng.integers(0, FILES, count)
    values["position"] = rng.integers(0, 1 << 32, count)
    values["sequence"] = rng.integers(0, 1 << 62, count)
    values["marks"] = 8
    return hashes, values


def rounds(store, rng, hashes, values, count):
    steps = {"look up": [], "commit": [], "merges": []}
    for _ in range(ROUNDS):
        asked, new = rng.integers(0, ROWS, count), rows(rng, count)
        some = hashes[asked]
        with Clock() as clock:
            found = store.look_up(some)
        assert (found == values[asked]).all()
        steps["look up"].append(clock)
        with Clock() as clock:
            store.commit(*new)
        steps["commit"].append(clock)
        with Clock() as clock:
            store.merge()
        steps["merges"].append(clock)
    for what, times in steps.items():
        for unit in ("cpu", "wall"):
            all_ = [getattr(each, unit) for each in times]
            print(f"  {count:7,} {what:8}{unit:5} first {all_[0]:.5f}  median {median(all_):.5f}"
                  f"  mean {mean(all_):.5f}  most {max(all_):.5f}")  # fmt: skip


def main(kind):
    folder = Path(tempfile.mkdtemp(prefix="icestream-keystores-"))
    try:
        rng = np.random.default_rng(1)
        hashes, values = rows(rng, ROWS)
        store = {"index": Index, "rocksdb": RocksDB, "lmdb": LMDB}[kind](folder)
        with Clock() as load:
            store.load(hashes, values)
        loaded = size(folder) / ROWS
        print(f"{kind}: load {load.cpu:.2f} CPU-s {load.wall:.2f} s, {loaded:.1f} bytes a key")
        for count in BATCHES:
            rounds(store, rng, hashes, values["position"], count)
        end = size(folder) / (ROWS + ROUNDS * sum(BATCHES))
        print(f"  at the end {end:.1f} bytes a key", flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1])
