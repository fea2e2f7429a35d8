"""A million lines through `icestream run --once`: counts, a kill in the middle, many partitions.

    .venv/bin/python bench/million.py [--rows N] [--folder F]

Prints what the tables hold, read by PyIceberg and by Spark, and the peak memory of Python workers.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import icestream

COMMAND = [sys.executable, "-m", "icestream.cli.main", "--log-format", "json"]
CONFIG = """\
name: million
maintenance: false
source: {type: files, path: ./in, pattern: '*.jsonl'%s}
commit_interval: once
tables:
  - name: shop.events
    columns: {event_time: timestamp}
%s"""


def write_lines(file: Path, rows: int, bad: int) -> None:
    """About 250 bytes a line, over 30 days; every (rows/bad)-th is cut off."""
    random = np.random.default_rng(1)
    users, prices = random.integers(0, 50_000, rows), random.integers(100, 99_999, rows)
    every = rows // bad
    with file.open("w") as out:
        for n in range(rows):
            line = (
                f'{{"event_id":"{n:032x}","event_time":"2026-10-{n % 30 + 1:02d}T'
                f'{n // 3600 % 24:02d}:{n // 60 % 60:02d}:{n % 60:02d}.000Z","user_id":{users[n]},'
                f'"session_id":"s-{users[n] * 7919:012d}","page":"/products/{n % 2000}",'
                f'"action":"view","price":{prices[n] / 100},"country":"NL","referrer":null,'
                f'"device":"mobile","active":true}}'
            )
            out.write((line[:100] if n % every == 0 else line) + "\n")


def run(folder: Path, kill_after: int | None = None) -> tuple[float, int]:
    """Run once; → seconds, and the peak RSS of any Python worker in bytes."""
    peak, done = [0], threading.Event()
    began = time.monotonic()
    process = subprocess.Popen([*COMMAND, "run"], cwd=folder, stderr=subprocess.PIPE, text=True)
    watcher = threading.Thread(target=watch_workers, args=(process.pid, peak, done))
    watcher.start()
    commits = 0
    for line in process.stderr:
        commits += line.startswith("{") and json.loads(line)["event"] == "table_committed"
        if commits == kill_after:
            os.kill(process.pid, signal.SIGKILL)
            break
    process.stderr.close()
    code = process.wait()
    done.set()
    watcher.join()
    if kill_after is None and code:
        sys.exit(f"icestream run ended with {code}")
    return time.monotonic() - began, peak[0]


def watch_workers(pid: int, peak: list[int], done: threading.Event) -> None:
    while not done.wait(0.2):
        for entry in Path("/proc").iterdir():
            try:
                if not entry.name.isdigit():
                    continue
                command = (entry / "cmdline").read_bytes()
                if b"icestream.batch.daemon" in command:
                    pages = int((entry / "statm").read_text().split()[1])
                    peak[0] = max(peak[0], pages * os.sysconf("SC_PAGE_SIZE"))
            except OSError:
                continue


def counts(folder: Path) -> dict[str, int]:
    found = icestream.table(folder / "icestream.yml", "shop.events").scan(
        selected_fields=("_src_topic", "_src_offset")
    )
    rows = found.to_arrow()
    aside = icestream.table(folder / "icestream.yml", "shop.events__quarantine").scan().to_arrow()
    return {
        "rows": rows.num_rows,
        "distinct (topic, offset)": rows.group_by(["_src_topic", "_src_offset"])
        .aggregate([])
        .num_rows,
        "quarantined": aside.num_rows,
        "distinct quarantined": len(set(aside.column("offset").to_pylist())),
    }


def spark_counts(folder: Path) -> dict[str, int]:
    from icestream.catalogs import catalog_for, spark_conf
    from icestream.config.load import load
    from icestream.spark import session

    config = load(folder / "icestream.yml").pipeline
    spark = session.start("count", folder / "spark", spark_conf(catalog_for(config.catalog)))
    query = (
        "SELECT count(*), count(DISTINCT _src_topic, _src_offset), "
        "(SELECT count(*) FROM lake.shop.events__quarantine) FROM lake.shop.events"
    )
    rows, distinct, aside = spark.sql(query).collect()[0]
    return {"rows": rows, "distinct (topic, offset)": distinct, "quarantined": aside}


def prepare(home: Path, name: str, lines: Path, source: str, table: str) -> Path:
    folder = home / name
    (folder / "in").mkdir(parents=True)
    os.link(lines, folder / "in" / "lines.jsonl")
    (folder / "icestream.yml").write_text(CONFIG % (source, table))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    home = options.folder or Path(tempfile.mkdtemp(prefix="icestream-million-"))
    home.mkdir(parents=True, exist_ok=True)
    lines = home / "lines.jsonl"
    write_lines(lines, options.rows, options.rows // 1000)
    print(f"{options.rows:,} lines, {lines.stat().st_size / options.rows:.0f} bytes each")

    plain = prepare(home, "plain", lines, "", "")
    seconds, peak = run(plain)
    print(f"run --once: {seconds:.1f} s, worker peak {peak / 1e6:.0f} MB, {counts(plain)}")
    seconds, _ = run(plain)
    print(f"again: {seconds:.1f} s, {counts(plain)}")

    killed = prepare(home, "killed", lines, ", max_records_per_commit: 150000", "")
    run(killed, kill_after=3)
    print(f"killed after 3 commits: {counts(killed)}")
    shutil.rmtree(killed / ".icestream")
    run(killed)
    print(f"state deleted, run again: {counts(killed)}")
    print(f"the same read by Spark: {spark_counts(killed)}")

    spec = "    partition_by: ['bucket(64, user_id)', days(event_time)]\n"
    many = prepare(home, "many", lines, "", spec)
    seconds, peak = run(many)
    files = icestream.table(many / "icestream.yml", "shop.events").inspect.files()
    partitions = len({str(each) for each in files.column("partition").to_pylist()})
    print(
        f"1,920 partitions: {seconds:.1f} s, worker peak {peak / 1e6:.0f} MB, "
        f"{partitions} partitions, {files.num_rows} files, {counts(many)}"
    )
    if options.folder is None:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
