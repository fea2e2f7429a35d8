"""Changes: decoded rows with what they do to the mirror, on their way through Spark's shuffle."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icestream.formats import TRUNCATE, RowChanges
from icestream.index.keys import Hashes, bucket_of, key_hashes

SEQUENCE = "_src_sequence"
_NOTE = "\0"  # begins the names of columns that no table has
_ORIGIN = ("topic", "partition", "offset", "timestamp", "key", "value")
# What stands beside a row. Nulls throughout are left out, and are nulls again when asked for.
_NOTES = {
    "op": pa.int8(),
    "hash_hi": pa.uint64(),
    "hash_lo": pa.uint64(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "missing": pa.string(),
    "old_hi": pa.uint64(),
    "old_lo": pa.uint64(),
    "record": pa.null(),
}


class ChangeBatch:
    """Rows in the table's columns, and beside them what is to be done with each.

    Taking some of them copies nothing: a column is put together when it is asked for, and most
    that are sorted and folded never are.
    """

    def __init__(self, whole: pa.RecordBatch, at: NDArray[np.intp] | None = None) -> None:
        self._whole = whole
        self._at = at  # None: all, as they stand

    def __len__(self) -> int:
        return len(self._whole) if self._at is None else len(self._at)

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """In the table's columns."""
        names = [name for name in self._whole.schema.names if not name.startswith(_NOTE)]
        return self._taken(self._whole.select(names))

    @cached_property
    def ops(self) -> NDArray[np.int8]:
        """What is to be done."""
        found: NDArray[np.int8] = self._hidden_column("op").to_numpy()
        return found

    @cached_property
    def hashes(self) -> Hashes:
        """The keys."""
        return np.column_stack(
            [self._hidden_column(name).to_numpy() for name in ("hash_hi", "hash_lo")]
        )

    @cached_property
    def partition(self) -> NDArray[np.int32]:
        """Where each event came from."""
        found: NDArray[np.int32] = self._hidden_column("partition").to_numpy()
        return found

    @cached_property
    def offset(self) -> NDArray[np.int64]:
        """And its place there."""
        found: NDArray[np.int64] = self._hidden_column("offset").to_numpy()
        return found

    @cached_property
    def sequence(self) -> pa.BinaryArray:
        """The place in the source's log."""
        return self._taken(self._whole.column(SEQUENCE))

    @cached_property
    def missing(self) -> pa.StringArray:
        """A JSON list of columns that the event did not carry, or null."""
        return self._hidden_column("missing")

    @cached_property
    def old_hi(self) -> pa.UInt64Array:
        """The key before it was changed."""
        return self._hidden_column("old_hi")

    @cached_property
    def old_lo(self) -> pa.UInt64Array:
        """The key before it was changed."""
        return self._hidden_column("old_lo")

    @cached_property
    def record(self) -> pa.StructArray:
        """As it came, only where it may still turn out to be bad."""
        return self._hidden_column("record")

    def is_missing(self, column: str) -> NDArray[np.bool_]:
        """Which events did not carry this column."""
        coded = self.missing.dictionary_encode()
        sets = [column in json.loads(text) for text in coded.dictionary.to_pylist()]
        codes = coded.indices.fill_null(len(sets)).to_numpy()
        found: NDArray[np.bool_] = np.array([*sets, False])[codes]
        return found

    @cached_property
    def missing_columns(self) -> list[str]:
        """The columns that some event did not carry."""
        texts = self.missing.drop_null().unique().to_pylist()
        return sorted({name for text in texts for name in json.loads(text)})

    def take(self, which: NDArray[Any]) -> "ChangeBatch":
        """Some of them, in this order."""
        return ChangeBatch(self._whole, which if self._at is None else self._at[which])

    def in_arrival_order(self, which: NDArray[np.intp]) -> NDArray[np.intp]:
        """The same places, in the order in which these changes arrived."""
        return which if self._at is None else which[np.argsort(self._at[which])]

    def with_rows(self, rows: pa.RecordBatch) -> "ChangeBatch":
        """The same changes to other rows."""
        notes = {name: self._hidden_column(name) for name in _NOTES}
        return ChangeBatch(_with_hidden_columns(rows, notes))

    def batch(self) -> pa.RecordBatch:
        """The rows with what stands beside them, for the way through the shuffle."""
        found: pa.RecordBatch = self._taken(self._whole)
        return found

    @staticmethod
    def of(tables: Sequence[pa.Table]) -> "ChangeBatch":
        """On the other side of the shuffle: what several tasks gave to `batch`, as one."""
        joined = pa.concat_tables(tables, promote_options="default").combine_chunks()
        return ChangeBatch(joined.to_batches()[0] if joined.num_rows else _empty(joined.schema))

    def by_group(self, buckets: int, groups: int) -> Iterator[tuple[int, "ChangeBatch"]]:
        """By groups of neighbouring buckets of the key index; a truncate concerns all of them."""
        group = bucket_of(self.hashes, buckets) * groups // buckets
        emptied = np.flatnonzero(self.ops == TRUNCATE)
        group[emptied] = groups
        order = np.argsort(group, kind="stable")
        ends = np.cumsum(np.bincount(group, minlength=groups + 1))[:groups]
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if end > start or len(emptied):
                yield number, self.take(np.concatenate([order[start:end], emptied]))

    def _hidden_column(self, name: str) -> pa.Array:
        if _NOTE + name not in self._whole.schema.names:
            return pa.nulls(len(self), _NOTES[name])
        return self._taken(self._whole.column(_NOTE + name))

    def _taken(self, some: Any) -> Any:
        return some if self._at is None else some.take(pa.array(self._at))


def change_batch(
    records: pa.RecordBatch, rows: pa.RecordBatch, decoded: RowChanges, keys: Sequence[str]
) -> ChangeBatch:
    """Beside rows in the table's columns, what their events say of them."""
    count = len(rows)
    hashes = key_hashes([rows.column(name) for name in keys])
    old_hi, old_lo = _old_hashes(decoded.old_key, keys, count)
    notes = {
        "op": decoded.op,
        "hash_hi": pa.array(hashes[:, 0]),
        "hash_lo": pa.array(hashes[:, 1]),
        "partition": records.column("partition").cast(pa.int32()),
        "offset": records.column("offset").cast(pa.int64()),
        "old_hi": old_hi,
        "old_lo": old_lo,
    }
    if decoded.missing:
        notes["missing"] = _missing(decoded.missing, count)
        notes["record"] = _records(records, notes["missing"])
    return ChangeBatch(_with_hidden_columns(rows, notes))


def _missing(missing: Mapping[str, pa.BooleanArray], count: int) -> pa.StringArray:
    """The names of missing columns as one text for each row; nearly all rows have none."""
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


def _with_hidden_columns(rows: pa.RecordBatch, notes: Mapping[str, pa.Array]) -> pa.RecordBatch:
    told = {name: note for name, note in notes.items() if note.null_count < len(note)}
    fields = [*rows.schema, *(pa.field(_NOTE + name, note.type) for name, note in told.items())]
    return pa.RecordBatch.from_arrays([*rows.columns, *told.values()], schema=pa.schema(fields))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
