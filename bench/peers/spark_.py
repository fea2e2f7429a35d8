"""Plain Spark Structured Streaming: Kafka, from_json, Iceberg; as its users write it."""

import json
import os
import sys
from pathlib import Path

from lake import NAME, NAMESPACE
from measure import Command
from pyspark import __version__ as spark_version

from icestream.spark import jars
from icestream.spark.java import find_java
from peers import HEAP, Job

TITLE = "Spark Structured Streaming"
VERSIONS = {
    "spark": spark_version,
    "iceberg": next(j.version for j in jars.locked() if "iceberg" in j.artifact),
}
MAKES_TABLE = False
SETS = ("core", "kafka")


def prepare() -> None:
    jars.ensure(SETS)


def command(job: Job) -> Command:
    catalog = {f"spark.sql.catalog.lake.{k}": v for k, v in job.lake.java_properties.items()}
    options = {"kafka.bootstrap.servers": job.bootstrap, "subscribe": job.topic}
    if not job.live:  # with a trigger interval it would cap the rate
        options["maxOffsetsPerTrigger"] = str(job.records_per_commit)
    settings = {
        "conf": {
            "spark.master": "local[*]",
            "spark.driver.memory": HEAP,
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.extraClassPath": os.pathsep.join(map(str, jars.ensure(SETS))),
            "spark.sql.extensions": (
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
            ),
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            **catalog,
        },
        "options": {**options, "startingOffsets": "earliest"},
        "trigger": f"{job.commit_ms} milliseconds" if job.live else "0 seconds",
        "checkpoint": str(job.folder / "checkpoint"),
        "table": f"lake.{NAMESPACE}.{NAME}",
    }
    (job.folder / "job.json").write_text(json.dumps(settings))
    script = Path(__file__).with_name("spark_job.py")
    return Command(
        [sys.executable, str(script), "job.json"],
        job.folder,
        {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable},
    )
