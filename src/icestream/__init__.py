"""Streaming ingestion into Apache Iceberg: each record exactly once."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyiceberg.table import Table

__version__ = "0.1.0"


def table(pipeline_file: str | Path, name: str) -> "Table":
    """Open a pipeline's table with PyIceberg: `table("icestream.yml", "shop.events").scan()`."""
    from icestream.catalogs import catalog_for
    from icestream.config.load import load

    return catalog_for(load(pipeline_file).pipeline.catalog).open().load_table(name)
