"""The demo: a small shop, generated, ingested into a lake in one folder, and counted."""

import shutil
import sys
from pathlib import Path

from humanize import naturalsize

from icestream.cli import output
from icestream.config.load import LoadedConfig, load
from icestream.errors import UsageError
from icestream.maintain.action import ActionKind, Ending
from icestream.observe import history
from icestream.observe.status import PipelineStatus, pipeline_status

RATE = 5000  # records a second
SEED = 7
MALFORMED = 0.001

_SIGN = ".icestream-demo"
GENERATED = f"""\
  type: generator
  rate: {RATE}                  # records a second
  seed: {SEED}
  malformed: {MALFORMED}            # some records are cut off, to see them set aside
"""
_FILE = """\
# A small shop, made up as it goes: every page event is a row, every order is one row at its newest.
name: demo
catalog: {type: local, warehouse: ./warehouse}
source:
<source>commit_interval: 5s
state_location: ./state
maintenance:                    # usually every 5m, and more patient; here it shall be seen
  every: 10s
  rewrite_data_files: {min-input-files: "2"}
  expire_snapshots: {retain_last: 3, max_snapshots: 5}
tables:
  - match: page_events
    name: shop.page_events
    columns: {event_time: timestamp, price: decimal(10,2)}
    partition_by: [days(event_time)]
  - match: order_changes
    name: shop.orders
    mode: upsert                # one row per key; the newest change wins
    keys: [order_id]
    sequence_by: [change_id]
    apply_as_deletes: "status = 'cancelled'"
    columns: {change_time: timestamp, amount: decimal(12,2)}
"""


def prepare(folder: Path, source: str = GENERATED) -> LoadedConfig:
    """Make a folder with the demo's pipeline file; only an earlier demo is ever replaced."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _SIGN).exists():
            raise UsageError(
                f"folder `{folder}` is not empty and not an earlier demo",
                hint="name another one: `icestream demo --folder some-new-folder`",
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _SIGN).touch()
    file = folder / "icestream.yml"
    file.write_text(_FILE.replace("<source>", source))
    output.note(f"demo: a shop at {RATE:,} records a second; everything is in {folder}/")
    return load(file)


def summary(loaded: LoadedConfig) -> PipelineStatus:
    """Show what was ingested, table by table. Returns the pipeline's status."""
    status = pipeline_status(loaded)
    state = Path(loaded.pipeline.state_location)
    rows = []
    for table in status.tables:
        commits = history.commits(state, loaded.pipeline.name, table.table, 0)
        fresh = sorted(
            c["freshness_seconds"] for c in commits if c["freshness_seconds"] is not None
        )
        median = round(fresh[len(fresh) // 2], 1) if fresh else None
        counts = (table.records, table.rows, len(commits), table.data_files)
        size = naturalsize(table.bytes)
        rows.append((table.table, *counts, size, median, table.quarantined))
    output.result("")
    output.table(
        ("table", "records", "rows", "commits", "files", "size", "freshness s", "quarantined"),
        rows,
        title="what was ingested",
    )
    _show_maintenance(state, loaded.pipeline.name)
    landed = sum(table.records for table in status.tables)
    bad = sum(table.quarantined for table in status.tables)
    output.result(f"\n{landed + bad:,} records in = {landed:,} taken + {bad:,} quarantined")
    return status


def _show_maintenance(state: Path, pipeline: str) -> None:
    """Show what maintenance did beside the run, table by table."""
    actions = history.maintenance(state, pipeline)
    done = [action for action in actions if action["ending"] == Ending.DONE]
    if not done:
        output.result("\nmaintenance looks every 10 s, and had nothing to do yet")
        return
    rows = []
    for name in sorted({action["table"] for action in done}):
        of_table = [action for action in done if action["table"] == name]
        rewrites = [a for a in of_table if a["action"] == ActionKind.REWRITE_DATA_FILES]
        expiries = [a for a in of_table if a["action"] == ActionKind.EXPIRE_SNAPSHOTS]
        before = sum(action["files_before"] for action in rewrites)
        after = sum(action["files_after"] for action in rewrites)
        expired = sum(action["files_before"] - action["files_after"] for action in expiries)
        seconds = sum(action["seconds"] for action in of_table)
        change = f"{before:,} → {after:,}" if rewrites else None
        rows.append((name, change, expired, round(seconds, 1)))
    output.result("")
    output.table(
        ("table", "files joined", "snapshots expired", "seconds"),
        rows,
        title="maintenance beside the stream",
    )


def suggest(file: Path, status: str = "status", runs: bool = True) -> None:
    """Show commands to try next; `runs`: the pipeline can be run again."""
    program = _shown(Path(sys.argv[0])) if Path(sys.argv[0]).name == "icestream" else "icestream"
    python = _shown(Path(sys.executable))
    query = (
        f"import icestream; print(icestream.table('{file}', 'shop.page_events').scan("
        "selected_fields=('event_time', 'user_id', 'action', 'price'), limit=5).to_pandas())"
    )
    output.result("\nnext, for example:")
    output.result(f"  {program} {status} {file}")
    output.result(f'  {python} -c "{query}"')
    if runs:
        output.result(
            f"  {program} run {file}    # goes on where the demo stopped; Ctrl-C stops it"
        )


def _shown(program: Path) -> str:
    """Return a program's path relative to the current folder, if it is below it."""
    try:
        return str(program.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(program)
