"""What icestream is compared with: Spark's own Kafka source into Iceberg's own streaming sink.

python plain.py FILE TOPIC [--once]
"""

import sys
from pathlib import Path

from icestream.catalogs import catalog_for, spark_conf
from icestream.config.load import load
from icestream.spark import session

CHECKPOINT = "plain-checkpoint"
COLUMNS = (
    "get_json_object(CAST(value AS STRING), '$.id') AS id",
    "topic AS _src_topic",
    "partition AS _src_partition",
    "offset AS _src_offset",
)


def main(file: str, topic: str, once: str = "") -> None:
    config = load(file).pipeline
    catalog = catalog_for(config.catalog)
    settings = {**spark_conf(catalog), "spark.driver.memory": "512m"}
    folder = Path(file).absolute().parent
    spark = session.start("plain", folder / "plain", settings, ["kafka"])
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog.name}.db")
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {catalog.name}.db.{topic}"
        " (id STRING, _src_topic STRING, _src_partition INT, _src_offset BIGINT) USING iceberg"
    )
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", config.source.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr(*COLUMNS)
        .writeStream.format("iceberg")
        .option("checkpointLocation", str(folder / CHECKPOINT))
        .trigger(**({"availableNow": True} if once else {"processingTime": "1 second"}))
        .toTable(f"{catalog.name}.db.{topic}")
    )
    while not query.awaitTermination(0.2):
        if query.lastProgress and query.lastProgress.numInputRows:
            print('"table_committed"', file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
