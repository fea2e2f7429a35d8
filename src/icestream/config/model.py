"""A pipeline file as a whole. Each part's options are defined under `options/` and nowhere else."""

from datetime import timedelta

from pydantic import Field

from icestream.config.options.alerts import Alerts
from icestream.config.options.base import Model, Switch, later
from icestream.config.options.catalog import Catalog, LocalCatalogOptions
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.config.options.source import Source
from icestream.config.options.table import Defaults, TableRule
from icestream.config.options.tests import PipelineTest
from icestream.config.values import Interval, Location, PassThrough


class PipelineConfig(Model):
    """One pipeline: a source, a catalog and the tables that it fills."""

    name: str = Field(
        pattern="^[a-z0-9_-]+$", description="Pipeline id, the key of its marker in every table"
    )
    catalog: Catalog = Field(
        default_factory=LocalCatalogOptions, description="Where the tables are"
    )
    source: Source = Field(description="Where the records come from")
    commit_interval: Interval = Field(
        timedelta(minutes=1),
        description="Time between commits, or once: take what is there, commit, stop",
    )
    transform: str | None = Field(
        None,
        min_length=1,
        description="Spark SQL over the decoded rows (view input)",
        json_schema_extra=later("transform in a view over the table"),
    )
    state_location: Location = Field(
        "./.icestream", description="Folder of derived data: deleting it loses no row"
    )
    defaults: Defaults = Field(
        default_factory=Defaults, description="Settings for every table, unless its rule differs"
    )
    tables: tuple[TableRule, ...] = Field(
        min_length=1, description="Rules from topic to table; the first match wins"
    )
    maintenance: Switch[MaintenanceOptions] = Field(
        default_factory=MaintenanceOptions, description="Table maintenance, on by default"
    )
    alerts: Alerts | None = Field(
        None,
        description="Who is told when a table is in trouble",
        json_schema_extra=later("watch the metrics with your own alerting"),
    )
    spark: PassThrough = Field(
        default_factory=dict, description="Spark configuration, as it is", repr=False
    )
    tests: tuple[PipelineTest, ...] = Field(
        (),
        description="Tests of this file",
        json_schema_extra=later("leave it out"),
    )
