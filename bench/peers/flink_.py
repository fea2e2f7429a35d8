"""Flink's Iceberg sink, appending or upserting: SQL in a local mini-cluster, one Java process.

The jars of Flink itself come in a Python package; no Python runs beside it.
"""

from pathlib import Path

import wheels
from changes import COLUMNS
from lake import NAME, NAMESPACE
from measure import Command

from icestream.cli.demo.broker import HOST
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

# Key and order of the source are the sink's: nothing between them has to put rows in order again.
UPSERT = """
SET 'table.exec.sink.upsert-materialize' = 'NONE';
CREATE CATALOG lake WITH ({catalog});
CREATE TEMPORARY TABLE incoming (
    {columns}, PRIMARY KEY (id) NOT ENFORCED
) WITH ({source});
INSERT INTO lake.{table} SELECT * FROM incoming;
"""
UPSERT_PROPERTIES = {"write.upsert.enabled": "true"}
KINDS = {"timestamptz": "TIMESTAMP_LTZ(6)"}  # the others have one name


def prepare() -> None:
    fetch("flink")
    _home()


def _home() -> Path:
    return wheels.installed(LOCK) / "pyflink"


def command(job: Job) -> Command:
    return _command(job, _sql(job, SQL, "json"))


def upsert(job: Job) -> Command:
    """Take Debezium's events into a table that has a key."""
    columns = ", ".join(f"{name} {KINDS.get(kind, kind)}" for name, kind in COLUMNS.items())
    return _command(job, _sql(job, UPSERT, "debezium-json", columns=columns))


def _command(job: Job, sql: str) -> Command:
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
    (job.folder / "job.sql").write_text(sql)
    home = _home()
    libraries = [*sorted((home / "lib").glob("*.jar")), *sorted((home / "opt").glob("*.jar"))]
    [binary, *flags] = java(*libraries, *fetch("flink"))
    opened = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED]
    history = str(job.folder / "history")
    client = ("org.apache.flink.table.client.SqlClient", "-f", "job.sql", "-hist", history)
    environment = {"FLINK_CONF_DIR": str(conf)}
    scratch = f"-Djava.io.tmpdir={job.folder}"
    return Command([binary, scratch, *opened, *flags, *client], job.folder, environment)


def _sql(job: Job, statements: str, form: str, **more: str) -> str:
    catalog = job.lake.java_properties
    del catalog["type"]
    source = {
        "connector": "kafka",
        "topic": job.topic,
        "properties.bootstrap.servers": job.bootstrap,
        "properties.group.id": "flink",
        "scan.startup.mode": "earliest-offset",
        "format": form,
        f"{form}.timestamp-format.standard": "ISO-8601",
    }
    impl = {"type": "iceberg", "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog"}
    return statements.format(
        catalog=_options(impl | catalog),
        source=_options(source),
        table=f"{NAMESPACE}.{NAME}",
        **more,
    )


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
