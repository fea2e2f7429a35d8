"""Batches of changes: decoded rows and what they do to the mirror, on the way through a shuffle."""

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
_NOTE = "\0"  # begins the names of hidden columns, so that they differ from all of a table
_ORIGIN = ("topic", "partition", "offset", "timestamp", "key", "value")
# The hidden columns. One that is null throughout is left out, and is null again when asked for.
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
    """Changes: rows in the table's columns, and hidden columns that say what to do with each.

    Taking some of them copies nothing: a column is put together when it is asked for, and most
    that are sorted and folded never are.
    """

    def __init__(self, whole: pa.RecordBatch, indices: NDArray[np.intp] | None = None) -> None:
        self._whole = whole
        self._indices = indices  # of rows in `whole`; None: all, in their order

    def __len__(self) -> int:
        return len(self._whole) if self._indices is None else len(self._indices)

    @cached_property
    def rows(self) -> pa.RecordBatch:
        """The rows, in the table's columns."""
        names = [name for name in self._whole.schema.names if not name.startswith(_NOTE)]
        return self._taken(self._whole.select(names))

    @cached_property
    def ops(self) -> NDArray[np.int8]:
        """What each change does: UPSERT, DELETE, TRUNCATE or IGNORE."""
        ops: NDArray[np.int8] = self._hidden_column("op").to_numpy()
        return ops

    @cached_property
    def hashes(self) -> Hashes:
        """The key hash of each change."""
        return np.column_stack(
            [self._hidden_column(name).to_numpy() for name in ("hash_hi", "hash_lo")]
        )

    @cached_property
    def partition(self) -> NDArray[np.int32]:
        """Source partition of each change."""
        partitions: NDArray[np.int32] = self._hidden_column("partition").to_numpy()
        return partitions

    @cached_property
    def offset(self) -> NDArray[np.int64]:
        """Kafka offset of each change, within `partition`."""
        offsets: NDArray[np.int64] = self._hidden_column("offset").to_numpy()
        return offsets

    @cached_property
    def sequence(self) -> pa.BinaryArray:
        """Source sequence of each change: its place in the source's log, or null."""
        return self._taken(self._whole.column(SEQUENCE))

    @cached_property
    def missing(self) -> pa.StringArray:
        """A JSON list of the columns that a change does not carry, or null."""
        return self._hidden_column("missing")

    @cached_property
    def old_hi(self) -> pa.UInt64Array:
        """High word of the key hash before a key change, else null."""
        return self._hidden_column("old_hi")

    @cached_property
    def old_lo(self) -> pa.UInt64Array:
        """Low word of the key hash before a key change, else null."""
        return self._hidden_column("old_lo")

    @cached_property
    def record(self) -> pa.StructArray:
        """The source record, kept only for changes with missing columns, else null.

        If nothing fills those columns, the record goes to quarantine.
        """
        return self._hidden_column("record")

    def is_missing(self, column: str) -> NDArray[np.bool_]:
        """Tell which changes do not carry this column."""
        coded = self.missing.dictionary_encode()
        has_column = [column in json.loads(text) for text in coded.dictionary.to_pylist()]
        codes = coded.indices.fill_null(len(has_column)).to_numpy()
        is_missing: NDArray[np.bool_] = np.array([*has_column, False])[codes]
        return is_missing

    @cached_property
    def missing_columns(self) -> list[str]:
        """Names of the columns that some change does not carry."""
        texts = self.missing.drop_null().unique().to_pylist()
        return sorted({name for text in texts for name in json.loads(text)})

    def take(self, indices: NDArray[Any]) -> "ChangeBatch":
        """Return some of the changes, in this order."""
        taken = indices if self._indices is None else self._indices[indices]
        return ChangeBatch(self._whole, taken)

    def in_arrival_order(self, indices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the same indices, in the order in which these changes arrived."""
        return indices if self._indices is None else indices[np.argsort(self._indices[indices])]

    def with_rows(self, rows: pa.RecordBatch) -> "ChangeBatch":
        """Return the same changes to other rows."""
        notes = {name: self._hidden_column(name) for name in _NOTES}
        return ChangeBatch(_with_hidden_columns(rows, notes))

    def batch(self) -> pa.RecordBatch:
        """Return rows and hidden columns as one batch, for the way through the shuffle."""
        batch: pa.RecordBatch = self._taken(self._whole)
        return batch

    @staticmethod
    def of(tables: Sequence[pa.Table]) -> "ChangeBatch":
        """Join what `batch` gave in several tasks, on the other side of the shuffle."""
        joined = pa.concat_tables(tables, promote_options="default").combine_chunks()
        return ChangeBatch(joined.to_batches()[0] if joined.num_rows else _empty(joined.schema))

    def by_group(self, buckets: int, groups: int) -> Iterator[tuple[int, "ChangeBatch"]]:
        """Cut by key group: neighbouring buckets of the key index. Truncates go to all groups."""
        group = bucket_of(self.hashes, buckets) * groups // buckets
        truncates = np.flatnonzero(self.ops == TRUNCATE)
        group[truncates] = groups  # behind all groups
        order = np.argsort(group, kind="stable")
        ends = np.cumsum(np.bincount(group, minlength=groups + 1))[:groups]
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if end > start or len(truncates):
                yield number, self.take(np.concatenate([order[start:end], truncates]))

    def _hidden_column(self, name: str) -> pa.Array:
        if _NOTE + name not in self._whole.schema.names:
            return pa.nulls(len(self), _NOTES[name])
        return self._taken(self._whole.column(_NOTE + name))

    def _taken(self, values: Any) -> Any:
        return values if self._indices is None else values.take(pa.array(self._indices))


def change_batch(
    records: pa.RecordBatch, rows: pa.RecordBatch, decoded: RowChanges, keys: Sequence[str]
) -> ChangeBatch:
    """Put rows in the table's columns and what their records say of them into one batch."""
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
    """Return the names of missing columns as one JSON list a row; null: it misses none."""
    masks = {name: mask.to_numpy(zero_copy_only=False) for name, mask in missing.items()}
    # Rows share a few lists: each column doubles these, and those that no row has are dropped.
    codes = np.zeros(count, dtype=np.int64)
    texts: list[str | None] = [None]
    for name, is_missing in sorted(masks.items()):
        codes += np.where(is_missing, len(texts), 0)
        texts += [json.dumps([*json.loads(text or "[]"), name]) for text in texts]
        used, codes = np.unique(codes, return_inverse=True)
        texts = [texts[code] for code in used]
        if texts[0] is not None:
            texts, codes = [None, *texts], codes + 1
    return pa.array(texts, pa.string()).take(pa.array(codes))


def _old_hashes(
    old: pa.RecordBatch | None, keys: Sequence[str], count: int
) -> tuple[pa.UInt64Array, pa.UInt64Array]:
    if old is None:
        nulls = pa.nulls(count, pa.uint64())
        return nulls, nulls
    columns = [old.column(name) for name in keys]
    hashes = key_hashes(columns)
    is_absent = np.logical_and.reduce([c.is_null().to_numpy(zero_copy_only=False) for c in columns])
    return pa.array(hashes[:, 0], mask=is_absent), pa.array(hashes[:, 1], mask=is_absent)


def _records(records: pa.RecordBatch, missing: pa.StringArray) -> pa.StructArray:
    """Keep the records of rows that miss columns: they are bad if nothing fills those."""
    is_whole = missing.is_null()
    columns = [records.column(name) for name in _ORIGIN]
    kept = [pc.if_else(is_whole, pa.scalar(None, c.type), c) for c in columns]
    return pa.StructArray.from_arrays(kept, names=list(_ORIGIN), mask=is_whole)


def _with_hidden_columns(rows: pa.RecordBatch, notes: Mapping[str, pa.Array]) -> pa.RecordBatch:
    hidden = {name: note for name, note in notes.items() if note.null_count < len(note)}
    fields = [*rows.schema, *(pa.field(_NOTE + name, note.type) for name, note in hidden.items())]
    return pa.RecordBatch.from_arrays([*rows.columns, *hidden.values()], schema=pa.schema(fields))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)
