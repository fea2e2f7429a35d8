"""Sorts Arrow rows by a table's sort order, with null and NaN where Iceberg puts them."""

import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import transforms as tr
from pyiceberg.schema import Schema

from icestream.write.partition import transformed


@dataclass(frozen=True)
class SortKey:
    """One key of a sort order."""

    source_id: int
    transform: tr.Transform[Any, Any]
    direction: str
    nulls_first: bool


@dataclass(frozen=True)
class SortOrder:
    """A sort order; order 0 sorts nothing."""

    order_id: int
    fields: tuple[SortKey, ...]

    @classmethod
    def parse(cls, text: str) -> "SortOrder":
        """Read Iceberg's JSON; pyiceberg.table.sorting would import the whole of PyIceberg."""
        order = json.loads(text)
        fields = tuple(
            SortKey(
                field["source-id"],
                tr.parse_transform(field["transform"]),
                {"asc": "ascending", "desc": "descending"}[field["direction"]],
                field["null-order"] == "nulls-first",
            )
            for field in order["fields"]
        )
        return cls(order["order-id"], tuple(f for f in fields if not _is_void(f)))

    def indices(self, rows: pa.RecordBatch, schema: Schema) -> pa.Array:
        """Return the indices of the rows in sorted order; equal rows keep their order."""
        columns: list[pa.Array] = []
        directions: list[str] = []
        for field in self.fields:
            key = transformed(rows, schema, field.source_id, field.transform)
            if key.null_count:
                columns.append(key.is_null().cast(pa.int8()))
                directions.append("descending" if field.nulls_first else "ascending")
            if pa.types.is_floating(key.type):  # NaN is the greatest; Arrow puts it last always
                columns.append(pc.is_nan(key).fill_null(False).cast(pa.int8()))
                directions.append(field.direction)
            columns.append(key)
            directions.append(field.direction)
        names = [str(index) for index in range(len(columns))]
        keys = pa.RecordBatch.from_arrays(columns, names=names)
        return pc.sort_indices(keys, sort_keys=list(zip(names, directions, strict=True)))


def _is_void(field: SortKey) -> bool:
    return isinstance(field.transform, tr.VoidTransform)
