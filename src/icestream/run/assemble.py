"""Makes the objects of a run: catalog, tables, format, key indexes, pipeline, maintenance."""

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from icestream.batch.run_tables import RunTables
from icestream.batch.spark_job import BatchJob
from icestream.batch.table_batch import TableMode
from icestream.batch.table_modes import AppendMode, MirrorMode
from icestream.catalogs import catalog_for, storage_of
from icestream.commit.java_catalog import java_tables
from icestream.commit.protocol import Claim
from icestream.commit.selftest import refuse_unsafe
from icestream.commit.table_builder import TableBuilder
from icestream.commit.table_commits import TableCommitter
from icestream.commit.table_state import TableState
from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.events import EventBus, IndexFollowed
from icestream.formats import format_for
from icestream.maintain.thread import MaintenanceThread
from icestream.pipeline import Pipeline
from icestream.sources import Source
from icestream.tables.design import TableDesign, declared_design
from icestream.upsert.indexes import KeyIndexes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def build_pipeline(
    spark: "SparkSession",
    config: PipelineConfig,
    bus: EventBus,
    source: Source,
    earlier_runs: Sequence[str] = (),
) -> tuple[Pipeline, MaintenanceThread | None]:
    """Make a pipeline and its maintenance thread; nothing is claimed or started yet."""
    catalog = catalog_for(config.catalog)
    catalog.check()  # its errors are clearer than Java's
    tables = java_tables(spark, catalog, config.name)
    changes = TableBuilder(tables)
    record_format = format_for(config.source.format)
    include = getattr(config.source, "include", ())
    cores = spark.sparkContext.defaultParallelism
    indexes = KeyIndexes(
        Path(config.state_location) / config.name / "index",
        storage_of(catalog),
        lambda table, result: bus.emit(IndexFollowed(config.name, table, str(result))),
    )

    def design(name: str, rule: TableRule) -> TableDesign:
        return declared_design(name, rule, record_format.known_columns(rule.mode), include)

    def mode(name: str, rule: TableRule) -> TableMode:
        if rule.mode == "upsert":
            return MirrorMode(config, changes, indexes, bus, cores)
        return AppendMode()

    def catalog_test(name: str, stale: TableState) -> None:
        refuse_unsafe(tables, name, stale.base)

    run_id = uuid.uuid4().hex
    committer = TableCommitter(tables, source, bus, Claim(config.name, 0, run_id), catalog_test)
    pipeline = Pipeline(
        name=config.name,
        run_id=run_id,
        source=source,
        tables=RunTables(
            config, source, tables, changes, committer, design, mode, bus, earlier_runs
        ),
        changes=changes,
        job=BatchJob(source, record_format),
        committer=committer,
        indexes=indexes,
        bus=bus,
    )
    if config.maintenance is False:
        return pipeline, None
    maintenance = MaintenanceThread(
        config, config.maintenance, spark, bus, pipeline.run_id, indexes
    )
    return pipeline, maintenance
