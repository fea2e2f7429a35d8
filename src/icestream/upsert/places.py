"""Places: the partition of each data file of a table, from its manifests; by PyIceberg."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg import types as t
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform

from icestream.index.live_rows import contents
from icestream.tables.arrow import arrow_schema
from icestream.tables.partition_values import json_values
from icestream.write.position_deletes import Place

if TYPE_CHECKING:
    from pyiceberg.table import Table


def places_of(table: "Table") -> dict[str, Place]:
    """Where each live data file belongs."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    specs = table.metadata.specs()
    kinds = {number: kinds_of(spec, table.schema()) for number, spec in specs.items()}
    found: dict[str, Place] = {}
    for path, entry in contents(table.io, snapshot.manifests(table.io)).data.items():
        file = entry.data_file
        found[path] = place_of(file.spec_id, file.partition, kinds[file.spec_id])
    return found


def place_of(spec_id: int, partition: Any, kinds: Sequence[t.IcebergType]) -> Place:
    """A partition, given its values by number as PyIceberg reads them."""
    told = [_json(partition[at], kind) for at, kind in enumerate(kinds)]
    return Place(spec_id, tuple(told))


def kinds_of(spec: PartitionSpec, schema: Schema) -> list[t.IcebergType]:
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
