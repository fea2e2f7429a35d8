"""A steady trickle for minutes: does memory or a folder grow?

    .venv/bin/python bench/steady.py [--seconds 600]

icestream follows 5,000 records a second with a commit every second. Every few seconds the memory of
driver, JVM and Python workers is sampled, and what lies in the state folder; now and then also what
is alive in Java's heap, since the JVM itself takes what it may before it collects. The rows are
checked at the end.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import load
import peers
from lake import Lake, expected
from measure import TICKS, Tree, running
from runs import LIVE_RATE, compare, wait_for

from icestream.spark.java import find_java

ROOT = Path(__file__).parent.parent
EVERY_SECONDS, WINDOWS = 5, 5
TOPIC = "steady"
PARTS = ("driver", "jvm", "workers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results")
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="steady-", dir=ROOT / "build"))
    try:
        result = follow(home, options.seconds)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    options.results.mkdir(exist_ok=True)
    (options.results / "steady.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def follow(home: Path, seconds: int) -> dict[str, Any]:
    """Run, sample, check the rows; → medians per window of time, the start left out."""
    peer = peers.load("icestream")
    peer.prepare()
    folder = home / "icestream"
    folder.mkdir()
    with load.broker(home / "broker") as broker:
        load.create_topics(broker.bootstrap, TOPIC)
        lake = Lake(folder / "warehouse")
        job = peers.Job(folder, broker.bootstrap, TOPIC, lake, True, 1_000_000)
        trickle = load.Trickle(broker.bootstrap, TOPIC, LIVE_RATE)
        with running(peer.command(job)) as tree:
            trickle.start()
            try:
                wait_for(1, tree, lake)
                samples, heap = [], [live_heap(tree)]
                for at in every(EVERY_SECONDS, seconds):
                    samples.append(sampled(tree, folder))
                    if at * WINDOWS >= seconds * len(heap):
                        heap.append(live_heap(tree))
            finally:
                sent = trickle.stop()
            wait_for(sent, tree, lake)
    compare(lake.check(), expected(sent) | {"created": None})
    told = {"records": sent, "seconds": seconds, "commits": len(lake.commits())}
    return (
        told
        | {"live_heap_mb": heap}
        | {name: windows([each[name] for each in samples]) for name in samples[0]}
    )


def every(pause: float, seconds: float) -> Iterator[float]:
    """The seconds so far, now and then."""
    began = time.monotonic()
    while (at := time.monotonic() - began) < seconds:
        yield at
        time.sleep(pause)


def live_heap(tree: Tree) -> float:
    """Megabytes that are alive in the driver's JVM, by a histogram of its classes."""
    jcmd = find_java().home / "bin" / "jcmd"
    [pid] = [pid for pid in tree._alive() if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
    told = subprocess.run([jcmd, str(pid), "GC.class_histogram"], capture_output=True, check=True)
    return round(int(told.stdout.split(b"Total")[-1].split()[1]) / 1e6, 1)


def sampled(tree: Tree, folder: Path) -> dict[str, float]:
    """Megabytes now."""
    state = folder / ".icestream"
    return {f"{name}_mb": rss for name, (_, rss) in kind(tree).items()} | {
        "spark_scratch_mb": size(state / "spark") + size(state / "bench"),
        "state_mb": size(state),
    }


def kind(tree: Tree) -> dict[str, tuple[float, float]]:
    """CPU-seconds and resident megabytes of driver, JVM and Python workers."""
    found: dict[str, tuple[float, float]] = dict.fromkeys(PARTS, (0.0, 0.0))
    for pid, each in tree._alive().items():
        with suppress(OSError):
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            part = "driver" if pid == tree.process.pid else "jvm" if name == "java" else "workers"
            cpu, rss = found[part]
            found[part] = (cpu + each.cpu / TICKS, rss + each.rss / 1e6)
    return found


def size(folder: Path) -> float:
    """Megabytes in a folder; files come and go meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.stat().st_size
    return total / 1e6


def windows(values: list[float]) -> list[float]:
    """The median of each part of the time."""
    step = max(1, len(values) // WINDOWS)
    parts = [values[at : at + step] for at in range(0, step * WINDOWS, step)]
    return [round(statistics.median(part), 1) for part in parts if part]


if __name__ == "__main__":
    main()
