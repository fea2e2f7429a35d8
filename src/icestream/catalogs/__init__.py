"""Catalogs: contract and registry. Spark, Java and PyIceberg open the same tables."""

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
    """Says how each engine opens the catalog; made on the driver, never sent to executors."""

    name: str

    def java_properties(self) -> Mapping[str, str]:
        """Properties for Iceberg's CatalogUtil.buildIcebergCatalog, `type` included."""
        ...

    def open(self) -> "PyCatalog":
        """The catalog in PyIceberg, without a JVM; raises Unreachable."""
        ...

    def check(self) -> None:
        """Raise Unreachable or SetupError when it cannot be used from here."""
        ...


def catalog_for(options: Any) -> CatalogAdapter:
    """The catalog that `catalog:` describes."""
    catalog: CatalogAdapter = plugin("catalog", CATALOGS, options.type)(options)
    return catalog


def storage_of(catalog: CatalogAdapter) -> Callable[[str], "FileIO"]:
    """PyIceberg's way to a table's files, with the catalog's own settings."""
    from pyiceberg.io import load_file_io

    opened: list[PyCatalog] = []  # when it is first needed

    def at(location: str) -> "FileIO":
        if not opened:
            opened.append(catalog.open())
        return load_file_io(opened[0].properties, location)

    return at


def spark_conf(catalog: CatalogAdapter) -> dict[str, str]:
    """The catalog as Spark SQL settings: tables are `<name>.<namespace>.<table>`."""
    prefix = f"spark.sql.catalog.{catalog.name}"
    settings = {prefix: "org.apache.iceberg.spark.SparkCatalog", f"{prefix}.cache-enabled": "false"}
    settings.update({f"{prefix}.{key}": value for key, value in catalog.java_properties().items()})
    return settings
