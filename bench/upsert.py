"""Upserts side by side: a backlog of change events, and batches of changes on large tables.

    .venv/bin/python bench/upsert.py [--events N] [--rows N,N] [--peers flink,merge]

README.md in this folder says what is measured and how; `make bench-upsert` is the same command.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batches
import changes
import events
import load
import outcome
import peers
import report
from append import ROOT, say
from measure import last_words
from mirror import MirrorLake, extensions
from peers import flink_, upsert_
from runs import Failed

PEERS = ("flink", "merge")
TOPIC = "orders"


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (ROOT / "build").mkdir(exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="upsert-", dir=ROOT / "build"))
    campaign = Campaign(home, options)
    try:
        campaign.run()
    finally:
        if options.keep:
            say(f"kept {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    outcome.conclude(campaign.result)
    outcome.show(campaign.result)
    options.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(campaign.result, indent=2) + "\n"
    (options.results / "upsert.json").write_text(text)
    for name, why in campaign.failures:
        say(f"{name} FAILED: {why}")
    return 1 if campaign.failures else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000, help="0: without this part")
    parser.add_argument("--rows", default="1000000,10000000", help="sizes of tables; '': none")
    parser.add_argument("--peers", default="flink,merge", help="who runs beside icestream")
    parser.add_argument("--changes", type=int, default=20_000, help="in a batch")
    parser.add_argument("--warm-batches", type=int, default=2)
    parser.add_argument("--batches", type=int, default=5, help="that are measured")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--keep", action="store_true", help="keep the work files")
    options = parser.parse_args()
    options.peers = [*filter(None, options.peers.split(","))]
    options.rows = [int(each) for each in filter(None, options.rows.split(","))]
    if unknown := set(options.peers) - set(PEERS):
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    if options.warm_batches < 1 or options.batches < 1:
        parser.error("at least one batch to warm up, and one to measure")
    if 0 < options.events < 1_000:
        parser.error("at least 1,000 events")
    if options.rows and min(options.rows) < options.changes:
        parser.error(f"tables of {options.changes:,} rows at least, or fewer changes")
    return options


class Campaign:
    """Both parts, all systems one after the other, on one broker."""

    def __init__(self, home: Path, options: argparse.Namespace) -> None:
        self.home = home
        self.options = options
        self.failures: list[tuple[str, str]] = []
        self.systems = {name: peers.load(name) for name in ("icestream", *options.peers)}
        self.result = report.head(self.systems)

    def run(self) -> None:
        for name, peer in self.systems.items():
            say(f"{name}: fetching what is missing")
            peer.prepare()
        extensions()
        with load.broker(self.home / "broker") as broker:
            if self.options.events:
                self.backlog(broker.bootstrap)
            for rows in self.options.rows:
                self.batches(broker.bootstrap, rows)

    def backlog(self, bootstrap: str) -> None:
        """Change events as fast as they can be taken."""
        count = self.options.events
        load.create_topics(bootstrap, TOPIC)
        feed, size = changes.fill(bootstrap, TOPIC, count)
        say(f"loaded {count:,} events")
        if (arrived := load.records_of(bootstrap, TOPIC)) != count:
            raise RuntimeError(f"the broker holds {arrived} records instead of {count}")
        right = changes.Maker().truth(feed)
        self.result |= {
            "records": count,
            "bytes_per_record": round(size, 1),
            "rows": right["rows"],
        }
        # Flink says what it wrote, not what it took: all events but deletes.
        first = changes.first_inserts(count)
        taken = {0: 0, first: first, count - feed.deletes: count}

        def run(name: str, folder: Path) -> dict[str, Any]:
            lake = MirrorLake(folder / "warehouse", taken)
            job = events.job_for(folder, bootstrap, TOPIC, lake, count)
            if name == "flink":
                lake.create_keyed(flink_.UPSERT_PROPERTIES)
            command = flink_.upsert if name == "flink" else upsert_.command
            # Not every reader knows equality deletes.
            return events.drain(command, job, count, right, by_all=name == "icestream")

        for name in self.systems:
            if name != "merge":
                done = self.attempt(name, f"{name}-events", run)
                self.result["systems"][name] |= done or {}

    def batches(self, bootstrap: str, rows: int) -> None:
        """The same changes for icestream and MERGE, on tables of so many rows."""
        options = self.options
        count = options.warm_batches + options.batches
        course = batches.Course(rows, count, options.changes, options.warm_batches)

        def run(name: str, folder: Path) -> dict[str, Any]:
            if name == "merge":
                return batches.by_merge(folder, course)
            return batches.by_icestream(folder, bootstrap, course)

        for name in self.systems:
            if name != "flink":
                done = self.attempt(name, f"{name}-{rows}", run)
                if done:
                    self.result["systems"][name].setdefault("batches", {})[str(rows)] = done

    def attempt(
        self, name: str, what: str, run: Callable[[str, Path], dict[str, Any]]
    ) -> dict[str, Any] | None:
        """Run one system in a folder of its own; its failure does not end the campaign."""
        folder = self.home / what
        folder.mkdir()
        say(what)
        try:
            return run(name, folder)
        except Failed as failure:
            log = last_words(folder) if (folder / "output.log").exists() else ""
            say(f"{what}: {failure}\n{log}")
            self.failures.append((what, str(failure)))
            return None
        finally:
            if not self.options.keep:
                shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
