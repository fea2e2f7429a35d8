"""A long run with a commit every second: do files, metadata or the time of a query grow?

    make soak MINUTES=15

Two tables of events begin empty, a mirror with a million rows. First a while without maintenance,
for the freshness to compare with; then, from the same tables, with it. Figures go to
build/soak.json; the exit code is 1 if one of them is over its bound.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np  # noqa: E402
from pyiceberg.table import Table  # noqa: E402

from crash import people  # noqa: E402
from crash.scans import scan_ratios  # noqa: E402
from crash.world import Driver, World  # noqa: E402
from icestream.catalogs import catalog_for  # noqa: E402
from icestream.verify import verify  # noqa: E402

PER_SECOND, KEYS, WIDTH = 3_000, 1_000_000, 400
SAMPLE_SECONDS = 10
WARM_SECONDS = 30.0  # at the start of each part, which is not measured
COMPARED = 3  # snapshots of the mirror, with what the feeder knows; `verify` looks at them all
TABLES = ("db.orders", "db.clicks", people.TABLE)
MAINTENANCE = """
  every: 5s
  rewrite_data_files: {min-input-files: "4"}
  rewrite_position_delete_files: {min-input-files: "5"}
  expire_snapshots: {older_than: 30s, retain_last: 5, max_snapshots: 100}
"""
MOST_SCAN, MOST_FRESHNESS = 1.3, 1.5
MOST_TREND = 1.0  # files a minute, where commits make 60: rewrites come in waves of some ten files
MOST_SNAPSHOTS = 160  # expiry waits for half as many again as may stay, at the most
MOST_METADATA = 2_000 * MOST_SNAPSHOTS  # bytes of metadata.json


def soak(folder: Path, minutes: float, keys: int) -> dict[str, Any]:
    """Both parts on one world; → figures."""
    with soaked(folder, keys) as world:
        say("the mirror's first rows")
        if code := world.start_once():
            raise RuntimeError(f"the first rows: exit code {code}")
        say("without maintenance")
        before, _ = part(world, 12 * minutes, WARM_SECONDS)
        world.configure(MAINTENANCE)
        say("with maintenance")
        after, samples = part(world, 60 * minutes, WARM_SECONDS)
        tables = {name: told(samples, name) for name in TABLES}
        facts = {
            "minutes": minutes,
            "freshness_p95_s": round(p95(after), 2),
            "freshness_p95_without_s": round(p95(before), 2),
            "freshness_p95_ratio": round(p95(after) / p95(before), 2),
            "files_trend_per_min": max(each["files_trend_per_min"] for each in tables.values()),
            "metadata_json_bytes": max(samples[-1][name]["metadata_bytes"] for name in TABLES),
            "tables": tables,
        }
        say(json.dumps(facts))
        world.feeder.stop()
        scans = scan_ratios(world.config, folder / "scans", TABLES)
        facts |= {"scan_ratio": max(each["ratio"] for each in scans.values()), "scans": scans}
        say(json.dumps(scans))
        return facts | proof(world)


@contextmanager
def soaked(folder: Path, keys: int, spark: str = "{}") -> Iterator[World]:
    """A world with two tables of events and a mirror of so many rows."""
    world = World(folder, "local", PER_SECOND, keys, width=WIDTH, everyone=True, spark=spark)
    with world.alive():
        yield world


def proof(world: World) -> dict[str, Any]:
    """Once nothing more is sent: that everything is there, once, and was at each snapshot."""
    last = world.start_once()
    say("verify")
    result = verify(world.config, source=True, all_snapshots=True)
    mirror = catalog_for(world.config.catalog).open().load_table(people.TABLE)
    odd = list(people.differences(world.feeder.people, mirror, COMPARED))
    return {
        "commits": sum(len(list(latencies(each))) for each in world.drivers),
        "events": world.feeder.sent,
        "changes": sum(world.feeder.people.end().values()),
        "failed_batches": sum(broken(each) for each in world.drivers),
        "last_exit": last,
        "verify_clean": not result.violations,
        "violations": [str(each) for each in result.violations] + odd,
        "complete": people.reached(mirror) == world.feeder.people.end(),
    }


def part(
    world: World, seconds: float, warm: float, commits: int = 0
) -> tuple[list[float], list[dict[str, Any]]]:
    """Run for a while and some commits; → seconds from a record's birth to its commit, samples."""
    driver = world.start()
    driver.wait_for_commits()
    driver.wait(lambda _: False, warm)
    skipped = len(list(latencies(driver)))
    samples = []
    end = time.monotonic() + seconds
    while driver.ended is None:
        left = end - time.monotonic()
        if left <= 0 and len(list(latencies(driver))) >= commits:
            break
        driver.wait(lambda _: False, min(SAMPLE_SECONDS, left) if left > 0 else SAMPLE_SECONDS)
        opened = catalog_for(world.config.catalog).open()
        samples.append({name: sampled(opened.load_table(name)) for name in TABLES})
        with (world.folder / "samples.jsonl").open("a") as kept:
            kept.write(json.dumps(samples[-1]) + "\n")
    code = driver.stop()
    if code:
        raise RuntimeError(f"the pipeline ended with {code}: {driver.last_words()}")
    return list(latencies(driver))[skipped:], samples


def latencies(driver: Driver) -> Iterator[float]:
    """Of each commit: the age of its oldest record."""
    for line in driver.lines():
        if line.get("event") == "table_committed" and line.get("latency_seconds") is not None:
            yield line["latency_seconds"]


def rewrites(driver: Driver) -> Iterator[dict[str, Any]]:
    """Several data files that became fewer."""
    for line in driver.lines():
        if line.get("event") == "maintenance_finished" and line["action"] == "rewrite_data_files":
            yield line


def broken(driver: Driver) -> int:
    """Batches that failed."""
    return sum(line.get("event") in ("run_restarting", "run_failed") for line in driver.lines())


def sampled(table: Table) -> dict[str, int]:
    """What must not grow."""
    snapshot = table.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return {
        "data_files": int(summary.get("total-data-files", 0)),
        "delete_files": int(summary.get("total-delete-files", 0)),
        "snapshots": len(table.metadata.snapshots),
        "metadata_bytes": Path(table.metadata_location.removeprefix("file:")).stat().st_size,
    }


def told(samples: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Medians of the three thirds; and of what comes after the first, the most and the trend."""
    third = max(1, len(samples) // 3)
    parts = [samples[:third], samples[third : 2 * third], samples[2 * third :]]
    later = samples[third:] or samples
    found: dict[str, Any] = {}
    for what in ("data_files", "delete_files", "snapshots", "metadata_bytes"):
        found[what] = [
            statistics.median(each[name][what] for each in part) for part in parts if part
        ]
        found[f"most_{what}"] = max(each[name][what] for each in later)
    files = [each[name]["data_files"] for each in later]
    minutes = np.arange(len(files)) * SAMPLE_SECONDS / 60
    trend = np.polyfit(minutes, files, 1)[0] if len(files) > 1 else 0.0
    return found | {"files_trend_per_min": round(float(trend), 2)}


def p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))]


def over(facts: dict[str, Any]) -> list[str]:
    """Which figures are over their bounds."""
    found = [*facts["violations"]]
    if facts["failed_batches"] or facts["last_exit"] or not facts["complete"]:
        found.append("a batch failed, or not everything arrived")
    if facts["freshness_p95_ratio"] > MOST_FRESHNESS:
        found.append(f"freshness {facts['freshness_p95_ratio']}, at most {MOST_FRESHNESS}")
    for name, scan in facts["scans"].items():
        if (ratio := scan["ratio"]) > MOST_SCAN:
            found.append(f"{name}: a scan takes {ratio} of a clean copy's, at most {MOST_SCAN}")
    for name, table in facts["tables"].items():
        if (trend := table["files_trend_per_min"]) > MOST_TREND:
            found.append(f"{name}: {trend} more files each minute, at most {MOST_TREND}")
        if (most := table["most_snapshots"]) > MOST_SNAPSHOTS:
            found.append(f"{name}: {most} snapshots, at most {MOST_SNAPSHOTS}")
        if (most := table["most_metadata_bytes"]) > MOST_METADATA:
            found.append(f"{name}: {most} bytes of metadata, at most {MOST_METADATA}")
    return found


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--keys", type=int, default=KEYS, help="of the mirror, %(default)s")
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=ROOT / "build"))
    facts = soak(folder, options.minutes, options.keys)
    facts["over"] = over(facts)
    (ROOT / "build" / "soak.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))
    if facts["over"]:
        say(f"kept {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
