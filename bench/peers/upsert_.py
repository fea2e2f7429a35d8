"""icestream as a mirror: Debezium events, one row for each key."""

import os
import sys
from pathlib import Path

from changes import COLUMNS
from lake import NAME, NAMESPACE
from measure import Command

from peers import HEAP, Job

CONFIG = """\
name: bench
catalog: {{type: local, name: lake, warehouse: {warehouse}}}
source:
  type: kafka
  bootstrap_servers: {bootstrap}
  topics: [{topic}]
  max_records_per_commit: {records}
  format: {{type: debezium, decimal_handling_mode: string}}
commit_interval: {seconds}s
tables:
  - name: {table}
    mode: upsert
    keys: [id]
    columns:
{columns}
maintenance: false
spark: {{spark.driver.memory: {heap}}}
"""


def command(job: Job, *flags: str) -> Command:
    kinds = {"timestamptz": "timestamp"}  # Spark's word for it
    text = CONFIG.format(
        warehouse=job.lake.warehouse,
        bootstrap=job.bootstrap,
        topic=job.topic,
        records=job.records_per_commit,
        seconds=job.commit_ms // 1000,
        table=f"{NAMESPACE}.{NAME}",
        columns="\n".join(f"      {name}: {kinds.get(k, k)}" for name, k in COLUMNS.items()),
        heap=HEAP,
    )
    (job.folder / "icestream.yml").write_text(text)
    program = os.fspath(Path(sys.executable).with_name("icestream"))
    argv = [program, "--log-format", "json", "run", "icestream.yml", *flags]
    return Command(argv, job.folder)
