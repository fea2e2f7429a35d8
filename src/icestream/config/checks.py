"""Second phase of validation: finds well-formed options that contradict each other."""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from icestream.config import ddl, kafka
from icestream.config.document import Loc, show_path
from icestream.config.model import PipelineConfig
from icestream.config.options.source import BrokerSource, KafkaSourceOptions
from icestream.config.options.table import TableRule
from icestream.config.problems import Problem
from icestream.config.route import PLACEHOLDER, QUARANTINE, TABLE_NAME, groups
from icestream.schema import ICEBERG_NAMES, OUR_NAMES

_UPSERT_ONLY = ("keys", "sequence_by", "deletes", "truncate", "apply_as_deletes")
_CATALOG_KEYS = {
    "warehouse": "catalog.warehouse", "uri": "catalog.uri", "type": "catalog.type",
    "catalog-impl": "catalog.type", "credential": "catalog.credential", "token": "catalog.token",
    "oauth2-server-uri": "catalog.oauth2_server_uri", "scope": "catalog.scope",
}  # fmt: skip


def check(pipeline: PipelineConfig) -> list[Problem]:
    """Return a problem for each option of a well-formed pipeline that contradicts another one."""
    return [
        *_source(pipeline),
        *_twice(pipeline),
        *_tables(pipeline),
        *_maintenance(pipeline),
        *_alerts(pipeline),
    ]


def _source(pipeline: PipelineConfig) -> Iterator[Problem]:
    source = pipeline.source
    if isinstance(source, BrokerSource) and (source.topics is None) == (
        source.topic_pattern is None
    ):
        yield Problem(("source",), "exactly one of `topics` and `topic_pattern` is needed")


def _included(pipeline: PipelineConfig, rule: TableRule, loc: Loc) -> Iterator[Problem]:
    source = pipeline.source
    is_set = "metadata_columns" in rule.model_fields_set
    has_columns = rule.metadata_columns if is_set else pipeline.defaults.metadata_columns
    if isinstance(source, KafkaSourceOptions) and source.include and not has_columns:
        switch_loc = (*loc, "metadata_columns") if is_set else ("defaults", "metadata_columns")
        yield Problem(switch_loc, "`source.include` adds to the metadata columns: not without them")


def _twice(pipeline: PipelineConfig) -> Iterator[Problem]:
    yield from _said(pipeline.catalog.properties, ("catalog", "properties"), _CATALOG_KEYS)
    source = pipeline.source
    if isinstance(source, KafkaSourceOptions):
        yield from kafka.check(source.options)
    prefix = f"spark.sql.catalog.{pipeline.catalog.name}"
    for key in pipeline.spark:
        if key == prefix or key.startswith(f"{prefix}."):
            yield Problem(("spark", key), "said twice: `catalog` says it")
    properties: list[tuple[Loc, Mapping[str, str]]] = [
        (("defaults", "properties"), pipeline.defaults.properties),
        *((("tables", index, "properties"), rule.properties)
          for index, rule in enumerate(pipeline.tables)),
    ]  # fmt: skip
    for loc, entries in properties:
        for key in entries:
            if key.startswith("icestream."):
                yield Problem((*loc, key), "icestream writes these properties itself")


def _said(entries: Iterable[str], loc: Loc, says: Mapping[str, str]) -> Iterator[Problem]:
    for key in entries:
        if key.lower() in says:
            yield Problem((*loc, key), f"said twice: write it as `{says[key.lower()]}`")


def _tables(pipeline: PipelineConfig) -> Iterator[Problem]:
    catch_all: Loc | None = None
    names: dict[str, Loc] = {}
    for index, rule in enumerate(pipeline.tables):
        loc: Loc = ("tables", index)
        if catch_all is not None:
            yield Problem(loc, f"never reached: `{show_path(catch_all)}` takes every topic")
        elif rule.match is None or rule.match in (".*", ".+"):
            catch_all = loc
        if rule.skip:
            yield from _skipped(rule, loc)
            continue
        yield from _name(pipeline, rule, loc)
        yield from _columns(rule, loc)
        yield from _included(pipeline, rule, loc)
        yield from _mode(pipeline, rule, loc)
        if rule.name is None or PLACEHOLDER.search(rule.name):
            continue
        first = names.setdefault(rule.name.lower(), loc)
        if first != loc:
            yield Problem((*loc, "name"), f"`{show_path(first)}` writes to this table already")
    if all(rule.skip for rule in pipeline.tables):
        yield Problem(("tables",), "every rule skips; at least one table is needed")


def _skipped(rule: TableRule, loc: Loc) -> Iterator[Problem]:
    for name in sorted(rule.model_fields_set - {"match", "skip"}):
        yield Problem((*loc, name), "has no effect beside `skip: true`")


def _name(pipeline: PipelineConfig, rule: TableRule, loc: Loc) -> Iterator[Problem]:
    if rule.name is None:
        yield Problem((*loc, "name"), "this key is required")
        return
    name_loc = (*loc, "name")
    for placeholder in PLACEHOLDER.findall(rule.name):
        if placeholder not in groups(pipeline, rule):
            yield Problem(
                name_loc,
                f"nothing fills `{{{placeholder}}}`",
                hint=f"name the group in `match`: (?P<{placeholder or 'table'}>…)",
                quotes_value=True,
            )
    example = PLACEHOLDER.sub("x", rule.name)
    if TABLE_NAME.fullmatch(example) is None:
        yield Problem(name_loc, "expected namespace.table, of letters, digits, _ and -")
    elif example.endswith(QUARANTINE):
        yield Problem(name_loc, "tables that end in __quarantine hold bad records")


def _columns(rule: TableRule, loc: Loc) -> Iterator[Problem]:
    names: set[str] = set()
    for column in rule.columns:
        column_loc = (*loc, "columns", column)
        if column.lower() in ICEBERG_NAMES:
            yield Problem(column_loc, "this name belongs to Iceberg's metadata columns")
        if column.lower() in OUR_NAMES:
            yield Problem(column_loc, "icestream writes this column itself")
        if column.lower() in names:
            yield Problem(column_loc, "declared twice; case makes no difference")
        if column in rule.except_columns:
            yield Problem(column_loc, "declared, and left out by `except_columns`")
        names.add(column.lower())
    for name, columns in (
        ("partition_by", [ddl.parse_partition(text).column for text in rule.partition_by]),
        ("sort_by", [ddl.parse_sort(text).column for text in rule.sort_by]),
        ("keys", rule.keys or ()),
    ):
        for index, column in enumerate(columns):
            if column in rule.except_columns:
                yield Problem((*loc, name, index), "the column is left out by `except_columns`")


def _mode(pipeline: PipelineConfig, rule: TableRule, loc: Loc) -> Iterator[Problem]:
    mode = rule.mode if "mode" in rule.model_fields_set else pipeline.defaults.mode
    if mode == "append":
        for name in _UPSERT_ONLY:
            if name in rule.model_fields_set:
                yield Problem((*loc, name), "only with `mode: upsert`")
        return
    source = pipeline.source
    if rule.keys is None and source.format.type != "debezium":
        yield Problem((*loc, "keys"), "this key is required: only Debezium's records name theirs")
    if rule.apply_as_deletes and source.format.type == "debezium":
        yield Problem((*loc, "apply_as_deletes"), "Debezium's events say what they delete")
    if {**pipeline.defaults.properties, **rule.properties}.get("format-version") == "3":
        message = "3 with `mode: upsert` is not built yet"
        yield Problem(
            (*loc, "properties", "format-version"), message,
            hint='use format-version "2": position deletes', not_built=True,
        )  # fmt: skip


# Options of Iceberg's actions that icestream reads too, to decide what runs.
_COUNTS = (
    "target-file-size-bytes",
    "min-file-size-bytes",
    "min-input-files",
    "max-file-group-size-bytes",
    "delete-file-threshold",
)


# Of what icestream rewrites by itself; manifests are rewritten by Iceberg's action.
_OPTIONS = {
    "rewrite_data_files": (*_COUNTS, "delete-ratio-threshold"),
    "rewrite_position_delete_files": ("min-input-files",),
}


def _maintenance(pipeline: PipelineConfig) -> Iterator[Problem]:
    maintenance = pipeline.maintenance
    if maintenance is False:
        return
    for name in ("rewrite_data_files", "rewrite_position_delete_files", "rewrite_manifests"):
        for option, value in (getattr(maintenance, name) or {}).items():
            if option in _COUNTS and not value.isdecimal():
                yield Problem(("maintenance", name, option), "expected a whole number")
            if re.fullmatch("[a-z0-9.-]+", option) is None:
                yield Problem(
                    ("maintenance", name, option),
                    f"expected Iceberg's spelling, such as `{option.lower().replace('_', '-')}`",
                )
            elif option not in _OPTIONS.get(name, (option,)):
                known = ", ".join(f"`{each}`" for each in _OPTIONS[name])
                yield Problem(
                    ("maintenance", name, option),
                    f"icestream rewrites these files itself and has no such option; known: {known}",
                )
    orphans = maintenance.remove_orphan_files
    if orphans and orphans.older_than < timedelta(days=1):
        yield Problem(
            ("maintenance", "remove_orphan_files", "older_than"),
            "expected at least 1d: younger files may belong to a commit under way",
        )


def _alerts(pipeline: PipelineConfig) -> Iterator[Problem]:
    if pipeline.alerts is None:
        return
    for rule_index, rule in enumerate(pipeline.alerts.rules):
        for channel_index, channel in enumerate(rule.to):
            if channel not in pipeline.alerts.channels:
                known = ", ".join(pipeline.alerts.channels) or "none"
                yield Problem(
                    ("alerts", "rules", rule_index, "to", channel_index),
                    f"no such channel under `alerts.channels`; known: {known}",
                )
