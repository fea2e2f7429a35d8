"""Iceberg metrics of a data file, from the footer that its writer has just made."""

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as t
from pyiceberg.schema import Schema

from icestream.write.conform import column_at, path_to
from icestream.write.modes import Mode, modes
from icestream.write.sort import SortOrder


@dataclass(frozen=True)
class ParquetLeaf:
    """A column of the Parquet file; lists of leaves are in the file's order of columns."""

    field_id: int
    iceberg_type: t.PrimitiveType
    mode: Mode
    repeated: bool
    """Inside a list or map: Iceberg keeps its size and nothing else."""
    parquet_path: str

    @property
    def counted(self) -> bool:
        """Whether values, nulls and NaNs are counted."""
        return self.mode is not None and not self.repeated

    @property
    def floating(self) -> bool:
        """Whether there can be NaN."""
        return isinstance(self.iceberg_type, t.FloatType | t.DoubleType)


def leaves(schema: Schema, order: SortOrder, properties: Mapping[str, str]) -> list[ParquetLeaf]:
    """List the Parquet columns of a table with their metrics modes, once for all of its files."""
    chosen = modes(schema, order, properties)
    columns: list[ParquetLeaf] = []

    def walk(field: t.NestedField, path: str, repeated: bool) -> None:
        field_type = field.field_type
        if isinstance(field_type, t.StructType):
            for child in field_type.fields:
                walk(child, f"{path}.{child.name}", repeated)
        elif isinstance(field_type, t.ListType):
            walk(field_type.element_field, f"{path}.list.element", True)
        elif isinstance(field_type, t.MapType):
            walk(field_type.key_field, f"{path}.key_value.key", True)
            walk(field_type.value_field, f"{path}.key_value.value", True)
        elif isinstance(field_type, t.PrimitiveType):
            mode = chosen[field.field_id]
            columns.append(ParquetLeaf(field.field_id, field_type, mode, repeated, path))

    for field in schema.fields:
        walk(field, field.name, False)
    return columns


class NanCounter:
    """Counts the NaNs of rows while they are written: Parquet's footer does not have them."""

    def __init__(self, schema: Schema, plan: list[ParquetLeaf]) -> None:
        field_ids = [leaf.field_id for leaf in plan if leaf.floating and leaf.counted]
        self._paths = {field_id: path_to(schema, field_id) for field_id in field_ids}
        self.counts = dict.fromkeys(field_ids, 0)

    def add(self, rows: pa.Table) -> None:
        """Count the NaNs of one row group."""
        for field_id, path in self._paths.items():
            count = pc.sum(pc.is_nan(column_at(rows, path)), min_count=0)
            self.counts[field_id] += count.as_py()


def file_metrics(footer: Any, plan: list[ParquetLeaf], nans: Mapping[int, int]) -> dict[str, Any]:
    """Return the metrics of one file as Iceberg's ContentFileParser reads them."""
    groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lower: dict[int, str] = {}
    upper: dict[int, str] = {}
    for index, leaf in enumerate(plan):
        if leaf.mode is None:
            continue
        chunks = [group.column(index) for group in groups]
        sizes[leaf.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if leaf.repeated:
            continue
        statistics = [chunk.statistics for chunk in chunks]
        values[leaf.field_id] = sum(chunk.num_values for chunk in chunks)
        nulls[leaf.field_id] = sum(s.null_count for s in statistics)
        if leaf.mode:
            low, high = _bounds(statistics, leaf)
            if low is not None:
                lower[leaf.field_id] = low.hex().upper()
            if high is not None:
                upper[leaf.field_id] = high.hex().upper()
    return {
        "record-count": footer.num_rows,
        "column-sizes": _pairs(sizes),
        "value-counts": _pairs(values),
        "null-value-counts": _pairs(nulls),
        "nan-value-counts": _pairs(nans),
        "lower-bounds": _pairs(lower),
        "upper-bounds": _pairs(upper),
        "split-offsets": sorted(_offset(group.column(0)) for group in groups),
    }


def content_json(
    path: str, size: int, spec_id: int, order_id: int, partition: list[Any], metrics: dict[str, Any]
) -> str:
    """Return a DataFile as Iceberg's JSON; NaN as a partition value is the bare word NaN."""
    file = {
        "spec-id": spec_id,
        "content": "data",
        "file-path": path,
        "file-format": "parquet",
        "partition": partition,
        "file-size-in-bytes": size,
        "sort-order-id": order_id,
    }
    return json.dumps(file | metrics)


def _pairs(by_id: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(by_id), "values": list(by_id.values())}


def _offset(first_column: Any) -> int:
    dictionary, data = first_column.dictionary_page_offset, first_column.data_page_offset
    return int(data if dictionary is None else min(dictionary, data))


def _bounds(statistics: list[Any], leaf: ParquetLeaf) -> tuple[bytes | None, bytes | None]:
    """Return the lower and the upper bound of a column over all row groups, as Iceberg's bytes."""
    known = [s for s in statistics if s.has_min_max]
    # Arrow drops bounds over 4 KiB; without those of every group nothing may be claimed.
    is_lost = any(s.num_values and not s.has_min_max for s in statistics)
    if not known or (is_lost and not leaf.floating):
        return None, None
    read, write = _codec(leaf.iceberg_type)
    low = min(read(s.min_raw) for s in known)
    high = max(read(s.max_raw) for s in known)
    assert leaf.mode is not None
    if isinstance(leaf.iceberg_type, t.StringType):
        return low_text(low, leaf.mode), high_text(high, leaf.mode)
    if isinstance(leaf.iceberg_type, t.BinaryType):
        return low[: leaf.mode], high_bytes(high, leaf.mode)
    return write(low), write(high)


def low_text(value: bytes, length: int) -> bytes:
    """Cut UTF-8 to `length` characters: never above the value."""
    return value if len(value) <= length else value.decode()[:length].encode()


def high_text(value: bytes, length: int) -> bytes | None:
    """Return text of at most `length` characters that is not below the value, if there is any."""
    text = value.decode()
    if len(text) <= length:
        return value
    for end in range(length - 1, -1, -1):
        point = ord(text[end]) + 1
        if point <= 0x10FFFF:
            point = 0xE000 if point == 0xD800 else point  # surrogates are not characters
            return (text[:end] + chr(point)).encode()
    return None


def high_bytes(value: bytes, length: int) -> bytes | None:
    """Return at most `length` bytes that are not below the value, if there are any."""
    if len(value) <= length:
        return value
    kept = value[:length].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def _codec(iceberg_type: t.PrimitiveType) -> tuple[Callable[[Any], Any], Callable[[Any], bytes]]:
    """Return functions that read Parquet's raw statistics and write values as Iceberg's bytes."""
    if isinstance(iceberg_type, t.DecimalType):
        return _unscaled, _big_endian
    layout = _LAYOUTS.get(type(iceberg_type))
    return _same, struct.Struct(layout).pack if layout else _same


_LAYOUTS: dict[type[t.IcebergType], str] = {  # of `struct`
    t.BooleanType: "<?",
    t.IntegerType: "<i",
    t.DateType: "<i",
    t.FloatType: "<f",
    t.DoubleType: "<d",
    t.LongType: "<q",
    t.TimeType: "<q",
    t.TimestampType: "<q",
    t.TimestamptzType: "<q",
    t.TimestampNanoType: "<q",
    t.TimestamptzNanoType: "<q",
}


def _same(value: Any) -> Any:
    return value


def _unscaled(raw: int | bytes) -> int:
    return raw if isinstance(raw, int) else int.from_bytes(raw, "big", signed=True)


def _big_endian(value: int) -> bytes:
    length = ((value if value >= 0 else ~value).bit_length() + 8) // 8
    return value.to_bytes(length, "big", signed=True)
