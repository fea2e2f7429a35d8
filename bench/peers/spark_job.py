"""The streaming query of the plain Spark peer, a program of its own."""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

SCHEMA = (
    "id bigint, user_id bigint, event_type string, url string, amount double, "
    "event_time timestamp, created_ms bigint, session string, agent string"
)


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    spark = SparkSession.builder.config(map=job["conf"]).getOrCreate()
    (
        spark.readStream.format("kafka")
        .options(**job["options"])
        .load()
        .select(from_json(col("value").cast("string"), SCHEMA).alias("event"))
        .select("event.*")
        .writeStream.format("iceberg")
        .outputMode("append")
        .trigger(processingTime=job["trigger"])
        .option("checkpointLocation", job["checkpoint"])
        .toTable(job["table"])
        .awaitTermination()
    )


if __name__ == "__main__":
    main()
