"""Puts together what a run needs: catalog, source, format, index, maintenance."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from icestream.batch.mirrors import Mirrors
from icestream.catalogs import catalog_for, storage_of
from icestream.commit.java_catalog import IcebergTables
from icestream.commit.table_builder import TableBuilder
from icestream.config.model import PipelineConfig
from icestream.events import EventBus
from icestream.formats import format_for
from icestream.maintain.thread import MaintenanceThread
from icestream.pipeline import Pipeline
from icestream.sources import Source
from icestream.tables.design import declared_design

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def build_pipeline(
    spark: "SparkSession",
    config: PipelineConfig,
    bus: EventBus,
    source: Source,
    after: Sequence[str] = (),
) -> tuple[Pipeline, MaintenanceThread | None]:
    """All that a run needs, put together; nothing is claimed yet, and nothing looked after."""
    catalog = catalog_for(config.catalog)
    catalog.check()  # in plain words, before Java says it in its own
    jvm: Any = spark.sparkContext._jvm
    jvm_catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        catalog.name, dict(catalog.java_properties()), spark._jsc.hadoopConfiguration()
    )
    tables = IcebergTables(jvm, jvm_catalog, config.name)
    record_format = format_for(config.source.format)
    include = getattr(config.source, "include", ())
    builder = TableBuilder(jvm, jvm_catalog, tables)
    cores = spark.sparkContext.defaultParallelism
    mirrors = Mirrors(config, storage_of(catalog), builder, bus, cores)
    pipeline = Pipeline(
        config=config,
        source=source,
        record_format=record_format,
        tables=tables,
        builder=builder,
        design=lambda name, rule: declared_design(name, rule, record_format, include),
        bus=bus,
        mirrors=mirrors,
        after=after,
    )
    if config.maintenance is False:
        return pipeline, None
    return pipeline, MaintenanceThread(
        config, config.maintenance, spark, bus, pipeline.run_id, mirrors
    )
