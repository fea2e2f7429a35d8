"""SQL by Spark in a process of its own: MERGE INTO, scans and checks; CPU and time of each."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lake import Lake
from measure import Command, last_words, running
from peers import HEAP
from runs import Failed

from icestream.spark import jars
from icestream.spark.java import find_java

PROGRAM = Path(__file__).parent / "peers" / "statements_job.py"


@dataclass(frozen=True)
class Done:
    """One statement, and what it took the whole process tree."""

    name: str
    seconds: float
    cpu: float
    rows: list[dict[str, Any]]


def run(folder: Path, lake: Lake, statements: Sequence[tuple[str, str]]) -> list[Done]:
    """Start Spark as its users do, run the statements (each has a name), and stop it."""
    folder.mkdir()
    told = folder / "told.jsonl"
    job = {"conf": conf(lake), "told": str(told), "statements": statements}
    (folder / "job.json").write_text(json.dumps(job))
    argv = [sys.executable, str(PROGRAM), "job.json"]
    env = {"JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    with running(Command(argv, folder, env)) as tree:
        code = tree.process.wait()
    if code:
        raise Failed(f"Spark ended with {code}\n{last_words(folder)}")
    found = map(json.loads, told.read_text().splitlines())
    return [
        Done(
            each["name"],
            each["ended"] - each["began"],
            tree.cpu_at(each["ended"]) - tree.cpu_at(each["began"]),
            each["rows"],
        )
        for each in found
    ]


def conf(lake: Lake) -> dict[str, str]:
    """Spark with the lake's catalog, all cores, and nothing else that its users would not set."""
    catalog = {f"spark.sql.catalog.lake.{k}": v for k, v in lake.java_properties.items()}
    return {
        "spark.master": "local[*]",
        "spark.driver.memory": HEAP,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraClassPath": os.pathsep.join(map(str, jars.ensure(("core",)))),
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        **catalog,
    }
