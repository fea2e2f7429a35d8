"""Preview: a few records, decoded and shaped as `run` would, without Spark and without writing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from icestream.batch.row_layout import RowLayout, split_good_and_bad
from icestream.catalogs import catalog_for
from icestream.config.load import LoadedConfig
from icestream.config.model import PipelineConfig
from icestream.config.route import Router
from icestream.formats import format_for
from icestream.schema import OUR_NAMES, merge_new_fields, with_new_fields
from icestream.sources import source_for
from icestream.tables.arrow import arrow_schema
from icestream.tables.design import declared_columns, metadata_columns


@dataclass(frozen=True)
class TablePreview:
    """What a table would get."""

    table: str
    schema: Schema
    exists: bool
    good: pa.Table
    bad: pa.Table


def preview(loaded: LoadedConfig, rows: int) -> list[TablePreview]:
    """Decode the first `rows` records of the source."""
    config = loaded.pipeline
    router = Router(config)
    parts: dict[str, list[pa.RecordBatch]] = {}
    rules: dict[str, Any] = {}
    for records in source_for(config.source).sample(rows):
        for topic in dict.fromkeys(records.column("topic").to_pylist()):
            route = router.route(topic)
            if route:
                wanted = pa.compute.equal(records.column("topic"), topic)
                parts.setdefault(route.table, []).append(records.filter(wanted))
                rules[route.table] = route.rule
    return [_decode(config, name, rules[name], batches) for name, batches in parts.items()]


def _decode(
    config: PipelineConfig, name: str, rule: Any, parts: Sequence[pa.RecordBatch]
) -> TablePreview:
    record_format = format_for(config.source.format)
    existing = _existing(config, name)
    schema = existing or Schema(*declared_columns(rule, record_format.known_columns(rule.mode)))
    data = Schema(*(field for field in schema.fields if field.name not in OUR_NAMES))
    dropped = frozenset(rule.except_columns)
    while True:
        decoded = [
            record_format.decode(part, data, rule.schema_evolution, dropped) for part in parts
        ]
        new = merge_new_fields([each.new_fields for each in decoded])
        if not new:
            break
        data = with_new_fields(data, new)
    ours = metadata_columns(rule, getattr(config.source, "include", ()))
    fields: list[NestedField] = [*data.fields, *ours]
    numbered = Schema(
        *(field.model_copy(update={"field_id": 10_000 + n}) for n, field in enumerate(fields))
    )
    arrow = arrow_schema(numbered)
    shape = RowLayout(arrow, config.name, datetime.now(UTC), rule.metadata_columns)
    shaped = [
        split_good_and_bad(part, each, shape) for part, each in zip(parts, decoded, strict=True)
    ]
    return TablePreview(
        name,
        numbered,
        existing is not None,
        pa.Table.from_batches([each.good for each in shaped]),
        pa.Table.from_batches([each.bad for each in shaped]),
    )


def _existing(config: PipelineConfig, name: str) -> Schema | None:
    catalog = catalog_for(config.catalog).open()
    return catalog.load_table(name).schema() if catalog.table_exists(name) else None
