"""Groups rows by table partition: transforms, partition numbers and a stable order."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg import transforms as tr
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema

from icestream import errors
from icestream.errors import IcestreamError, TableRefused
from icestream.tables.partition_values import json_values, partition_folder
from icestream.write.conform import column_at, path_to, plain

MOST_PARTITIONS = 1_000  # that one commit writes: each is a file, for every reader to open
_PROPERTY = "icestream.max-partitions-per-commit"
_ORIGIN = {"_src_topic": "topic", "_src_partition": "partition", "_src_offset": "offset"}


class PartitionLimitExceeded(Exception):
    """A batch has rows of more partitions than a commit may write; `where` says between which."""

    def __init__(self, count: int, most: int, where: str) -> None:
        super().__init__(f"{count} partitions, {where}")
        self.count, self.most, self.where = count, most, where


def most_partitions(properties: Mapping[str, str]) -> int:
    """Return how many partitions one commit may write to a table with these properties."""
    return int(properties.get(_PROPERTY, MOST_PARTITIONS))


@dataclass(frozen=True)
class OutputPartition:
    """One partition: its values by field of the spec, and the folder of its files."""

    values: list[Any]
    folder: str


@dataclass(frozen=True)
class PartitionGrouping:
    """An order of rows that brings partitions together: number → [start, stop) in that order."""

    order: NDArray[np.int64]
    ranges: dict[int, tuple[int, int]]


def transformed(
    rows: Any, schema: Schema, source_id: int, transform: tr.Transform[Any, Any]
) -> pa.Array:
    """Apply an Iceberg transform to a column of a batch, found by its field id."""
    path = path_to(schema, source_id)
    if isinstance(transform, tr.VoidTransform):
        return pa.nulls(rows.num_rows)  # the source column may be gone
    if not path or isinstance(transform, tr.UnknownTransform):
        raise TableRefused(f"cannot compute {transform!r} of the column with id {source_id}")
    iceberg_type, column = schema.find_type(source_id), column_at(rows, path)
    if isinstance(transform, tr.IdentityTransform):
        return plain(column)
    if isinstance(transform, tr.DayTransform):
        return column.cast(pa.date32(), safe=False)  # pyiceberg-core errs at midnights before 1970
    if isinstance(transform, tr.TruncateTransform) and isinstance(iceberg_type, t.BinaryType):
        return pc.binary_slice(column, 0, transform.width)  # pyiceberg-core lacks it
    return transform.pyarrow_transform(iceberg_type)(column)


class Partitioner:
    """Numbers the partitions of a table in the order in which they are first seen."""

    def __init__(self, schema: Schema, spec: PartitionSpec, most: int = MOST_PARTITIONS) -> None:
        self._schema, self._spec, self._most = schema, spec, most
        self._types = [self._result_type(field) for field in spec.fields]
        self._numbers: dict[str, int] = {}
        self.partitions: list[OutputPartition] = []

    def group(self, rows: pa.RecordBatch) -> PartitionGrouping:
        """Find the partition of every row; rows of a partition keep their order.

        Raises PartitionLimitExceeded at too many partitions, before each costs memory and a file.
        """
        columns = [
            transformed(rows, self._schema, f.source_id, f.transform) for f in self._spec.fields
        ]
        codes, firsts = _codes(columns, rows.num_rows)
        if len(firsts) > self._most:
            raise self._limit_exceeded(len(firsts), rows, columns)
        numbers = self._number([column.take(pa.array(firsts)) for column in columns])[codes]
        if len(self.partitions) > self._most:
            raise self._limit_exceeded(len(self.partitions), rows, columns)
        if len(self.partitions) <= 1 << 16:
            numbers = numbers.astype(np.uint16)  # sorted in linear time
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(self.partitions))
        stops = np.cumsum(counts)
        ranges = {
            int(n): (int(stops[n] - counts[n]), int(stops[n])) for n in np.flatnonzero(counts)
        }
        return PartitionGrouping(order, ranges)

    def _number(self, columns: list[pa.Array]) -> NDArray[np.int64]:
        """Number distinct partitions, given one row of values for each."""
        value_columns = [
            json_values(c, type_) for c, type_ in zip(columns, self._types, strict=True)
        ]
        numbers = []
        for values in zip(*value_columns, strict=True):
            # As text, so that NaN is the same partition as NaN.
            number = self._numbers.setdefault(json.dumps(values), len(self.partitions))
            if number == len(self.partitions):
                self.partitions.append(self._partition(list(values)))
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)

    def _limit_exceeded(
        self, count: int, rows: pa.RecordBatch, columns: list[pa.Array]
    ) -> PartitionLimitExceeded:
        """Return the error, with the outermost values of the column that varies most."""
        widest = max(range(len(columns)), key=lambda index: len(columns[index].unique()))
        column, result_type = columns[widest], self._types[widest]
        field = self._spec.fields[widest]
        order = pc.array_sort_indices(column)  # nulls at the end
        ends = order.take(pa.array([0, max(0, len(column) - column.null_count - 1)]))
        values = json_values(column.take(ends), result_type)
        first, last = (
            partition_folder(field.name, field.transform, result_type, value)
            + _origin(rows, row.as_py())
            for value, row in zip(values, ends, strict=True)
        )
        return PartitionLimitExceeded(count, self._most, f"from {first} to {last}")

    def _partition(self, values: list[Any]) -> OutputPartition:
        folders = (
            partition_folder(field.name, field.transform, type_, value)
            for field, type_, value in zip(self._spec.fields, self._types, values, strict=True)
        )
        return OutputPartition(values, "/".join(folders))

    def _result_type(self, field: PartitionField) -> t.IcebergType:
        if isinstance(field.transform, tr.VoidTransform):
            return t.UnknownType()
        return field.transform.result_type(self._schema.find_type(field.source_id))


def _origin(rows: pa.RecordBatch, row: int) -> str:
    """Return the topic, partition and offset of a row, as far as the table has them."""
    names = [name for name in _ORIGIN if name in rows.schema.names]
    origin = ", ".join(f"{_ORIGIN[name]} {rows.column(name)[row].as_py()}" for name in names)
    return f" ({origin})" if origin else ""


def _codes(columns: list[pa.Array], rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Number the distinct tuples of the columns; returns each row's, and the first row of each."""
    codes = np.zeros(rows, dtype=np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        joined = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Dense again after each column, so that the product above stays far below 2^63.
        codes = pa.array(joined).dictionary_encode().indices.to_numpy().astype(np.int64)
    firsts = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    firsts[codes[::-1]] = np.arange(rows - 1, -1, -1)
    return codes, firsts


def partitions_refusal(table: str, count: int, most: int, where: str) -> IcestreamError:
    """Return the error for a batch that would make more partitions than a commit may write."""
    return errors.TooManyPartitions(
        f"table `{table}`: a batch has rows for {count:,} partitions or more, "
        f"and a commit may write {most:,}",
        where=where,
        hint="nothing was written. Are the values right? Then make `partition_by` coarser (of a "
        "new table), `max_records_per_commit` smaller, or set the table's property "
        "`icestream.max-partitions-per-commit`",
    )
