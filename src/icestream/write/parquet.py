"""Parquet data files: options from table properties, row groups by bytes, rolling by size."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from icestream.errors import ConfigError, StorageFailed
from icestream.tables.arrow import arrow_schema
from icestream.tables.storage import filesystem
from icestream.write.conform import plain
from icestream.write.metrics import NanCounter, ParquetLeaf, content_json, file_metrics
from icestream.write.partition import OutputPartition
from icestream.write.spill import split
from icestream.write.target import StagedFile, StageTarget

MB = 1 << 20
ROW_GROUP = 64 * MB  # of Arrow, uncompressed: what one open file may hold in memory
DICTIONARY_SAMPLE = 8192
_CODECS = {"uncompressed": "none", "lz4_raw": "lz4"}
_KNOWN = ("zstd", "gzip", "snappy", "lz4", "brotli", "none")
_LEVELS = {"zstd": 1}


def writer_options(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return pyarrow's options for `write.parquet.*`, with Iceberg's defaults."""
    codec_name = properties.get("write.parquet.compression-codec", "zstd").lower()
    codec = _CODECS.get(codec_name, codec_name)
    if codec not in _KNOWN:
        raise ConfigError(
            f"write.parquet.compression-codec: {codec_name} is not known here",
            hint="use zstd, gzip, snappy, lz4, brotli or uncompressed",
        )
    level = properties.get("write.parquet.compression-level", _LEVELS.get(codec))
    has_levels = codec in ("zstd", "gzip", "brotli")
    return {
        "compression": codec,
        "compression_level": int(level) if has_levels and level is not None else None,
        "data_page_size": _number(properties, "page-size-bytes", MB),
        "dictionary_pagesize_limit": _number(properties, "dict-size-bytes", 2 * MB),
        "max_rows_per_page": _number(properties, "page-row-limit", 20_000),
        "store_schema": False,
        "store_decimal_as_integer": True,
        "write_page_index": True,
    }


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    return int(properties.get(f"write.parquet.{name}", default))


class DataFileWriter:
    """Writes the data files of one task attempt, one after the other."""

    def __init__(
        self,
        target: StageTarget,
        attempt: str,
        schema: Schema,
        spec_id: int,
        plan: list[ParquetLeaf],
        memory_bytes: int,
    ) -> None:
        self._schema, self._arrow, self._plan = schema, arrow_schema(schema), plan
        self._location = target.data_location.rstrip("/")
        self._filesystem, self._root = filesystem(self._location)
        self._name = f"{target.file_prefix}-{attempt}"
        self._spec_id = spec_id
        self._options = writer_options(target.properties)
        self._dictionary: list[str] | None = None
        self._target = int(target.properties.get("write.target-file-size-bytes", 512 * MB))
        group = _number(target.properties, "row-group-size-bytes", 128 * MB)
        self.row_group = max(1, min(group, ROW_GROUP, max(MB, self._target // 4), memory_bytes))
        self._folders: set[str] = set()
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._open: _OpenDataFile | None = None
        self._begun: list[str] = []  # paths, in the file system's words
        self._partition, self._order_id = OutputPartition([], ""), 0
        self.staged: list[StagedFile] = []

    def begin(self, partition: OutputPartition, order_id: int) -> None:
        """End the open file; rows from here on belong to this partition, in this sort order."""
        self.end()
        self._partition, self._order_id = partition, order_id

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows; they reach the file a row group at a time."""
        for piece, size in split(rows, self.row_group):
            self._pending.append(piece)
            self._pending_bytes += size
            if self._pending_bytes >= self.row_group:
                self._flush()
                if self._open is not None and self._open.position() >= self._target:
                    self.end()

    def end(self) -> None:
        """Finish the file that is open, if any."""
        self._flush()
        if self._open is None:
            return
        file = self._open
        with self._translate_storage_errors():
            size, metrics = file.finish(self._plan)
        self._open = None
        entry = content_json(
            file.path, size, self._spec_id, self._order_id, self._partition.values, metrics
        )
        self.staged.append(StagedFile(file.path, metrics["record-count"], size, entry))

    def abort(self) -> None:
        """Close the open file after an error; what is written stays, as an orphan."""
        self._pending = []
        if self._open is not None:
            self._open.close()
            self._open = None

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending, self._arrow)
        self._pending, self._pending_bytes = [], 0
        with self._translate_storage_errors():
            if self._open is None:
                self._open = self._create(rows)
            self._open.write(rows)

    @contextmanager
    def _translate_storage_errors(self) -> Iterator[None]:
        """Context manager: turn an OSError into StorageFailed, and delete this attempt's files."""
        try:
            yield
        except OSError as failure:
            self.abort()
            for path in self._begun:  # none of them was ever offered to a commit
                with suppress(OSError):
                    self._filesystem.delete_file(path)
            cause = os.strerror(failure.errno) if failure.errno else str(failure)
            raise StorageFailed(
                f"data files cannot be written: {cause}",
                where=self._location,
                hint="nothing of the batch was committed; it goes on when there is room and right",
            ) from failure

    def _create(self, rows: pa.Table) -> "_OpenDataFile":
        if self._dictionary is None:
            self._dictionary = dictionary_columns(rows, self._plan)
        folder = f"/{self._partition.folder}" if self._partition.folder else ""
        if folder not in self._folders:
            self._filesystem.create_dir(self._root + folder, recursive=True)
            self._folders.add(folder)
        name = f"{folder}/{self._name}-{len(self.staged):05d}.parquet"
        self._begun.append(self._root + name)
        sink = self._filesystem.open_output_stream(self._begun[-1], buffer_size=MB // 4)
        options = self._options | {"use_dictionary": self._dictionary}
        writer = pq.ParquetWriter(sink, self._arrow, **options)
        nans = NanCounter(self._schema, self._plan)
        return _OpenDataFile(self._location + name, sink, writer, nans)


class _OpenDataFile:
    """The data file that is being written."""

    def __init__(self, path: str, sink: Any, writer: Any, nans: NanCounter) -> None:
        self.path = path
        self._sink, self._writer, self._nans = sink, writer, nans

    def position(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        self._nans.add(rows)
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def finish(self, plan: list[ParquetLeaf]) -> tuple[int, dict[str, Any]]:
        self._writer.close()
        size = self.position()
        self._sink.close()
        return size, file_metrics(self._writer.writer.metadata, plan, self._nans.counts)

    def close(self) -> None:
        with suppress(OSError, pa.ArrowException):  # most likely it is why `abort` was called
            self._writer.close()
        with suppress(OSError, pa.ArrowException):
            self._sink.close()


def dictionary_columns(rows: pa.Table, plan: list[ParquetLeaf]) -> list[str]:
    """Choose the columns to encode with a dictionary: all but those whose values hardly repeat."""
    sample = rows.slice(0, DICTIONARY_SAMPLE).combine_chunks()
    unique = set()
    for name in sample.column_names:
        column = plain(sample.column(name).chunk(0))
        if pa.types.is_nested(column.type) or len(column) < 64:
            continue
        if len(column.unique()) > 0.95 * len(column):
            unique.add(name)
    return [leaf.parquet_path for leaf in plan if leaf.parquet_path not in unique]
