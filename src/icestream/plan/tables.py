"""The tables of a plan: topic → table, the DDL of those that are not there, changes to the others.

By the code that a run uses: the same routes, designs, formats and rules. No JVM.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError
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
from icestream.plan.sample import SampleResult, decode_sample
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
from icestream.tables.inventory import routed_tables, translate_catalog_errors
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
    """Where a topic goes; None: nowhere, and why."""

    topic: str
    table: str | None
    why: str = ""


@dataclass(frozen=True)
class TableOutlook:
    """What becomes of a table."""

    table: str
    rule: TableRule
    topics: tuple[str, ...]
    exists: bool
    keys: tuple[str, ...] | None = None  # of a mirror; None: its records will tell
    columns: tuple[PlannedColumn, ...] = ()
    ddl: tuple[str, ...] = ()  # statements that make the same table; none: it is there
    changes: tuple[TableChange, ...] = ()
    notes: tuple[str, ...] = ()
    rows: int | None = None  # that it has now
    sampled: int = 0
    record_bytes: float | None = None  # of the average sampled record


@dataclass(frozen=True)
class TopicsAndTables:
    """What becomes of the topics and tables of a pipeline."""

    topics: tuple[TopicOutlook, ...]
    tables: tuple[TableOutlook, ...]
    troubles: tuple[str, ...]  # what could not be looked at, and why


def look_ahead(config: PipelineConfig) -> TopicsAndTables:
    """Ask source and catalog; a source that does not answer is told, and the rest is there."""
    topics, records, troubles = _ask_source(config)
    router = Router(config)
    parts: dict[str, list[pa.RecordBatch]] = {}
    for batch in records:
        for topic in pc.unique(batch.column("topic")).to_pylist():
            some = batch.filter(pc.equal(batch.column("topic"), topic))
            parts.setdefault(topic, []).append(some)
    routes = {topic: router.route(topic) for topic in dict.fromkeys([*topics, *parts])}
    rules = {route.table: route.rule for route in [*router.fixed(), *routes.values()] if route}
    with _opened(config) as catalog:
        if catalog:
            rules |= dict(routed_tables(config, catalog))
        tables = []
        for name in sorted(rules):
            mine = tuple(topic for topic, each in routes.items() if each and each.table == name)
            some = [part for topic in mine for part in parts.get(topic, ())]
            outlook = TableOutlook(name, rules[name], mine, exists=False)
            tables.append(_table(config, catalog, outlook, some))
    told = [
        TopicOutlook(topic, route.table)
        if route
        else TopicOutlook(topic, None, "no rule matches" if router.forgotten(topic) else "skipped")
        for topic, route in routes.items()
    ]
    return TopicsAndTables(tuple(told), tuple(tables), tuple(troubles))


def _ask_source(config: PipelineConfig) -> tuple[Sequence[str], list[pa.RecordBatch], list[str]]:
    """Topics, some records, and what kept us from more of them."""
    source = source_for(config.source)
    troubles: list[str] = []
    try:
        try:
            source.check()
        except TopicMissing as failure:
            troubles.append(_failure_text(failure))
        return source.known_topics(), list(source.sample(SAMPLE)), troubles
    except (Unreachable, SetupError) as failure:
        named: Sequence[str] = getattr(config.source, "topics", None) or ()
        return named, [], [*troubles, _failure_text(failure)]
    finally:
        source.close()


def _failure_text(failure: IcestreamError) -> str:
    return f"{failure.what} ({failure.where})" if failure.where else failure.what


@contextmanager
def _opened(config: PipelineConfig) -> Iterator[Catalog | None]:
    """The catalog; None where opening it would make it."""
    catalog = catalog_for(config.catalog)
    if isinstance(catalog, LocalCatalog) and not (catalog.warehouse / FILE).exists():
        yield None
        return
    with translate_catalog_errors(config.catalog.name):
        opened = catalog.open()
        try:
            yield opened
        finally:
            opened.close()


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
    except (NoSuchTableError, NoSuchNamespaceError):
        table = None
    except (FileNotFoundError, ValueError, ValidationError) as failure:
        why = (str(failure).strip() or type(failure).__name__).splitlines()[0][:200]
        return replace(bare, exists=True, notes=(f"cannot be read: {why}",))
    has = table.schema() if table else Schema(*design.columns)
    data = Schema(*(field for field in has.fields if field.name not in OUR_NAMES))
    found = decode_sample(record_format, rule, data, parts)
    keys = key_columns(rule, table.properties if table else {})
    if rule.mode == "upsert" and keys is None:
        keys = found.keys
    known = replace(
        bare,
        exists=table is not None,
        keys=keys,
        sampled=found.records,
        record_bytes=found.bytes / found.records if found.records else None,
        notes=tuple(_sample_notes(rule, found)),
    )
    if table is None:
        return _to_be_made(config.catalog.name, known, design, found)
    return _changed(config.catalog.name, known, design, found, table)


def _sample_notes(rule: TableRule, found: SampleResult) -> Iterator[str]:
    ends = {"quarantine": "would be set aside", "drop": "would be dropped", "fail": "stop the run"}
    if found.bad:
        yield (
            f"{found.bad:,} of {found.records:,} sampled records are bad and "
            f"{ends[rule.bad_records]}; `icestream preview` says why"
        )


def _to_be_made(
    catalog: str, known: TableOutlook, design: TableDesign, found: SampleResult
) -> TableOutlook:
    comments = {each.name: each.doc for each in found.new if not each.parent}
    data = [
        field.model_copy(update={"doc": comments.get(field.name)}) for field in found.columns.fields
    ]
    fields = [*data, *design.metadata]
    # What a run writes down at its first batch is part of the table then.
    keys = {KEYS_PROPERTY: json.dumps(known.keys)} if known.keys is not None else {}
    properties = {**DEFAULTS, **design.properties, **keys}
    notes = list(known.notes)
    if not data:
        notes.append("its columns come with the first records")
    if not layout_is_known(design, fields):
        missing = sorted(laid_out_columns(design) - {field.name for field in fields})
        notes.append(f"partitions and order wait for `{'`, `'.join(missing)}`")
    if known.rule.mode == "upsert" and known.keys is None:
        notes.append("its keys are those of the first records")

    def origin(name: str) -> ColumnOrigin:
        if name in comments:
            return "sampled"
        return "declared" if name in known.rule.columns else "format"

    return replace(
        known,
        columns=tuple(
            [_column(field, origin(field.name)) for field in data]
            + [_column(field, "icestream") for field in design.metadata]
        ),
        ddl=create_statements(catalog, design, fields, properties),
        notes=tuple(notes),
    )


def _changed(
    catalog: str, known: TableOutlook, design: TableDesign, found: SampleResult, table: Table
) -> TableOutlook:
    sampled = {each.name for each in found.new if not each.parent}
    ours = [field for field in table.schema().fields if field.name in OUR_NAMES]
    lacking = {each.name for each in missing_included(design, Metadata.of(table))}
    columns = [
        _column(field, "sampled" if field.name in sampled else "table")
        for field in found.columns.fields
    ]
    columns += [_column(field, "table") for field in ours]
    columns += [_column(field, "icestream") for field in design.metadata if field.name in lacking]
    return replace(
        known,
        rows=_rows(table),
        columns=tuple(columns),
        changes=tuple(changes(design, found, table)),
        notes=(*known.notes, *differences(catalog, design, found, table)),
    )


def _column(field: NestedField, origin: ColumnOrigin) -> PlannedColumn:
    return PlannedColumn(field.name, format_type(field.field_type), origin)


def _rows(table: Table) -> int:
    """Live rows, as the newest snapshot counts them."""
    newest = table.current_snapshot()
    if newest is None or newest.summary is None:
        return 0
    counts = newest.summary.additional_properties
    return int(counts.get("total-records", 0)) - int(counts.get("total-position-deletes", 0))
