"""Staging: every row arrives once, in the right file, in bounded memory."""

import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema

from icestream.errors import ConfigError, SchemaRefused
from icestream.tables.arrow import arrow_schema
from icestream.tables.partition_values import LONGEST_NAME
from icestream.write.stage import Stager, StageTarget

SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "at", "required": False, "type": "timestamptz"},
        {"id": 3, "name": "word", "required": False, "type": "string"},
        {"id": 4, "name": "score", "required": False, "type": "double"},
        {
            "id": 5,
            "name": "inner",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [{"id": 6, "name": "code", "required": False, "type": "int"}],
            },
        },
    ],
}
ARROW = arrow_schema(Schema.model_validate(SCHEMA))
DAY = {"source-id": 2, "field-id": 1000, "transform": "day", "name": "at_day"}
BUCKET = {"source-id": 1, "field-id": 1001, "transform": "bucket[4]", "name": "id_bucket"}
WORD = {"source-id": 3, "field-id": 1002, "transform": "identity", "name": "word"}
SCORE = {"source-id": 4, "field-id": 1003, "transform": "identity", "name": "score"}
CODE = {"source-id": 6, "field-id": 1004, "transform": "truncate[10]", "name": "code_trunc"}
GONE = {"source-id": 99, "field-id": 1005, "transform": "void", "name": "gone"}
BY_WORD = {"source-id": 3, "transform": "identity", "direction": "asc", "null-order": "nulls-last"}
BY_SCORE = {
    "source-id": 4,
    "transform": "identity",
    "direction": "desc",
    "null-order": "nulls-first",
}


def target(folder, spec=(), order=(), **properties):
    return StageTarget(
        json.dumps(SCHEMA),
        json.dumps({"spec-id": 3, "fields": list(spec)}),
        json.dumps({"order-id": 2 if order else 0, "fields": list(order)}),
        str(folder),
        "orders-g1-commit",
        {
            f"write.{name.replace('parquet_', 'parquet.').replace('_', '-')}": str(value)
            for name, value in properties.items()
        },
    )


def rows(count, seed=0):
    return [
        {
            "id": i,
            "at": None if i % 11 == 0 else ((i * 7919 + seed) % 40 - 20) * 43_200_000_000,
            "word": None if i % 13 == 0 else f"word {(i * 31 + seed) % 17}/é",
            "score": float("nan") if i % 7 == 0 else ((i * 13) % 10) / 4,
            "inner": None if i % 5 == 0 else {"code": (i * 17) % 50 - 25},
        }
        for i in range(count)
    ]


def batch(data):
    at = pa.array([row["at"] for row in data], pa.int64()).cast(ARROW.field("at").type)
    columns = [
        at if f.name == "at" else pa.array([row[f.name] for row in data], f.type) for f in ARROW
    ]
    return pa.record_batch(columns, schema=ARROW)


def stage(folder, batches, spec=(), order=(), memory=128 << 20, **properties):
    stager = Stager(target(folder, spec, order, **properties), "attempt", memory)
    for each in batches:
        stager.write(each)
    return stager.finish()


def read(path):
    with pq.ParquetFile(path) as file:
        return file.read()


def seen(table):
    at = table.column("at").cast(pa.int64()).to_pylist()
    others = [table.column(name).to_pylist() for name in ("id", "word", "score", "inner")]
    return Counter(repr(row) for row in zip(at, *others, strict=True))


def contents(file):
    return json.loads(file.content_json)


def assert_all_there(files, batches):
    expected = sum((seen(pa.Table.from_batches([each])) for each in batches), Counter())
    assert sum((seen(read(file.path)) for file in files), Counter()) == expected
    for file in files:
        assert file.bytes == Path(file.path).stat().st_size
        assert file.records == read(file.path).num_rows == contents(file)["record-count"]
    assert len({file.path for file in files}) == len(files)


def test_a_plain_table_gets_one_file(tmp_path):
    batches = [batch(rows(100)), batch(rows(50, 1))]
    (file,) = stage(tmp_path / "data", batches)
    assert_all_there([file], batches)
    assert file.path == f"{tmp_path}/data/orders-g1-commit-attempt-00000.parquet"
    assert contents(file)["partition"] == []
    assert contents(file)["spec-id"] == 3
    assert contents(file)["sort-order-id"] == 0


def test_no_rows_make_no_file(tmp_path):
    assert stage(tmp_path, []) == []
    assert stage(tmp_path, [batch([])]) == []
    assert stage(tmp_path, [batch([])], [DAY], [BY_WORD]) == []


def test_field_ids_stand_at_every_level(tmp_path):
    (file,) = stage(tmp_path, [batch(rows(3))])
    schema = pq.read_schema(file.path)
    inner = schema.field("inner")
    assert [f.metadata[b"PARQUET:field_id"] for f in schema] == [b"1", b"2", b"3", b"4", b"5"]
    assert inner.type.field(0).metadata[b"PARQUET:field_id"] == b"6"


def test_files_roll_at_the_target_size(tmp_path):
    data = [batch(rows(5000))] * 40
    files = stage(tmp_path, data, target_file_size_bytes=50_000)
    assert_all_there(files, data)
    assert len(files) > 3
    assert all(file.bytes >= 50_000 for file in files[:-1])
    assert [Path(f.path).stem[-5:] for f in files] == [f"{n:05d}" for n in range(len(files))]


def test_row_groups_follow_the_property(tmp_path):
    data = [batch(rows(2000))]
    (file,) = stage(tmp_path, data, parquet_row_group_size_bytes=20_000)
    assert_all_there([file], data)
    footer = pq.read_metadata(file.path)
    assert footer.num_row_groups > 2
    assert len(contents(file)["split-offsets"]) == footer.num_row_groups


@pytest.mark.slow
@pytest.mark.parametrize("memory", [1, 1000, 20_000, 128 << 20])
@pytest.mark.parametrize("order", [(), (BY_WORD, BY_SCORE)], ids=["unsorted", "sorted"])
def test_each_file_holds_one_partition(tmp_path, memory, order):
    batches = [batch(rows(120, seed)) for seed in range(4)]
    files = stage(tmp_path, batches, [DAY, BUCKET], order, memory)
    assert_all_there(files, batches)
    for file in files:
        table = read(file.path)
        at = table.column("at").cast(pa.int64()).to_pylist()
        days = {value if value is None else value // 86_400_000_000 for value in at}
        assert len(days) == 1
        day, bucket = contents(file)["partition"]
        assert (days == {None}) == (day is None)
        assert f"/at_day={day or 'null'}/id_bucket={bucket}/" in file.path
        assert contents(file)["sort-order-id"] == (2 if order else 0)


def test_partitions_of_every_kind_of_value(tmp_path):
    batches = [batch(rows(200))]
    files = stage(tmp_path, batches, [WORD, SCORE, CODE, GONE], memory=5000)
    assert_all_there(files, batches)
    for file in files:
        word, score, code, gone = contents(file)["partition"]
        table = read(file.path)
        assert set(table.column("word").to_pylist()) == {word}
        assert {repr(v) for v in table.column("score").to_pylist()} == {repr(score)}
        codes = {v and v["code"] // 10 * 10 for v in table.column("inner").to_pylist()}
        assert codes == {code}
        assert gone is None
    assert any("score=NaN" in file.path for file in files)
    assert any("word=word+3%2F%C3%A9/" in file.path for file in files)


def test_without_spill_a_partition_has_one_file(tmp_path):
    batches = [batch(rows(100, seed)) for seed in range(3)]
    files = stage(tmp_path, batches, [BUCKET], memory=2000)
    assert len(files) == 4  # spilled many times, still a file for each of the 4 buckets
    assert_all_there(files, batches)


def test_rows_are_sorted_with_nulls_and_nan_in_iceberg_places(tmp_path):
    (file,) = stage(tmp_path, [batch(rows(500))], order=[BY_WORD, BY_SCORE])
    found = zip(*(read(file.path).column(n).to_pylist() for n in ("word", "score")), strict=True)
    nan = float("inf")
    keys = [(w is None, w or "", -(nan if s != s else s)) for w, s in found]
    assert keys == sorted(keys)
    (file,) = stage(tmp_path, [batch(rows(50)), batch(rows(50))], order=[BY_SCORE])
    scores = read(file.path).column("score").to_pylist()
    assert all(s != s for s in scores[:16])
    assert scores[16:] == sorted(scores[16:], reverse=True)


def test_a_sorted_plain_table_gets_files_of_the_memory_size(tmp_path):
    batches = [batch(rows(100, seed)) for seed in range(5)]
    files = stage(tmp_path, batches, order=[BY_WORD], memory=8000)
    assert len(files) > 2
    assert_all_there(files, batches)


def test_batches_are_cast_to_the_table(tmp_path):
    loose = pa.record_batch(
        {
            "score": pa.array([1.5, None], pa.float32()),
            "id": pa.array([1, 2], pa.int32()),
            "at": pa.array([0, None], pa.timestamp("ms", "UTC")),
            "word": pa.array(["a", None]),
            "inner": pa.array([{"code": 1}, None], pa.struct({"code": pa.int32()})),
        }
    )
    (file,) = stage(tmp_path, [loose])
    assert read(file.path).column("inner").to_pylist() == [{"code": 1}, None]


def test_rows_that_do_not_fit_are_refused(tmp_path):
    good = batch(rows(2))
    with pytest.raises(SchemaRefused, match="word"):
        stage(tmp_path, [good.drop_columns(["word"])])
    holes = good.set_column(0, "id", pa.array([None, 1], pa.int64()))
    with pytest.raises(SchemaRefused, match="id"):
        stage(tmp_path, [holes])


def test_uris_and_odd_names_are_taken_literally(tmp_path):
    folder = tmp_path / "a b%20c"
    (file,) = stage(f"file:{folder}", [batch(rows(1))])
    assert file.path.startswith(f"file:{tmp_path}/a b%20c/")
    assert [path.name for path in folder.iterdir()] == [Path(file.path).name]
    (file,) = stage(f"file://{folder}/", [batch(rows(1))], [BUCKET])
    assert file.path.startswith(f"file://{folder}/id_bucket=")


def test_long_partition_values_get_short_folders(tmp_path):
    data = [{**row, "word": "ü" * 300 + str(row["id"])} for row in rows(3)]
    files = stage(tmp_path, [batch(data)], [WORD])
    assert len(files) == 3
    assert all(len(Path(file.path).parent.name) == LONGEST_NAME for file in files)
    assert {contents(file)["partition"][0] for file in files} == {row["word"] for row in data}


def test_compression_is_the_table_property(tmp_path):
    def codec(**properties):
        (file,) = stage(tmp_path, [batch(rows(10))], **properties)
        return pq.read_metadata(file.path).row_group(0).column(0).compression

    assert codec() == "ZSTD"
    assert codec(parquet_compression_codec="snappy", parquet_compression_level=9) == "SNAPPY"
    assert codec(parquet_compression_codec="gzip", parquet_compression_level=9) == "GZIP"
    assert codec(parquet_compression_codec="uncompressed") == "UNCOMPRESSED"
    with pytest.raises(ConfigError, match="lzo"):
        codec(parquet_compression_codec="lzo")


def test_unknown_columns_stay_out_of_files(tmp_path):
    schema = {**SCHEMA, "fields": [*SCHEMA["fields"]]}
    schema["fields"].insert(1, {"id": 9, "name": "later", "required": False, "type": "unknown"})
    plain = target(tmp_path, [BUCKET])
    stager = Stager(StageTarget(json.dumps(schema), *list(vars(plain).values())[1:]), "attempt")
    wide = batch(rows(9)).add_column(1, "later", pa.nulls(9))
    stager.write(wide)
    assert all("later" not in pq.read_schema(file.path).names for file in stager.finish())


def test_abort_leaves_orphans_but_no_open_file(tmp_path):
    stager = Stager(target(tmp_path / "data", [BUCKET]), "attempt", 1000)
    stager.write(batch(rows(500)))
    stager.abort()
    assert not (tmp_path / "data").exists()
    stager = Stager(target(tmp_path / "data", parquet_row_group_size_bytes=1000), "attempt")
    stager.write(batch(rows(500)))
    stager.abort()
    assert len(list((tmp_path / "data").iterdir())) == 1


def test_a_spill_leaves_nothing_to_see(tmp_path, monkeypatch):
    monkeypatch.setenv("ICESTREAM_SPILL_DIR", str(tmp_path))
    stager = Stager(target(tmp_path / "data", [BUCKET]), "attempt", 1000)
    stager.write(batch(rows(500)))
    assert list(tmp_path.iterdir()) == []
    stager.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_targets_and_files_travel(tmp_path):
    (file,) = stage(tmp_path, [batch(rows(5))])
    assert pickle.loads(pickle.dumps(file)) == file
    assert pickle.loads(pickle.dumps(target(tmp_path))) == target(tmp_path)


SPECS = st.lists(
    st.sampled_from([DAY, BUCKET, WORD, SCORE, CODE, GONE]),
    max_size=3,
    unique_by=lambda field: field["field-id"],
)
ORDERS = st.lists(
    st.sampled_from([BY_WORD, BY_SCORE, {**BY_WORD, "source-id": 6, "transform": "bucket[3]"}]),
    max_size=2,
    unique_by=lambda field: field["source-id"],
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(-(2**63), 2**63 - 1),
            "at": st.none() | st.integers(-(10**16), 10**16),
            "word": st.none() | st.text(max_size=20),
            "score": st.none() | st.floats(width=64),
            "inner": st.none() | st.fixed_dictionaries({"code": st.none() | st.integers(-9, 9)}),
        }
    ),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=80)
@given(
    spec=SPECS,
    order=ORDERS,
    data=st.lists(ROWS, max_size=4),
    memory=st.sampled_from([1, 300, 3000, 1 << 20]),
    group=st.sampled_from([500, 1 << 20]),
)
def test_whatever_comes_all_rows_are_there(tmp_path_factory, spec, order, data, memory, group):
    batches = [batch(each) for each in data]
    folder = tmp_path_factory.mktemp("data")
    files = stage(folder, batches, spec, order, memory, parquet_row_group_size_bytes=group)
    assert_all_there(files, batches)


@pytest.mark.slow
def test_memory_stays_bounded(tmp_path):
    """A fresh process stages 100 MB over 960 partitions with a budget of 8 MB."""
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np, pyarrow as pa
from test_stage import ARROW, BUCKET, DAY, Stager, target
def batches():
    rng = np.random.default_rng(1)
    for _ in range(40):
        n = 10_000
        yield pa.record_batch([
            pa.array(rng.integers(0, 2**40, n)),
            pa.array(rng.integers(0, 240 * 86_400_000_000, n)).cast(ARROW.field("at").type),
            pa.array(np.char.add("x" * 200, rng.integers(0, 99, n).astype(str)), pa.large_string()),
            pa.array(rng.random(n)),
            pa.nulls(n, ARROW.field("inner").type)], schema=ARROW)
stager = Stager(target({str(tmp_path)!r}, [DAY, BUCKET]), "attempt", 8 << 20)
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for each in batches():
    stager.write(each)
files = stager.finish()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sys.stdout.write(f"{{len(files)}} {{sum(f.records for f in files)}} {{(peak - base) >> 10}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    files, records, grown = map(int, done.stdout.split())
    assert (files, records) == (960, 400_000)
    assert grown < 90
