"""Records of a task by table, without those that the table has already."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc


def at_or_above(records: pa.RecordBatch, floors: Mapping[int, int]) -> pa.RecordBatch:
    """Records of one topic at or above the floor of their partition."""
    for partition in pc.unique(records.column("partition")).to_pylist() if floors else ():
        floor = floors.get(partition, 0)
        if floor <= 0:
            continue
        below = pc.and_(
            pc.equal(records.column("partition"), partition),
            pc.less(records.column("offset"), floor),
        )
        if pc.any(below).as_py():
            records = records.filter(pc.invert(below))
    return records
