"""One run of one system: a backlog taken at full speed, or a steady trickle; → its figures."""

import time
from typing import Any

import numpy as np
from lake import Commit, Lake, expected
from load import Trickle, records_of
from measure import Tree, running
from peers import Job, Peer

WARM_RECORDS, WARM_SHARE = 2_000_000, 0.2
PATIENCE_SECONDS = 180
LIVE_RATE = 5_000


class Failed(Exception):
    """A system ended, stood still, or its table is not what was loaded."""


def drain(peer: Peer, job: Job, right: dict[str, int]) -> dict[str, Any]:
    """Take a backlog as fast as it goes."""
    command = peer.command(job)
    start = Commit(0, time.time(), 0, 0, 0)
    with running(command) as tree:
        wait_for(right["rows"], tree, job.lake)
    compare(job.lake.check(), right)
    commits = job.lake.commits()
    warm = min(WARM_RECORDS, WARM_SHARE * right["rows"])
    first, last = (reaches(commits, records) for records in (warm, right["rows"]))
    total = figures(tree, start, commits[last])
    # A system that commits by the clock is not to blame for the wait before its last commit.
    waited = tree.idle_between(commits[last - 1].at, commits[last].at) if last else 0.0
    steady = figures(tree, commits[first], commits[last], waited) if first < last else None
    # Without a steady state there is no figure: one with start-up in it compares with nothing.
    names = ("records_per_s", "cpu_s_per_million")
    return {name: steady and steady[name] for name in names} | {
        "peak_rss_mb": total["peak_rss_mb"],
        "commits": last + 1,
        "total": total,
        "steady": steady,
    }


def reaches(commits: list[Commit], records: float) -> int:
    """Number of the first commit after which the table holds that many."""
    return next(n for n, each in enumerate(commits) if each.total_records >= records)


def figures(tree: Tree, first: Commit, last: Commit, waited: float = 0.0) -> dict[str, float]:
    """What happened between two commits."""
    records = last.total_records - first.total_records
    seconds = last.at - first.at - waited
    cpu = tree.cpu_at(last.at) - tree.cpu_at(first.at)
    return {
        "records": records,
        "seconds": round(seconds, 2),
        "waited_s": round(waited, 2),
        "records_per_s": round(records / seconds),
        "cpu_s_per_million": round(cpu / records * 1e6, 3),
        "peak_rss_mb": round(tree.peak_rss(first.at, last.at) / 1e6),
        "data_files": last.total_files - first.total_files,
        "data_bytes": last.total_bytes - first.total_bytes,
    }


def live(peer: Peer, job: Job, times: tuple[int, int]) -> dict[str, Any]:
    """Follow a trickle; freshness is taken after some warm-up, over a fixed time."""
    warm_seconds, seconds = times
    trickle = Trickle(job.bootstrap, job.topic, LIVE_RATE)
    with running(peer.command(job)) as tree:
        trickle.start()
        try:
            wait_for(1, tree, job.lake)
            begin = job.lake.commits()[-1].at + warm_seconds
            end = begin + seconds
            time.sleep(max(0.0, end + 1 - time.time()))
        finally:
            sent = trickle.stop()
        wait_for(sent, tree, job.lake)
        cores = (tree.cpu_at(end) - tree.cpu_at(begin)) / seconds
    if (arrived := records_of(job.bootstrap, job.topic)) != sent:
        raise Failed(f"the broker holds {arrived} of {sent} records")
    compare(job.lake.check(), expected(sent) | {"created": None})
    values = job.lake.freshness(begin, end)
    if len(values) < 0.8 * seconds * LIVE_RATE:
        raise Failed(f"only {len(values)} records were committed in the {seconds} s measured")
    p50, p95, worst = np.percentile(values, [50, 95, 100])
    return {
        "freshness_p50_s": round(p50, 3),
        "freshness_p95_s": round(p95, 3),
        "freshness": {
            "max_s": round(worst, 3),
            "records": len(values),
            "commits": sum(begin <= each.at < end for each in job.lake.commits()),
            "cores": round(cores, 2),
        },
    }


def wait_for(records: int, tree: Tree, lake: Lake) -> None:
    """Return when the table holds that many, as long as it keeps growing."""
    held, since = 0, time.monotonic()
    while held < records:
        code = tree.process.poll()  # asked first: it may end of itself when it is done
        found = lake.commits()[-1:]
        if found and found[0].total_records > held:
            held, since = found[0].total_records, time.monotonic()
        elif code is not None:
            raise Failed(f"it ended with {code} at {held} of {records} records")
        elif time.monotonic() - since > PATIENCE_SECONDS:
            raise Failed(f"no commit in {PATIENCE_SECONDS} s, {held} of {records} records")
        else:
            time.sleep(0.1)


def compare(found: dict[str, int], right: dict[str, int | None]) -> None:
    wrong = [
        f"{name} {found[name]} instead of {value}"
        for name, value in right.items()
        if value is not None and found[name] != value
    ]
    if wrong:
        raise Failed("the table is not what was loaded: " + ", ".join(wrong))
