"""Blocks: rows on their way through Spark's shuffle, as Arrow IPC in single binary values.

Spark moves blocks and never sees a row. They are compressed here, not by Spark: Java copies a block
half a dozen times and keeps it until it is read, so that small ones spare it whole collections.
"""

import pyarrow as pa

_COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4")


def pack(rows: pa.RecordBatch) -> bytes:
    """Give rows as a block."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_COMPRESSED) as out:
        out.write_batch(rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def unpack(block: bytes) -> pa.Table:
    """Give the rows of a block."""
    with pa.ipc.open_stream(pa.py_buffer(block)) as reader:
        return reader.read_all()
