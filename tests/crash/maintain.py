"""Somebody else's maintenance: compaction and expiry by plain SQL, again and again, until killed.

python maintain.py FILE
"""

import sys
import time
from pathlib import Path

from icestream.catalogs import catalog_for, spark_conf
from icestream.config.load import load
from icestream.spark import session

EVERY_SECONDS = 60
ALL = "older_than => TIMESTAMP '2999-01-01', retain_last => 5"


def main(file: str) -> None:
    catalog = catalog_for(load(file).pipeline.catalog)
    settings = {**spark_conf(catalog), "spark.master": "local[1]", "spark.driver.memory": "512m"}
    spark = session.start("maintenance", Path(file).parent / "maintenance", settings)
    while True:
        for table in spark.sql(f"SHOW TABLES IN {catalog.name}.db").collect():
            where = f"table => 'db.{table.tableName}'"
            for call in (
                f"rewrite_data_files({where}, options => map('min-input-files', '5'))",
                f"expire_snapshots({where}, {ALL})",
            ):
                try:
                    done = spark.sql(f"CALL {catalog.name}.system.{call}").collect()
                    print(call, done, file=sys.stderr, flush=True)
                except Exception as failure:  # a conflict, or the catalog is being killed
                    print(call, str(failure).splitlines()[0], file=sys.stderr, flush=True)
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
