"""Kafka Connect's Iceberg sink, in a standalone worker."""

from collections.abc import Mapping
from pathlib import Path

from lake import NAME, NAMESPACE
from load import create_topics
from measure import Command

from icestream.cli.demo.broker import HOST, free_port
from peers import Job, fetch, java, version

TITLE = "Kafka Connect Iceberg sink"
VERSIONS = {"kafka": version("connect-runtime"), "iceberg": version("iceberg-kafka-connect")}
MAKES_TABLE = False
TASKS = 2


def prepare() -> None:
    fetch("connect", "connect-iceberg")


def command(job: Job) -> Command:
    plugin = job.folder / "plugins" / "iceberg"
    plugin.mkdir(parents=True)
    for jar in fetch("connect-iceberg"):
        (plugin / jar.name).symlink_to(jar)
    control = f"control-{job.topic}"
    create_topics(job.bootstrap, control, partitions=1)
    worker = {
        "bootstrap.servers": job.bootstrap,
        "listeners": f"http://{HOST}:{free_port()}",
        "plugin.path": plugin.parent,
        "plugin.discovery": "service_load",
        "offset.storage.file.filename": job.folder / "offsets",
        # With the default of a minute, idle tasks answer a commit late.
        "offset.flush.interval.ms": 1000,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "consumer.max.poll.records": 5000,
    }
    sink = {
        "name": f"iceberg-{job.topic}",
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": TASKS,
        "topics": job.topic,
        "iceberg.catalog": "lake",
        "iceberg.tables": f"{NAMESPACE}.{NAME}",
        "iceberg.control.topic": control,
        "iceberg.control.commit.interval-ms": job.commit_ms,
        **{f"iceberg.catalog.{key}": value for key, value in job.lake.java_properties.items()},
    }
    files = {"worker.properties": worker, "sink.properties": sink}
    for name, settings in files.items():
        _write(job.folder / name, settings)
    program = ("-Dlog4j2.level=WARN", "org.apache.kafka.connect.cli.ConnectStandalone")
    return Command([*java(*fetch("connect")), *program, *files], job.folder)


def _write(file: Path, settings: Mapping[str, object]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
