"""The tables of a plan: which topics go where, DDL of new tables, changes to existing ones.

By the code that a run uses: the same routes, designs, formats and rules. No JVM.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField

from icestream.catalogs import catalog_for
from icestream.catalogs.local import FILE, LocalCatalog
from icestream.config.ddl import format_type
from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.config.route import Router
from icestream.errors import IcestreamError, SetupError, TopicMissing, Unreachable
from icestream.formats import format_for
from icestream.plan.changes import TableChange, changes, differences
from icestream.plan.ddl import create_statements
from icestream.plan.sample import SampleResult, decode_sample, split_by_topic
from icestream.schema import OUR_NAMES
from icestream.sources import source_for
from icestream.tables.design import (
    DEFAULTS,
    KEYS_PROPERTY,
    TableDesign,
    declared_design,
    key_columns,
    laid_out_columns,
    layout_is_known,
    missing_included,
)
from icestream.tables.inventory import (
    DAMAGED,
    NOT_THERE,
    first_line,
    routed_tables,
    translate_catalog_errors,
)
from icestream.tables.metadata import Metadata

SAMPLE = 1000  # records, over all topics

ColumnOrigin = Literal["declared", "format", "sampled", "table", "icestream"]


@dataclass(frozen=True)
class PlannedColumn:
    """A column as the table has it after the first batch, and who says so."""

    name: str
    type: str
    origin: ColumnOrigin


@dataclass(frozen=True)
class TopicOutlook:
    """The table that a topic goes to; None: none, and why."""

    topic: str
    table: str | None
    why: str = ""


@dataclass(frozen=True)
class TableOutlook:
    """What a run would make of one table."""

    table: str
    rule: TableRule
    topics: tuple[str, ...]
    exists: bool
    keys: tuple[str, ...] | None = None  # of a mirror; None: those of its first records
    columns: tuple[PlannedColumn, ...] = ()
    ddl: tuple[str, ...] = ()  # statements that make the same table; none: it exists
    changes: tuple[TableChange, ...] = ()
    notes: tuple[str, ...] = ()
    rows: int | None = None  # that it has now
    sampled: int = 0
    record_bytes: float | None = None  # of the average sampled record


@dataclass(frozen=True)
class TopicsAndTables:
    """What a run would make of the topics and tables of a pipeline."""

    topics: tuple[TopicOutlook, ...]
    tables: tuple[TableOutlook, ...]
    troubles: tuple[str, ...]  # questions to the source that failed, and why


def look_ahead(config: PipelineConfig) -> TopicsAndTables:
    """Ask source and catalog; a source that does not answer is one of the troubles."""
    topics, records, troubles = _ask_source(config)
    router = Router(config)
    parts: dict[str, list[pa.RecordBatch]] = {}
    for topic, batch in split_by_topic(records):
        parts.setdefault(topic, []).append(batch)
    routes = {topic: router.route(topic) for topic in dict.fromkeys([*topics, *parts])}
    rules = {route.table: route.rule for route in [*router.fixed(), *routes.values()] if route}
    with _opened(config) as catalog:
        if catalog:
            rules |= dict(routed_tables(config, catalog))
        tables = []
        for name in sorted(rules):
            routed = tuple(t for t, route in routes.items() if route and route.table == name)
            sampled = [part for topic in routed for part in parts.get(topic, ())]
            outlook = TableOutlook(name, rules[name], routed, exists=False)
            tables.append(_table(config, catalog, outlook, sampled))
    topic_outlooks = [
        TopicOutlook(topic, route.table)
        if route
        else TopicOutlook(topic, None, "no rule matches" if router.forgotten(topic) else "skipped")
        for topic, route in routes.items()
    ]
    return TopicsAndTables(tuple(topic_outlooks), tuple(tables), tuple(troubles))


def _ask_source(config: PipelineConfig) -> tuple[Sequence[str], list[pa.RecordBatch], list[str]]:
    """Return topics, a sample of records, and what failed."""
    source = source_for(config.source)
    troubles: list[str] = []
    try:
        try:
            source.check()
        except TopicMissing as failure:
            troubles.append(_failure_text(failure))
        return source.known_topics(), list(source.sample(SAMPLE)), troubles
    except (Unreachable, SetupError) as failure:
        configured: Sequence[str] = getattr(config.source, "topics", None) or ()
        return configured, [], [*troubles, _failure_text(failure)]
    finally:
        source.close()


def _failure_text(failure: IcestreamError) -> str:
    return f"{failure.what} ({failure.where})" if failure.where else failure.what


@contextmanager
def _opened(config: PipelineConfig) -> Iterator[Catalog | None]:
    """Context manager: the catalog; None where to open it would make its file."""
    adapter = catalog_for(config.catalog)
    if isinstance(adapter, LocalCatalog) and not (adapter.warehouse / FILE).exists():
        yield None
        return
    with translate_catalog_errors(config.catalog.name), closing(adapter.open()) as catalog:
        yield catalog


def _table(
    config: PipelineConfig,
    catalog: Catalog | None,
    bare: TableOutlook,
    parts: Sequence[pa.RecordBatch],
) -> TableOutlook:
    rule, record_format = bare.rule, format_for(config.source.format)
    design = declared_design(
        bare.table,
        rule,
        record_format.known_columns(rule.mode),
        getattr(config.source, "include", ()),
    )
    try:
        table = catalog.load_table(bare.table) if catalog else None
    except NOT_THERE:
        table = None
    except DAMAGED as failure:
        return replace(bare, exists=True, notes=(f"cannot be read: {first_line(failure)}",))
    schema = table.schema() if table else Schema(*design.columns)
    data = Schema(*(field for field in schema.fields if field.name not in OUR_NAMES))
    sample = decode_sample(record_format, rule, data, parts)
    keys = key_columns(rule, table.properties if table else {})
    if rule.mode == "upsert" and keys is None:
        keys = sample.keys
    outlook = replace(
        bare,
        exists=table is not None,
        keys=keys,
        sampled=sample.records,
        record_bytes=sample.bytes / sample.records if sample.records else None,
        notes=tuple(_sample_notes(rule, sample)),
    )
    if table is None:
        return _new_table(config.catalog.name, outlook, design, sample)
    return _existing_table(config.catalog.name, outlook, design, sample, table)


def _sample_notes(rule: TableRule, sample: SampleResult) -> Iterator[str]:
    ends = {"quarantine": "would be set aside", "drop": "would be dropped", "fail": "stop the run"}
    if sample.bad:
        yield (
            f"{sample.bad:,} of {sample.records:,} sampled records are bad and "
            f"{ends[rule.bad_records]}; `icestream preview` says why"
        )


def _new_table(
    catalog: str, outlook: TableOutlook, design: TableDesign, sample: SampleResult
) -> TableOutlook:
    comments = {field.name: field.doc for field in sample.new if not field.parent}
    data = [
        field.model_copy(update={"doc": comments.get(field.name)})
        for field in sample.columns.fields
    ]
    fields = [*data, *design.metadata]
    # A run stores the keys of the first records in the table's properties.
    keys = {KEYS_PROPERTY: json.dumps(outlook.keys)} if outlook.keys is not None else {}
    properties = {**DEFAULTS, **design.properties, **keys}
    notes = list(outlook.notes)
    if not data:
        notes.append("its columns come with the first records")
    if not layout_is_known(design, fields):
        missing = sorted(laid_out_columns(design) - {field.name for field in fields})
        notes.append(f"partitions and order wait for `{'`, `'.join(missing)}`")
    if outlook.rule.mode == "upsert" and outlook.keys is None:
        notes.append("its keys are those of the first records")

    def origin(name: str) -> ColumnOrigin:
        if name in comments:
            return "sampled"
        return "declared" if name in outlook.rule.columns else "format"

    return replace(
        outlook,
        columns=tuple(
            [_column(field, origin(field.name)) for field in data]
            + [_column(field, "icestream") for field in design.metadata]
        ),
        ddl=create_statements(catalog, design, fields, properties),
        notes=tuple(notes),
    )


def _existing_table(
    catalog: str, outlook: TableOutlook, design: TableDesign, sample: SampleResult, table: Table
) -> TableOutlook:
    sampled = {field.name for field in sample.new if not field.parent}
    ours = [field for field in table.schema().fields if field.name in OUR_NAMES]
    lacking = {field.name for field in missing_included(design, Metadata.of(table))}
    columns = [
        _column(field, "sampled" if field.name in sampled else "table")
        for field in sample.columns.fields
    ]
    columns += [_column(field, "table") for field in ours]
    columns += [_column(field, "icestream") for field in design.metadata if field.name in lacking]
    return replace(
        outlook,
        rows=_rows(table),
        columns=tuple(columns),
        changes=tuple(changes(design, sample, table)),
        notes=(*outlook.notes, *differences(catalog, design, sample, table)),
    )


def _column(field: NestedField, origin: ColumnOrigin) -> PlannedColumn:
    return PlannedColumn(field.name, format_type(field.field_type), origin)


def _rows(table: Table) -> int:
    """Count the live rows by the current snapshot's summary."""
    snapshot = table.current_snapshot()
    if snapshot is None or snapshot.summary is None:
        return 0
    counts = snapshot.summary.additional_properties
    return int(counts.get("total-records", 0)) - int(counts.get("total-position-deletes", 0))
