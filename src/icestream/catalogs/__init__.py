"""Contract and registry of catalogs: Spark, Java and PyIceberg open the same tables."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from icestream.plugins import plugin

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog as PyCatalog
    from pyiceberg.io import FileIO

CATALOGS = {
    "local": "icestream.catalogs.local:LocalCatalog",
    "rest": "icestream.catalogs.rest:RestCatalog",
}


class CatalogAdapter(Protocol):
    """How each engine opens the catalog; made on the driver, never sent to executors."""

    name: str

    def java_properties(self) -> Mapping[str, str]:
        """Return the properties for Iceberg's CatalogUtil.buildIcebergCatalog, with `type`."""
        ...

    def open(self) -> "PyCatalog":
        """Open the catalog in PyIceberg, without a JVM; raises Unreachable."""
        ...

    def check(self) -> None:
        """Raise Unreachable or SetupError if the catalog cannot be used from this machine."""
        ...


def catalog_for(options: Any) -> CatalogAdapter:
    """Make the catalog that the option `catalog:` describes."""
    catalog: CatalogAdapter = plugin("catalog", CATALOGS, options.type)(options)
    return catalog


def storage_of(catalog: CatalogAdapter) -> Callable[[str], "FileIO"]:
    """Return a function that opens a location with PyIceberg, by the catalog's settings."""
    from pyiceberg.io import load_file_io

    opened: list[PyCatalog] = []  # by the first call: it may ask the catalog's server

    def open_storage(location: str) -> "FileIO":
        if not opened:
            opened.append(catalog.open())
        return load_file_io(opened[0].properties, location)

    return open_storage


def spark_conf(catalog: CatalogAdapter) -> dict[str, str]:
    """Return the catalog as Spark SQL settings: tables are `<name>.<namespace>.<table>`."""
    prefix = f"spark.sql.catalog.{catalog.name}"
    settings = {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.cache-enabled": "false"}
    settings.update({f"{prefix}.{key}": value for key, value in catalog.java_properties().items()})
    return settings
