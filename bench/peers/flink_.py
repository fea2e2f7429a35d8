"""Flink's Iceberg sink: SQL in a local mini-cluster, one plain Java process.

The jars of Flink itself come in a Python package; no Python runs beside it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from lake import NAME, NAMESPACE
from measure import Command

from icestream.broker import HOST
from icestream.spark.cache import cache_folder
from peers import Job, fetch, java, version

LOCK = Path(__file__).parent.parent / "flink.lock"
TITLE = "Flink Iceberg sink"
VERSIONS = {
    "flink": LOCK.read_text().split("==")[1].split()[0],
    "iceberg": version("iceberg-flink-runtime-2.1"),
}
MAKES_TABLE = False
PARALLELISM = 2
# What Flink's own scripts give to Java 17 and later.
OPENED = ("lang", "net", "io", "nio", "lang.reflect", "text", "time", "util", "util.concurrent")

SQL = """
CREATE CATALOG lake WITH ({catalog});
CREATE TEMPORARY TABLE incoming (
    id BIGINT, user_id BIGINT, event_type STRING, url STRING, amount DOUBLE,
    event_time TIMESTAMP_LTZ(6), created_ms BIGINT, session STRING, agent STRING
) WITH ({source});
INSERT INTO lake.{table}
SELECT id, user_id, event_type, url, amount, event_time, created_ms, session, agent FROM incoming;
"""


def prepare() -> None:
    fetch("flink")
    _home()


def _home() -> Path:
    """Flink's jars in the cache, installed from a lock file with hashes."""
    name = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    home = cache_folder() / "bench" / f"flink-{name}"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        uv = os.environ.get("UV") or shutil.which("uv") or ".uv/bin/uv"
        with tempfile.TemporaryDirectory(dir=home.parent) as draft:
            flags = ("--quiet", "--no-deps", "--require-hashes", "--requirement", str(LOCK))
            place = ("--python", sys.executable, "--target", draft)
            subprocess.run([uv, "pip", "install", *flags, *place], check=True)
            (Path(draft) / "pyflink").rename(home)
    return home


def command(job: Job) -> Command:
    conf = job.folder / "conf"
    conf.mkdir()
    settings = {
        "execution.target": "local",
        "parallelism.default": PARALLELISM,
        "execution.checkpointing.interval": f"{job.commit_ms} ms",
        "pipeline.object-reuse": "true",
        "table.dml-sync": "true",
        "io.tmp.dirs": job.folder,
        "rest.bind-address": HOST,
        "jobmanager.bind-host": HOST,
        "taskmanager.bind-host": HOST,
    }
    (conf / "config.yaml").write_text("".join(f"{k}: {v}\n" for k, v in settings.items()))
    (job.folder / "job.sql").write_text(_sql(job))
    home = _home()
    libraries = [*sorted((home / "lib").glob("*.jar")), *sorted((home / "opt").glob("*.jar"))]
    [binary, *flags] = java(*libraries, *fetch("flink"))
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
    history = str(job.folder / "history")
    client = ("org.apache.flink.table.client.SqlClient", "-f", "job.sql", "-hist", history)
    environment = {"FLINK_CONF_DIR": str(conf)}
    scratch = f"-Djava.io.tmpdir={job.folder}"
    return Command([binary, scratch, *opened, *flags, *client], job.folder, environment)


def _sql(job: Job) -> str:
    catalog = job.lake.java_properties
    del catalog["type"]
    source = {
        "connector": "kafka",
        "topic": job.topic,
        "properties.bootstrap.servers": job.bootstrap,
        "properties.group.id": "flink",
        "scan.startup.mode": "earliest-offset",
        "format": "json",
        "json.timestamp-format.standard": "ISO-8601",
    }
    impl = {"type": "iceberg", "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog"}
    return SQL.format(
        catalog=_options(impl | catalog), source=_options(source), table=f"{NAMESPACE}.{NAME}"
    )


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
