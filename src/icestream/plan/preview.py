"""Preview: a few records as the rows that a run would write; without Spark, writes nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.schema import Schema

from icestream.batch.row_layout import RowLayout, split_good_and_bad
from icestream.catalogs import catalog_for
from icestream.config.load import LoadedConfig
from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.config.route import Router
from icestream.formats import format_for
from icestream.plan.sample import decode_sample, split_by_topic
from icestream.schema import OUR_NAMES
from icestream.sources import source_for
from icestream.tables.arrow import arrow_schema
from icestream.tables.design import declared_columns, metadata_columns


@dataclass(frozen=True)
class TablePreview:
    """The rows that the sampled records make in one table."""

    table: str
    schema: Schema
    exists: bool
    good: pa.Table
    bad: pa.Table  # in quarantine's columns, with the reason


def preview(loaded: LoadedConfig, rows: int) -> list[TablePreview]:
    """Decode the first `rows` records of the source; `icestream preview` shows the result."""
    config = loaded.pipeline
    router = Router(config)
    parts: dict[str, list[pa.RecordBatch]] = {}
    rules: dict[str, TableRule] = {}
    for topic, records in split_by_topic(source_for(config.source).sample(rows)):
        if route := router.route(topic):
            parts.setdefault(route.table, []).append(records)
            rules[route.table] = route.rule
    return [_preview_table(config, name, rules[name], parts[name]) for name in parts]


def _preview_table(
    config: PipelineConfig, name: str, rule: TableRule, parts: Sequence[pa.RecordBatch]
) -> TablePreview:
    record_format = format_for(config.source.format)
    existing = _existing(config, name)
    schema = existing or Schema(*declared_columns(rule, record_format.known_columns(rule.mode)))
    data = Schema(*(field for field in schema.fields if field.name not in OUR_NAMES))
    sample = decode_sample(record_format, rule, data, parts)
    ours = metadata_columns(rule, getattr(config.source, "include", ()))
    # Ids of the preview's own: metadata columns are numbered from 1, as data columns are.
    numbered = Schema(
        *(
            field.model_copy(update={"field_id": 10_000 + n})
            for n, field in enumerate((*sample.columns.fields, *ours))
        )
    )
    layout = RowLayout(
        arrow_schema(numbered), config.name, datetime.now(UTC), rule.metadata_columns
    )
    split = [
        split_good_and_bad(part, decoded, layout)
        for part, decoded in zip(parts, sample.decoded, strict=True)
    ]
    return TablePreview(
        name,
        numbered,
        existing is not None,
        pa.Table.from_batches([rows.good for rows in split]),
        pa.Table.from_batches([rows.bad for rows in split]),
    )


def _existing(config: PipelineConfig, name: str) -> Schema | None:
    catalog = catalog_for(config.catalog).open()
    return catalog.load_table(name).schema() if catalog.table_exists(name) else None
