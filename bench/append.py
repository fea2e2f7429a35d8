"""Append side by side: the same Kafka records into Iceberg by icestream and by its peers.

    .venv/bin/python bench/append.py [--records N] [--peers spark,flink,connect]

README.md in this folder says what is measured and how; `make bench` is the same command.
"""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import load
import peers
import report
from lake import Lake, expected
from measure import last_words
from runs import LIVE_RATE, Failed, drain, live

ROOT = Path(__file__).parent.parent
EVENTS = "events"
PORTION = 1_000_000


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (ROOT / "build").mkdir(exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="bench-", dir=ROOT / "build"))
    campaign = Campaign(home, options)
    try:
        campaign.run()
    finally:
        if options.keep:
            say(f"kept {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    report.show(campaign.result)
    report.save(campaign.result, options.results)
    for name, why in campaign.failures:
        say(f"{name} FAILED: {why}")
    return 1 if campaign.failures else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--peers", default="spark,flink,connect", help="who runs beside icestream")
    parser.add_argument("--without-icestream", action="store_true", help="only the peers")
    parser.add_argument("--skip-throughput", action="store_true")
    parser.add_argument("--skip-freshness", action="store_true")
    parser.add_argument("--live-warm-seconds", type=int, default=30)
    parser.add_argument("--live-seconds", type=int, default=60)
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    parser.add_argument("--keep", action="store_true", help="keep the work files")
    options = parser.parse_args()
    own = [] if options.without_icestream else ["icestream"]
    options.systems = [*own, *filter(None, options.peers.split(","))]
    if unknown := set(options.systems) - set(peers.NAMES):
        parser.error(f"no such system: {', '.join(unknown)}; there are {', '.join(peers.NAMES)}")
    return options


class Campaign:
    """All systems, one after the other, on one broker."""

    def __init__(self, home: Path, options: argparse.Namespace) -> None:
        self.home = home
        self.options = options
        self.systems = {name: peers.load(name) for name in options.systems}
        self.failures: list[tuple[str, str]] = []
        self.result = report.head(self.systems)

    def run(self) -> None:
        for name, peer in self.systems.items():
            say(f"{name}: fetching what is missing")
            peer.prepare()
        with load.broker(self.home / "broker") as broker:
            if not self.options.skip_throughput:
                self.throughput(broker.bootstrap)
            if not self.options.skip_freshness:
                self.freshness(broker.bootstrap)

    def throughput(self, bootstrap: str) -> None:
        records = self.options.records
        load.create_topics(bootstrap, EVENTS)
        began = time.monotonic()
        size = load.fill(bootstrap, EVENTS, records)
        say(f"loaded {records:,} records, {records / (time.monotonic() - began):,.0f} a second")
        if (arrived := load.records_of(bootstrap, EVENTS)) != records:
            raise RuntimeError(f"the broker holds {arrived} records instead of {records}")
        self.result |= {"records": records, "bytes_per_record": round(size, 1)}
        right = expected(records)
        for name in self.systems:
            self.attempt(name, bootstrap, EVENTS, lambda peer, job: drain(peer, job, right))

    def freshness(self, bootstrap: str) -> None:
        times = (self.options.live_warm_seconds, self.options.live_seconds)
        self.result["freshness"] = {"records_per_s": LIVE_RATE, "seconds": times[1]}
        for name in self.systems:
            load.create_topics(bootstrap, f"live-{name}")
            self.attempt(name, bootstrap, f"live-{name}", lambda peer, job: live(peer, job, times))

    def attempt(
        self, name: str, bootstrap: str, topic: str, run: Callable[..., dict[str, Any]]
    ) -> None:
        """Run one system in a folder of its own; its failure does not end the campaign."""
        folder = self.home / f"{name}-{topic}"
        folder.mkdir()
        lake, peer = Lake(folder / "warehouse"), self.systems[name]
        if not peer.MAKES_TABLE:
            lake.create()
        is_live = topic != EVENTS
        # Ten commits at least, so that a small backlog has a steady state, too.
        portion = PORTION if is_live else min(PORTION, self.options.records // 10)
        job = peers.Job(folder, bootstrap, topic, lake, is_live, portion)
        say(f"{name}: topic {topic}")
        try:
            self.result["systems"][name] |= run(peer, job)
        except Failed as failure:
            say(f"{name}: {failure}\n{last_words(folder)}")
            self.failures.append((name, str(failure)))
        if not self.options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
