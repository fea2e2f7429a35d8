"""Writes position-delete files: which rows of which data files are deleted, for every engine."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from icestream.tables.arrow import FIELD_ID, PATH_ID, POSITION_ID
from icestream.tables.partition_values import PartitionKey
from icestream.tables.storage import filesystem
from icestream.write.target import StagedFile, StageTarget

PATHS = pa.dictionary(pa.int32(), pa.string())  # of so many rows only a few; text in the file
SCHEMA = pa.schema(
    [
        pa.field("file_path", PATHS, nullable=False, metadata={FIELD_ID: str(PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(POSITION_ID)}),
    ]
)
# A delete file for one data file is read with that file alone; one for many is read with each of
# them. But each is one more file. So data files share one a partition, unless there are many
# deleted rows in all and in the data file, and few such data files.
MOST_SCOPED = 16
_FEW_ROWS = 10_000  # in all: read as quickly as one more file is opened. In a data file: a tenth

DeletedPositions = Mapping[str, NDArray[np.int64]]


def merge_positions(parts: Iterable[DeletedPositions]) -> dict[str, NDArray[np.int64]]:
    """Join the deleted positions that several tasks reported: sorted, each once."""
    by_file: dict[str, list[NDArray[np.int64]]] = {}
    for part in parts:
        for path, positions in part.items():
            by_file.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(arrays)) for path, arrays in sorted(by_file.items())}


def write_deletes(
    deleted: DeletedPositions,
    partition_of: Callable[[str], PartitionKey],
    target: StageTarget,
    attempt: str,
) -> list[StagedFile]:
    """Write delete files, in the partitions of the deleted rows; `partition_of` knows these.

    The new rows of the same keys may be in other partitions.
    """
    by_partition: dict[PartitionKey, list[str]] = {}
    for path in deleted:
        by_partition.setdefault(partition_of(path), []).append(path)
    scoped_paths = _files_with_own_deletes(deleted)
    staged: list[StagedFile] = []
    for partition, paths in by_partition.items():
        groups = [[path] for path in paths if path in scoped_paths]
        if shared := [path for path in paths if path not in scoped_paths]:
            groups.append(shared)
        for group in groups:
            name = f"{target.file_prefix}-{attempt}-{len(staged):05d}-deletes.parquet"
            location = f"{target.data_location.rstrip('/')}/{name}"
            staged.append(_write(location, partition, group, deleted))
    return staged


def _files_with_own_deletes(deleted: DeletedPositions) -> set[str]:
    """Return the data files that get a delete file of their own."""
    if sum(map(len, deleted.values())) <= _FEW_ROWS:
        return set()
    paths = {path for path, positions in deleted.items() if len(positions) > _FEW_ROWS // 10}
    return paths if len(paths) <= MOST_SCOPED else set()


def _write(
    location: str, partition: PartitionKey, paths: Sequence[str], deleted: DeletedPositions
) -> StagedFile:
    counts = [len(deleted[path]) for path in paths]
    numbers = np.repeat(np.arange(len(paths), dtype=np.int32), counts)
    names = pa.DictionaryArray.from_arrays(numbers, pa.array(paths, pa.string()))
    rows = pa.table([names, np.concatenate([deleted[path] for path in paths])], schema=SCHEMA)
    system, path = filesystem(location)
    system.create_dir(path.rpartition("/")[0], recursive=True)
    with system.open_output_stream(path) as sink:
        pq.write_table(
            rows,
            sink,
            compression="zstd",
            compression_level=1,
            use_dictionary=["file_path"],  # no position is there twice
            store_schema=False,
        )
        size = sink.tell()
    facts = {
        "spec-id": partition.spec_id,
        "content": "position-deletes",
        "file-path": location,
        "file-format": "parquet",
        "partition": list(partition.partition),
        "file-size-in-bytes": size,
        "record-count": rows.num_rows,
        # Whole paths: readers skip a file by them, and by equal ones know that it is for one file.
        "lower-bounds": {"keys": [PATH_ID], "values": [min(paths).encode().hex().upper()]},
        "upper-bounds": {"keys": [PATH_ID], "values": [max(paths).encode().hex().upper()]},
    }
    if len(paths) == 1:
        facts["referenced-data-file"] = paths[0]
    return StagedFile(location, rows.num_rows, size, json.dumps(facts))


def pack_positions(positions: NDArray[np.int64]) -> str:
    """Encode positions as text for a task's report: sorted, as differences, compressed."""
    differences = np.diff(np.sort(positions), prepend=0).astype("<u4")
    packed = pa.compress(differences.tobytes(), codec="zstd", asbytes=True)
    return f"{len(differences)}:{base64.b85encode(packed).decode()}"


def unpack_positions(text: str) -> NDArray[np.int64]:
    """Undo `pack_positions`: on the driver, before it writes position-delete files."""
    count, _, packed = text.partition(":")
    differences = pa.decompress(
        base64.b85decode(packed), int(count) * 4, codec="zstd", asbytes=True
    )
    return np.cumsum(np.frombuffer(differences, dtype="<u4").astype(np.int64))
