"""Changes: decoded rows with what they do to the mirror, on their way through Spark's shuffle."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icestream.blocks import pack, unpack
from icestream.formats import TRUNCATE
from icestream.formats import Changes as Decoded
from icestream.index.keys import Hashes, bucket_of, key_hashes

SEQUENCE = "_src_sequence"
_NOTE = "\0"  # begins the names of columns that no table has
_ORIGIN = ("topic", "partition", "offset", "timestamp", "key", "value")


@dataclass(frozen=True)
class Changes:
    """Rows in the table's columns, and beside them what is to be done with each."""

    rows: pa.RecordBatch
    op: pa.Int8Array
    hash_hi: pa.UInt64Array
    hash_lo: pa.UInt64Array
    partition: pa.Int32Array
    offset: pa.Int64Array
    missing: pa.StringArray  # a JSON list of columns that the event did not carry, or null
    old_hi: pa.UInt64Array  # the key before it was changed
    old_lo: pa.UInt64Array
    record: pa.StructArray  # as it came, only where it may still turn out to be bad

    def __len__(self) -> int:
        return len(self.op)

    @cached_property
    def hashes(self) -> Hashes:
        """The keys."""
        return np.column_stack([self.hash_hi.to_numpy(), self.hash_lo.to_numpy()])

    @cached_property
    def ops(self) -> NDArray[np.int8]:
        """What is to be done."""
        found: NDArray[np.int8] = self.op.to_numpy()
        return found

    @property
    def sequence(self) -> pa.BinaryArray:
        """The place in the source's log."""
        return self.rows.column(SEQUENCE)

    def lacks(self, column: str) -> NDArray[np.bool_]:
        """Which events did not carry this column."""
        coded = self.missing.dictionary_encode()
        sets = [column in json.loads(text) for text in coded.dictionary.to_pylist()]
        codes = coded.indices.fill_null(len(sets)).to_numpy()
        found: NDArray[np.bool_] = np.array([*sets, False])[codes]
        return found

    @cached_property
    def lacking(self) -> list[str]:
        """The columns that some event did not carry."""
        texts = self.missing.drop_null().unique().to_pylist()
        return sorted({name for text in texts for name in json.loads(text)})

    def take(self, which: NDArray[Any]) -> "Changes":
        """Some of them, in this order."""
        return _apart(_together(self).take(pa.array(which)))

    def to_bytes(self) -> bytes:
        """For the way through the shuffle."""
        return pack(_together(self))

    @staticmethod
    def from_bytes(blobs: Sequence[bytes]) -> "Changes":
        """On the other side: all of them as one."""
        joined = pa.concat_tables([unpack(blob) for blob in blobs]).combine_chunks()
        return _apart(joined.to_batches()[0] if joined.num_rows else _empty(joined.schema))

    def split(self, buckets: int, groups: int) -> Iterator[tuple[int, "Changes"]]:
        """By groups of neighbouring buckets of the key index; a truncate concerns all of them."""
        group = bucket_of(self.hashes, buckets) * groups // buckets
        emptied = np.flatnonzero(self.ops == TRUNCATE)
        group[emptied] = groups
        order = np.argsort(group, kind="stable")
        ends = np.cumsum(np.bincount(group, minlength=groups + 1))[:groups]
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if end > start or len(emptied):
                yield number, self.take(np.concatenate([order[start:end], emptied]))


def changes_of(
    records: pa.RecordBatch, rows: pa.RecordBatch, decoded: Decoded, keys: Sequence[str]
) -> Changes:
    """Beside rows in the table's columns, what their events say of them."""
    count = len(rows)
    hashes = key_hashes([rows.column(name) for name in keys])
    old_hi, old_lo = _old_hashes(decoded.old_key, keys, count)
    missing = _missing(decoded.missing, count)
    return Changes(
        rows=rows,
        op=decoded.op,
        hash_hi=pa.array(hashes[:, 0]),
        hash_lo=pa.array(hashes[:, 1]),
        partition=records.column("partition").cast(pa.int32()),
        offset=records.column("offset").cast(pa.int64()),
        missing=missing,
        old_hi=old_hi,
        old_lo=old_lo,
        record=_records(records, missing),
    )


def _missing(missing: Mapping[str, pa.BooleanArray], count: int) -> pa.StringArray:
    """The names of missing columns as one text for each row; nearly all rows have none."""
    if not missing:
        return pa.nulls(count, pa.string())
    flags = {name: mask.to_numpy(zero_copy_only=False) for name, mask in missing.items()}
    code = np.zeros(count, dtype=np.int64)
    texts: list[str | None] = [None]
    for name, flag in sorted(flags.items()):
        known = len(texts)
        texts += [json.dumps([*json.loads(text or "[]"), name]) for text in texts]
        code += np.where(flag, known, 0)
        used, code = np.unique(code, return_inverse=True)
        texts = [texts[at] for at in used]
        if texts[0] is not None:
            texts, code = [None, *texts], code + 1
    return pa.array(texts, pa.string()).take(pa.array(code))


def _old_hashes(
    old: pa.RecordBatch | None, keys: Sequence[str], count: int
) -> tuple[pa.UInt64Array, pa.UInt64Array]:
    if old is None:
        nothing = pa.nulls(count, pa.uint64())
        return nothing, nothing
    columns = [old.column(name) for name in keys]
    hashes = key_hashes(columns)
    absent = np.logical_and.reduce([c.is_null().to_numpy(zero_copy_only=False) for c in columns])
    return pa.array(hashes[:, 0], mask=absent), pa.array(hashes[:, 1], mask=absent)


def _records(records: pa.RecordBatch, missing: pa.StringArray) -> pa.StructArray:
    """The records whose row needs an older one: without it they are bad after all."""
    none = missing.is_null()
    columns = [records.column(name) for name in _ORIGIN]
    bare = [pc.if_else(none, pa.scalar(None, each.type), each) for each in columns]
    return pa.StructArray.from_arrays(bare, names=list(_ORIGIN), mask=none)


def _together(changes: Changes) -> pa.RecordBatch:
    names = [name for name in Changes.__dataclass_fields__ if name != "rows"]
    fields = [*changes.rows.schema]
    fields += [pa.field(_NOTE + name, getattr(changes, name).type) for name in names]
    columns = [*changes.rows.columns, *(getattr(changes, name) for name in names)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _apart(batch: pa.RecordBatch) -> Changes:
    mine = [name for name in batch.schema.names if not name.startswith(_NOTE)]
    notes = {
        name.removeprefix(_NOTE): batch.column(name)
        for name in batch.schema.names
        if name.startswith(_NOTE)
    }
    return Changes(rows=batch.select(mine), **notes)


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
