"""icestream itself, as its users run it: one file, one command."""

import os
import sys
from importlib.metadata import version
from pathlib import Path

from lake import NAME, NAMESPACE
from measure import Command

from icestream.spark import jars
from icestream.spark.java import find_java
from peers import HEAP, Job

TITLE = "icestream"
VERSIONS = {
    "icestream": version("icestream"),
    "spark": version("pyspark"),
    "iceberg": next(jar.version for jar in jars.locked() if "iceberg" in jar.artifact),
}
MAKES_TABLE = True

CONFIG = """\
name: bench
catalog: {{type: local, name: lake, warehouse: {warehouse}}}
source:
  type: kafka
  bootstrap_servers: {bootstrap}
  topics: [{topic}]
  max_records_per_commit: {records}
  format: {{type: json}}
commit_interval: 1s
tables:
  - name: {table}
    metadata_columns: true
    columns:
      id: bigint
      user_id: bigint
      event_type: string
      url: string
      amount: double
      event_time: timestamp
      created_ms: bigint
      session: string
      agent: string
maintenance: false
spark: {{spark.driver.memory: {heap}}}
"""


def prepare() -> None:
    jars.ensure(("core", "kafka"))
    find_java()


def command(job: Job) -> Command:
    text = CONFIG.format(
        warehouse=job.lake.warehouse,
        bootstrap=job.bootstrap,
        topic=job.topic,
        records=job.records_per_commit,
        table=f"{NAMESPACE}.{NAME}",
        heap=HEAP,
    )
    (job.folder / "icestream.yml").write_text(text)
    program = Path(sys.executable).with_name("icestream")
    return Command([os.fspath(program), "--log-format", "json", "run", "icestream.yml"], job.folder)
