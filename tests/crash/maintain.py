"""Somebody else's maintenance: compaction and expiry by plain SQL, table after table, until killed.

python maintain.py FILE
"""

import sys
import time
from pathlib import Path

from pyspark.sql import Row, SparkSession

from icestream.catalogs import catalog_for, spark_conf
from icestream.config.load import load
from icestream.spark import session

EVERY_SECONDS = 30  # a table; all at once would take half of what a small machine has
ALL = "older_than => TIMESTAMP '2999-01-01', retain_last => 5"


def main(file: str) -> None:
    config = load(file).pipeline
    catalog = catalog_for(config.catalog)
    settings = {
        **spark_conf(catalog),
        **config.spark,
        "spark.master": "local[1]",
        "spark.driver.memory": "512m",
    }
    spark = session.start("maintenance", Path(file).parent / "maintenance", settings)
    while True:
        for table in _asked(spark, f"SHOW TABLES IN {catalog.name}.db"):
            where = f"table => 'db.{table.tableName}'"
            for call in (
                f"rewrite_data_files({where}, options => map('min-input-files', '5'))",
                f"expire_snapshots({where}, {ALL})",
            ):
                print(
                    call,
                    _asked(spark, f"CALL {catalog.name}.system.{call}"),
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(EVERY_SECONDS)
        time.sleep(1)  # no table was told: the catalog is being killed


def _asked(spark: SparkSession, text: str) -> list[Row]:
    try:
        return spark.sql(text).collect()
    except Exception as failure:  # a conflict, or the catalog is being killed
        print(text, str(failure).splitlines()[0], file=sys.stderr, flush=True)
        return []


if __name__ == "__main__":
    main(*sys.argv[1:])
