"""One system takes a backlog of change events into a mirror; → its figures."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lake import Commit
from load import PARTITIONS
from measure import Command, running
from mirror import MirrorLake
from peers import Job
from runs import compare, figures, reaches, wait_for

WARM_SHARE = 0.15
COMMITS = 5  # of icestream's, which would take it all at once


def drain(
    command: Callable[[Job], Command],
    job: Job,
    events: int,
    right: dict[str, int],
    by_all: bool,
) -> dict[str, Any]:
    """Take it as fast as it goes, then read the table: by Spark, or by all readers."""
    assert isinstance(job.lake, MirrorLake)
    started = command(job)
    start = Commit(0, time.time(), 0, 0, 0)
    with running(started) as tree:
        wait_for(events, tree, job.lake)
    commits = job.lake.commits()
    first, last = (reaches(commits, count) for count in (WARM_SHARE * events, events))
    found, scans = job.lake.scans(job.folder / "scans")
    compare(found, right)
    if by_all:
        compare(job.lake.by_pyiceberg(), right)
        compare(job.lake.by_duckdb(), right)
    total = figures(tree, start, commits[last])
    steady = None
    if first < last:
        # Who commits by the clock is not to blame for the wait.
        waited = tree.idle_between(commits[first].at, commits[last].at)
        steady = figures(tree, commits[first], commits[last], waited)
    names = ("records_per_s", "cpu_s_per_million")
    return {name: steady and steady[name] for name in names} | {
        "peak_rss_mb": total["peak_rss_mb"],
        "commits": sum(each.total_records > 0 for each in commits),
        **scans,
        "total": total,
        "steady": steady,
    }


def job_for(folder: Path, bootstrap: str, topic: str, lake: MirrorLake, events: int) -> Job:
    """Commits every ten seconds, for all."""
    # Shares of partitions are rounded down: a little more, or a handful is left for a sixth.
    return Job(folder, bootstrap, topic, lake, False, events // COMMITS + 2 * PARTITIONS)
