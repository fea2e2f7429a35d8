"""Full scans of tables as they are, and of the same rows written in one go; read by Spark."""

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icestream.catalogs import catalog_for, spark_conf
from icestream.config.model import PipelineConfig
from icestream.spark import session

WARM, ROUNDS = 10, 15  # Java compiles the code of deletes only when it has run a while


def scan_ratios(
    config: PipelineConfig, state: Path, tables: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Medians of scans by turns, of each table and its copy: seconds, CPU, and the ratio."""
    catalog = catalog_for(config.catalog)
    spark = session.start("scans", state, {**spark_conf(catalog), "spark.driver.memory": "2g"})
    try:
        return {name: _compared(spark, f"{catalog.name}.{name}") for name in tables}
    finally:
        spark.stop()


def _compared(spark: Any, table: str) -> dict[str, Any]:
    copy = f"{table}_copy"
    spark.sql(f"DROP TABLE IF EXISTS {copy}")
    spark.sql(f"CREATE TABLE {copy} USING iceberg AS SELECT /*+ COALESCE(2) */ * FROM {table}")
    own, clean = [], []
    for _ in range(WARM + ROUNDS):
        own.append(_scanned(spark, table))
        clean.append(_scanned(spark, copy))
    spark.sql(f"DROP TABLE {copy}")

    def middle(pairs: list[tuple[float, float]], at: int) -> float:
        return statistics.median(each[at] for each in pairs[WARM:])

    return {
        "ratio": round(middle(own, 0) / middle(clean, 0), 2),
        "cpu_ratio": round(middle(own, 1) / middle(clean, 1), 2),
        "seconds": round(middle(own, 0), 3),
        "copy_seconds": round(middle(clean, 0), 3),
    }


def _scanned(spark: Any, table: str) -> tuple[float, float]:
    """Each column of each row; → seconds, and those of a core."""
    began, busy = time.monotonic(), _cpu(spark)
    spark.read.table(table).write.format("noop").mode("overwrite").save()
    return time.monotonic() - began, _cpu(spark) - busy


def _cpu(spark: Any) -> float:
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
