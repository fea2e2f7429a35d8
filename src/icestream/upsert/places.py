"""Places: the partition of each data file of a table, from its manifests; by PyIceberg."""

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform

from icestream.arrow import arrow_schema
from icestream.index.live import contents
from icestream.upsert.deletes import Place
from icestream.write.values import json_values

if TYPE_CHECKING:
    from pyiceberg.table import Table


def places_of(table: "Table") -> dict[str, Place]:
    """Where each live data file belongs."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    specs = table.metadata.specs()
    kinds = {number: _kinds(spec, table.schema()) for number, spec in specs.items()}
    found: dict[str, Place] = {}
    for path, entry in contents(table.io, snapshot.manifests(table.io)).data.items():
        file = entry.data_file
        values = [file.partition[at] for at in range(len(kinds[file.spec_id]))]
        told = [_json(v, kind) for v, kind in zip(values, kinds[file.spec_id], strict=True)]
        found[path] = Place(file.spec_id, tuple(told))
    return found


def _kinds(spec: PartitionSpec, schema: Schema) -> list[t.IcebergType]:
    return [
        t.UnknownType()
        if isinstance(field.transform, VoidTransform)
        else field.transform.result_type(schema.find_type(field.source_id))
        for field in spec.fields
    ]


def _json(value: Any, kind: t.IcebergType) -> Any:
    """A partition value, as PyIceberg reads it from a manifest, in Iceberg's JSON."""
    if value is None or isinstance(kind, t.UnknownType):
        return None
    arrow = arrow_schema(Schema(t.NestedField(1, "x", kind))).field(0).type
    storage = arrow.storage_type if isinstance(arrow, pa.ExtensionType) else arrow
    if isinstance(value, int) and pa.types.is_temporal(storage):
        width = pa.int32() if pa.types.is_date32(storage) else pa.int64()
        column = pa.array([value], width).cast(storage)
    elif isinstance(kind, t.UUIDType):
        column = pa.array([value.bytes], storage)
    else:
        column = pa.array([value], storage)
    if isinstance(arrow, pa.ExtensionType):
        column = pa.ExtensionArray.from_storage(arrow, column)
    return json_values(column, kind)[0]
