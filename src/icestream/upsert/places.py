"""Places: the partition of each data file of a table, from its manifests; by PyIceberg."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform

from icestream.index.live_rows import read_manifests
from icestream.tables.arrow import arrow_schema
from icestream.tables.partition_values import json_values
from icestream.write.position_deletes import PartitionKey

if TYPE_CHECKING:
    from pyiceberg.table import Table


def partition_keys(table: "Table") -> dict[str, PartitionKey]:
    """Where each live data file belongs."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    specs = table.metadata.specs()
    kinds = {number: partition_types(spec, table.schema()) for number, spec in specs.items()}
    found: dict[str, PartitionKey] = {}
    for path, entry in read_manifests(table.io, snapshot.manifests(table.io)).data.items():
        file = entry.data_file
        found[path] = partition_key(file.spec_id, file.partition, kinds[file.spec_id])
    return found


def partition_key(spec_id: int, partition: Any, kinds: Sequence[t.IcebergType]) -> PartitionKey:
    """A partition, given its values by number as PyIceberg reads them."""
    told = [_json(partition[at], kind) for at, kind in enumerate(kinds)]
    return PartitionKey(spec_id, tuple(told))


def partition_types(spec: PartitionSpec, schema: Schema) -> list[t.IcebergType]:
    """The types of the values of a partition spec."""
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
