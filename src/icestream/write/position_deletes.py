"""Position deletes: which rows of which data files die, as files that every engine reads."""

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
# them. But each is a file: with few rows to delete, in all or in a data file, or many data files
# with more, one a partition is the lesser evil.
MOST_SCOPED = 16
_FEW_ROWS = 10_000  # are read as quickly as one more file is opened; of one data file, a tenth

DeletedPositions = Mapping[str, NDArray[np.int64]]


def merge_positions(parts: Iterable[DeletedPositions]) -> dict[str, NDArray[np.int64]]:
    """The positions of all parts, sorted, each once."""
    found: dict[str, list[NDArray[np.int64]]] = {}
    for part in parts:
        for path, positions in part.items():
            found.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(some)) for path, some in sorted(found.items())}


def write_deletes(
    dead: DeletedPositions,
    place_of: Callable[[str], PartitionKey],
    target: StageTarget,
    attempt: str,
) -> list[StagedFile]:
    """Write files in the partition of the rows that die, wherever their new rows are."""
    by_place: dict[PartitionKey, list[str]] = {}
    for path in dead:
        by_place.setdefault(place_of(path), []).append(path)
    alone = _files_with_own_deletes(dead)
    staged: list[StagedFile] = []
    for place, paths in by_place.items():
        together = [path for path in paths if path not in alone]
        own = [[path] for path in paths if path in alone]
        for some in [*own, together] if together else own:
            name = f"{target.file_prefix}-{attempt}-{len(staged):05d}-deletes.parquet"
            location = f"{target.data_location.rstrip('/')}/{name}"
            staged.append(_write(location, place, some, dead))
    return staged


def _files_with_own_deletes(dead: DeletedPositions) -> set[str]:
    """Data files that get a delete file of their own."""
    if sum(map(len, dead.values())) <= _FEW_ROWS:
        return set()
    found = {path for path, positions in dead.items() if len(positions) > _FEW_ROWS // 10}
    return found if len(found) <= MOST_SCOPED else set()


def _write(
    location: str, place: PartitionKey, paths: Sequence[str], dead: DeletedPositions
) -> StagedFile:
    counts = [len(dead[path]) for path in paths]
    numbers = np.repeat(np.arange(len(paths), dtype=np.int32), counts)
    names = pa.DictionaryArray.from_arrays(numbers, pa.array(paths, pa.string()))
    rows = pa.table([names, np.concatenate([dead[path] for path in paths])], schema=SCHEMA)
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
        "spec-id": place.spec_id,
        "content": "position-deletes",
        "file-path": location,
        "file-format": "parquet",
        "partition": list(place.partition),
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
    """Positions for the way to the driver: sorted, as differences, compressed."""
    steps = np.diff(np.sort(positions), prepend=0).astype("<u4")
    small = pa.compress(steps.tobytes(), codec="zstd", asbytes=True)
    return f"{len(steps)}:{base64.b85encode(small).decode()}"


def unpack_positions(text: str) -> NDArray[np.int64]:
    """On the driver."""
    count, _, small = text.partition(":")
    steps = pa.decompress(base64.b85decode(small), int(count) * 4, codec="zstd", asbytes=True)
    return np.cumsum(np.frombuffer(steps, dtype="<u4").astype(np.int64))
