"""Storage that takes no more: a plain word, nothing half done, and room given back."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from icestream.errors import StorageFailed
from icestream.run.restart_policy import RestartPolicy
from icestream.write.stage import StagedFile, Stager, StageTarget
from icestream.write.staged import changed_or_missing

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="no /dev/full to write to")


def stager(place, partitioned=False, memory=128 << 20, **properties):
    field = {"id": 1, "name": "id", "required": False, "type": "long"}
    part = {"source-id": 1, "field-id": 1000, "name": "b", "transform": "bucket[4]"}
    target = StageTarget(
        schema_json=json.dumps({"type": "struct", "schema-id": 0, "fields": [field]}),
        spec_json=json.dumps({"spec-id": 0, "fields": [part] if partitioned else []}),
        sort_order_json=json.dumps({"order-id": 0, "fields": []}),
        data_location=str(place),
        file_prefix="p-00001-c",
        properties=properties,
    )
    return Stager(target, "attempt", memory)


def stage(made, *batches):
    for batch in batches:
        made.write(batch)
    made.finish()


def rows(count=1000):
    return pa.RecordBatch.from_pydict({"id": pa.array(range(count), pa.int64())})


@needs_full
def test_a_full_disk_is_said_plainly_and_may_pass(tmp_path):
    (tmp_path / "p-00001-c-attempt-00000.parquet").symlink_to(FULL)
    made = stager(tmp_path)
    with pytest.raises(StorageFailed) as told:
        stage(made, rows())
    made.abort()
    assert told.value.what == "data files cannot be written: No space left on device"
    assert told.value.where == str(tmp_path)
    assert told.value.exit_code == 75
    assert RestartPolicy().next_delay(told.value, 0.0) == 1.0


@needs_full
def test_an_attempt_that_fails_gives_back_what_it_took(tmp_path):
    (tmp_path / "p-00001-c-attempt-00002.parquet").symlink_to(FULL)
    settings = {
        "write.parquet.row-group-size-bytes": "8000",
        "write.target-file-size-bytes": "8000",
    }
    made = stager(tmp_path, **settings)
    with pytest.raises(StorageFailed):
        stage(made, *[rows(4000)] * 8)
    made.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "data").write_text("a file where the folder should be")
    made = stager(tmp_path / "data")
    with pytest.raises(StorageFailed, match="data files cannot be written: "):
        stage(made, rows())


def test_nowhere_to_put_rows_aside(tmp_path, monkeypatch):
    monkeypatch.setenv("ICESTREAM_SPILL_DIR", str(tmp_path / "gone"))
    made = stager(tmp_path / "data", partitioned=True, memory=1000)
    with pytest.raises(StorageFailed, match="put aside on disk: No such file") as told:
        made.write(rows())
    assert told.value.where == str(tmp_path / "gone")
    assert "ICESTREAM_SPILL_DIR" in told.value.hint


# ── files that vanish after they were staged ────────────────────────────────────────────────────


def staged(folder, count=3):
    """Files of different lengths, in folders of partitions."""
    made = []
    for number in range(count):
        path = folder / f"b={number % 2}" / f"{number}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (number + 1))
        made.append(StagedFile(str(path), 1, number + 1, "{}"))
    return made


def test_files_that_are_there(tmp_path):
    assert changed_or_missing([]) == []
    assert changed_or_missing(staged(tmp_path)) == []
    assert changed_or_missing(staged(tmp_path, 1)) == []


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_files_that_are_gone_or_cut_off(tmp_path, scheme):
    files = [
        StagedFile(scheme + file.path, file.records, file.bytes, "{}") for file in staged(tmp_path)
    ]
    Path(files[0].path.removeprefix(scheme)).unlink()
    assert changed_or_missing(files) == [files[0].path]
    assert changed_or_missing(files[:1]) == [files[0].path]
    Path(files[2].path.removeprefix(scheme)).write_bytes(b"xx")
    assert changed_or_missing(files) == [files[0].path, files[2].path]


def test_odd_names_are_taken_literally(tmp_path):
    files = staged(tmp_path / "a%20b # ?")
    assert changed_or_missing(files) == []
    Path(files[1].path).unlink()
    assert changed_or_missing(files) == [files[1].path]
