"""Staging of a rewrite on plain files: in this process, and in one of its own."""

import json
import os
import sys
import time
import uuid
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as t
from pyiceberg.schema import Schema

from icestream.batch.report import unpack_report
from icestream.errors import GaveUp, InternalError, SchemaRefused, StorageFailed
from icestream.index.rewrite_update import IndexStaging
from icestream.index.sorted_run import open_run, read_origin
from icestream.maintain.rewrite import stage
from icestream.maintain.rewrite.row_mapping import RewriteInput, RewriteOutput, RowMapping
from icestream.maintain.rewrite.stage import RewriteTask
from icestream.maintain.rewrite.task_runner import Cancelled, ProcessTaskRunner
from icestream.tables.arrow import arrow_schema
from icestream.tables.partition_values import PartitionKey
from icestream.tables.position_deletes import SequencedFile
from icestream.write.position_deletes import write_deletes
from icestream.write.stage import Stager, StageTarget

ROWS = 50
HERE = PartitionKey(0, ())


def schema(*more):
    fields = [
        (1, "id", t.LongType()),
        (2, "text", t.StringType()),
        (3, "_src_sequence", t.BinaryType()),
    ]
    return Schema(*(t.NestedField(*each, required=False) for each in (*fields, *more)))


def target(folder, prefix="old", of=None, **properties):
    return StageTarget(
        schema_json=(of or schema()).model_dump_json(by_alias=True),
        spec_json='{"spec-id": 0, "fields": []}',
        sort_order_json='{"order-id": 0, "fields": []}',
        data_location=str(folder / "data"),
        file_prefix=prefix,
        properties={name.replace("_", "."): value for name, value in properties.items()},
    )


def never():
    return False


@pytest.fixture
def files(tmp_path):
    """Three data files; ids say which file and position."""
    found = []
    for number in range(3):
        ids = [100 * number + at for at in range(ROWS)]
        columns = {
            "id": ids,
            "text": [f"row {each}" for each in ids],
            "_src_sequence": [each.to_bytes(8) for each in ids],
        }
        stager = Stager(target(tmp_path), uuid.uuid4().hex)
        stager.write(pa.RecordBatch.from_pydict(columns, arrow_schema(schema())))
        found += stager.finish()
    return found


@pytest.fixture
def task(files, tmp_path):
    """A rewrite of all three, of which the second is wholly dead."""
    dead = {
        files[0].path: np.array([0, 7, 49]),
        files[1].path: np.arange(ROWS),
        "of another": np.array([3]),
    }
    old = write_deletes(dead, lambda _: HERE, target(tmp_path), "d")
    early = write_deletes({files[2].path: np.array([1])}, lambda _: HERE, target(tmp_path), "e")
    return RewriteTask(
        target=target(tmp_path, "new"),
        partition=HERE,
        inputs=tuple(SequencedFile(file.path, 2) for file in files),
        deletes=(*(SequencedFile(each.path, 2) for each in old), SequencedFile(early[0].path, 1)),
        origin="origin",
        index_staging=IndexStaging(str(tmp_path / "index"), "uuid", 4, (1,)),
    )


def called(task):
    (row,) = (row for batch in task(iter(())) for row in batch.to_pylist())
    return row["table"], row["block"]


LEFT = [at for at in range(ROWS) if at not in (0, 7, 49)] + [200 + at for at in range(ROWS)]


def ids_in(told):
    return [n for file in told.files for n in pq.read_table(file.path).column("id").to_pylist()]


def test_live_rows_in_order(task, files):
    told = unpack_report(*called(task))
    assert ids_in(told) == LEFT  # a delete that is older than its data file deletes nothing
    assert told.rows == {file.path: ROWS for file in files}
    moves = RowMapping(
        [RewriteInput(file.path, ROWS, told.deleted_positions(file.path)) for file in files],
        [RewriteOutput(file.path, file.records) for file in told.files],
    )
    dead = moves.map_positions({files[0].path: np.array([1, 7]), files[2].path: np.array([5])})
    assert {LEFT[at] for at in dead[told.files[0].path].tolist()} == {1, 205}


def test_entries_for_the_index(task, tmp_path):
    small = {**task.target.properties, "write.parquet.row-group-size-bytes": "500"}
    small["write.target-file-size-bytes"] = "1"
    told = unpack_report(*called(replace(task, target=replace(task.target, properties=small))))
    assert len(told.files) > 2
    found = {}
    for name in told.runs:
        origin, _ = read_origin(tmp_path / "index" / name)
        assert origin.commit_id == "origin"
        assert origin.paths == tuple(file.path for file in told.files)
        entries = open_run(tmp_path / "index" / name, range(len(origin.paths))).entries
        for file, at, hi in zip(entries.file, entries.position, entries.sequence_hi, strict=True):
            found[int(file), int(at)] = int(hi)
    rows = [
        (number, at, key)
        for number, file in enumerate(told.files)
        for at, key in enumerate(pq.read_table(file.path).column("id").to_pylist())
    ]
    assert found == {(number, at): key for number, at, key in rows}


def test_new_columns(task, tmp_path):
    wider = schema((9, "more", t.IntegerType()))
    told = unpack_report(*called(replace(task, target=target(tmp_path, "new", wider))))
    rows = pq.read_table(told.files[0].path)
    assert rows.column_names == ["id", "text", "_src_sequence", "more"]
    assert rows.column("more").null_count == len(LEFT)


def ordered(task, tmp_path, of, *keys, **properties):
    """The same rewrite, in a sort order: (field id, transform, direction) each."""
    fields = [
        {"source-id": n, "transform": how, "direction": way, "null-order": "nulls-first"}
        for n, how, way in keys
    ]
    order = json.dumps({"order-id": 7, "fields": fields})
    place = replace(target(tmp_path, "new", of, **properties), sort_order_json=order)
    return replace(task, target=place, index_staging=None, sorts=True)


@pytest.mark.parametrize("batch_bytes", [16 << 20, 1 << 10])  # all at once, and in many steps
def test_rows_in_the_order_of_the_table(task, tmp_path, monkeypatch, batch_bytes):
    monkeypatch.setattr(stage, "_BATCH_BYTES", batch_bytes)
    keys = [(2, "truncate[5]", "asc"), (1, "identity", "desc")]
    told = unpack_report(*called(ordered(task, tmp_path, schema(), *keys)))
    rows = [row for file in told.files for row in pq.read_table(file.path).to_pylist()]
    assert [row["id"] for row in rows] == sorted(LEFT, key=lambda n: (f"row {n}"[:5], -n))
    assert all(row["text"] == f"row {row['id']}" for row in rows)
    assert {json.loads(file.content_json)["sort-order-id"] for file in told.files} == {7}


def test_a_sort_column_that_is_named_with_a_dot_and_came_later(task, tmp_path):
    wider = schema((9, "a.b", t.IntegerType()))
    keys = [(9, "identity", "asc"), (1, "identity", "desc")]
    told = unpack_report(*called(ordered(task, tmp_path, wider, *keys)))
    assert ids_in(told) == LEFT[::-1]


def test_no_row_is_left_to_be_sorted(task, files, tmp_path):
    dead = write_deletes({files[1].path: np.arange(ROWS)}, lambda _: HERE, target(tmp_path), "x")
    nothing = replace(
        ordered(task, tmp_path, schema(), (1, "identity", "asc")),
        inputs=(SequencedFile(files[1].path, 2),),
        deletes=tuple(SequencedFile(each.path, 2) for each in dead),
    )
    assert unpack_report(*called(nothing)).files == ()


def test_what_cannot_be_read_is_told(task, files, tmp_path):
    other = Schema(t.NestedField(1, "id", t.DateType(), required=False))
    narrower = replace(task, target=target(tmp_path, "new", other), index_staging=None)
    with pytest.raises(SchemaRefused):
        unpack_report(*called(narrower))
    gone = replace(task, inputs=(*task.inputs, SequencedFile("/nowhere", 1)))
    with pytest.raises(StorageFailed):
        unpack_report(*called(gone))
    assert not list((tmp_path / "data").glob("new-*")), "what was begun is removed"


# -- in a process of its own -------------------------------------------------------------------


@dataclass(frozen=True)
class Sleepy:
    """A task that takes its time."""

    def __call__(self, batches):
        time.sleep(60)


@dataclass(frozen=True)
class Broken:
    """A task with a bug, and something to print."""

    def __call__(self, batches):
        sys.stdout.write("noise")
        raise ZeroDivisionError("by nought")


@pytest.mark.slow
def test_a_process_of_its_own(task):
    job = ProcessTaskRunner()
    assert ids_in(job.run(task, "a test", never)) == LEFT
    worker, _ = job._worker
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) > os.getpriority(os.PRIO_PROCESS, 0)
    with pytest.raises(StorageFailed, match="cannot be rewritten"):
        job.run(replace(task, inputs=(SequencedFile("/nowhere", 1),)), "a test", never)
    with pytest.raises(InternalError, match="ZeroDivisionError: by nought"):
        job.run(Broken(), "a test", never)
    assert ids_in(job.run(task, "a test", never)) == LEFT
    assert job._worker[0] is worker
    answers = iter([False, True])
    with pytest.raises(Cancelled):
        job.run(Sleepy(), "a test", lambda: next(answers))
    assert worker.returncode == -9


@pytest.mark.slow
def test_a_process_that_dies(task):
    job = ProcessTaskRunner()
    job.run(task, "a test", never)
    job._worker[0].kill()
    with pytest.raises(GaveUp, match="a test: its process ended with code -9"):
        job.run(task, "a test", never)
    job.run(task, "a test", never)  # another one is started
    worker, _ = job._worker
    job.release_idle()
    assert worker.returncode == 0
    job.close()
