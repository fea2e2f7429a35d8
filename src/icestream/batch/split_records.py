"""Assigns the records of a task to tables, without those that a table has already."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from icestream.sources import RecordFloors


def at_or_above(records: pa.RecordBatch, floors: Mapping[int, int]) -> pa.RecordBatch:
    """Keep the records of one topic at or above the floor of their source partition."""
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


def route_records(
    records: pa.RecordBatch, routes: Mapping[str, str], floors: Mapping[str, RecordFloors]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the table of each topic with the records that the table does not have already."""
    topics = pc.unique(records.column("topic")).to_pylist()
    for topic in topics:
        table = routes.get(topic)
        if table is None:
            continue
        of_topic = records
        if len(topics) > 1:
            of_topic = records.filter(pc.equal(records.column("topic"), topic))
        kept = at_or_above(of_topic, floors[table].get(topic, {}))
        if kept.num_rows:
            yield table, kept
